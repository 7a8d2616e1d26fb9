"""mxq-reap inside a real Grid Engine: it sees the true status, our record has its ids, and nothing is invented.

Jobs are scripts that end in `exec mxq-reap`: what the shepherd starts and waits for is then the front, and as it leads
its session, signals to the job's process group reach front and MAIN. Grid Engine (8.1.9) kills every process with the
job's added group id at once, ours too, and warns before only with -notify.
"""

import functools
import re

import pytest

from tests.harness import outside
from tests.harness.outside import STATE_S, wait_ready
from tests.harness.sandbox import BIN, wait_for
from tests.harness.sge import GridEngine
from tests.harness.users import as_ordinary_user

pytestmark = [pytest.mark.as_root, pytest.mark.timeout_s(240)]

# After a KILL to every process: the reaper got it, too, a moment before or after it had written what it saw of MAIN.
KILLED = (("lost", None, None), ("failed", None, 9))


@pytest.fixture(scope="module")
def sge():
    cluster = GridEngine()
    yield cluster
    cluster.close()


def submit(sge, box, script, *options):
    """Submit a batch script that runs `script` (without single quotes), and return the number of the job."""
    path = box.work / "job"
    path.write_text("#!/bin/sh\nexec mxq-reap -- sh -c '%s'\n" % script)
    said = inside(sge, box, "qsub", "-terse", "-V", "-cwd", "-o", "out.$JOB_ID", "-j", "y", *options, path)
    return said.strip().partition(".")[0]


def inside(sge, box, *argv, check=True):
    """What a command prints that runs where the jobs do, as their user."""
    return box.run(*sge.command(*as_ordinary_user(box), *argv, cwd=box.work), check=check).stdout


def accounts(sge, job, tasks=1):
    """What qacct says, once Grid Engine knows that all tasks have ended: a dict for each."""
    return wait_for(lambda: len(sge.accounts(job)) == tasks and sge.accounts(job), STATE_S, "the end of job %s" % job)


def status(sge, job):
    """The exit status that Grid Engine has accounted; 128 + n for signal n."""
    return int(accounts(sge, job)[0]["exit_status"].split()[0])


def record_of(box, job):
    """The only record of a job."""
    return outside.record_of(box, "JOB_ID", job)


def ended(box, job):
    """(exit, signal, reason) of the record, once it is there."""
    return outside.ended(box, "JOB_ID", job)


def rows(sge, box):
    """What mxq-ls says once the spool was collected, in the order of the queue."""
    return outside.rows(box, functools.partial(inside, sge, box))


def wait_stopped(sge, box, record):
    """Wait until front and MAIN are; with -notify qstat says so long before."""
    def states():
        return [inside(sge, box, "ps", "-o", "state=", "-p", record[name]["pid"]).strip() for name in ("front", "main")]
    wait_for(lambda: states() == ["T", "T"], STATE_S, "a stopped job")


def no_process_is_left(box):
    wait_for(lambda: box.pids() == [], what="the end of every process")


def test_grid_engine_sees_the_status_and_the_queue_its_ids(sge, sandbox):
    scripts = {"exit 0": (0, 0, None), "exit 3": (3, 3, None), "kill -TERM $$": (143, None, 15),
               "exec /nonexistent": (127, 127, None)}
    jobs = {submit(sge, sandbox, script): expected for script, expected in scripts.items()}
    for job, (seen, code, signum) in jobs.items():
        assert status(sge, job) == seen
        assert ended(sandbox, job) == (code, signum, None)
        assert record_of(sandbox, job)["outer"] == {
            "JOB_ID": job, "SGE_TASK_ID": "undefined", "SGE_CELL": "default", "RESTARTED": "0"}
    assert {row["outer"]["JOB_ID"]: (row["exit"], row["signal"]) for row in rows(sge, sandbox)} == {
        job: expected[1:] for job, expected in jobs.items()}


def test_qsub_waits_and_ends_as_the_job(sge, sandbox):
    (sandbox.work / "job").write_text("#!/bin/sh\nexec mxq-reap -- sh -c 'exit 4'\n")
    done = sandbox.run(*sge.command(*as_ordinary_user(sandbox), "qsub", "-sync", "y", "-V", "-cwd", "-j", "y", "job",
                                    cwd=sandbox.work))
    assert done.returncode == 4
    assert sandbox.record()["exit"] == 4


def test_a_command_line_without_a_script(sge, sandbox):
    """qsub -b y -shell n: the shepherd starts mxq-reap itself; else a login shell reads the words once more."""
    said = inside(sge, sandbox, "qsub", "-terse", "-V", "-cwd", "-j", "y", "-o", "out", "-b", "y", "-shell", "n",
                  BIN / "mxq-reap", "--", "expr", "6", "*", "7")
    assert status(sge, said.strip()) == 0
    assert (sandbox.work / "out").read_text() == "42\n"
    assert ended(sandbox, said.strip()) == (0, None, None)


def test_each_task_of_an_array_has_a_record(sge, sandbox):
    job = submit(sge, sandbox, "exit $SGE_TASK_ID", "-t", "1-3")
    seen = {account["taskid"]: account["exit_status"].split()[0] for account in accounts(sge, job, 3)}
    assert seen == {"1": "1", "2": "2", "3": "3"}
    shown = rows(sge, sandbox)
    assert {row["outer"]["SGE_TASK_ID"]: str(row["exit"]) for row in shown} == seen
    assert {row["outer"]["JOB_ID"] for row in shown} == {job}


def test_qdel(sge, sandbox):
    """KILL to all, ours too: nothing is left, and what nobody has seen is lost."""
    job = submit(sge, sandbox, "sleep 600 & setsid sh -c \"touch ready; sleep 600\"")
    wait_ready(sandbox, "ready")
    inside(sge, sandbox, "qdel", job)
    assert status(sge, job) == 137
    no_process_is_left(sandbox)
    inside(sge, sandbox, "mxq-adopt")
    [row] = rows(sge, sandbox)
    assert (row["state"], row["exit"], row["signal"]) in KILLED


def test_qdel_with_a_warning(sge, sandbox):
    """-notify: USR2 to every process, which is no order to the reaper. The job that ends by it has a true outcome."""
    scripts = {"answers": "trap \"echo >>got; exit 5\" USR2; touch answers; until false; do sleep 0.1; done",
               "dies": "touch dies; exec sleep 600",
               "ignores": "trap \"\" USR2; touch ignores; exec sleep 600"}
    jobs = {name: submit(sge, sandbox, script, "-notify") for name, script in scripts.items()}
    wait_ready(sandbox, *scripts)
    inside(sge, sandbox, "qdel", *jobs.values())
    assert ended(sandbox, jobs["answers"]) == (5, None, None)
    assert ended(sandbox, jobs["dies"]) == (None, 12, None)
    assert [status(sge, jobs[name]) for name in scripts] == [5, 140, 137]
    no_process_is_left(sandbox)
    inside(sge, sandbox, "mxq-adopt")
    shown = {row["outer"]["JOB_ID"]: (row["state"], row["exit"], row["signal"]) for row in rows(sge, sandbox)}
    assert shown.pop(jobs["ignores"]) in KILLED
    assert shown == {jobs["answers"]: ("failed", 5, None), jobs["dies"]: ("failed", None, 12)}


def test_suspend_and_unsuspend(sge, sandbox):
    """STOP to the group stops front and MAIN; with CONT the job goes on, and ends as if nothing had been."""
    job = submit(sge, sandbox, "touch ready; until test -e go; do sleep 0.1; done; exit 4")
    wait_ready(sandbox, "ready")
    record = record_of(sandbox, job)
    inside(sge, sandbox, "qmod", "-sj", job)
    wait_stopped(sge, sandbox, record)
    (sandbox.work / "go").touch()
    wait_for(lambda: sge.state(job) == "s", STATE_S, "a suspended job")
    assert record_of(sandbox, job) == record
    inside(sge, sandbox, "qmod", "-usj", job)
    assert status(sge, job) == 4
    assert ended(sandbox, job) == (4, None, None)


def test_suspend_with_a_warning(sge, sandbox):
    """-notify: USR1 to every process before STOP, which is no order to the reaper."""
    job = submit(sge, sandbox, "trap \"touch warned\" USR1; touch ready; until test -e go; do sleep 0.1; done; exit 4",
                 "-notify")
    wait_ready(sandbox, "ready")
    inside(sge, sandbox, "qmod", "-sj", job)
    wait_ready(sandbox, "warned")
    wait_stopped(sge, sandbox, record_of(sandbox, job))
    (sandbox.work / "go").touch()
    inside(sge, sandbox, "qmod", "-usj", job)
    assert status(sge, job) == 4
    assert ended(sandbox, job) == (4, None, None)


def test_grid_engine_dies_and_the_job_ends_meanwhile(sge, sandbox):
    job = submit(sge, sandbox, "touch ready; until test -e go; do sleep 0.1; done; exit 3")
    wait_ready(sandbox, "ready")
    sge.kill()
    (sandbox.work / "go").touch()
    assert ended(sandbox, job) == (3, None, None)
    sge.start()
    assert status(sge, job) == 3
    [row] = rows(sge, sandbox)
    assert row["exit"] == 3


def test_the_shepherd_dies(sge, sandbox):
    """Grid Engine takes the job for failed and forgets it; it runs on, and its record is true."""
    job = submit(sge, sandbox, "touch ready; until test -e go; do sleep 0.1; done; exit 3")
    wait_ready(sandbox, "ready")
    front = record_of(sandbox, job)["front"]["pid"]
    sge.ask("sh", "-c", "kill -9 $(ps -o ppid= %d)" % front)
    assert int(re.match("[0-9]+", accounts(sge, job)[0]["failed"]).group()) != 0
    (sandbox.work / "go").touch()
    assert ended(sandbox, job) == (3, None, None)
    no_process_is_left(sandbox)


def test_the_reaper_dies(sge, sandbox):
    """The front goes on in its place, and Grid Engine does not notice."""
    job = submit(sge, sandbox, "touch ready; until test -e go; do sleep 0.1; done; exit 3")
    wait_ready(sandbox, "ready")
    inside(sge, sandbox, "kill", "-9", record_of(sandbox, job)["reaper"]["pid"])
    (sandbox.work / "go").touch()
    assert status(sge, job) == 3
    assert ended(sandbox, job) == (3, None, None)


def test_what_cannot_be_recorded_is_not_started(sge, sandbox):
    """Grid Engine sees 125: the folder of the spool cannot be made."""
    sandbox.mxq_dir.write_text("")
    job = submit(sge, sandbox, "touch ran")
    assert status(sge, job) == 125
    assert not (sandbox.work / "ran").exists()
