"""mxq-sub and mxq-ctl, struck at each call: all jobs of a call or none; a number that was printed is durable."""

import pytest

from tests.harness import strace
from tests.harness.queueing import states

pytestmark = [pytest.mark.needs("strace"), pytest.mark.timeout_s(600)]

FRONT = {"front": "-"}
COUNT = 120             # more than one statement holds, and a rest
STEPS = ("fdatasync", "fsync", "unlink", "exit_group")
EFFECTS = STEPS + ("pwrite64", "write", "mkdir", "ftruncate", "rename")


def submitting(sandbox):
    """Many lines into a queue that has a job already."""
    (sandbox.work / "lines").write_text("".join("echo %d\n" % n for n in range(COUNT)))
    sandbox.run("mxq-sub", "true", check=True)
    return ["mxq-sub", "--log", "log", "-f", "lines"]


def draining(sandbox):
    """Into a spool that is there."""
    sandbox.run("mxq-reap", "true", check=True)
    return ["mxq-ctl", "drain", "-r", "why"]


def check_submitted(traced):
    """All or nothing, what was printed is there, and the next mxq-sub works."""
    sandbox, before = traced.sandbox, 1
    printed = [int(word) for word in traced.stdout().split()]
    sandbox.run("mxq-sub", "true", check=True)
    found = sandbox.queue("SELECT job FROM job ORDER BY job")
    made = len(found) - before - 1
    assert made in (0, COUNT), "%d of %d" % (made, COUNT)
    assert made == COUNT or not printed
    assert printed == list(range(before + 1, before + 1 + COUNT))[:len(printed)]
    for table in ("event", "delivery"):
        count = sandbox.queue("SELECT count(*) FROM %s WHERE job > %d AND job <= %d" % (table, before, before + made))
        assert count[0][0] == made, table
    assert sandbox.queue("PRAGMA integrity_check")[0][0] == "ok"
    assert not sandbox.queue("PRAGMA foreign_key_check")


def strike_each(workload, make, names, check, **options):
    """Strike each call once; what check() finds wrong is reported together."""
    failures, fired = [], 0
    for point in strace.crashpoints(workload, make, names=names, roles=FRONT, **options):
        with point.strike(failures) as traced:
            traced.end(60)
            check(traced)
        fired += point.fired[0]
    assert not failures, "%d failures\n%s" % (len(failures), "\n\n".join(failures[:3]))
    return fired


def fail_with(errno):
    def make(call, n, role):
        return strace.fail(call, n, errno, False, role)
    return make


@pytest.mark.quick
def test_kill_at_each_step():
    assert strike_each(submitting, strace.kill_before, ("fdatasync",), check_submitted) > 1


def test_kill_at_each_call():
    assert strike_each(submitting, strace.kill_before, EFFECTS, check_submitted) > 20


@pytest.mark.parametrize("errno", ["EIO", "ENOSPC"])
def test_error_at_each_call(errno):
    def check(traced):
        assert "Traceback" not in traced.stderr(), traced.stderr()
        assert traced.returncode in (0, 69, 73, 74, 75, 77)
        assert traced.returncode == 0 or traced.stderr().startswith("mxq-sub: error: "), "status without a word"
        check_submitted(traced)

    assert strike_each(submitting, fail_with(errno), ("pwrite64", "write", "fsync", "fdatasync", "mkdir"), check) > 10


def test_kill_of_drain_at_each_call():
    def check(traced):
        sandbox = traced.sandbox
        drain = sandbox.spool / "drain"
        assert not drain.exists() or drain.read_text().startswith("why; ")
        assert drain.exists() or b"drained" not in traced.stdout()
        sandbox.run("mxq-ctl", "drain", check=True)
        sandbox.run("mxq-ctl", "resume", check=True)
        assert not drain.exists()

    assert strike_each(draining, strace.kill_before, EFFECTS, check) > 3


def held_and_queued(sandbox):
    """Twenty jobs that wait, half of them held."""
    for words in ([], ["--hold"]):
        sandbox.run("mxq-sub", *words, "-f", "-", input="true\n" * 10, check=True)
    return ["mxq-ctl", "kill", "--all"]


def test_kill_of_cancelling_at_each_step():
    def check(traced):
        sandbox = traced.sandbox
        reported = [int(line.split(b":")[0]) for line in traced.stdout().splitlines()]
        assert all(states(sandbox)[number] == "cancelled" for number in reported)
        sandbox.run("mxq-ctl", "kill", "--all", check=True)
        assert set(states(sandbox).values()) == {"cancelled"}
        events = sandbox.queue("SELECT job FROM event WHERE code = 9")
        assert sorted(row["job"] for row in events) == list(range(1, 21))       # once each

    assert strike_each(held_and_queued, strace.kill_before, STEPS + ("pwrite64", "write"), check) > 10
