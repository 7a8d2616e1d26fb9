"""Time limit and memory limit of mxq-reap."""

import os
import signal
import subprocess
import time

import pytest

from mxqlib import record as records
from tests.harness.reaping import EAT, outcome, running, spawn_ready

SLACK_S = 3             # what a busy machine may add


def run_limited(sandbox, *argv):
    """Run to the end; the record."""
    done = sandbox.run("mxq-reap", *argv)
    record = sandbox.record()
    assert records.state_of(record) == "killed"
    return done.returncode, record


# ---- time ----

def test_at_the_time_limit_the_job_gets_xcpu(sandbox):
    status, record = run_limited(sandbox, "-t", "1s", "--grace", "0", "sleep", "60")
    assert status == 124
    assert outcome(record) == (None, signal.SIGXCPU, "time")
    assert 1.0 <= record["real"] < 1 + SLACK_S
    assert record["runtime"] == 1


@pytest.mark.parametrize("ignored, status, number, least_s", [
    ("XCPU", 124, signal.SIGTERM, 1.05), ("XCPU TERM", 137, signal.SIGKILL, 1.10)])
def test_what_ignores_xcpu_gets_term_at_105_and_kill_at_110_percent(sandbox, ignored, status, number, least_s):
    seen, record = run_limited(sandbox, "-t", "1s", "--grace", "0", "sh", "-c", "trap '' %s; exec sleep 60" % ignored)
    assert seen == status
    assert outcome(record) == (None, number, "time")
    assert least_s <= record["real"] < least_s + SLACK_S


def test_term_and_kill_are_the_grace_apart_at_least(sandbox):
    status, record = run_limited(sandbox, "-t", "1s", "--grace", "1s", "sh", "-c", "trap '' XCPU TERM; exec sleep 60")
    assert status == 137
    assert outcome(record) == (None, signal.SIGKILL, "time")
    assert 3.0 <= record["real"] < 3 + SLACK_S


def test_a_job_that_ends_by_itself_at_its_limit_was_ended_by_the_limit(sandbox):
    status, record = run_limited(sandbox, "-t", "1s", "sh", "-c", "trap 'exit 3' XCPU; while :; do sleep 0.02; done")
    assert status == 124
    assert outcome(record) == (3, None, "time")


def test_the_limit_holds_for_every_process_of_the_job_and_while_it_forks(sandbox):
    status, record = run_limited(sandbox, "-t", "1s", "--grace", "0", "sh", "-c",
                                 "setsid sleep 60 & trap '' XCPU TERM; while :; do (:); done")
    assert status == 137
    assert record["real"] < 1.1 + SLACK_S
    assert record["survivors"] == []


def test_suspension_does_not_stop_the_clock(sandbox):
    reap = sandbox.spawn("mxq-reap", "-t", "1s", "--grace", "0", "sleep", "60")
    os.kill(running(sandbox)["reaper"]["pid"], signal.SIGTSTP)
    assert reap.wait(20) == 124
    record = sandbox.record()
    assert outcome(record) == (None, signal.SIGXCPU, "time")
    assert record["real"] < 1 + SLACK_S


def test_a_job_within_its_limit_is_left_alone(sandbox):
    assert sandbox.run("mxq-reap", "-t", "1s", "sh", "-c", "sleep 0.2; exit 4").returncode == 4
    assert outcome(sandbox.record()) == (4, None, None)


def test_what_lingers_is_under_the_limit_and_the_run_is_killed(sandbox):
    before = time.monotonic()
    done = sandbox.run("mxq-reap", "-t", "1s", "--grace", "0", "--linger", "sh", "-c", "sleep 60 & exit 4")
    assert done.returncode == 124
    assert time.monotonic() - before < 1 + SLACK_S
    assert outcome(sandbox.record()) == (4, None, "time")


def test_the_front_goes_on_with_the_limit(sandbox):
    reap = sandbox.spawn("mxq-reap", "-t", "1s", "--grace", "0", "sleep", "60")
    os.kill(running(sandbox)["reaper"]["pid"], signal.SIGKILL)
    assert reap.wait(20) == 124
    record = sandbox.record()
    assert outcome(record) == (None, signal.SIGXCPU, "time")
    assert 1.0 <= record["real"] < 1 + SLACK_S and record["adopted"]


def test_the_clock_of_the_machine_may_count_from_anywhere(sandbox):
    command = ["unshare", "-T", "--boottime", "1000000"] if os.geteuid() == 0 else [
        "unshare", "-rT", "--boottime", "1000000"]
    if subprocess.run(command + ["true"], stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("machine cannot: no time namespaces for this user")
    assert sandbox.run(*command, "mxq-reap", "-t", "1m", "sh", "-c", "exit 2").returncode == 2
    assert sandbox.record()["real"] < 10


# ---- memory ----

def test_over_the_memory_limit_the_job_gets_term(sandbox):
    status, record = run_limited(sandbox, "-m", "60", EAT, "80")
    assert status == -signal.SIGTERM
    assert outcome(record) == (None, signal.SIGTERM, "memory")
    assert record["memory"] == 60 << 20 < record["max_sumrss"] < 200 << 20


def test_what_ignores_term_gets_kill_after_the_grace(sandbox):
    status, record = run_limited(sandbox, "-m", "60", "--grace", "0", EAT, "80", "TERM")
    assert status == -signal.SIGKILL
    assert outcome(record) == (None, signal.SIGKILL, "memory")


def test_the_limit_is_for_the_sum_of_the_processes(sandbox):
    line = "%s 40 & %s 40 & wait" % (EAT, EAT)
    status, record = run_limited(sandbox, "-m", "70", "sh", "-c", line)
    assert status == -signal.SIGTERM
    assert record["reason"] == "memory"


def test_a_process_that_left_its_session_counts(sandbox):
    status, record = run_limited(sandbox, "-m", "60", "sh", "-c", "setsid %s 80 & sleep 60" % EAT)
    assert status == -signal.SIGTERM
    assert record["reason"] == "memory"


def test_below_the_memory_limit_the_job_is_left_alone(sandbox):
    reap = spawn_ready(sandbox, "mxq-reap", "-m", "500", EAT, "80")
    time.sleep(0.5)                 # three looks at it
    reap.terminate()
    assert reap.wait(20) == -signal.SIGTERM
    record = sandbox.record()
    assert record["reason"] is None
    assert 80 << 20 < record["max_sumrss"] < 200 << 20


def test_the_resident_size_is_in_the_record_and_what_python_caused_of_it(sandbox):
    sandbox.run("mxq-reap", "true", check=True)
    record = sandbox.record()
    assert 0 < record["rusage"]["maxrss"] <= record["maxrss_floor"] < 100000
