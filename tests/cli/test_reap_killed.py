"""kill -9 of reaper, front, MAIN, or several: one true outcome, or a running record; never an invented one."""

import itertools
import os
import signal

import pytest

from mxqlib import record as records
from tests.harness import processes
from tests.harness.reaping import CATCH, ESCAPE, IGNORE, ended, outcome, running, spawn_ready
from tests.harness.sandbox import read_until, wait_for

ROLES = ("front", "reaper", "main")
ORDERS = [("front",), ("reaper",), ("front", "reaper"), ("reaper", "front")]
AT_ONCE = [who for count in (1, 2, 3) for who in itertools.permutations(ROLES, count) if "main" in who]


class Run:
    """A run whose job ends with 5 when told to."""

    def __init__(self, sandbox, *options):
        self.sandbox = sandbox
        os.mkfifo(sandbox.work / "go")
        self.reap = spawn_ready(sandbox, "mxq-reap", *options, "sh", "-c",
                                "echo ready; read line <go; echo >ended; exit 5")
        self.pids = {role: running(sandbox)[role]["pid"] for role in ROLES}
        wait_for(lambda: processes.group(self.reap.pid) != self.reap.pid)

    def kill(self, role):
        """Kill one and wait until it is gone."""
        os.kill(self.pids[role], signal.SIGKILL)
        wait_for(lambda: not processes.is_alive(self.pids[role]))

    def go(self):
        """Let the job end."""
        (self.sandbox.work / "go").write_text("\n")


@pytest.mark.parametrize("who", ORDERS, ids="-".join)
def test_who_is_left_tells_the_truth(sandbox, who):
    run = Run(sandbox)
    for role in who:
        run.kill(role)
    assert processes.is_alive(run.pids["main"]), "the job runs on, whoever of us dies"
    run.go()
    wait_for((sandbox.work / "ended").exists)
    if len(who) == 2:
        # Nobody of us saw the end: mxq-adopt finds this.
        record = sandbox.record()
        assert record["state"] == "running" and record["main"]["pid"] == run.pids["main"]
        assert run.reap.wait(20) == -signal.SIGKILL
        return
    record = ended(sandbox)
    assert outcome(record) == (5, None, None)
    assert record["adopted"] == ("reaper" in who)
    assert run.reap.wait(20) == (-signal.SIGKILL if "front" in who else 5)


@pytest.mark.parametrize("who", AT_ONCE, ids="-".join)
def test_several_killed_at_once_never_make_an_outcome_up(sandbox, who):
    run = Run(sandbox)
    for role in who:
        try:
            os.kill(run.pids[role], signal.SIGKILL)
        except ProcessLookupError:
            pass                    # it was quick to end with the others
    run.reap.wait(20)
    if set(who) >= {"front", "reaper"}:
        # The last one may have had the time to write.
        wait_for(lambda: not any(processes.is_alive(run.pids[role]) for role in who))
        record = sandbox.record()
        assert record["state"] == "running" or outcome(record) == (None, signal.SIGKILL, None)
    else:
        record = ended(sandbox)
        assert outcome(record) == (None, signal.SIGKILL, None)
        # MAIN killed by somebody else failed: nobody here did that.
        assert records.state_of(record) == "failed"
        assert run.reap.returncode == -signal.SIGKILL
    assert record["main"]["pid"] == run.pids["main"]


def test_a_front_that_took_over_says_so_in_the_running_record(sandbox):
    run = Run(sandbox)
    run.kill("reaper")
    record = wait_for(lambda: sandbox.record()["reaper"]["pid"] == run.pids["front"] and sandbox.record())
    assert record["state"] == "running"
    assert (record["reaper"], record["main"]["pid"]) == (record["front"], run.pids["main"])
    run.go()
    assert run.reap.wait(20) == 5
    assert run.reap.stderr.read() == "mxq-reap: warning: %s: the reaper died (signal KILL); going on in its place\n" % (
        record["run"])


@pytest.mark.parametrize("number, seen, reason", [
    (signal.SIGUSR1, signal.SIGTERM, "kill"), (signal.SIGUSR2, signal.SIGKILL, "kill-now")])
def test_a_front_that_took_over_answers_like_the_reaper(sandbox, number, seen, reason):
    run = Run(sandbox)
    run.kill("reaper")
    wait_for(lambda: sandbox.record()["reaper"]["pid"] == run.pids["front"])
    os.kill(run.pids["front"], number)
    assert run.reap.wait(20) == -seen
    assert outcome(sandbox.record()) == (None, seen, reason)


def test_a_front_that_took_over_passes_signals_on(sandbox):
    run = Run(sandbox)
    run.kill("reaper")
    wait_for(lambda: sandbox.record()["reaper"]["pid"] == run.pids["front"])
    os.kill(run.pids["front"], signal.SIGTERM)
    assert run.reap.wait(20) == -signal.SIGTERM
    assert outcome(sandbox.record()) == (None, signal.SIGTERM, None)


def test_a_front_that_took_over_ends_what_was_left_behind(sandbox):
    os.mkfifo(sandbox.work / "go")
    reap = spawn_ready(sandbox, "mxq-reap", "--grace", "0", "sh", "-c",
                       "%s daemon ignore; echo ready; read line <go; exit 5" % ESCAPE)
    os.kill(running(sandbox)["reaper"]["pid"], signal.SIGKILL)
    wait_for(lambda: sandbox.record()["reaper"]["pid"] == reap.pid)
    (sandbox.work / "go").write_text("\n")
    assert reap.wait(20) == 5
    assert not processes.is_alive(int((sandbox.work / "daemon").read_text()))
    assert sandbox.record()["leftovers"] == 1


def test_the_reaper_killed_while_it_ends_what_was_left_behind(sandbox):
    reap = spawn_ready(sandbox, "mxq-reap", "--grace", "1h", "sh", "-c",
                       "%s daemon ignore; %s up >/dev/null & while [ ! -s up ]; do :; done; echo ready; exit 5" % (
                           ESCAPE, IGNORE))
    record = wait_for(lambda: sandbox.records() and sandbox.record())
    wait_for((sandbox.work / "up").exists)
    wait_for(lambda: not processes.is_alive(record["main"]["pid"]))
    left = [int((sandbox.work / name).read_text()) for name in ("daemon", "up")]
    os.kill(record["reaper"]["pid"], signal.SIGKILL)
    wait_for(lambda: processes.comm(reap.pid) == "mxq-reaper")
    reap.send_signal(signal.SIGUSR2)        # the grace is long
    assert reap.wait(20) == 5
    record = sandbox.record()
    assert outcome(record) == (5, None, None)
    assert record["adopted"] is True
    assert not any(map(processes.is_alive, left))


def test_a_kill_that_was_told_before_the_reaper_died_stays_the_reason(sandbox):
    reap = spawn_ready(sandbox, "mxq-reap", CATCH, "TERM", "INT")
    record = running(sandbox)
    os.kill(record["reaper"]["pid"], signal.SIGUSR1)
    read_until(reap.stdout, b"got TERM\n")
    os.kill(record["reaper"]["pid"], signal.SIGKILL)
    wait_for(lambda: sandbox.record()["reaper"]["pid"] == reap.pid)
    os.kill(record["main"]["pid"], signal.SIGKILL)
    assert reap.wait(20) == -signal.SIGKILL
    assert outcome(sandbox.record()) == (None, signal.SIGKILL, "kill")
