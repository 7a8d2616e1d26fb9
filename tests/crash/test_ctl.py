"""mxq-ctl, struck at each call: what it said is so, what it did not say can be done by calling it again."""

import pytest

from tests.harness import oracle, order, processes, strace
from tests.harness.adopting import reap_all
from tests.harness.faults import error_points, is_meant, report
from tests.harness.queueing import detach, states, submit, wait_until_ended

pytestmark = [pytest.mark.needs("strace"), pytest.mark.usefixtures("parent"), pytest.mark.timeout_s(1200)]

FRONT = {"front": "-"}
RUN = {"front": "-", "reaper": "0", "main": "0.0"}
JOB = ("sh", "-c", "echo begun >>job; exec sleep 1000")
EFFECTS = ("flock", "fcntl", "fsync", "fdatasync", "pwrite64", "write", "unlink", "clone", "sendmsg", "recvmsg",
           "fallocate", "rename", "setsid", "rt_sigtimedwait", "exit_group")


# ---- kill of what runs ----

def killing(sandbox):
    """A job that runs on unless it is killed, of which the queue knows."""
    run = detach(sandbox, *JOB)
    sandbox.run("mxq-collect", check=True)
    return ["mxq-ctl", "kill", "--now", run]


def killed_in_the_end(traced):
    """Called again, it kills what still lives; the outcome is one kill, and the job's processes are gone."""
    box = traced.sandbox
    run = traced.argv[-1]
    if b"killed" in traced.stdout():
        assert not box.pids()
    again = box.run("mxq-ctl", "kill", "--now", run)
    assert again.returncode in (0, 69), again
    wait_until_ended(box, run)
    traced.wait_for(lambda: not box.pids(), what="the end of everything")
    box.run("mxq-collect", check=True)
    row, = box.queue("SELECT state, status, reason FROM run")
    assert tuple(row) == ("killed", 9, "kill-now")
    oracle.check(box, {run: 9})


@pytest.mark.quick
def test_kill_of_mxq_ctl_kill_around_its_signal(tally):
    names = ("flock", "pidfd_send_signal")
    strike_kill(strace.crashpoints(killing, strace.kill_before, names=names, roles=FRONT), tally)


def test_kill_of_mxq_ctl_kill_at_each_call(tally):
    names = ("openat", "flock", "pidfd_open", "pidfd_send_signal", "poll", "signalfd4", "rt_sigtimedwait", "write")
    strike_kill(strace.crashpoints(killing, strace.kill_before, names=names, roles=FRONT), tally)


@pytest.mark.parametrize("errno", ["EIO", "EMFILE", "ESTALE", "EACCES", "EINTR"])
def test_error_of_mxq_ctl_kill_at_each_call(errno, tally):
    strike_kill(error_points(killing, "front", errno, False, roles=FRONT), tally)


def strike_kill(points, tally):
    """Strike mxq-ctl kill, and judge what is left."""
    failures = []
    for point in points:
        fault = point.faults[0]
        with point.strike(failures) as traced:
            traced.wait_for(traced.ended, 60)
            if fault.kind == "kill" or is_meant(traced, point):
                assert "Traceback" not in traced.stderr(), traced
                assert traced.returncode in (-9, 0, 65, 69, 73, 74, 75, 77), traced
                assert traced.returncode <= 0 or "mxq-ctl: error: " in traced.stderr() or fault.call == "write", traced
                killed_in_the_end(traced)
        reap_all()
        tally[fault.kind.replace("fail", "error")] += bool(point.fired and point.fired[0])
    report(failures)


# ---- a reaper that is just starting ----

def loading(sandbox):
    """One job, to be started by mxq-run."""
    submit(sandbox, *JOB)
    return ["mxq-run"]


def starting(sandbox):
    """A run of mxq-reap without a caller that waits."""
    for folder in ("runs", "output", "corrupt"):
        (sandbox.spool / folder).mkdir(parents=True, mode=0o700)
    sandbox.run("mxq-collect", check=True)
    return ["mxq-reap", "-b", "--", *JOB]


def is_over(traced, role, command=None):
    """True when `command`, or everybody, has ended. A call that came late may have frozen the process late."""
    if traced.frozen(role) and processes.state(traced.pids[role]) in ("T", "t"):
        traced.thaw(role)
    return not traced.sandbox.pids() if command is None else command.poll() is not None


def kill_while_starting(workload, role, names, tally):
    """The process is frozen after each of its calls while mxq-ctl kill is at work: what that said is so."""
    failures = []
    for point in strace.crashpoints(workload, strace.freeze_after, role=role, names=names, roles=RUN):
        with point.strike(failures) as traced:
            box = traced.sandbox
            traced.wait_for(lambda: traced.frozen(role) or traced.ended())
            what = ["1"] if workload is loading else ["--all"]
            first = box.spawn("mxq-ctl", "kill", "--now", *what)
            try:
                first.wait(0.2)
            except strace.subprocess.TimeoutExpired:
                pass
            traced.wait_for(lambda: is_over(traced, role, first), 60)
            said, errors = first.communicate(timeout=10)
            assert first.returncode in (0, 69, 75) and "Traceback" not in errors, errors
            assert errors or first.returncode == 0
            traced.wait_for(traced.ended)
            assert "Traceback" not in traced.stderr(), traced
            if workload is loading and first.returncode == 0:
                traced.wait_for(lambda: is_over(traced, role), what="the end of what was killed: %s" % said)
            else:                   # it was not there yet, or refused: said so, and can be killed now
                done = box.run("mxq-ctl", "kill", "--now", *what)
                assert done.returncode in (0, 69), done
                traced.wait_for(lambda: is_over(traced, role), what="the end of what was killed: %s" % done)
            for name in ("mxq-collect", "mxq-adopt", "mxq-run", "mxq-collect"):
                box.run(name, check=True)
            assert not box.pids(), "started after it was killed"
            found = sorted(states(box).values())
            assert found in ([], ["killed"], ["cancelled"]), found
            assert found or (workload is starting and not (box.work / "job").exists())
            oracle.check(box)
        reap_all()
        tally["freeze"] += bool(point.fired and point.fired[0])
    report(failures)
    assert tally["freeze"]


@pytest.mark.quick
def test_kill_of_a_job_around_its_record(tally):
    kill_while_starting(loading, "reaper", ("rename",), tally)


@pytest.mark.parametrize("workload, role", [(loading, "front"), (loading, "reaper"), (starting, "reaper")],
                         ids=["claimed", "loaded", "mxq-reap"])
def test_kill_of_a_job_at_each_call_of_its_start(workload, role, tally):
    kill_while_starting(workload, role, EFFECTS, tally)


# ---- changes of the queue ----

def waiting(sandbox):
    """Three jobs that wait, one that failed."""
    submit(sandbox, "-g", "a", "false")
    sandbox.run("mxq-run", "-j", "1", check=True)
    sandbox.wait_for(lambda: [each for each in sandbox.records() if each["state"] == "ended"])
    sandbox.run("mxq-collect", check=True)
    sandbox.wait_for(lambda: not sandbox.pids())
    sandbox.run("mxq-sub", "-g", "b", "--log", "log", "-f", "-", input="true\n" * 3, check=True)


def holding(sandbox):
    """To be held."""
    waiting(sandbox)
    return ["mxq-ctl", "hold", "-g", "b"]


def releasing(sandbox):
    """To be released."""
    waiting(sandbox)
    sandbox.run("mxq-ctl", "hold", "--all", check=True)
    return ["mxq-ctl", "release", "2", "3", "4"]


def retrying(sandbox):
    """To be run again."""
    waiting(sandbox)
    return ["mxq-ctl", "retry", "1"]


AFTER = {holding: ("held", 12), releasing: ("queued", 13), retrying: ("queued", 0)}


@pytest.mark.parametrize("workload", list(AFTER), ids=["hold", "release", "retry"])
def test_kill_of_a_change_at_each_step(workload, tally):
    """All of a call or nothing, each event once, and what was said is in the queue."""
    state, code = AFTER[workload]
    failures = []
    names = ("fdatasync", "pwrite64", "write")
    for point in strace.crashpoints(workload, strace.kill_before, names=names, roles=FRONT):
        with point.strike(failures) as traced:
            box = traced.sandbox
            traced.wait_for(traced.ended)
            numbers = [1] if workload is retrying else [2, 3, 4]
            changed = [number for number in numbers if states(box)[number] == state]
            assert changed in ([], numbers), states(box)
            said = [int(line.split(b":")[0]) for line in traced.stdout().splitlines()]
            assert set(said) <= set(changed)
            done = box.run(*traced.argv)
            assert done.returncode == (69 if changed and workload is not holding else 0), done
            assert [states(box)[number] for number in numbers] == [state] * len(numbers)
            if code:
                events = [row["job"] for row in box.queue("SELECT job FROM event WHERE code = ? ORDER BY job", code)]
                assert events == numbers, "each once: %s" % events
            assert box.run("mxq-collect").returncode == 0
            oracle.check(box)
        tally["kill"] += bool(point.fired and point.fired[0])
    report(failures)
    assert tally["kill"] > 3

# ---- one run and the next of the same reaper ----

def signalling(sandbox):
    """A reaper with a job that ends soon, and another job that waits for it."""
    lines = "".join("until [ -e gate%d ]; do sleep 0.01; done\n" % number for number in (1, 2))
    sandbox.run("mxq-sub", "-f", "-", input=lines, check=True)
    sandbox.spawn("mxq-run", "-j", "1", "--wait")
    sandbox.wait_for(lambda: [each for each in sandbox.records() if each["run"] == "1.1"])
    return ["mxq-ctl", "kill", "--now", "1"]


@pytest.mark.quick
def test_a_signal_for_one_run_does_not_meet_the_next(tally):
    """mxq-ctl is frozen while it has the reaper in its hand, and that one would go on to the next job."""
    failures = []
    for point in strace.crashpoints(signalling, strace.freeze_after, names=("pidfd_open",), roles=FRONT):
        with point.strike(failures) as traced:
            box = traced.sandbox
            traced.wait_for(lambda: traced.frozen("front") or traced.ended())
            (box.work / "gate1").touch()
            if traced.frozen("front"):
                traced.wait_for(lambda: [each for each in box.records() if each["run"] == "2.1"])
                traced.thaw("front")
            traced.wait_for(traced.ended)
            (box.work / "gate2").touch()
            traced.wait_for(lambda: not box.pids(), what="the end of everything")
            box.run("mxq-collect", check=True)
            assert states(box)[2] == "finished", states(box)
        tally["freeze"] += bool(point.fired and point.fired[0])
    report(failures)
    assert tally["freeze"]


# ---- order ----

def resuming(sandbox):
    """A drained spool."""
    sandbox.run("mxq-ctl", "drain", check=True)
    return ["mxq-ctl", "resume"]


@pytest.mark.quick
def test_resumed_is_said_when_it_is_durable():
    dirty, said = order.Dirty(), 0
    for call in order.succeeded(strace.record(resuming, again=False, roles=FRONT)):
        if call.name == "write" and b"resumed: drain removed" in call.data():
            said += 1
            assert not [path for path in dirty.folders if path.endswith("/spool")]
        dirty.see(call)
    assert said == 1


@pytest.mark.quick
def test_cancelled_is_said_when_it_is_durable():
    calls = strace.record(cancelling, again=False, roles=FRONT)
    database = next(path for call in calls for path in call.paths if path.endswith("/mxq/queue.db"))

    def says_so(call):
        return call.name == "write" and b": cancelled;" in call.data()

    assert len([call for call in calls if says_so(call)]) == 3
    assert not order.early_words(calls, database, says_so)


def cancelling(sandbox):
    """Three jobs that wait."""
    sandbox.run("mxq-sub", "-f", "-", input="true\n" * 3, check=True)
    return ["mxq-ctl", "kill", "--all"]
