"""mxq-adopt: whatever was killed when, it and mxq-collect tell the truth; and it may be killed itself.

Front and reaper of a run are both killed, at each call of the reaper; then
mxq-adopt, its watcher, mxq-run and its reaper, at each of theirs. The job
writes down that it began and ended, so each test knows the truth.
"""

import os
import signal

import pytest

from tests.harness import oracle, processes, strace
from tests.harness.adopting import kill, reap, reap_all
from tests.harness.queueing import detach, submit
from tests.harness.reaping import words
from tests.harness.sandbox import wait_for

pytestmark = [pytest.mark.needs("strace"), pytest.mark.usefixtures("parent"), pytest.mark.timeout_s(900)]

JOB = "echo begun >>job; sleep 0.03; echo ended >>job; exit 3"
TRUE_STATUS = 3 << 8
RUN = {"front": "-", "reaper": "0", "main": "0.0"}
ADOPT = {"adopt": "-", "watcher": "0", "writer": "0.0"}
SPOOL_CALLS = ("fallocate", "write", "fsync", "rename", "unlink", "ftruncate")
# What others can see of a process, or what can block it; the rest is between such calls.
EFFECTS = SPOOL_CALLS + ("flock", "clone", "exit_group", "wait4", "waitid",
    "setsid", "setpgid", "prctl", "pipe2", "dup2",
                         "rt_sigtimedwait", "poll", "ioctl", "pidfd_open", "pidfd_send_signal", "sendto", "recvmsg")


def recover(sandbox):
    """One mxq-adopt and one mxq-collect; state and status of the only run in the queue, or None."""
    for name in ("mxq-adopt", "mxq-collect"):
        done = sandbox.run(name)
        assert (done.returncode, done.stderr) == (0, ""), "%s: %s" % (name, done.stderr)
    rows = sandbox.queue("SELECT state, status FROM run WHERE state <> 'cancelled'")
    assert len(rows) <= 1
    return tuple(rows[0]) if rows else None


def finish(traced):
    """Wait until nobody runs any more, and recover."""
    traced.wait_for(lambda: not traced.sandbox.pids(), what="the end of everything")
    return recover(traced.sandbox)


def is_idle(sandbox, run=None):
    """The oracle has no objection, and once more changes nothing."""
    lost = [row["run"] for row in sandbox.queue("SELECT run FROM run WHERE state = 'lost'")]
    oracle.check(sandbox, None if run is None else {run: TRUE_STATUS}, lost=lost)
    before = oracle.snapshot(sandbox)
    assert recover(sandbox) is not None or not words(sandbox)
    assert oracle.snapshot(sandbox) == before


def is_dead(pid):
    """True when it was killed."""
    return not processes.is_alive(pid)


# ---- front and reaper ----

def reaping(sandbox):
    """A spool that is there already, one job."""
    for folder in ("runs", "output", "corrupt"):
        (sandbox.spool / folder).mkdir(parents=True, mode=0o700)
    return ["mxq-reap", "--", "sh", "-c", JOB]


def stop_the_front(traced):
    """Have the front stopped before its reaper passes the gate: it does not take over."""
    attach = traced.attach

    def stop_and_attach(role):
        if role == "reaper":
            os.kill(traced.pids["front"], signal.SIGSTOP)
            wait_for(lambda: processes.state(traced.pids["front"]) in "Tt")
        attach(role)
    traced.attach = stop_and_attach


def kill_reaper_and_front(names, tally):
    """At each call of the reaper: both are gone, and mxq-adopt comes."""
    failures = []
    for point in strace.crashpoints(reaping, strace.kill_before, role="reaper", names=names):
        with point.strike(failures) as traced:
            box = traced.sandbox
            stop_the_front(traced)
            traced.wait_for(lambda: "reaper" in traced.pids and is_dead(traced.pids["reaper"]))
            had_seen_the_end = "ended" in words(box) and not box.pids()[1:]
            os.kill(traced.pids["front"], signal.SIGKILL)
            traced.wait_for(traced.ended)
            now = recover(box)
            if now is not None:
                assert now[0] in ("running", "failed", "lost"), now
            if words(box) == ["begun"]:
                assert now == ("running", None), now
            after = finish(traced)
            if not words(box):
                assert after is None, after
            elif after != ("failed", TRUE_STATUS):
                assert after == ("lost", None) and had_seen_the_end, after
            is_idle(box)
        reap_all()
        tally["kill"] += bool(point.fired and point.fired[0])
    assert not failures, "\n".join(failures)
    assert tally["kill"]


@pytest.mark.quick
def test_front_and_reaper_killed_at_each_rename(tally):
    kill_reaper_and_front(("rename",), tally)


def test_front_and_reaper_killed_at_each_call(tally):
    kill_reaper_and_front(EFFECTS, tally)


# ---- mxq-adopt and its watcher ----

def adopting(sandbox):
    """An orphan whose job waits, and a lost run; both are known to the queue."""
    orphan = detach(sandbox, "sh", "-c", "read line <gate; " + JOB) if (
        os.mkfifo(sandbox.work / "gate") is None) else None
    gone = detach(sandbox, "sleep", "100")
    sandbox.run("mxq-collect", check=True)
    for record in sandbox.records():
        kill(record["reaper"]["pid"])
        if record["run"] == gone:
            kill(record["main"]["pid"])
            reap(record["main"]["pid"])
    assert orphan != gone
    return ["mxq-adopt"]


def kill_adoption(role, names, tally):
    """At each call of one of the processes; another mxq-adopt comes, then the job ends."""
    failures = []
    for point in strace.crashpoints(adopting, strace.kill_before, role=role, names=names, roles=ADOPT):
        with point.strike(failures) as traced:
            box = traced.sandbox
            if role == "adopt":
                traced.wait_for(traced.ended)
            else:
                traced.wait_for(lambda: traced.ended() and role in traced.pids)
                if role == "writer":
                    traced.wait_for(lambda: is_dead(traced.pids[role]))
            if role == "watcher":
                # One that waits for the job is struck at its end only.
                (box.work / "gate").write_text("\n")
                traced.wait_for(lambda: is_dead(traced.pids["watcher"]))
            traced.wait_for(lambda: box.run("mxq-adopt").returncode == 0)      # 75 until watchers have named themselves
            box.run("mxq-collect", check=True)
            reapers = [pid for pid in box.pids() if processes.comm(pid) == "mxq-reaper"]
            assert len(reapers) <= 1, "two watchers for one run"
            if words(box) == [] and role != "watcher":
                assert len(reapers) == 1
                (box.work / "gate").write_text("\n")
            traced.wait_for(lambda: not box.pids(), what="the end of everything")
            for name in ("mxq-adopt", "mxq-collect"):
                assert box.run(name).returncode == 0
            assert words(box) == ["begun", "ended"]
            states = sorted(row["state"] for row in box.queue("SELECT state FROM run"))
            assert states == ["failed", "lost"], states
            oracle.check(box, lost=[row["run"] for row in box.queue("SELECT run FROM run WHERE state = 'lost'")])
        reap_all()
        tally["kill"] += bool(point.fired and point.fired[0])
    assert not failures, "\n".join(failures)
    assert tally["kill"]


@pytest.mark.quick
def test_mxq_adopt_killed_at_each_rename_and_fork(tally):
    kill_adoption("adopt", ("rename", "clone"), tally)


@pytest.mark.parametrize("role", ["adopt", "watcher", "writer"])
def test_adoption_killed_at_each_call(role, tally):
    kill_adoption(role, EFFECTS, tally)


# ---- loaded ----

def loading(sandbox):
    """One job, to be started."""
    submit(sandbox, "sh", "-c", JOB)
    return ["mxq-run"]


def held_back(names, tally):
    """The reaper is frozen after each call and mxq-run is killed: nothing is given back that may still run. Then the
    reaper is killed too: what did not run, runs once."""
    failures = []
    for point in strace.crashpoints(loading, strace.freeze_after, role="reaper", names=names, roles=RUN):
        with point.strike(failures) as traced:
            box = traced.sandbox
            traced.wait_for(lambda: traced.frozen("reaper") or (traced.ended() and not box.pids()))
            locks = [name for name in os.listdir(box.mxq_dir / "runners") if name[0].isdigit()]
            if traced.frozen("reaper"):
                if not traced.ended():
                    os.kill(traced.pids["front"], signal.SIGKILL)
                    traced.wait_for(traced.ended)
                state = box.queue("SELECT state FROM job")[0]["state"]
                said = box.run("mxq-adopt", check=True).stdout
                if "given back" in said:
                    # It was claimed, and no reaper had the job yet, this one neither.
                    assert not box.records() and state == "loaded", said
                os.kill(traced.pids["reaper"], signal.SIGKILL)
            traced.wait_for(lambda: [pid for pid in box.pids() if processes.comm(pid) == "mxq-reaper"] == [])
            for _ in range(3):
                box.run("mxq-adopt", check=True)
                traced.wait_for(lambda: not box.pids(), what="the end of everything")
                box.run("mxq-collect", check=True)
                box.run("mxq-ctl", "resume", check=True)
                box.run("mxq-run", check=True)
            traced.wait_for(lambda: not box.pids(), what="the end of everything")
            box.run("mxq-collect", check=True)
            assert words(box).count("begun") <= 1, "it ran twice"
            state = box.queue("SELECT state FROM job")[0]["state"]
            # Between the lock and the gate, when somebody has put the record into the queue, nobody can know.
            assert words(box) == ["begun", "ended"] or (state == "lost" and not locks), state
            assert state in ("failed", "lost"), state
            tally["lost"] += state == "lost"
        reap_all()
        tally["freeze"] += bool(point.fired and point.fired[0])
    assert not failures, "\n".join(failures)
    assert tally["freeze"]


@pytest.mark.quick
def test_a_claim_is_given_back_only_when_it_cannot_run(tally):
    held_back(("recvmsg", "rename"), tally)
    assert not tally["lost"], "between the lock and the gate there is no rename"


def test_a_claim_at_each_call_of_its_reaper(tally):
    held_back(EFFECTS, tally)
