"""Many runs for one mxq-adopt: orphans and their watchers, records of other hosts."""

import os
import signal
import time

import pytest

from mxqlib import process
from tests.harness.adopting import adopt
from tests.harness.queueing import states, submit
from tests.harness.records import make_running, make_spool, put
from tests.harness.sandbox import wait_for

ORPHANS = 200
OTHERS, OURS = 10000, 1000


def proportional_kib(pid):
    """The memory of a process, pages that are shared counted in part (proc(5), smaps_rollup)."""
    with open("/proc/%d/smaps_rollup" % pid, encoding="ascii") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Pss:"))


@pytest.mark.timeout_s(300)
def test_200_orphans(sandbox):
    sandbox.run("mxq-sub", "-f", "-", input="exec sleep 1000\n" * ORPHANS, check=True)
    sandbox.run("mxq-run", "-j", str(ORPHANS), check=True)
    wait_for(lambda: len(list(sandbox.runs.glob("[!.]*.json"))) == ORPHANS, 60)
    for record in sandbox.records():
        os.kill(record["reaper"]["pid"], signal.SIGKILL)
    before = time.monotonic()
    said = adopt(sandbox)
    seconds = time.monotonic() - before
    assert len(said) == ORPHANS
    watchers = {record["reaper"]["pid"] for record in sandbox.records()}
    assert len(watchers) == ORPHANS
    # Samples are taken, and done with.
    wait_for(lambda: all(os.stat("/proc/%d" % pid) for pid in watchers))
    size_kib = sum(map(proportional_kib, watchers)) / ORPHANS
    for pid in watchers:
        os.kill(pid, signal.SIGUSR1)
    wait_for(lambda: all(record["state"] == "ended" for record in sandbox.records()), 60)
    assert {(record["reason"], record["signal"]) for record in sandbox.records()} == {("kill", signal.SIGTERM)}
    sandbox.run("mxq-collect", check=True)
    assert set(states(sandbox).values()) == {"killed"}
    assert size_kib < 1024, size_kib
    assert seconds < 2, seconds


def make_records(sandbox, reference):
    """Running records of another host, and of this one."""
    sandbox.mxq_dir.mkdir(mode=0o700)
    runs = make_spool(sandbox.spool)
    for n in range(1, OTHERS + 1):
        put(runs, make_running("%d.1" % n))
    for n in range(OTHERS + 1, OTHERS + OURS + 1):
        put(runs, make_running("%d.1" % n, host=reference["host"], reaper=reference, front=None,
                               main=dict(reference, pid=reference["pid"] + 1)))


@pytest.mark.timeout_s(300)
@pytest.mark.parametrize("with_queue", [False, True])
def test_10000_records_of_another_host_and_1000_of_this_one(sandbox, with_queue):
    make_records(sandbox, process.reference(os.getpid()))
    if with_queue:
        submit(sandbox, "true")
    for news in (OURS if with_queue else 0, 0):
        before = time.monotonic()
        said = adopt(sandbox)
        seconds = time.monotonic() - before
        assert len(said) == news
        assert seconds < 1, seconds


@pytest.mark.needs("strace")
@pytest.mark.timeout_s(300)
def test_one_pass_over_proc_for_1000_that_are_gone(sandbox):
    make_records(sandbox, dict(process.reference(os.getpid()), start=1))
    submit(sandbox, "true")
    log = sandbox.path / "log"
    done = sandbox.run("strace", "-f", "-qq", "-o", log, "-e", "trace=openat", "-P", "/proc", "mxq-adopt")
    assert done.returncode == 0 and len(done.stdout.splitlines()) == OURS
    assert log.read_text().count('"/proc"') == 1
    assert sum(state == "lost" for state in states(sandbox).values()) == OURS
    text = (sandbox.spool / ("drain." + os.uname().nodename)).read_text()
    assert text.endswith("and %d more\n" % (OURS - 20))
