"""mxq-reap at a terminal: the job is as much at it as without the wrapper."""

import os
import re
import signal
import termios

import pytest

from tests.harness import processes
from tests.harness.reaping import CATCH, ended, outcome, received, running
from tests.harness.sandbox import wait_for
from tests.harness.terminal import Terminal

SHELLS = {
    "bash": ["bash", "--norc", "--noprofile", "--noediting", "-i"],
    "dash": ["dash", "-i"],
}


@pytest.fixture(params=sorted(SHELLS))
def shell(request, sandbox):
    """An interactive shell in a terminal, at its prompt."""
    terminal = Terminal(sandbox, *SHELLS[request.param])
    terminal.expect("ready> ")
    terminal.type("stty -echo\n")
    terminal.expect("ready> ")
    yield terminal
    terminal.close()


def status(shell):
    """The status that the shell saw last."""
    shell.type('echo "status=$?"\n')
    shown = shell.expect("\r\nready> ")
    return int(re.search(r"status=(\d+)", shown).group(1))


def in_foreground(shell):
    """Wait until the shell itself is the foreground group."""
    wait_for(lambda: shell.foreground() == processes.group(shell.process.pid))


# ---- reading, Ctrl-C, Ctrl-\ ----

def test_the_job_reads_the_terminal(shell, sandbox):
    shell.type("mxq-reap head -n 1\n")
    wait_for(lambda: shell.foreground() != shell.process.pid)
    shell.type("typed\n")
    shell.expect("typed\r\n")
    shell.expect("ready> ")
    assert status(shell) == 0
    assert outcome(sandbox.record()) == (0, None, None)


@pytest.mark.parametrize("key, number", [("C-c", signal.SIGINT), ("C-\\", signal.SIGQUIT)])
def test_a_key_ends_a_job_without_a_handler(shell, sandbox, key, number):
    shell.type("mxq-reap sh -c 'echo up; exec sleep 60'\n")
    shell.expect("up\r\n")
    shell.press(key)
    shell.expect("ready> ")
    assert status(shell) == 128 + number
    record = sandbox.record()
    assert outcome(record) == (None, number, None)
    assert received(record) == []           # the terminal told MAIN and nobody else


def test_a_key_reaches_a_handler_once(shell, sandbox):
    shell.type("mxq-reap %s INT QUIT\n" % CATCH)
    shell.expect("ready\r\n")
    for _ in range(3):
        shell.press("C-c")
        shell.expect("got INT\r\n")
    shell.press("C-\\")
    shown = shell.expect("ready> ")
    assert "got INT" not in shown and shown.count("got QUIT") == 1
    assert status(shell) == 7
    assert received(sandbox.record()) == []


def test_a_script_dies_with_its_job_as_without_the_wrapper(shell, sandbox):
    shell.type("sh -c 'mxq-reap sh -c \"echo up; exec sleep 60\"; echo after'\n")
    shell.expect("up\r\n")
    shell.press("C-c")
    assert "after" not in shell.expect("ready> ")
    assert status(shell) == 130


def test_a_new_size_of_the_window_is_told_once(shell, sandbox):
    shell.type("mxq-reap %s WINCH INT\n" % CATCH)
    shell.expect("ready\r\n")
    shell.resize(30, 100)
    shell.expect("got WINCH\r\n")
    shell.press("C-c")
    assert "WINCH" not in shell.expect("ready> ")
    assert received(sandbox.record()) == []


# ---- stop and go on ----

def stop(shell):
    """Start a job that reads, and press Ctrl-Z; return its record."""
    shell.type("mxq-reap sh -c 'echo up; read line; echo \"line=$line\"; exit 5'\n")
    shell.expect("up\r\n")
    shell.press("C-z")
    shell.expect("ready> ")


def test_stopped_and_in_the_foreground_again(shell, sandbox):
    stop(shell)
    record = sandbox.record()
    assert processes.state(record["main"]["pid"]) == "T"
    shell.type("jobs\n")
    assert "topped" in shell.expect("mxq-reap")
    shell.expect("ready> ")
    shell.type("fg\n")
    wait_for(lambda: shell.foreground() == processes.group(record["main"]["pid"]))
    shell.type("typed\n")
    shell.expect("line=typed\r\n")
    shell.expect("ready> ")
    assert status(shell) == 5
    assert outcome(sandbox.record()) == (5, None, None)


def test_stopped_and_in_the_foreground_again_and_again(shell, sandbox):
    stop(shell)
    for _ in range(5):
        shell.type("fg\n")
        shell.expect("mxq-reap")
        wait_for(lambda: shell.foreground() != shell.process.pid)
        wait_for(lambda: processes.state(sandbox.record()["front"]["pid"]) == "S")
        shell.press("C-z")
        shell.expect("ready> ")
    shell.type("kill -9 %1; wait %1; echo over\n")
    shell.expect("over\r\n")
    assert outcome(ended(sandbox)) == (None, signal.SIGKILL, None)


def test_stopped_and_on_in_the_background(shell, sandbox):
    # A job that forks at that moment may hang with or without us: dash waits in vfork for a child that was stopped.
    os.mkfifo(sandbox.work / "go")
    shell.type("mxq-reap sh -c 'echo up; read line <go; exit 6'\n")
    shell.expect("up\r\n")
    shell.press("C-z")
    shell.expect("ready> ")
    shell.type("bg\n")
    shell.expect("ready> ")
    in_foreground(shell)
    (sandbox.work / "go").write_text("\n")
    shell.type("wait %1\n")
    shell.expect("ready> ")
    assert status(shell) == 6
    assert outcome(sandbox.record()) == (6, None, None)


def test_a_background_job_that_reads_is_stopped_until_it_is_in_the_foreground(shell, sandbox):
    shell.type("mxq-reap sh -c 'read line; echo \"line=$line\"' &\n")
    shell.expect("ready> ")
    record = running(sandbox)
    wait_for(lambda: processes.state(record["front"]["pid"]) == "T")
    shell.type("\n")
    shell.expect("topped")          # dash looks for what stopped only before a prompt
    shell.expect("ready> ")
    shell.type("fg\n")
    wait_for(lambda: shell.foreground() == processes.group(record["main"]["pid"]))
    shell.type("typed\n")
    shell.expect("line=typed\r\n")
    shell.expect("ready> ")
    assert status(shell) == 0


@pytest.mark.parametrize("stopped", [False, True])
def test_kill_of_the_shells_job_number(shell, sandbox, stopped):
    shell.type("mxq-reap sh -c 'echo up; exec sleep 60'%s\n" % ("" if stopped else " &"))
    shell.expect("up\r\n")
    if stopped:
        shell.press("C-z")
        shell.expect("topped")
    shell.type("kill %1; kill -CONT %1\n")     # bash's kill lets go on by itself, dash's does not
    record = ended(sandbox)
    assert outcome(record) == (None, signal.SIGTERM, None)
    assert received(record) == []


def test_main_killed_while_it_is_stopped_is_not_stopped_for_ever(shell, sandbox):
    stop(shell)
    record = sandbox.record()
    os.kill(record["main"]["pid"], signal.SIGKILL)
    wait_for(lambda: not processes.is_alive(record["front"]["pid"]))
    assert outcome(sandbox.record()) == (None, signal.SIGKILL, None)
    shell.type("jobs\n")
    assert "topped" not in shell.expect("ready> ")


def test_stopped_after_the_reaper_died(shell, sandbox):
    shell.type("mxq-reap sh -c 'echo up; read line; echo \"line=$line\"; exit 5'\n")
    shell.expect("up\r\n")
    front = sandbox.record()["front"]["pid"]
    os.kill(sandbox.record()["reaper"]["pid"], signal.SIGKILL)
    wait_for(lambda: sandbox.record()["reaper"]["pid"] == front)
    shell.press("C-z")
    shell.expect("ready> ")
    shell.type("fg\n")
    wait_for(lambda: shell.foreground() != shell.process.pid)
    shell.type("typed\n")
    shell.expect("line=typed\r\n")
    shell.expect("ready> ")
    assert status(shell) == 5
    assert outcome(sandbox.record()) == (5, None, None)
    assert sandbox.record()["adopted"] is True


# ---- several, and shells inside ----

def test_a_pipeline_of_two_wrapped_commands(shell, sandbox):
    shell.type("mxq-reap cat | mxq-reap tr a-z A-Z\n")
    wait_for(lambda: len(sandbox.records()) == 2)
    wait_for(lambda: shell.foreground() != shell.process.pid)
    shell.type("typed\n")
    shell.press("C-d")
    shell.expect("TYPED\r\n")
    shell.expect("ready> ")
    assert status(shell) == 0
    assert [outcome(record) for record in sandbox.records()] == [(0, None, None)] * 2


def test_a_pipeline_that_is_stopped_goes_on_and_is_ended_by_one_key(shell, sandbox):
    shell.type("mxq-reap cat | mxq-reap cat\n")
    wait_for(lambda: len(sandbox.records()) == 2)
    shell.type("one\n")
    shell.expect("one\r\n")
    shell.press("C-z")
    shell.expect("ready> ")
    assert [processes.state(record["main"]["pid"]) for record in sandbox.records()] == ["T", "T"]
    shell.type("fg\n")
    wait_for(lambda: shell.foreground() != shell.process.pid)
    shell.type("two\n")
    shell.expect("two\r\n")
    shell.press("C-c")
    shell.expect("ready> ")
    assert status(shell) == 130
    assert [outcome(record) for record in sandbox.records()] == [(None, signal.SIGINT, None)] * 2


def test_the_first_of_a_pipeline_dies_of_the_closed_pipe_at_once(shell, sandbox):
    shell.type("mxq-reap yes | mxq-reap head -n 1\n")
    shell.expect("y\r\n")
    shell.expect("ready> ")
    assert status(shell) == 0
    assert sorted(str(outcome(record)) for record in sandbox.records()) == [
        "(0, None, None)", "(None, %d, None)" % signal.SIGPIPE]


def test_an_interactive_shell_inside_has_job_control(shell, sandbox):
    shell.type("PS1='inner$ ' mxq-reap bash --norc --noprofile --noediting -i\n")
    shell.expect("inner$ ")
    inner = sandbox.record()["main"]["pid"]
    shell.type("sleep 60\n")
    wait_for(lambda: processes.comm(shell.foreground()) == "sleep")     # before its exec it may ignore TSTP
    shell.press("C-z")
    shell.expect("Stopped")
    shell.expect("inner$ ")
    shell.type("fg\n")
    wait_for(lambda: shell.foreground() != processes.group(inner))
    shell.press("C-c")
    shell.expect("inner$ ")
    shell.type("exit 9\n")
    shell.expect("ready> ")
    assert status(shell) == 9
    in_foreground(shell)


def wait_until_it_reads(sandbox):
    wait_for(lambda: processes.state(sandbox.record()["main"]["pid"]) == "S")


@pytest.mark.needs("less")
def test_less_inside(shell, sandbox):
    (sandbox.work / "text").write_text("".join("line %d\n" % n for n in range(200)))
    shell.type("mxq-reap less text\n")
    shell.expect("line 20")
    shell.type("G")
    shell.expect("line 199")
    shell.expect("(END)")
    wait_until_it_reads(sandbox)        # less misses a stop between its prompt and its read
    shell.press("C-z")
    shell.expect("ready> ")
    shell.type("fg\n")
    shell.expect("(END)")
    wait_until_it_reads(sandbox)
    shell.type("q")
    shell.expect("ready> ")
    assert status(shell) == 0


@pytest.mark.needs("vim")
def test_vim_inside(shell, sandbox):
    shell.type("mxq-reap vim -u NONE -i NONE -n -N text\n")
    shell.expect("text")
    shell.type("ione\x1b")
    shell.expect("one")
    wait_until_it_reads(sandbox)
    shell.press("C-z")
    shell.expect("ready> ")
    shell.type("fg\n")
    shell.expect("one")
    wait_until_it_reads(sandbox)
    shell.type("otwo\x1b:wq\r")
    shell.expect("ready> ")
    assert status(shell) == 0
    assert (sandbox.work / "text").read_text() == "one\ntwo\n"


# ---- hangup, tostop, the front that leads the session ----

def test_a_hangup_ends_the_job_and_leaves_a_record(shell, sandbox):
    shell.type("mxq-reap sh -c 'echo up; exec sleep 60'\n")
    shell.expect("up\r\n")
    shell.hang_up()
    assert outcome(ended(sandbox)) == (None, signal.SIGHUP, None)


def test_a_job_that_outlives_a_hangup_has_its_outcome_recorded(shell, sandbox):
    shell.type("mxq-reap nohup sh -c 'echo $$ >up; while [ ! -e go ]; do sleep 0.02; done; exit 4' >/dev/null 2>&1\n")
    wait_for((sandbox.work / "up").exists)
    shell.hang_up()
    wait_for(lambda: not processes.is_alive(shell.process.pid))
    assert sandbox.record()["state"] == "running"
    (sandbox.work / "go").touch()
    assert outcome(ended(sandbox)) == (4, None, None)


@pytest.mark.parametrize("name", sorted(SHELLS))
def test_messages_come_through_where_background_output_is_stopped(sandbox, name):
    shell = Terminal(sandbox, *SHELLS[name], flags=termios.TOSTOP)
    shell.expect("ready> ")
    shell.type("mxq-reap no-such-command\n")
    shell.expect("mxq-reap: error: cannot execute no-such-command: No such file or directory")
    shell.expect("ready> ")
    assert status(shell) == 127
    shell.close()


def test_keys_reach_the_job_once_where_the_front_leads_the_session(sandbox):
    terminal = Terminal(sandbox, "mxq-reap", CATCH, "INT", "WINCH", "QUIT")
    terminal.expect("ready\r\n")
    for _ in range(3):
        terminal.press("C-c")
        terminal.expect("got INT\r\n")
    terminal.resize(50, 50)
    terminal.expect("got WINCH\r\n")
    terminal.press("C-\\")
    assert terminal.finish() == 7
    assert terminal.seen.count(b"got INT") == 3
    assert terminal.seen.count(b"got WINCH") == terminal.seen.count(b"got QUIT") == 1
    assert received(sandbox.record()) == []


def test_a_signal_to_a_front_that_leads_the_session_is_passed_on(sandbox):
    terminal = Terminal(sandbox, "mxq-reap", CATCH, "INT", "TERM")
    terminal.expect("ready\r\n")
    terminal.process.send_signal(signal.SIGINT)
    terminal.expect("got INT\r\n")
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.finish() == 7
    assert received(sandbox.record()) == ["front INT", "front TERM"]


def test_a_front_that_leads_the_session_does_not_detach(sandbox):
    terminal = Terminal(sandbox, "mxq-reap", CATCH, "TERM")
    terminal.expect("ready\r\n")
    terminal.process.send_signal(signal.SIGRTMIN)
    terminal.expect("not detached")
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.finish() == 7


def test_a_hangup_where_the_front_leads_the_session(sandbox):
    terminal = Terminal(sandbox, "mxq-reap", "sh", "-c", "echo ready; exec sleep 60")
    terminal.expect("ready\r\n")
    terminal.hang_up()
    assert outcome(ended(sandbox)) == (None, signal.SIGHUP, None)
    assert terminal.process.wait(20) == -signal.SIGHUP
