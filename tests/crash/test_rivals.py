"""mxq-adopt beside a reaper, beside mxq-collect, against errors, twice killed: what runs is left alone, what ended is
told once, what is lost is lost once."""

import pytest

from tests.crash.test_adopt import TRUE_STATUS, adopting, is_idle, reaping
from tests.harness import faults, oracle, order, powerloss, strace
from tests.harness.adopting import kill, reap, reap_all
from tests.harness.faults import error_points, is_meant
from tests.harness.queueing import detach
from tests.harness.reaping import words

pytestmark = [pytest.mark.needs("strace"), pytest.mark.usefixtures("parent"), pytest.mark.timeout_s(1800)]

FRONT = {"front": "-"}
SPOOL_CALLS = ("fallocate", "write", "fsync", "rename", "unlink", "ftruncate")
EFFECTS = SPOOL_CALLS + ("flock", "clone", "setsid", "waitid", "wait4", "exit_group")


def report(failures, tally, what):
    """Fail with all that went wrong, the first three at length."""
    faults.report(failures)
    assert tally[what]


def recover(traced):
    """Let the orphan end, and have everything seen to; the states of the runs."""
    box = traced.sandbox
    traced.wait_for(lambda: box.run("mxq-adopt").returncode == 0)      # 75 until watchers have named themselves
    if not words(box):
        (box.work / "gate").write_text("\n")
    traced.wait_for(lambda: not box.pids(), what="the end of everything")
    for name in ("mxq-adopt", "mxq-collect"):
        done = box.run(name)
        assert (done.returncode, done.stderr) == (0, ""), (name, done)
    return sorted(row["state"] for row in box.queue("SELECT state FROM run"))


def judge_both(traced):
    """The orphan of adopting() ended as it did, whatever was struck; the other run is lost."""
    box = traced.sandbox
    assert "Traceback" not in traced.stderr(), traced.stderr()
    assert recover(traced) == ["failed", "lost"]
    assert words(box) == ["begun", "ended"]
    oracle.check(box, lost=[row["run"] for row in box.queue("SELECT run FROM run WHERE state = 'lost'")])
    failed, = box.queue("SELECT status FROM run WHERE state = 'failed'")
    assert failed["status"] == TRUE_STATUS


# ---- adopt against a reaper ----

def adopt_beside_a_reaper(names, tally):
    """The reaper is frozen after each call: it lives, so its run is nobody else's."""
    failures = []
    for point in strace.crashpoints(reaping, strace.freeze_after, role="reaper", names=names):
        with point.strike(failures) as traced:
            box = traced.sandbox
            traced.wait_for(lambda: traced.frozen("reaper") or traced.ended())
            before = oracle.snapshot(box)["runs"]
            done = box.run("mxq-adopt")
            assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done
            assert traced.frozen("reaper") is False or oracle.snapshot(box)["runs"] == before
            if traced.frozen("reaper"):
                traced.thaw("reaper")
            traced.end()
            assert (traced.returncode, words(box)) == (3, ["begun", "ended"])
            assert box.record()["status"] == TRUE_STATUS and box.record()["adopted"] is False
            box.run("mxq-collect", check=True)
            is_idle(box, box.queue("SELECT run FROM run")[0]["run"])
        reap_all()
        tally["freeze"] += bool(point.fired and point.fired[0])
    report(failures, tally, "freeze")


@pytest.mark.quick
def test_mxq_adopt_beside_a_reaper_at_its_renames(tally):
    adopt_beside_a_reaper(("rename",), tally)


def test_mxq_adopt_beside_a_reaper_at_each_call(tally):
    adopt_beside_a_reaper(EFFECTS, tally)


# ---- adopt against collect ----

def collecting(sandbox):
    """An orphan and a lost run, as in adopting(), and mxq-collect."""
    adopting(sandbox)
    return ["mxq-collect"]


def beside(workload, rival, names, tally):
    """One is frozen after each call, the other one comes, or waits for what the frozen one holds."""
    failures = []
    for point in strace.crashpoints(workload, strace.freeze_after, names=names, roles=FRONT):
        with point.strike(failures) as traced:
            box = traced.sandbox
            traced.wait_for(lambda: traced.frozen("front") or traced.ended())
            other = box.spawn(rival)
            try:
                other.wait(0.2)
            except strace.subprocess.TimeoutExpired:
                pass
            if traced.frozen("front"):
                traced.thaw("front")
            traced.wait_for(lambda: other.poll() is not None, 60)
            said = other.communicate(timeout=10)[1]
            assert other.returncode == 0 or (rival == "mxq-adopt" and other.returncode == 75), said
            traced.wait_for(traced.ended)
            assert traced.returncode in (0, 75 if rival == "mxq-adopt" else 0), traced
            judge_both(traced)
        reap_all()
        tally["freeze"] += bool(point.fired and point.fired[0])
    report(failures, tally, "freeze")


@pytest.mark.parametrize("workload, rival", [(adopting, "mxq-collect"), (adopting, "mxq-adopt"),
                                             (collecting, "mxq-adopt")],
                         ids=["collect-beside-adopt", "adopt-beside-adopt", "adopt-beside-collect"])
def test_one_beside_the_other_at_each_step(workload, rival, tally):
    beside(workload, rival, ("fsync", "fdatasync", "rename", "unlink", "clone", "flock"), tally)


# ---- errors ----

@pytest.mark.parametrize("errno, sticky", [
    ("EIO", False), ("ENOSPC", False), ("EROFS", False), ("ESTALE", False), ("EAGAIN", False), ("EINTR", False),
    ("EMFILE", False), ("ENOSPC", True), ("EAGAIN", True)],
    ids=lambda value: {True: "sticky", False: "once"}.get(value, value))
def test_error_of_mxq_adopt_at_each_call(errno, sticky, tally):
    """It is said, and the next call makes it good."""
    failures = []
    among = "clone fsync rename write unlink pipe2"
    for point in error_points(adopting, "front", errno, sticky, among, roles=FRONT):
        with point.strike(failures) as traced:
            traced.wait_for(traced.ended, 60)
            if is_meant(traced, point):
                assert traced.returncode in (0, 65, 69, 73, 74, 75, 77), traced
                assert traced.returncode == 0 or "mxq-adopt: " in traced.stderr() or point.faults[0].call == "write"
                judge_both(traced)
        reap_all()
        tally["error"] += bool(point.fired and point.fired[0])
    report(failures, tally, "error")


# ---- killed twice ----

def test_mxq_adopt_killed_and_killed_again(tally):
    """The second one dies as well, at each step; the third makes it good."""
    steps = ("rename", "fdatasync")
    failures, first = [], []
    for point in strace.crashpoints(adopting, strace.kill_before, names=steps, roles=FRONT):
        with point.strike(failures) as traced:
            traced.wait_for(traced.ended)
            judge_both(traced)
        if point.fired[0]:
            first.append(point.faults[0])
    for fault in first:
        def killed_once(sandbox, fault=fault):
            argv = adopting(sandbox)
            once = strace.Traced(sandbox, argv, (fault,), roles=FRONT)
            once.wait_for(once.ended)
            once.close()
            return argv

        for point in strace.crashpoints(killed_once, strace.kill_before, names=steps, roles=FRONT):
            with point.strike(failures) as traced:
                traced.wait_for(traced.ended)
                judge_both(traced)
            reap_all()
            tally["kill"] += bool(point.fired and point.fired[0])
    report(failures, tally, "kill")


# ---- order and power loss ----

def lost_without_queue(sandbox):
    """Two runs of which nothing is left, and an outcome that nobody named; there is no queue, so the spool has to
    tell."""
    runs = [detach(sandbox, "sleep", "100") for _ in range(2)]
    for record in sandbox.records():
        kill(record["reaper"]["pid"])
        kill(record["main"]["pid"])
        reap(record["main"]["pid"])
    assert len(runs) == 2
    return ["mxq-adopt"]


def told(call):
    """The name of the run that a line on standard output is about."""
    if call.name == "write" and call.args and call.args[0].startswith("1<"):
        return call.data().split(b":")[0].decode()
    return None


@pytest.mark.quick
def test_order_of_the_calls_of_mxq_adopt():
    calls = strace.record(lost_without_queue, again=False, roles=FRONT)
    spool = next(path for call in calls for path in call.paths if path.endswith("/spool/runs"))[:-len("/runs")]
    assert not order.unsynced_renames(calls, spool)
    assert len([call for call in calls if told(call)]) == 2
    assert not order.early_promises(calls, spool, told)


@pytest.mark.quick
@pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])
def test_power_loss_under_mxq_adopt(strict, tmp_path, tally):
    """Each disk state has whole records; a run that was told lost is recorded as lost."""
    from mxqlib import record as format_of
    trace = powerloss.record(lost_without_queue, lambda sandbox: sandbox.spool, told, roles=FRONT)
    for state in powerloss.states(trace, strict):
        tally["power cut"] += 1
        state.materialise(tmp_path / "disk")
        files = [path for path in (tmp_path / "disk").glob("runs/*.json") if not path.name.startswith(".")]
        entries = {path.name[:-5]: format_of.decode(path.read_bytes(), path.name[:-5]) for path in files}
        assert len(entries) == 2, state
        for run in state.promises:
            assert (entries[run]["state"], entries[run]["reason"]) == ("ended", "lost"), state
        assert all(entry["status"] is None for entry in entries.values() if entry["state"] == "ended")
    assert tally["power cut"] > 4
