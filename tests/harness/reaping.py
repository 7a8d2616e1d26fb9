"""What tests of mxq-reap share: probe programs, and waiting for what a record says."""

from tests.harness import processes
from tests.harness.sandbox import TREE, read_until, wait_for

PROBES = TREE / "tests" / "cli" / "probes"
CATCH, COUNT, IGNORE, ESCAPE, FORKS, EAT = (
    PROBES / name for name in ("catch", "count", "ignore", "escape", "forks", "eat"))
HELD = ("mxq-main", "mxq-reaper")       # what MAIN is called until it is the command


def spawn_ready(sandbox, *argv, **kw):
    """Start a command, wait until it says `ready`, and return its Popen."""
    process = sandbox.spawn(*argv, **kw)
    read_until(process.stdout, b"ready\n")
    return process


def running(sandbox):
    """The only record, once the job is executed: before that it may be taken back."""
    def look():
        records = sandbox.records()
        return len(records) == 1 and processes.comm(records[0]["main"]["pid"]) not in HELD and records[0]
    return wait_for(look, what="a running job")


def ended(sandbox, timeout_s=20):
    """The only record, once it is that of an ended run."""
    def look():
        records = sandbox.records()
        return len(records) == 1 and records[0]["state"] == "ended" and records[0]
    return wait_for(look, timeout_s, what="an ended record")


def outcome(record):
    """(exit, signal, reason) of an ended record."""
    assert record["state"] == "ended", record
    return record["exit"], record["signal"], record["reason"]


def received(record):
    """What reaper and front received, like ["reaper TERM"]."""
    return ["%s %s" % (each["to"], each["signal"]) for each in record["signals"]]


def nothing_was_started(sandbox):
    """No record, no room for one, and `ran`, which the job would have made, is not there."""
    left = sorted(path.name for path in sandbox.runs.iterdir()) if sandbox.runs.is_dir() else []
    return left == [] and not (sandbox.work / "ran").exists()


def words(sandbox):
    """What jobs wrote into the file `job`."""
    job = sandbox.work / "job"
    return job.read_text().split() if job.exists() else []
