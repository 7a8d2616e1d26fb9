"""mxq-reap loses no outcome and invents none, whatever is killed or fails at whatever call.

Front, reaper and MAIN are struck each for itself and two at once. The job
writes down that it began and that it ended, so each test knows the truth.
"""

import json
import os
import signal

import pytest

from mxqlib import record as format_of
from tests.harness import strace

pytestmark = [pytest.mark.needs("strace"), pytest.mark.timeout_s(600)]

JOB = "echo begun >>job; sleep 0.01; echo ended >>job; exit 3"
TRUE_STATUS = 3 << 8

# What others can see of a process, or what can block it; the rest is between such calls.
EFFECTS = ("clone", "execve", "exit_group", "kill", "pidfd_send_signal", "wait4", "waitid", "rt_sigtimedwait",
           "setsid", "setpgid", "prctl", "pipe2", "write", "fsync", "rename", "unlink", "fallocate", "ftruncate", "openat")
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
        assert "Traceback" not in self.stderr, self.stderr
        if self.job:
            assert self.record, "the job ran, but nothing is known of it"
            if self.state == "ended":
                assert self.record["status"] == TRUE_STATUS
                assert self.record["reason"] is None
        elif self.state == "ended":
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
            judge(Judge(traced), traced.returncode)
        tally["kill"] += point.fired[0]
    report(failures)
    assert tally["kill"] > 0


def report(failures):
    """Fail with all that went wrong, the first three at length."""
    assert not failures, "%d failures\n%s\n%s" % (
        len(failures), "\n\n".join(failures[:3]), "\n".join(text.split("\n")[0][:300] for text in failures[3:]))


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


@pytest.mark.parametrize("workload", [reaping, reaping_afresh])
def test_kill_of_the_front_at_each_call(workload, tally):
    kill_each(workload, "front", None, front_killed, tally)


def test_kill_of_main_at_each_call(tally):
    kill_each(reaping, "main", None, main_killed, tally)
