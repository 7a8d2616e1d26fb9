"""mxq-run: a job that was claimed runs once, whatever is killed, fails or is frozen between the claim and the outcome.

The jobs write down that they began and ended, so each test knows the truth. Each ends with recovery: mxq-adopt,
mxq-collect and mxq-run until nothing waits.
"""

import shutil
import tempfile
from pathlib import Path

import pytest

from tests.harness import oracle, order, strace
from tests.harness.adopting import reap_all
from tests.harness.faults import DISK, ROOM, error_points, is_meant, report
from tests.harness.reaping import words
from tests.harness.sandbox import Sandbox

pytestmark = [pytest.mark.needs("strace"), pytest.mark.usefixtures("parent"), pytest.mark.timeout_s(1800)]

# `busy` is there while the job runs: of two at once one finds it.
JOB = "mkdir busy || echo overlap >>job; echo begun >>job; sleep 0.03; echo ended >>job; rmdir busy; exit 3"
TRUE_STATUS = 3 << 8
ROLES = {"front": "-", "reaper": "0", "main": "0.0"}
EFFECTS = ("flock", "fsync", "fdatasync", "pwrite64", "write", "rename", "unlink", "clone", "sendmsg",
           "recvmsg", "fallocate", "ftruncate", "waitid", "wait4", "setsid", "exit_group")
# To fail: of the calls of mxq-run those that are ours; SQLite's are tried with mxq-collect and mxq-sub.
OURS = "write fsync rename unlink mkdir chmod fallocate ftruncate clone memfd_create pipe2 close"
STEPS = ("fdatasync", "clone", "sendmsg", "unlink")


class Workload:
    """A queue with `count` jobs, made once and copied for each point."""

    def __init__(self, count, *argv):
        self.count, self.argv, self.stored = count, list(argv), None

    def __call__(self, sandbox):
        if self.stored is None:
            self.stored = Path(tempfile.mkdtemp(prefix="mxq-prepared-"))
            box = Sandbox()
            try:
                box.run("mxq-sub", "-w", "/", "-f", "-", input=(JOB + "\n") * self.count, check=True)
                shutil.copytree(box.mxq_dir, self.stored / "mxq")
            finally:
                box.close()
        shutil.copytree(self.stored / "mxq", sandbox.mxq_dir)
        import sqlite3
        with sqlite3.connect(sandbox.queue_file) as db:
            db.execute("UPDATE job SET cwd = ?, stdout = '/dev/null', environment = NULL", (str(sandbox.work),))
        db.close()
        return self.argv

    def remove(self):
        """Forget what was prepared."""
        if self.stored is not None:
            shutil.rmtree(self.stored)
            self.stored = None


ONE = Workload(1, "mxq-run", "-j", "1")
STAYING = Workload(1, "mxq-run", "-j", "1", "--wait")
TWO = Workload(2, "mxq-run", "-j", "1")
BOTH_STAYING = Workload(2, "mxq-run", "-j", "1", "--wait")


@pytest.fixture(scope="module", autouse=True)
def prepared():
    """Remove what the workloads prepared."""
    yield
    for workload in (ONE, STAYING, TWO, BOTH_STAYING):
        workload.remove()


def recover(traced):
    """Have what was left lying seen to by whoever it is for, until no job waits or runs."""
    box = traced.sandbox
    see_to(traced, ["mxq-adopt"], ["mxq-collect"])
    for _ in range(4):
        states = [row["state"] for row in box.queue("SELECT state FROM job")]
        if not {"queued", "loaded", "running"}.intersection(states):
            break
        see_to(traced, ["mxq-ctl", "resume"], ["mxq-run", "-j", "1"], ["mxq-collect"], ["mxq-adopt"])
    else:
        raise AssertionError("the jobs are %s" % states)
    see_to(traced, ["mxq-adopt"])       # it knows now that nobody needs the lock files


def see_to(traced, *commands):
    """Run commands one after the other; what they start ends."""
    for argv in commands:
        done = traced.sandbox.run(*argv)
        assert done.returncode == 0, (argv, done)
        if argv[0] in ("mxq-run", "mxq-adopt"):
            traced.wait_for(lambda: not traced.sandbox.pids(), what="the end of everything")


def judge(traced, workload, may_be_lost=False):
    """Each job ran once, alone, and that is known."""
    box = traced.sandbox
    assert "Traceback" not in traced.stderr(), traced.stderr()
    for log in (box.spool / "output").glob("*.log"):
        assert "Traceback" not in log.read_text(), log.read_text()
    recover(traced)
    found = words(box)
    assert found == ["begun", "ended"] * workload.count, found
    runs = {row["run"]: row for row in box.queue("SELECT run, state, status FROM run WHERE state <> 'cancelled'")}
    lost = [run for run, row in runs.items() if row["state"] == "lost"]
    assert len(runs) == workload.count and (may_be_lost or not lost), [tuple(row) for row in runs.values()]
    oracle.check(box, {run: TRUE_STATUS for run in runs if run not in lost}, lost=lost)
    assert not [path.name for path in (box.mxq_dir / "runners").iterdir() if path.name[0].isdigit()]


# ---- kill ----

def kill_each(workload, role, names, tally, may_be_lost=False):
    """Kill a process before each of its calls."""
    failures = []
    for point in strace.crashpoints(workload, strace.kill_before, role=role, names=names, roles=ROLES):
        with point.strike(failures) as traced:
            traced.wait_for(traced.ended)
            traced.wait_for(lambda: not traced.sandbox.pids(), what="the end of everything")
            judge(traced, workload, may_be_lost)
        reap_all()
        tally["kill"] += bool(point.fired and point.fired[0])
    report(failures)
    assert tally["kill"] > 2


@pytest.mark.quick
def test_kill_of_mxq_run_at_each_step(tally):
    kill_each(ONE, "front", ("fdatasync", "sendmsg"), tally)


@pytest.mark.parametrize("workload", [ONE, STAYING], ids=["", "wait"])
def test_kill_of_mxq_run_at_each_call(workload, tally):
    kill_each(workload, "front", EFFECTS, tally)


def test_kill_of_its_reaper_at_each_call(tally):
    """Only who reaped MAIN knew how it ended: one that is killed between that and the outcome takes it along."""
    kill_each(ONE, "reaper", EFFECTS, tally, may_be_lost=True)


def test_kill_of_the_reaper_at_each_call_is_made_good_by_mxq_run_that_waits(tally):
    kill_each(STAYING, "reaper", EFFECTS, tally)


def test_a_gate_that_closes_while_main_is_late(tally):
    """MAIN is stopped before it comes to its gate; when the reaper dies before it opens that, the job has not run, and
    mxq-run that waits has not called it lost."""
    failures = []
    late = strace.freeze_after("write", 1, role="main")
    for point in strace.crashpoints(STAYING, strace.kill_before, role="reaper", names=("write",), also=(late,),
                                    roles=ROLES):
        with point.strike(failures) as traced:
            traced.wait_for(lambda: traced.frozen("main") or traced.ended())
            if traced.frozen("main"):
                try:
                    traced.wait_for(lambda: "in its place" in traced.stderr(), 0.3)
                except AssertionError:
                    pass                # the reaper lives, as it waits for MAIN, or mxq-run knows enough already
                traced.thaw("main")
            traced.wait_for(traced.ended)
            traced.wait_for(lambda: not traced.sandbox.pids(), what="the end of everything")
            judge(traced, STAYING)
        reap_all()
        tally["kill"] += bool(point.fired and point.fired[0])
    report(failures)
    assert tally["kill"]


# ---- errors ----

def fail_each(workload, role, errno, sticky, tally):
    """Have each call fail for which this error makes sense."""
    failures = []
    names = OURS + (" openat" if errno in ("EIO", "EMFILE") and not sticky else "")
    for point in error_points(workload, role, errno, sticky, names, roles=ROLES):
        with point.strike(failures) as traced:
            traced.wait_for(traced.ended, 60)
            traced.wait_for(lambda: not traced.sandbox.pids(), what="the end of everything")
            if is_meant(traced, point):
                assert traced.returncode in (0, 69, 73, 74, 75, 77), traced
                assert traced.returncode == 0 or "mxq-run: " in traced.stderr() or point.faults[0].call == "write"
                judge(traced, workload)
        reap_all()
        tally["error"] += bool(point.fired and point.fired[0])
    report(failures)


@pytest.mark.parametrize("errno", [*DISK, *ROOM])
def test_error_of_mxq_run_at_each_call_once(errno, tally):
    fail_each(ONE, "front", errno, False, tally)


@pytest.mark.parametrize("errno", ["EIO", "ENOSPC", "EROFS", "ESTALE", "EMFILE", "EAGAIN"])
def test_error_of_mxq_run_at_each_call_from_then_on(errno, tally):
    fail_each(ONE, "front", errno, True, tally)


@pytest.mark.parametrize("errno", ["EIO", "ENOSPC", "EMFILE", "EAGAIN", "EINTR"])
def test_error_of_its_reaper_at_each_call_once(errno, tally):
    fail_each(ONE, "reaper", errno, False, tally)


@pytest.mark.quick
def test_a_lock_file_that_cannot_be_removed():
    """One that is there and free says that the gate was not opened, so it is not: nobody may run it a second time."""
    fault = strace.fail("unlink", 1, "EROFS", role="reaper")
    with strace.Point(ONE, (fault,), {"roles": ROLES}).strike() as traced:
        traced.wait_for(traced.ended)
        traced.wait_for(lambda: not traced.sandbox.pids(), what="the end of everything")
        assert traced.fired(fault) and words(traced.sandbox) == []
        judge(traced, ONE)


# ---- order ----

@pytest.mark.parametrize("workload", [pytest.param(ONE, marks=pytest.mark.quick, id="leaves"),
                                      pytest.param(STAYING, id="waits")])
def test_order_of_the_calls(workload):
    """The gate opens when the record is durable; the claim is committed before the reaper hears of the job."""
    calls = strace.record(workload, again=False, roles=ROLES)
    spool = next(path for call in calls for path in call.paths if path.endswith("/mxq/spool/runs"))[:-len("/runs")]
    database = spool[:-len("spool")] + "queue.db"
    assert not order.unsynced_renames(calls, spool)

    def opens_gate(call):
        return call.name == "write" and call.paths and call.paths[0].startswith("pipe:") and call.data() == b"x"

    assert len([call for call in calls if opens_gate(call)]) == 1
    assert not order.early_promises(calls, spool, opens_gate)
    assert not order.early_words(calls, database, lambda call: call.name == "sendmsg")


# ---- rivals ----

def freeze_each(workload, role, names, tally):
    """Freeze one mxq-run after each call, and have another one start what it finds; then the first goes on."""
    failures = []
    for point in strace.crashpoints(workload, strace.freeze_after, role=role, names=names, roles=ROLES):
        with point.strike(failures) as traced:
            traced.wait_for(lambda: traced.frozen(role) or (traced.ended() and not traced.sandbox.pids()))
            if traced.frozen(role):
                rival = traced.sandbox.spawn("mxq-run", "-j", "1")
                try:
                    rival.wait(0.15)            # or it waits for a lock that the frozen one holds
                except strace.subprocess.TimeoutExpired:
                    pass
                traced.thaw(role)
                said = rival.communicate(timeout=30)[1]
                assert (rival.returncode, said) == (0, ""), said
            traced.wait_for(traced.ended)
            assert traced.returncode == 0, traced
            traced.wait_for(lambda: not traced.sandbox.pids(), what="the end of everything")
            judge(traced, workload)
        reap_all()
        tally["freeze"] += bool(point.fired and point.fired[0])
    report(failures)
    assert tally["freeze"] > 2


@pytest.mark.quick
def test_two_at_once_around_each_claim(tally):
    freeze_each(TWO, "front", ("fdatasync",), tally)


@pytest.mark.parametrize("role", ["front", "reaper"])
def test_two_at_once_at_each_call(role, tally):
    freeze_each(TWO, role, [name for name in EFFECTS if name != "pwrite64"], tally)


def test_two_at_once_one_of_which_waits(tally):
    freeze_each(BOTH_STAYING, "front", STEPS, tally)
