"""What is owed is told at least once, whatever mxq-collect dies of or meets between the spool and the last delivery.

Each test ends with one more, unharmed mxq-collect; then the queue has the
outcome once, the log each event in its order, the record its line, and the
mail was handed over with one and the same Message-ID.
"""

import email
import json
import signal
import subprocess

import pytest

from tests.harness import oracle, order, records, strace
from tests.harness.faults import report
from tests.harness.owing import events, fill, owed, owing

pytestmark = [pytest.mark.needs("strace"), pytest.mark.timeout_s(1200)]

FRONT = {"front": "-"}
RUN, OTHER = records.make_run_id(1), records.make_run_id(2)
OUTCOMES = {RUN: 768, OTHER: 0}
# What changes what others see on files; the rest is between such calls.
EFFECTS = ("openat", "pwrite64", "write", "fsync", "fdatasync", "fallocate", "ftruncate", "rename", "unlink", "flock")
# Besides calls on files: how a mailer is started and waited for.
PROCESSES = ("clone", "vfork", "pipe2", "pidfd_open", "poll", "waitid", "wait4", "rt_sigtimedwait", "exit_group")


def owing_all(sandbox):
    """Two outcomes that share a log and a record file; one owes mail and a hook besides."""
    fill(sandbox, owing(sandbox, 1, log="log", line="lines", mail="joe", hook="cat >>hooked"),
         owing(sandbox, 2, status=0, log="log", line="lines"))
    return ["mxq-collect"]


def owing_committed(sandbox):
    """The same when the commit was made by an mxq-collect --no-deliver."""
    owing_all(sandbox)
    sandbox.run("mxq-collect", "--no-deliver", check=True)
    return ["mxq-collect", "--deliver"]


def work_files(sandbox):
    """What a delivery is made to."""
    return [sandbox.work, sandbox.work / "log", sandbox.work / "lines"]


def all_files(sandbox):
    """The installation and what deliveries are made to."""
    made = ["", "queue.db", "queue.db-wal", "queue.db-shm", "queue.db-owed", "queue.db-deliverer", "spool",
            "spool/runs"]
    return sorted({sandbox.mxq_dir / name for name in made} | set(sandbox.mxq_dir.glob("**/*"))) + work_files(sandbox)


def told(sandbox):
    """What everybody heard: events of the log in the order in which they came first, and how many came again; ids of
    events in lines and hooks; Message-IDs of mails."""
    log = sandbox.work / "log"
    found = events(log)
    firsts = list(dict.fromkeys(found))
    texts = {name: (sandbox.work / name).read_text() if (sandbox.work / name).exists() else ""
             for name in ("lines", "hooked")}
    return {"log": firsts, "twice": len(found) - len(firsts),
            "lines": [json.loads(line)["event"] for line in texts["lines"].splitlines()],
            "hooks": [json.loads(line)["event"] for line in texts["hooked"].splitlines()],
            "mails": [email.message_from_string(text)["Message-ID"] for text in sandbox.mails()]}


def check(sandbox, *options, exactly=False):
    """One more mxq-collect, and everything was told."""
    found = told(sandbox)       # no half event, no half line, in the mean time either
    done = sandbox.run("mxq-collect", *options)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    oracle.check(sandbox, OUTCOMES)
    assert owed(sandbox) == {}
    found = told(sandbox)
    jobs = {row["run"]: row["job"] for row in sandbox.queue("SELECT run, job FROM run")}
    for run in OUTCOMES:
        mine = [event for event in found["log"] if event[1].split("/")[0] in (run, str(jobs[run]))]
        assert mine == [(0, "%d/000" % jobs[run]), (1, run + "/001"), (5, run + "/005")], found["log"]
    assert set(found["lines"]) == {RUN + "/005", OTHER + "/005"}
    assert set(found["hooks"]) == {RUN + "/005"}
    assert len(set(found["mails"])) == 1, found["mails"]
    most = 1 if exactly else 2
    assert found["twice"] == 0, "a log is looked at before it is written"
    assert len(found["lines"]) == 2
    assert len(found["hooks"]) <= most and len(found["mails"]) <= most
    assert not (sandbox.mxq_dir / "queue.db-owed").exists()


# --- kill -------------------------------------------------------------------------

def kill_each(workload, tally, **options):
    failures = []
    for point in strace.crashpoints(workload, strace.kill_before, roles=FRONT, **options):
        with point.strike(failures) as traced:
            traced.end()
            assert traced.returncode in (0, -signal.SIGKILL)
            check(traced.sandbox)
        tally["kill"] += point.fired[0]
    report(failures)
    assert tally["kill"] > 5


@pytest.mark.quick
def test_kill_before_each_write_of_what_is_delivered(tally):
    kill_each(owing_committed, tally, paths=work_files, names=("write", "fsync", "fallocate"))


def test_kill_at_each_change_of_a_file_from_the_spool_to_the_last_delivery(tally):
    kill_each(owing_all, tally, paths=all_files, names=EFFECTS)


@pytest.mark.long
def test_kill_at_each_call_on_a_file_from_the_spool_to_the_last_delivery(tally):
    kill_each(owing_all, tally, paths=all_files)


def test_kill_at_each_call_by_which_a_mailer_is_run(tally):
    kill_each(owing_committed, tally, names=PROCESSES)


# --- errors -----------------------------------------------------------------------

ERRORS = {"EIO": "openat pread64 pwrite64 write fsync fdatasync rename unlink ftruncate fallocate newfstatat flock",
          "ENOSPC": "openat pwrite64 write fsync fdatasync rename fallocate ftruncate"}
ERRORS_OF_FILES = {
    "EDQUOT": "write fallocate fsync", "ENOLCK": "fcntl", "EINTR": "openat write fsync fcntl", "EAGAIN": "fcntl",
    "EROFS": "openat ftruncate", "ESTALE": "write fsync newfstatat", "EACCES": "openat"}


def fail_each(errno, names, sticky, files, tally):
    """Have each call fail; it is said, no half event is seen, and what failed is delivered when it is asked for."""
    def make(call, n, role):
        return strace.fail(call, n, errno, sticky, role)

    called = {name for name, _n in strace.numbered_calls(owing_all, "front", roles=FRONT, paths=files)}
    names, failures = [name for name in names.split() if name in called], []
    for point in strace.crashpoints(owing_all, make, names=names, roles=FRONT, paths=files):
        with point.strike(failures) as traced:
            traced.end(60)
            assert "Traceback" not in traced.stderr(), traced.stderr()
            assert traced.returncode in (0, 69, 73, 74, 75, 77), "status %s" % traced.returncode
            assert traced.returncode == 0 or traced.stderr().startswith("mxq-collect: ")
            check(traced.sandbox, "--retry")
        tally["error"] += point.fired[0]
    report(failures)


@pytest.mark.parametrize("sticky", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("errno", ERRORS)
def test_error_at_each_call_on_a_file(errno, sticky, tally):
    fail_each(errno, ERRORS[errno], sticky, all_files, tally)


@pytest.mark.parametrize("errno, sticky", [(errno, sticky) for errno in ERRORS_OF_FILES for sticky in (False, True)
                                           if (errno, sticky) not in (("EINTR", True), ("EAGAIN", True))])
def test_error_at_each_call_on_what_is_delivered_to(errno, sticky, tally):
    fail_each(errno, ERRORS_OF_FILES[errno], sticky, work_files, tally)


@pytest.mark.parametrize("errno, names", [("EMFILE", ("pipe2", "memfd_create")), ("EAGAIN", ("clone", "vfork", "fork")),
                                          ("ENOMEM", ("clone", "vfork")), ("EPERM", ("prctl", "pidfd_open"))])
@pytest.mark.parametrize("sticky", [False, True], ids=["once", "from then on"])
def test_a_mailer_that_cannot_be_started(errno, names, sticky, tally):
    def make(call, n, role):
        return strace.fail(call, n, errno, sticky, role)

    called = {name for name, _n in strace.numbered_calls(owing_committed, "front", roles=FRONT)}
    failures = []
    names = [name for name in names if name in called]
    for point in strace.crashpoints(owing_committed, make, names=names, roles=FRONT):
        with point.strike(failures) as traced:
            traced.end(60)
            assert "Traceback" not in traced.stderr(), traced.stderr()
            check(traced.sandbox, "--retry")
        tally["error"] += point.fired[0]
    report(failures)


# --- order ------------------------------------------------------------------------

@pytest.mark.quick
def test_nothing_is_told_before_the_outcome_is_durable_nor_marked_before_it_is_told():
    calls = strace.record(owing_all, again=False, roles=FRONT)
    queue = next(path for call in calls for path in call.paths if path.endswith("/mxq/queue.db"))
    commits = [call for call in calls if call.name == "fdatasync" and call.paths == (queue + "-wal",)]
    log = [call for call in calls if call.paths and call.paths[0].endswith("/work/log")]
    write = next(call for call in log if call.name == "write")
    synced = next(call for call in log if call.name == "fsync" and call.began > write.ended)
    runs = [call for call in calls if call.name == "unlink" and "/spool/runs/" in call.paths[0]]
    assert len(runs) == 2 and commits
    assert any(call.ended < write.began for call in commits)
    assert all(call.ended < write.began for call in runs)
    assert any(call.began > synced.ended for call in commits)
    assert not order.early_unlinks(calls, runs[0].paths[0].rpartition("/")[0], queue)


# --- rivals -----------------------------------------------------------------------

def test_freeze_at_each_call_and_run_a_rival(tally):
    """One at a time: the rival leaves the deliveries to the frozen one, and everything is told once."""
    failures = []
    for point in strace.crashpoints(owing_committed, strace.freeze_after, roles=FRONT, paths=all_files,
                                    names=("openat", "flock", "fdatasync", "unlink", "write", "fsync")):
        with point.strike(failures) as traced:
            traced.wait_for(lambda: traced.frozen("front") or traced.ended())
            if traced.frozen("front"):
                rival = traced.sandbox.spawn("mxq-collect")
                try:
                    rival.wait(0.3)
                except subprocess.TimeoutExpired:
                    pass
                traced.thaw("front")
                said = rival.communicate(timeout=30)[1]
                assert (rival.returncode, said) == (0, "")
            traced.end()
            assert traced.returncode == 0, traced.stderr()
            check(traced.sandbox, exactly=True)
        tally["freeze"] += point.fired[0]
    report(failures)
    assert tally["freeze"] > 10
