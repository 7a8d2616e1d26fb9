"""HTCondor's own readers take the logs that MXQ writes: JobEventLog of its Python bindings, condor_wait, and two more.

The bindings are the wheel `htcondor` from PyPI in build/venv-htcondor, made
when it is missing, and kept; the programs are those of tests/harness/trixie.py.
"""

import json
import os
import re
import shutil

import pytest

from tests.harness import records, trixie
from tests.harness.owing import events, fill, owing
from tests.harness.sandbox import TREE
from tests.harness.snippet import run_snippet
from tests.harness.trixie import Locked, run

pytestmark = pytest.mark.timeout_s(1500)

READ = """
import json, sys
try:
    import htcondor2 as htcondor
except ImportError:
    import htcondor
for event in htcondor.JobEventLog(sys.argv[1]).events(stop_after=0):
    found = {name: event[name] if isinstance(event[name], (int, float, str)) else str(event[name]) for name in event}
    found.update(type=int(event.type), cluster=event.cluster, time=event.timestamp)
    print(json.dumps(found))
"""
# What the queue is told of, in the order in which it happens to each job.
LIFE = """
    import json
    from mxqlib import jobqueue
    from mxqlib.jobqueue import jobs, outcomes
    queue = jobqueue.open_queue(os.path.join(os.environ["MXQ_DIR"], "queue.db"))
    log = [{"sink": "log", "path": sys.argv[1]}]
    fields = {"name": sys.argv[2], "cwd": "/tmp", "deliveries": log, "retries": 1}
    with queue.transaction():
        jobs.submit(queue, fields, [["make", "-j4"]], "held")
        jobs.submit(queue, dict(fields, restart="always"), [["true"]])
        jobs.submit(queue, dict(fields, retries=0), [["true"], ["true"]])
    with queue.transaction():
        jobs.hold(queue, 2, "not now\\n...\\n")
        jobs.release(queue, 1)
        jobs.release(queue, 2)
        jobs.cancel(queue, 3)
    queue.close()
    """


@pytest.fixture(scope="module")
def read():
    """A function: path of a log -> events as the bindings give them."""
    venv = TREE / "build" / "venv-htcondor"
    with Locked(venv):
        if not (venv / "complete").exists():
            shutil.rmtree(venv, ignore_errors=True)
            assert run("/usr/bin/python3", "-m", "venv", venv).returncode == 0
            done = run(venv / "bin/python", "-m", "pip", "install", "-q", "htcondor>=24")
            if done.returncode:
                pytest.skip("machine cannot: get the wheel htcondor: %s" % done.stdout.strip()[-300:])
            (venv / "complete").touch()

    def read_log(path):
        done = run(venv / "bin/python", "-c", READ, path)
        assert done.returncode == 0, done.stdout
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    return read_log


@pytest.fixture(scope="module")
def condor():
    """A function: (log, program, argument...) -> CompletedProcess; the argument LOG stands for the log."""
    root = trixie.need()

    def run_condor(log, program, *argv, timeout=60):
        copy = root / "tmp" / ("log-%d" % os.getpid())
        shutil.copy(log, copy)
        try:
            return run("chroot", root, program, *["/tmp/" + copy.name if word == "LOG" else word for word in argv],
                       timeout=timeout)
        finally:
            copy.unlink()

    return run_condor


def make_log(sandbox, name="make"):
    """A log with all events, of jobs 1 to 4 and of two runs that no queue knew; returns its path."""
    log = sandbox.work / "log"
    fill(sandbox)
    run_snippet(sandbox, LIFE, str(log), name)
    asked = [{"sink": "log", "path": str(log)}]
    for run_id, status in (("1.1", 3 << 8), ("1.2", 0), ("2.1", None), ("2.2", 15), ("4.1", 0x8b)):
        reason = {None: "lost", 15: "time"}.get(status)
        fill(sandbox, records.make_ended(run_id, status, reason=reason, deliveries=asked, memory=1 << 30, cwd="/tmp",
                                         date_submit=None))
        sandbox.run("mxq-collect", check=True)
    fill(sandbox, owing(sandbox, 1, status=None, log="log"))
    sandbox.run("mxq-collect", check=True)
    assert sandbox.run("mxq-reap", "--log", log, "-N", name, "--", "sh", "-c", "exit 7").returncode == 7
    sandbox.run("mxq-collect", check=True)
    return log


EXPECTED = {1: [0, 12, 13, 1, 4, 1, 5], 2: [0, 12, 13, 1, 4, 1, 5], 3: [0, 9], 4: [0, 1, 5], 5: [0, 1, 9], 6: [0, 1, 5]}
ODD = "\u00fc \udcff [x] DAG Node: y"


@pytest.mark.parametrize("name", ["make", ODD])
def test_the_bindings_read_every_event(sandbox, read, name):
    log = make_log(sandbox, name)
    found = read(log)
    assert {job: [event["type"] for event in found if event["cluster"] == job] for job in EXPECTED} == EXPECTED
    assert len(found) == sum(map(len, EXPECTED.values()))
    ids = []
    for event in found:
        place = {0: "LogNotes", 1: "ExecuteProps", 5: "AssignedMxqEvent", 12: "HoldReason"}.get(event["type"], "Reason")
        ids.append((event["type"], re.search(r'(?:MxqEvent = ")?([\w.-]+/0\d\d(?:\.\d+)?)"?', event[place]).group(1)))
    assert ids == events(log), "the stable id comes through the reader, and is the one in the text"


def test_the_bindings_read_how_it_ended(sandbox, read):
    found = read(make_log(sandbox))
    retried, last = (event for event in found if event["cluster"] == 1 and event["type"] in (4, 5))
    assert (retried["TerminatedAndRequeued"], retried["TerminatedNormally"], retried["ReturnValue"]) == (True, True, 3)
    assert (last["TerminatedNormally"], last["ReturnValue"]) == (True, 0)
    assert (last["RequestCpus"], last["Cpus"], last["RequestMemory"], last["MemoryUsage"]) == (1, 1, 1024, 1)
    lost, killed = (event for event in found if event["cluster"] == 2 and event["type"] in (4, 5))
    assert not lost["TerminatedAndRequeued"] and "nobody can know" in lost["Reason"]
    assert (killed["TerminatedBySignal"], killed["AssignedMxqReason"]) == (15, "time") and "CoreFile" not in killed
    dumped = next(event for event in found if event["cluster"] == 4 and event["type"] == 5)
    assert (dumped["TerminatedBySignal"], dumped["CoreFile"]) == (11, "/tmp/core")
    assert next(event for event in found if event["cluster"] == 6 and event["type"] == 5)["ReturnValue"] == 7
    ended = records.make_ended()["date_end"]
    assert {event["EventTime"] for event in found if event["cluster"] == 4 and event["type"] == 5} == {ended[:19]}


def test_the_bindings_follow_a_log_that_grows_in_batches(sandbox, read):
    fill(sandbox, *(owing(sandbox, n, log="log") for n in range(1, 301)))
    sandbox.run("mxq-collect", check=True)
    found = read(sandbox.work / "log")
    assert len(found) == 900 and {event["type"] for event in found} == {0, 1, 5}
    for job in range(1, 301):
        assert [event["type"] for event in found if event["cluster"] == job] == [0, 1, 5]


def test_condor_wait_sees_the_jobs_end(sandbox, condor):
    log = make_log(sandbox, ODD)
    done = condor(log, "condor_wait", "-status", "-wait", "5", "LOG")
    assert done.returncode == 0 and "All jobs done." in done.stdout, done.stdout
    for job, end in ((1, "completed"), (2, "completed"), (3, "aborted"), (4, "completed"), (5, "aborted")):
        assert "%d.0.0 submitted\n" % job in done.stdout and "%d.0.0 %s\n" % (job, end) in done.stdout
    assert condor(log, "condor_wait", "-wait", "5", "LOG", "6").returncode == 0


def test_condor_wait_waits_for_a_job_that_has_not_ended(sandbox, condor):
    asked = [{"sink": "log", "path": str(sandbox.work / "log")}]
    fill(sandbox, records.make_running("1.1", deliveries=asked))
    sandbox.run("mxq-collect", check=True)
    done = condor(sandbox.work / "log", "condor_wait", "-wait", "1", "LOG")
    assert done.returncode == 1 and "All jobs done" not in done.stdout


def test_htcondors_own_checks_are_content(sandbox, condor):
    """Each job is submitted once and ends once; the sums can be made."""
    log = make_log(sandbox)
    done = condor(log, "condor_check_userlogs", "LOG")
    assert done.returncode == 0 and "Log(s) are okay" in done.stdout, done.stdout
    done = condor(log, "condor_userlog", "LOG")
    assert done.returncode == 0 and re.search(r"(?m)^6\.0 ", done.stdout), done.stdout
