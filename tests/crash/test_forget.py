"""mxq-collect --forget, killed or failed at each step: a job is there or forgotten, and no output without its job."""

import os

import pytest

from tests.harness import oracle, records, strace
from tests.harness.queueing import states

pytestmark = [pytest.mark.needs("strace"), pytest.mark.timeout_s(1800)]

FRONT = {"front": "-"}
OLD, YOUNG = ("1.1", "2.1", records.make_run_id()), "9.1"
YOUNG_DATE = "2199-01-01T00:00:00.000000Z"
EFFECTS = ("pwrite64", "write", "fsync", "fdatasync", "unlink", "ftruncate", "fcntl", "exit_group")


def prepare(sandbox):
    """Three jobs to be forgotten, two with output, and one to be kept, with output too."""
    runs = records.make_spool(sandbox.spool)
    for run in OLD:
        records.put(runs, records.make_ended(run))
    records.put(runs, records.make_ended(YOUNG, date_end=YOUNG_DATE))
    sandbox.run("mxq-collect", check=True)
    for run in OLD[1:] + (YOUNG,):
        path = sandbox.spool / "output" / (run + ".log")
        path.write_text("said\n")
        os.utime(path, (0, 0))
    return ["mxq-collect", "--forget", "0s"]


def files(sandbox):
    made = ["queue.db", "queue.db-wal", "queue.db-shm", "spool/output"]
    return sorted({sandbox.mxq_dir / name for name in made} | set(sandbox.mxq_dir.glob("**/*")))


def check(sandbox):
    """What is left makes sense, and one more call, unharmed, comes to its end."""
    kept = {row["run"] for row in sandbox.queue("SELECT run FROM run")}
    assert {path.stem for path in (sandbox.spool / "output").iterdir()} <= kept
    oracle.check(sandbox, {run: 0 for run in kept})
    sandbox.run("mxq-collect", "--forget", "0s", check=True)
    assert list(states(sandbox)) == [9]
    assert [path.name for path in (sandbox.spool / "output").iterdir()] == [YOUNG + ".log"]
    assert {row["run"] for row in sandbox.queue("SELECT run FROM forgotten")} == set(OLD)
    oracle.check(sandbox, {YOUNG: 0})


def each(make, names, tally, word):
    failures = []
    for point in strace.crashpoints(prepare, make, names=names, roles=FRONT, paths=files):
        with point.strike(failures) as traced:
            traced.end(60)
            assert "Traceback" not in traced.stderr(), traced.stderr()
            check(traced.sandbox)
        tally[word] += point.fired[0]
    assert not failures, "%d failures\n%s" % (len(failures), "\n\n".join(failures[:3]))
    assert tally[word] > 3


@pytest.mark.quick
def test_kill_before_each_commit_and_removal(tally):
    each(strace.kill_before, ("fdatasync", "unlink", "fsync"), tally, "kill")


def test_kill_at_each_call(tally):
    each(strace.kill_before, EFFECTS, tally, "kill")


@pytest.mark.parametrize("sticky", [False, True])
@pytest.mark.parametrize("errno", ["EIO", "ENOSPC", "EROFS"])
def test_error_at_each_call(errno, sticky, tally):
    def make(call, n, role):
        return strace.fail(call, n, errno, sticky, role)

    each(make, ("unlink", "fsync", "fdatasync", "pwrite64"), tally, "error")


def test_output_goes_before_the_rows(tally):
    """Where the last unlink is, the log of the database is not synced yet; after it the folder is."""
    calls = [call for call in strace.record(prepare, roles=FRONT, paths=files)
             if call.name in ("unlink", "fsync", "fdatasync")]
    gone = [at for at, call in enumerate(calls) if call.name == "unlink" and call.paths[0].endswith(".log")]
    assert len(gone) == 2
    later = [(call.name, call.paths[0].rpartition("/")[2]) for call in calls[gone[-1] + 1:]]
    assert later.index(("fsync", "output")) < later.index(("fdatasync", "queue.db-wal"))
