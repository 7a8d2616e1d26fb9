"""mxq-wait: it returns when the outcome is in the queue, and ends as the job did."""

import json
import os
import signal
import sqlite3
import time

import pytest

from tests.harness import records
from tests.harness.queueing import (detach, read_record, states, submit, wait_until_ended, wait_until_running,
                                    write_record)
from tests.harness.reaping import CATCH, spawn_ready
from tests.harness.sandbox import wait_for
from tests.harness.snippet import run_snippet


def wait(sandbox, *words, **kw):
    """(status, standard error) of mxq-wait, which prints nothing else."""
    done = sandbox.run("mxq-wait", *words, **kw)
    assert done.stdout == ""
    return done.returncode, done.stderr


def gated(sandbox, *words):
    """A job that waits for open_gate(), running; its number."""
    if not (sandbox.work / "gate").exists():
        os.mkfifo(sandbox.work / "gate")
    number = submit(sandbox, *words, "--", "sh", "-c", "read line <gate; exit $line")
    sandbox.run("mxq-run", check=True)
    wait_until_running(sandbox, "%d.1" % number)
    return number


def open_gate(sandbox, status=0):
    (sandbox.work / "gate").write_text("%d\n" % status)


# ---- one job ----

@pytest.mark.parametrize("script, status", [
    ("exit 0", 0), ("exit 1", 1), ("exit 75", 75), ("exit 255", 255), ("kill -TERM $$", -15), ("kill -SEGV $$", -11),
    ("kill -KILL $$", -9), ("kill -USR1 $$", -10),
])
def test_it_ends_as_the_job_did(sandbox, script, status):
    submit(sandbox, "--", "sh", "-c", script)
    sandbox.run("mxq-run", check=True)
    assert wait(sandbox, "1") == (status, "")
    assert wait(sandbox, "1.1") == (status, "")
    assert sandbox.records() == []


def test_it_dumps_no_second_core(sandbox):
    submit(sandbox, "--", "sh", "-c", "ulimit -c 0; kill -SEGV $$")
    sandbox.run("mxq-run", check=True)
    done = sandbox.run("sh", "-c", "ulimit -c unlimited; mxq-wait 1")
    assert done.returncode == 128 + signal.SIGSEGV and "core dumped" not in done.stderr
    assert not list(sandbox.work.glob("core*"))


def test_commands_that_could_not_be_executed(sandbox):
    submit(sandbox, "nowhere-to-be-found")
    submit(sandbox, "/etc/passwd")
    sandbox.run("mxq-run", check=True)
    assert wait(sandbox, "1")[0] == 127
    assert wait(sandbox, "2")[0] == 126


def test_a_time_limit_is_124_and_137_when_it_took_kill(sandbox):
    gentle = detach(sandbox, "-t", "1s", "--grace", "0s", "sleep", "1000")
    assert wait(sandbox, gentle)[0] == 124
    hard = detach(sandbox, "-t", "1s", "--grace", "0s", "--", "sh", "-c",
                  "trap '' TERM XCPU; while :; do sleep 1; done")
    assert wait(sandbox, hard)[0] == 137


def test_killed_and_cancelled(sandbox):
    run = detach(sandbox, "sleep", "1000")
    submit(sandbox, "true")
    sandbox.run("mxq-ctl", "kill", "--all", check=True)
    assert wait(sandbox, run)[0] == -signal.SIGTERM
    assert wait(sandbox, "1") == (3, "")


def test_lost_is_4(sandbox):
    write_record(sandbox, records.make_ended("7.1", status=None, reason="lost"))
    assert wait(sandbox, "7") == (4, "")
    assert states(sandbox) == {7: "lost"}


def test_it_waits_for_retries_and_a_run_id_means_that_run(sandbox):
    submit(sandbox, "--retries", "2", "--", "sh", "-c", "test $MXQ_RUN = 1.3; exit $?")
    waiting = sandbox.spawn("mxq-wait", "1")
    sandbox.run("mxq-run", check=True)
    assert wait(sandbox, "1.1")[0] == 1
    assert waiting.poll() is None
    sandbox.run("mxq-run", "--wait", check=True)
    assert waiting.wait(20) == 0
    assert wait(sandbox, "1.2")[0] == 1 and wait(sandbox, "1.3")[0] == 0


def test_a_run_of_mxq_reap_by_its_id_and_then_by_its_number(sandbox):
    run = detach(sandbox, "sh", "-c", "sleep 0.3; exit 7")
    assert not sandbox.queue_file.exists()
    assert wait(sandbox, run) == (7, "")
    assert wait(sandbox, "1") == (7, "")


def test_it_wakes_at_once(sandbox):
    gated(sandbox)
    waiting = sandbox.spawn("mxq-wait", "1")
    time.sleep(1.5)                 # until its pauses have grown
    before = time.monotonic()
    open_gate(sandbox, 5)
    assert waiting.wait(20) == 5
    assert time.monotonic() - before < 1


def test_somebody_else_may_collect(sandbox):
    submit(sandbox, "--", "sh", "-c", "exit 9")
    waiting = [sandbox.spawn("mxq-wait", "1") for _ in range(3)]
    sandbox.run("mxq-run", "--wait", check=True)
    assert [process.wait(20) for process in waiting] == [9] * 3
    assert [process.stderr.read() for process in waiting] == [""] * 3


def test_an_outcome_in_the_fallback_is_found(sandbox):
    fallback = sandbox.path / "fallback"
    fallback.mkdir(mode=0o700)
    run = detach(sandbox, "sleep", "1000")
    entry = read_record(sandbox, run)
    os.kill(entry["reaper"]["pid"], signal.SIGKILL)
    os.kill(entry["main"]["pid"], signal.SIGKILL)
    waiting = sandbox.spawn("mxq-wait", run)
    ended = records.make_ended(run, status=3 << 8)
    kept = fallback / (run + ".json")
    kept.with_suffix(".part").write_text(json.dumps(ended) + "\n")
    kept.with_suffix(".part").rename(kept)
    assert waiting.wait(20) == 3
    assert not kept.exists()


def test_a_front_that_takes_over_is_waited_for(sandbox):
    front = spawn_ready(sandbox, "mxq-reap", CATCH)
    entry = sandbox.record()
    waiting = sandbox.spawn("mxq-wait", entry["run"])
    os.kill(entry["reaper"]["pid"], signal.SIGKILL)
    wait_for(lambda: sandbox.record()["reaper"]["pid"] == front.pid)
    sandbox.run("mxq-ctl", "kill", "--now", entry["run"], check=True)
    assert waiting.wait(20) == -signal.SIGKILL and waiting.stderr.read() == ""


def test_an_orphan_is_told(sandbox):
    run = detach(sandbox, "sleep", "1000")
    entry = read_record(sandbox, run)
    os.kill(entry["reaper"]["pid"], signal.SIGKILL)
    waiting = sandbox.spawn("mxq-wait", run)
    assert waiting.stderr.readline() == (
        "mxq-wait: warning: %s: its reaper has died; waiting until mxq-adopt says what became of it\n" % run)
    os.kill(entry["main"]["pid"], signal.SIGKILL)
    write_record(sandbox, records.make_ended(run, status=None, reason="lost", adopted=True))
    assert waiting.wait(20) == 4 and waiting.stderr.read() == ""


# ---- several ----

def test_several_tell_whether_all_finished(sandbox):
    sandbox.run("mxq-sub", "-f", "-", input="true\ntrue\nfalse\n", check=True)
    sandbox.run("mxq-run", "-j", "3", check=True)
    assert wait(sandbox, "1", "2.1") == (0, "")
    assert wait(sandbox, "1", "2", "3") == (3, "")
    write_record(sandbox, records.make_ended("7.1", status=None, reason="reboot"))
    assert wait(sandbox, "7", "1", "3") == (4, "")


def test_the_same_one_twice_is_one(sandbox):
    submit(sandbox, "--", "sh", "-c", "exit 6")
    sandbox.run("mxq-run", check=True)
    assert wait(sandbox, "1", "01")[0] in (3, 6)
    assert wait(sandbox, "1", "1") == (3, "")


def test_a_group_and_all(sandbox):
    for group, command in (("a", "true"), ("b", "false"), ("a", "true")):
        submit(sandbox, "-g", group, command)
    waiting = {group: sandbox.spawn("mxq-wait", "-g", group) for group in "ab"}
    wait_for(lambda: all(is_waiting(process.pid) for process in waiting.values()))
    sandbox.run("mxq-run", "--wait", check=True)
    assert waiting["a"].wait(20) == 0 and waiting["b"].wait(20) == 3
    assert wait(sandbox, "-g", "a") == (0, "") and wait(sandbox, "--all") == (0, "")


def is_waiting(pid):
    """True while a process sleeps in poll(2)."""
    with open("/proc/%d/wchan" % pid, encoding="ascii") as file:
        return "poll" in file.read()


def test_all_means_runs_of_mxq_reap_too(sandbox):
    submit(sandbox, "true")
    os.mkfifo(sandbox.work / "gate")
    detach(sandbox, "sh", "-c", "read line <gate; exit $line")
    waiting = sandbox.spawn("mxq-wait", "--all")
    wait_for(lambda: is_waiting(waiting.pid))
    sandbox.run("mxq-run", check=True)
    open_gate(sandbox, 1)
    assert waiting.wait(20) == 3
    assert sorted(states(sandbox).values()) == ["failed", "finished"]


def test_hundreds_are_collected_on_the_way(sandbox):
    sandbox.run("mxq-sub", "-f", "-", input="true\n" * 300, check=True)
    waiting = sandbox.spawn("mxq-wait", "--all")
    wait_for(lambda: is_waiting(waiting.pid))
    run_snippet(sandbox, """
        from mxqlib import jobqueue
        from mxqlib.jobqueue import jobs
        queue = jobqueue.open_queue(sys.argv[1])
        with queue.transaction():
            for number in range(1, 301):
                assert jobs.claim(queue, number, "node7", "lock", None)
        """, str(sandbox.queue_file))
    for row in sandbox.queue("SELECT job, date_submit FROM job"):
        write_record(sandbox, records.make_ended("%d.1" % row["job"], date_submit=row["date_submit"]))
    assert waiting.wait(60) == 0
    assert set(states(sandbox).values()) == {"finished"} and sandbox.records() == []


def test_nothing_to_wait_for(sandbox):
    assert wait(sandbox, "--all") == (0, "")
    assert wait(sandbox, "-g", "nobody") == (0, "")
    assert not sandbox.queue_file.exists()


# ---- time, signals, trouble ----

def test_timeout(sandbox):
    gated(sandbox)
    before = time.monotonic()
    assert wait(sandbox, "--timeout", "1s", "1") == (75, "mxq-wait: warning: 1: has not ended in time\n")
    assert 1 <= time.monotonic() - before < 4
    assert wait(sandbox, "-q", "--timeout", "0s", "--all") == (75, "")
    open_gate(sandbox, 4)
    assert wait(sandbox, "--timeout", "1h", "1") == (4, "")
    assert wait(sandbox, "--timeout", "0s", "1") == (4, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_at_once(sandbox, number):
    submit(sandbox, "--hold", "true")
    waiting = sandbox.spawn("mxq-wait", "1")
    wait_for(lambda: is_waiting(waiting.pid))
    waiting.send_signal(number)
    assert waiting.wait(5) == -number


def test_a_locked_queue_is_waited_for(sandbox):
    number = submit(sandbox, "--", "sh", "-c", "exit 5")
    sandbox.run("mxq-run", check=True)
    wait_until_ended(sandbox, "%d.1" % number)
    connection = sqlite3.connect(sandbox.queue_file, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    waiting = sandbox.spawn("mxq-wait", "1")
    try:
        assert "database is locked; still waiting" in waiting.stderr.readline()
    finally:
        connection.execute("ROLLBACK")
    assert waiting.wait(20) == 5


def test_what_names_no_job_is_said_and_the_rest_is_waited_for(sandbox):
    gated(sandbox)
    waiting = sandbox.spawn("mxq-wait", "99", "99.1", "1")
    assert [waiting.stderr.readline() for _ in range(2)] == [
        "mxq-wait: error: 99: no such job\n", "mxq-wait: error: 99.1: no such run\n"]
    assert waiting.poll() is None
    open_gate(sandbox)
    assert waiting.wait(20) == 4
    assert wait(sandbox, "99")[0] == 4
    for word in ("0", "x", "-5", "9" * 30, str(1 << 63), ""):
        status, said = wait(sandbox, "--", word, "1")
        assert status == 64 and said.count("\n") == 1, word


@pytest.mark.parametrize("words", [
    [], ["1", "--all"], ["1", "-q"], ["-g", "x", "1"], ["-g", "x", "--all"], ["--timeout", "soon", "1"],
    ["-g", "", "1"], ["-5"], ["-x"],
], ids=" ".join)
def test_wrong_usage(sandbox, words):
    status, said = wait(sandbox, *words)
    assert status == 64 and said.startswith("mxq-wait: error: ") and said.count("\n") == 1


def test_a_damaged_queue(sandbox):
    submit(sandbox, "true")
    sandbox.queue_file.write_bytes(b"no database" * 1000)
    status, said = wait(sandbox, "1")
    assert status == 69 and said.count("\n") == 1


# ---- deliveries ----

def test_log_and_record_were_written_when_it_returns(sandbox):
    submit(sandbox, "--log", "log", "--record", "record", "--mail", "me@example.org", "--mail-on", "always", "true")
    sandbox.run("mxq-run", check=True)
    assert wait(sandbox, "1")[0] == 0
    assert "005 (" in (sandbox.work / "log").read_text()
    assert json.loads((sandbox.work / "record").read_text())["run"] == "1.1"
    assert sandbox.mails() == []
    sandbox.run("mxq-collect", check=True)
    assert len(sandbox.mails()) == 1


def test_a_log_that_cannot_be_written_is_tried_once(sandbox):
    for _ in range(2):
        submit(sandbox, "--log", "nowhere/log", "--record", "-", "--", "sh", "-c", "exit 2")
    sandbox.run("mxq-run", "-j", "2", check=True)
    status, said = wait(sandbox, "1")
    assert status == 2 and "nowhere/log" in said
    assert wait(sandbox, "2")[0] == 2
    # The second waits for the first, to the same file: not for ever.
    assert {row["tries"] for row in sandbox.queue("SELECT tries FROM delivery WHERE sink = 'log'")} <= {0, 1}
