"""mxq-reap -b: the run id once the job is executed, and a job that is on its own."""

import os
import signal

import pytest

from tests.harness import processes
from tests.harness.reaping import CATCH, ended, nothing_was_started, outcome, running
from tests.harness.sandbox import wait_for


def test_it_prints_the_run_id_and_returns_while_the_job_runs(sandbox):
    os.mkfifo(sandbox.work / "go")
    done = sandbox.run("mxq-reap", "-b", "sh", "-c", "read line <go; echo out; echo err >&2; exit 3")
    record = sandbox.record()
    assert (done.returncode, done.stdout, done.stderr) == (0, record["run"] + "\n", "")
    assert record["state"] == "running"
    # The caller's stdout and stderr are free: run() returned.
    assert processes.is_alive(record["main"]["pid"])
    (sandbox.work / "go").write_text("\n")
    record = ended(sandbox)
    assert outcome(record) == (3, None, None)
    log = sandbox.spool / "output" / (record["run"] + ".log")
    assert record["stdout"] == record["stderr"] == str(log)
    assert log.read_text() == "out\nerr\n"
    assert log.stat().st_mode & 0o777 == 0o600


def test_it_is_in_a_session_of_its_own_with_nothing_of_the_callers(sandbox):
    lock = os.open(sandbox.work / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    sandbox.run("mxq-reap", "-b", "sleep", "60", pass_fds=[lock], check=True)
    os.close(lock)
    record = running(sandbox)
    reaper, main = record["reaper"]["pid"], record["main"]["pid"]
    assert os.getsid(main) == os.getsid(reaper) == reaper
    assert processes.group(main) == main
    assert {os.readlink("/proc/%d/fd/%s" % (main, fd)) for fd in os.listdir("/proc/%d/fd" % main)} == {
        "/dev/null", record["stdout"], str(sandbox.work / "lock")}
    held = {os.readlink("/proc/%d/fd/%s" % (reaper, fd)) for fd in os.listdir("/proc/%d/fd" % reaper)}
    assert {os.readlink("/proc/%d/fd/%d" % (reaper, fd)) for fd in range(3)} == {"/dev/null"}
    assert str(sandbox.work / "lock") not in held
    os.kill(reaper, signal.SIGUSR1)
    assert outcome(ended(sandbox)) == (None, signal.SIGTERM, "kill")


@pytest.mark.parametrize("command, status, text", [
    ("no-such-command", 127, "cannot execute no-such-command: No such file or directory"),
    ("/etc/passwd", 126, "cannot execute /etc/passwd: Permission denied")])
def test_a_command_that_cannot_be_executed(sandbox, command, status, text):
    done = sandbox.run("mxq-reap", "-b", command)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "mxq-reap: error: %s\n" % text)
    record = ended(sandbox)
    assert (outcome(record), record["error"]) == ((status, None, "exec"), text)


def test_a_job_that_ends_at_once_was_executed_all_the_same(sandbox):
    done = sandbox.run("mxq-reap", "-b", "sh", "-c", "exit 9")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ended(sandbox)["run"] + "\n"
    assert outcome(sandbox.record()) == (9, None, None)


def test_output_files_that_were_asked_for(sandbox):
    sandbox.run("mxq-reap", "-b", "-o", "%n.out", "-N", "name", "sh", "-c", "echo out; echo err >&2", check=True)
    record = ended(sandbox)
    assert (sandbox.work / "name.out").read_text() == "out\nerr\n"
    assert record["stdout"] == record["stderr"] == str(sandbox.work / "name.out")
    sandbox.run("mxq-reap", "-b", "-e", "err", "sh", "-c", "echo out; echo err >&2", check=True)
    wait_for(lambda: all(record["state"] == "ended" for record in sandbox.records()))
    assert (sandbox.work / "err").read_text() == "err\n"


def test_a_start_that_waits_for_its_output_file_is_waited_for(sandbox):
    os.mkfifo(sandbox.work / "fifo")
    reap = sandbox.spawn("mxq-reap", "-b", "-o", "fifo", "echo", "text")
    wait_for(lambda: sandbox.records() and sandbox.record())
    assert reap.poll() is None
    assert (sandbox.work / "fifo").read_text() == "text\n"
    assert reap.wait(20) == 0


def test_a_term_while_it_waits_for_the_start_ends_the_start(sandbox):
    os.mkfifo(sandbox.work / "fifo")
    reap = sandbox.spawn("mxq-reap", "-b", "-o", "fifo", "touch", "ran")
    record = wait_for(lambda: sandbox.records() and sandbox.record())
    wait_for(lambda: processes.state(record["main"]["pid"]) == "S")
    reap.terminate()
    assert reap.wait(20) == -signal.SIGTERM
    assert not (sandbox.work / "ran").exists()
    assert outcome(ended(sandbox)) == (None, signal.SIGTERM, None)


def test_a_refused_start(sandbox):
    done = sandbox.run("mxq-reap", "-b", "-w", "/no/such", "touch", "ran")
    assert done.returncode == 125
    assert nothing_was_started(sandbox)


def test_a_run_id_that_cannot_be_printed_is_an_error_and_the_job_runs(sandbox):
    done = sandbox.run("sh", "-c", "mxq-reap -b sh -c 'exit 4' >/dev/full")
    assert done.returncode == 74
    assert "No space left on device" in done.stderr and done.stderr.count("\n") == 1
    assert outcome(ended(sandbox)) == (4, None, None)


def test_it_survives_the_group_and_the_session_of_its_caller(sandbox):
    shell = sandbox.spawn("sh", "-c", "mxq-reap -b %s HUP TERM; echo started; sleep 60" % CATCH, new_session=True)
    shell.stdout.readline()
    assert shell.stdout.readline() == "started\n"
    record = running(sandbox)
    os.killpg(shell.pid, signal.SIGKILL)
    assert shell.wait(20) == -signal.SIGKILL
    assert processes.is_alive(record["reaper"]["pid"]) and processes.is_alive(record["main"]["pid"])
    os.kill(record["reaper"]["pid"], signal.SIGUSR2)
    assert outcome(ended(sandbox)) == (None, signal.SIGKILL, "kill-now")


def test_messages_of_the_reaper_go_to_the_output_file(sandbox):
    os.mkfifo(sandbox.work / "go")
    sandbox.run("mxq-reap", "-b", "sh", "-c", "read line <go; exit 5", check=True)
    record = running(sandbox)
    sandbox.runs.rename(sandbox.spool / "away")
    sandbox.runs.write_text("in the way")
    (sandbox.work / "go").write_text("\n")
    log = sandbox.spool / "output" / (record["run"] + ".log")
    wait_for(lambda: "trying until it can be written" in log.read_text())
    sandbox.runs.unlink()
    (sandbox.spool / "away").rename(sandbox.runs)
    assert outcome(ended(sandbox)) == (5, None, None)
