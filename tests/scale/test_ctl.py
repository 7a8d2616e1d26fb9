"""Kills of many: runs, processes, jobs that wait."""

import time

import pytest

from tests.harness.queueing import states
from tests.harness.sandbox import wait_for

RUNS, PROCESSES = 200, 2000


def running(sandbox, count):
    """Wait until that many records say running."""
    wait_for(lambda: len(list(sandbox.runs.glob("[!.]*.json"))) == count, 60)


@pytest.mark.timeout_s(300)
@pytest.mark.parametrize("script, grace_s", [("exec sleep 1000", 0), ("trap '' TERM; while :; do sleep 1; done", 2)])
def test_200_runs_are_killed_at_once(sandbox, script, grace_s):
    sandbox.run("mxq-sub", "-f", "-", input=(script + "\n") * RUNS, check=True)
    sandbox.run("mxq-run", "-j", str(RUNS), check=True)
    running(sandbox, RUNS)
    words = ["--grace", "%ds" % grace_s] if grace_s else []
    before = time.monotonic()
    done = sandbox.run("mxq-ctl", "kill", *words, "--all", check=True)
    seconds = time.monotonic() - before
    assert done.stderr == "" and len(done.stdout.splitlines()) == RUNS
    assert all(record["state"] == "ended" for record in sandbox.records())
    assert seconds < grace_s + 3, seconds


@pytest.mark.timeout_s(300)
def test_a_job_of_2000_processes_is_killed(sandbox):
    script = "i=0; while [ $i -lt %d ]; do sleep 1000 & i=$((i + 1)); done; : >ready; wait" % (PROCESSES - 1)
    run = sandbox.run("mxq-reap", "-b", "sh", "-c", script, check=True).stdout.strip()
    wait_for((sandbox.work / "ready").exists, 60)
    before = time.monotonic()
    sandbox.run("mxq-ctl", "kill", "--now", run, check=True)
    seconds = time.monotonic() - before
    assert sandbox.pids() == []
    assert seconds < 2, seconds


@pytest.mark.timeout_s(300)
def test_100000_that_wait_are_cancelled_beside_others(sandbox):
    sandbox.run("mxq-sub", "-f", "-", input="true\n" * 100000, check=True)
    with open(sandbox.work / "said", "wb") as said:
        killer = sandbox.spawn("mxq-ctl", "kill", "--all", stdout=said)
    wait_for(lambda: (sandbox.work / "said").stat().st_size)
    before = time.monotonic()
    sandbox.run("mxq-sub", "-g", "other", "--hold", "true", check=True)
    assert time.monotonic() - before < 5        # many transactions, not one
    assert killer.wait(200) == 0
    assert set(states(sandbox).values()) <= {"cancelled", "held"}
