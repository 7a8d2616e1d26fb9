"""mxq-reap loses no outcome and invents none, whatever is killed or fails at whatever call.

Front, reaper and MAIN are struck each for itself and two at once. The job
writes down that it began and that it ended, so each test knows the truth.
"""

import os
import signal

import pytest

from mxqlib import record as format_of
from tests.harness import order, powerloss, strace
from tests.harness.faults import DISK, ROOM, error_points, is_meant, report

pytestmark = [pytest.mark.needs("strace"), pytest.mark.timeout_s(1800)]

JOB = "echo begun >>job; sleep 0.01; echo ended >>job; exit 3"
TRUE_STATUS = 3 << 8

# What others can see of a process, or what can block it; the rest is between such calls.
EFFECTS = ("clone", "exit_group", "kill", "wait4", "waitid", "rt_sigtimedwait", "setsid", "setpgid",
           "write", "fsync", "rename", "unlink", "fallocate", "ftruncate")
SPOOL_CALLS = ("fallocate", "write", "fsync", "rename", "unlink", "ftruncate")


def reaping(sandbox):
    """A spool that is there already, one job."""
    for folder in ("runs", "output", "corrupt"):
        (sandbox.spool / folder).mkdir(parents=True, mode=0o700)
    return ["mxq-reap", "--", "sh", "-c", JOB]


def reaping_afresh(_sandbox):
    """The base directory has yet to be made."""
    return ["mxq-reap", "--", "sh", "-c", JOB]


class Judge:
    """What is in the spool after a run, against what the job did."""

    def __init__(self, traced):
        self.traced, self.sandbox = traced, traced.sandbox
        job = self.sandbox.work / "job"
        self.job = job.read_text().split() if job.exists() else []
        self.stderr = traced.stderr()
        self.records = self.read_records()
        self.record = self.records[0] if self.records else None

    def read_records(self):
        """All visible records; each must be whole, valid and named as it says."""
        names = os.listdir(self.sandbox.runs) if self.sandbox.runs.exists() else []
        visible = [name for name in names if not name.startswith(".")]
        self.hidden = [name for name in names if name.startswith(".")]
        return [format_of.decode((self.sandbox.runs / name).read_bytes(), name[:-len(".json")]) for name in visible]

    @property
    def state(self):
        """running, ended or None."""
        return self.record and self.record["state"]

    def tells_the_truth(self, killed=()):
        """No outcome but the true one; nothing unknown that ran; never two. `killed`: roles that we killed."""
        assert len(self.records) <= 1
        assert self.job in ([], ["begun", "ended"]), "nobody may have killed the job"
        if self.job:
            assert self.record, "the job ran, but nothing is known of it"
            if self.state == "ended":
                assert self.record["status"] == TRUE_STATUS
                assert self.record["reason"] is None
        elif self.state == "ended" and self.record["reason"] != "exec":
            # MAIN was ended before it became the command: by us, and the record says so.
            assert "main" in killed and self.record["status"] == signal.SIGKILL
        if self.record and self.record["main"]:
            assert self.record["main"]["pid"] == self.traced.pids["main"]
        if self.state == "ended":
            assert self.record["adopted"] == (self.record["reaper"] == self.record["front"])

    def is_settled(self):
        """Nobody is left who could write: an outcome when the job ran, no litter."""
        assert self.state != "running"
        assert self.state == "ended" or not self.job
        assert not self.hidden, "left in runs/: %s" % self.hidden


def kill_each(workload, role, names, judge, tally, **options):
    """Kill a process before each of its calls, and judge what is left."""
    failures = []
    for point in strace.crashpoints(workload, strace.kill_before, role=role, names=names, **options):
        with point.strike(failures) as traced:
            traced.end(10)
            judged = Judge(traced)
            assert "Traceback" not in judged.stderr, judged.stderr
            judge(judged, traced.returncode)
        tally["kill"] += point.fired[0]
    report(failures)


def expect(status, *wanted):
    """The caller of the front saw one of these statuses (as subprocess gives them)."""
    assert status in wanted, "status %s instead of %s" % (status, wanted)


def reaper_killed(judged, status):
    """The front takes over: one outcome, seen by the caller."""
    judged.tells_the_truth(("reaper",))
    judged.is_settled()
    expect(status, 3 if judged.job else 125)


def front_killed(judged, status):
    """The reaper goes on alone; when it was not there yet nothing runs."""
    judged.tells_the_truth(("front",))
    judged.is_settled()
    expect(status, -signal.SIGKILL, 3)
    if not judged.job:
        assert judged.state is None


def main_killed(judged, status):
    """Nothing ran, or MAIN's own death is the outcome."""
    judged.tells_the_truth(("main",))
    judged.is_settled()
    expect(status, 3 if judged.job else -signal.SIGKILL)


@pytest.mark.quick
def test_kill_of_the_reaper_at_each_spool_call(tally):
    kill_each(reaping, "reaper", SPOOL_CALLS, reaper_killed, tally)


def test_kill_of_the_reaper_at_each_call(tally):
    kill_each(reaping, "reaper", None, reaper_killed, tally)


def missing(sandbox):
    """A command that is not there."""
    reaping(sandbox)
    return ["mxq-reap", "--", "/nonexistent/command"]


def reaper_killed_at_an_exec(judged, status):
    """Whoever writes the outcome knows that it is one of the exec."""
    expect(status, 127, 125)
    if judged.state is not None:
        assert (judged.record["exit"], judged.record["reason"]) == (127, "exec") and judged.record["error"]


@pytest.mark.quick
def test_kill_of_the_reaper_of_what_cannot_be_executed(tally):
    kill_each(missing, "reaper", ("fsync", "rename"), reaper_killed_at_an_exec, tally)


@pytest.mark.parametrize("workload", [reaping, reaping_afresh])
def test_kill_of_the_front_at_each_call(workload, tally):
    kill_each(workload, "front", None, front_killed, tally)


def test_kill_of_main_at_each_call(tally):
    kill_each(reaping, "main", None, main_killed, tally)


# --- two at once ------------------------------------------------------------------

def both_killed(judged, _status):
    """Nobody is left to write: the truth, or a record that still says running."""
    judged.tells_the_truth(("reaper", "front", "main"))


@pytest.mark.parametrize("first, second", [("reaper", "front"), ("reaper", "main"), ("front", "main")])
def test_kill_of_any_two_at_any_two_calls(first, second, tally):
    """`first` dies before each of its calls and, in the same run, `second` before each of its calls that follow."""
    names = ("rt_sigprocmask", "read", "chdir", "execve") if second == "main" else EFFECTS
    for name, n in strace.numbered_calls(reaping, first):
        if name in EFFECTS:
            kill_each(reaping, second, names, both_killed, tally, also=(strace.kill_before(name, n, role=first),))
    assert tally["kill"] > 100


def detaching(sandbox):
    """A run that nobody waits for."""
    reaping(sandbox)
    return ["mxq-reap", "-b", "--", "sh", "-c", JOB]


def detached_killed(judged, status):
    """Whoever was told a run id can find its record. A front that took over waits for the job after all."""
    judged.tells_the_truth(("reaper", "front", "main"))
    told = judged.traced.stdout().decode().strip()
    if told:
        assert judged.record and told == judged.record["run"]
    if status == 3:
        assert judged.state == "ended" and judged.record["adopted"]
    else:
        expect(status, 0, -signal.SIGKILL, 125)
        assert told or status != 0


@pytest.mark.parametrize("role", ["reaper", "front", "main"])
def test_kill_of_a_detached_run_at_each_call(role, tally):
    kill_each(detaching, role, None, detached_killed, tally)


# --- order and power loss -----------------------------------------------------------

def taken_over(sandbox):
    """The job kills its reaper, so the front goes on in its place."""
    reaping(sandbox)
    return ["mxq-reap", "--", "sh", "-c", "kill -9 $PPID; " + JOB]


def below_a_folder(sandbox):
    """The base directory is made, too, in a folder that is there."""
    sandbox.mxq_dir.mkdir()
    sandbox.env["MXQ_DIR"] = str(sandbox.mxq_dir / "base")
    return ["mxq-reap", "--", "sh", "-c", JOB]


def promises(call):
    """`started`: the gate was opened; `recorded`: the front was told, or ends as the job did."""
    if call.name == "write" and call.paths and call.paths[0].startswith("pipe:"):
        if call.data() == b"x":
            return "started"
        if call.data() == b"recorded\n":
            return "recorded"
    if call.name == "exit_group" and call.role == "front" and call.args == ["3"]:
        return "recorded"
    return None


def spool_of(calls):
    """The spool's path, from the calls."""
    return next(call.paths[0] for call in calls if call.paths and call.paths[0].endswith("/runs"))[:-len("/runs")]


@pytest.mark.quick
@pytest.mark.parametrize("workload", [reaping, taken_over])
def test_order_of_the_calls(workload):
    calls = strace.record(workload, again=False)
    spool = spool_of(calls)
    assert not order.unsynced_renames(calls, spool)
    assert not order.early_promises(calls, spool, promises)
    assert len([call for call in calls if promises(call) == "started"]) == 1


@pytest.mark.quick
def test_calls_on_the_spool_are_the_same_each_time():
    calls = strace.record(reaping, keep=lambda call: any("/spool/" in path for path in call.paths))
    assert len(calls) > 15


def power_cuts(workload, root, tmp_path, tally, strict=False, faults=()):
    """Check each disk state: what is visible is whole, what was promised is there."""
    trace = powerloss.record(workload, root, promises, faults=faults)
    for state in powerloss.states(trace, strict):
        tally["power cut"] += 1
        state.materialise(tmp_path / "disk")
        folders = list((tmp_path / "disk").glob("**/runs"))
        files = [file for folder in folders for file in folder.iterdir() if not file.name.startswith(".")]
        records = [format_of.decode(file.read_bytes(), file.name[:-len(".json")]) for file in files]
        assert len(records) <= 1
        if "recorded" in state.promises:
            assert records and records[0]["state"] == "ended", state
            assert records[0]["status"] == TRUE_STATUS or faults and records[0]["reason"] == "exec"
        elif "started" in state.promises:
            assert records, state


@pytest.mark.quick
@pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])
@pytest.mark.parametrize("workload", [reaping, taken_over])
def test_power_loss(workload, strict, tmp_path, tally):
    power_cuts(workload, lambda sandbox: sandbox.spool, tmp_path, tally, strict)
    assert tally["power cut"] > 10


@pytest.mark.quick
def test_power_loss_at_the_first_use_of_a_base_directory(tmp_path, tally):
    power_cuts(below_a_folder, lambda sandbox: sandbox.mxq_dir, tmp_path, tally)


@pytest.mark.parametrize("call", SPOOL_CALLS)
def test_power_loss_after_an_error(call, tmp_path, tally):
    for n in range(1, 9):
        for errno in ("EIO", "ENOSPC"):
            power_cuts(reaping, lambda sandbox: sandbox.spool, tmp_path, tally, faults=[strace.fail(call, n, errno)])


# --- errors -----------------------------------------------------------------------

GIVES_UP = "trying until it can be written"


def fail_each(role, errno, sticky, tally, workload=reaping):
    """Have each call of a process fail for which this error makes sense, and judge what comes of it."""
    failures = []
    for point in error_points(workload, role, errno, sticky):
        with point.strike(failures) as traced:
            deaf = sticky and point.faults[0].call == "write"       # of the words on stderr, too
            finish(traced, deaf)
            if is_meant(traced, point):
                judge_error(Judge(traced), traced.returncode, sticky and errno in DISK, deaf)
        tally["error"] += point.fired[0]
    report(failures)


def finish(traced, deaf):
    """Wait for the end; who cannot write the outcome, and says so if it can, is told to give the place up."""
    try:
        traced.wait_for(lambda: traced.ended() or GIVES_UP in traced.stderr(), 1 if deaf else 15,
                        "an end, or a word about what is wrong")
    except AssertionError:
        if not deaf:
            raise
    if not traced.ended():
        writer = "reaper" if os.path.exists("/proc/%d" % traced.pids["reaper"]) else "front"
        os.kill(traced.pids[writer], signal.SIGUSR2)
    traced.end(15)


def judge_error(judged, status, absurd, deaf):
    """The caller sees the job's status, or 125 when nothing ran, or 74 when the record is elsewhere.

    absurd: calls on what is no disk fail as well, which we need not be prepared for.
    """
    if not absurd:
        assert "Traceback" not in judged.stderr, judged.stderr
    if status == 74:
        kept = [file.read_bytes() for file in (judged.sandbox.path / "fallback").glob("[!.]*.json")]
        said = [line.encode() + b"\n" for line in judged.stderr.splitlines() if line.startswith("{")]
        assert said or deaf, "the record is not on standard error"
        assert judged.job == ["begun", "ended"]
        assert all(format_of.decode(text)["status"] == TRUE_STATUS for text in kept + said)
        return
    judged.tells_the_truth()
    if judged.job:
        assert judged.state == "ended"
        expect(status, 3)
    elif judged.state == "ended":
        # MAIN could not become the command: that is an outcome.
        assert judged.record["reason"] == "exec" and judged.record["error"]
        expect(status, judged.record["exit"])
    else:
        expect(status, 125)
        assert judged.stderr.strip() or deaf, "no word about what is wrong"


@pytest.mark.parametrize("errno", [*DISK, *ROOM])
@pytest.mark.parametrize("role", ["reaper", "front", "main"])
def test_error_at_each_call_once(role, errno, tally):
    fail_each(role, errno, False, tally)


@pytest.mark.parametrize("errno", [*DISK, *ROOM])
@pytest.mark.parametrize("role", ["reaper", "front", "main"])
def test_error_at_each_call_from_then_on(role, errno, tally):
    if errno == "EINTR":
        return          # Python asks again for ever, as it should
    fail_each(role, errno, True, tally)
