"""The caller of mxq-reap sees the job end as without the wrapper."""

import os
import re
import shutil
import signal
import subprocess

import pytest

from tests.harness import processes
from tests.harness.reaping import outcome
from tests.harness.sandbox import SYSTEM_PATH

# sh is one of the others on most machines.
SHELLS = sorted({os.path.realpath(shutil.which(name, path=SYSTEM_PATH) or name): name
                 for name in ("sh", "bash", "dash")}.values())
EDGES = [0, 1, 2, 3, 74, 75, 124, 125, 126, 127, 128, 129, 137, 143, 160, 192, 193, 254, 255]


@pytest.mark.slow
def test_every_exit_code_is_passed_on(sandbox):
    shown = sandbox.run("sh", "-c", """
        n=$1
        while [ $n -lt 256 ]; do mxq-reap sh -c "exit $n"; echo $n $?; n=$((n + 2)); done >odd &
        n=$2
        while [ $n -lt 256 ]; do mxq-reap sh -c "exit $n"; echo $n $?; n=$((n + 2)); done; wait; cat odd
        """, "sh", "1", "0", env={"MXQ_SYNC": "0"})
    assert shown.stderr == ""
    assert sorted(map(int, shown.stdout.split())) == sorted(list(range(256)) * 2)
    assert all(line.split()[0] == line.split()[1] for line in shown.stdout.splitlines())
    assert sorted(record["exit"] for record in sandbox.records()) == list(range(256))
    assert all(record["status"] == record["exit"] << 8 for record in sandbox.records())


LOOP = """
    for n in %s; do
        $W sh -c "%s"
        echo "status $n $?"
    done
    """


def told(sandbox, shell, wrapper, numbers, job):
    """What a shell says of jobs: its own messages and $?, without pids, line numbers, and the core it saw."""
    script = sandbox.work / "script"
    script.write_text(LOOP % (" ".join(map(str, numbers)), job))
    done = sandbox.run(shell, script, env={"W": wrapper, "MXQ_SYNC": "0"}, stderr=subprocess.STDOUT)
    text = done.stdout.replace(" (core dumped)", "").replace("mxq-reap ", "")
    text = re.sub(r"^.*script: line \d+: +\d+ ", "", text, flags=re.M)
    return [re.sub(r" +(\$W )?sh -c .*", "", line) for line in text.splitlines()]


@pytest.mark.parametrize("shell", SHELLS)
def test_exit_codes_are_seen_by_the_shells_as_without_the_wrapper(sandbox, shell):
    plain = told(sandbox, shell, "", EDGES, "exit $n")
    assert plain == ["status %d %d" % (n, n) for n in EDGES]
    assert told(sandbox, shell, "mxq-reap", EDGES, "exit $n") == plain


@pytest.mark.parametrize("shell", SHELLS)
def test_every_terminating_signal_is_seen_by_the_shells_as_without_the_wrapper(sandbox, shell):
    job = "kill -$n \\$\\$; sleep 60"
    plain = told(sandbox, shell, "", processes.ENDING, job)
    assert [line for line in plain if line.startswith("status")] == [
        "status %d %d" % (n, 128 + n) for n in processes.ENDING]
    assert told(sandbox, shell, "mxq-reap", processes.ENDING, job) == plain
    seen = sorted(record["signal"] for record in sandbox.records())
    assert seen == processes.ENDING
    assert all(record["exit"] is None and record["reason"] is None for record in sandbox.records())


@pytest.mark.parametrize("number", processes.ENDING)
def test_the_raw_status_of_a_signal_is_passed_on(sandbox, number):
    done = sandbox.run("mxq-reap", "sh", "-c", "kill -%d $$; sleep 60" % number)
    assert (done.returncode, done.stdout, done.stderr) == (-number, "", "")
    assert outcome(sandbox.record()) == (None, number, None)


def test_a_core_is_dumped_once_and_told_in_the_record(sandbox):
    with open("/proc/sys/kernel/core_pattern", encoding="ascii") as file:
        if "/" in file.read() or "%" in file.read():
            pytest.skip("machine cannot: cores go elsewhere (core_pattern)")
    done = sandbox.run("mxq-reap", "sh", "-c", "ulimit -c unlimited; kill -SEGV $$")
    assert done.returncode == -signal.SIGSEGV
    cores = [name for name in os.listdir(sandbox.work) if name.startswith("core")]
    if cores == []:
        pytest.skip("machine cannot: no cores are dumped here")
    assert len(cores) == 1
    assert sandbox.record()["core"] is True


def test_no_second_core_where_the_caller_wants_cores(sandbox):
    # The front runs under the caller's limit; a core of its own would have the job's for company.
    done = sandbox.run("sh", "-c", "ulimit -c unlimited 2>/dev/null; mxq-reap sh -c 'cd /; kill -ABRT $$'; echo $?")
    assert done.stdout == "%d\n" % (128 + signal.SIGABRT)
    assert [name for name in os.listdir(sandbox.work) if name.startswith("core")] == []


# ---- what could not be executed ----

@pytest.mark.parametrize("command, status, text", [
    ("no-such-command", 127, "cannot execute no-such-command: No such file or directory"),
    ("", 127, "cannot execute : No such file or directory"),
    ("/no/such/command", 127, "cannot execute /no/such/command: No such file or directory"),
    ("/etc/passwd", 126, "cannot execute /etc/passwd: Permission denied"),
    ("/", 126, "cannot execute /: Permission denied"),
    ("/etc/passwd/x", 126, "cannot execute /etc/passwd/x: Not a directory"),
])
def test_what_cannot_be_executed(sandbox, command, status, text):
    done = sandbox.run("mxq-reap", command)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "mxq-reap: error: %s\n" % text)
    record = sandbox.record()
    assert outcome(record) == (status, None, "exec")
    assert record["error"] == text


def test_a_command_that_itself_ends_with_126_or_127_was_executed(sandbox):
    assert sandbox.run("mxq-reap", "sh", "-c", "exit 127").returncode == 127
    record = sandbox.record()
    assert (outcome(record), record["error"]) == ((127, None, None), None)


# ---- pid 1 ----

NAMESPACE = ["unshare", "--pid", "--fork"] if os.geteuid() == 0 else ["unshare", "-r", "--pid", "--fork"]


@pytest.fixture(params=[[], ["--mount-proc"]], ids=["outer-proc", "own-proc"])
def namespace(request):
    """A command that makes its operand pid 1 of a pid namespace."""
    command = NAMESPACE + request.param
    if subprocess.run(command + ["true"], stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("machine cannot: no pid namespaces for this user")
    return command


@pytest.mark.parametrize("how, status, seen", [
    ("exit 0", 0, (0, None)), ("exit 9", 9, (9, None)), ("kill -TERM $$", 143, (None, 15)),
    ("kill -KILL $$", 137, (None, 9)), ("kill -SEGV $$", 139, (None, 11)), ("kill -34 $$", 162, (None, 34))])
def test_as_pid_1_a_signal_is_told_as_128_and_its_number(sandbox, namespace, how, status, seen):
    done = sandbox.run(*namespace, "mxq-reap", "sh", "-c", how)
    assert (done.returncode, done.stderr) == (status, "")
    record = sandbox.record()
    assert (record["exit"], record["signal"]) == seen
    assert (record["front"]["pid"], record["main"]["pid"]) == (1, 3)
    assert None not in (record["front"]["start"], record["main"]["start"], record["reaper"]["start"])


def test_as_pid_1_what_is_left_behind_is_ended(sandbox, namespace):
    done = sandbox.run(*namespace, "mxq-reap", "sh", "-c", "(setsid sleep 60 &) & (sleep 61 &); exit 3")
    assert (done.returncode, done.stderr) == (3, "")
    record = sandbox.record()
    assert record["leftovers"] >= 2 and record["survivors"] == []
    assert len([child for child in record["children"] if child["status"] == signal.SIGTERM]) >= 2


def test_as_pid_1_signals_reach_the_job(sandbox, namespace):
    outer = sandbox.spawn(*namespace, "mxq-reap", "sh", "-c",
                          'trap "echo got; exit 3" TERM; echo ready; while :; do read line <fifo; done')
    os.mkfifo(sandbox.work / "fifo")
    assert outer.stdout.readline() == "ready\n"
    front, = processes.children(outer.pid)
    assert processes.comm(front) == "mxq-front"
    os.kill(front, signal.SIGTERM)
    assert outer.stdout.readline() == "got\n"
    assert outer.wait(20) == 3
