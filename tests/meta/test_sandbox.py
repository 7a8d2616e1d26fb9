"""The harness does what the suites rely on: leaks are found, all is ended, strict mode has no skips."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.harness import sandbox as sandbox_module
from tests.harness.sandbox import TREE, Sandbox

STRICT_ENV = {"MXQ_TEST_STRICT": "1"}


def run_pytest(tmp_path, body, preexec_fn=None, **changes):
    """Run a test file of its own under tests/conftest.py, in a pytest of its own."""
    file = tmp_path / "test_inner.py"
    file.write_text("import os, subprocess, time, pytest\n" + body)
    env = dict(os.environ, TMPDIR=str(tmp_path), PYTHONDONTWRITEBYTECODE="1", **changes)
    if "MXQ_TEST_STRICT" not in changes:
        env.pop("MXQ_TEST_STRICT", None)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-c", str(TREE / "setup.cfg"),
         "--rootdir", str(TREE), str(file)],
        cwd=TREE, env=env, preexec_fn=preexec_fn, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        encoding="utf-8", timeout=60, check=False)


def kept_folders(tmp_path):
    return list(tmp_path.glob("mxq-test-*"))


ESCAPE = "(setsid sh -c 'echo $$ >pid.new; mv pid.new pid; exec sleep 1000' &) >/dev/null 2>&1; until [ -e pid ]; " \
         "do sleep 0.01; done"


def leave_one(tmp_path, escape=ESCAPE, marks=""):
    return run_pytest(tmp_path, marks + """
def test_leaves_a_process(sandbox):
    sandbox.run("sh", "-c", %r)
    open(%r, "w").write((sandbox.work / "pid").read_text())
""" % (escape, str(tmp_path / "pid")))


def is_alive(pid):
    # A zombie waits for an init that takes its time; it runs no more.
    try:
        return Path("/proc/%d/stat" % pid).read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_process_left_behind_fails_the_test_and_is_ended(tmp_path):
    done = leave_one(tmp_path)
    assert done.returncode == 1 and "left running" in done.stdout and "sleep 1000" in done.stdout
    assert not is_alive(int((tmp_path / "pid").read_text()))
    assert len(kept_folders(tmp_path)) == 1


def test_a_process_with_a_clean_environment_is_found_too(tmp_path):
    done = leave_one(tmp_path, ESCAPE.replace("setsid", "setsid env -i PATH=/usr/bin:/bin"))
    assert done.returncode == 1 and "left running" in done.stdout
    assert not is_alive(int((tmp_path / "pid").read_text()))


def test_the_mark_allows_leaving_and_the_process_is_ended_all_the_same(tmp_path):
    done = leave_one(tmp_path, marks="@pytest.mark.leaves_processes")
    assert done.returncode == 0, done.stdout
    assert not is_alive(int((tmp_path / "pid").read_text()))
    assert kept_folders(tmp_path) == []


def test_what_was_spawned_and_its_descendants_are_ended_without_complaint(tmp_path):
    done = run_pytest(tmp_path, """
def test_spawns(sandbox):
    process = sandbox.spawn("sh", "-c", "setsid sleep 1000 & echo $! >pid.new; mv pid.new pid; wait")
    sandbox.wait_for((sandbox.work / "pid").exists)
    open(%r, "w").write((sandbox.work / "pid").read_text())
""" % str(tmp_path / "pid"))
    assert done.returncode == 0, done.stdout
    assert not is_alive(int((tmp_path / "pid").read_text()))


def test_a_failed_test_ends_its_processes_and_keeps_its_folder(tmp_path):
    done = leave_one(tmp_path, ESCAPE + "; exit 1", marks="""
@pytest.fixture(autouse=True)
def fail_later(sandbox):
    run = sandbox.run
    sandbox.run = lambda *argv: run(*argv, check=True)
""")
    (folder,) = kept_folders(tmp_path)
    assert done.returncode == 1 and str(folder) in done.stdout and "left running" not in done.stdout
    assert not is_alive(int((folder / "work" / "pid").read_text()))


def test_a_loop_of_forks_is_outrun():
    box = Sandbox()
    try:
        # Each shell starts the next one and leaves: no process lives long enough to be looked up at leisure.
        script = box.work / "hop"
        script.write_text("#!/bin/sh\n: >alive\nsetsid sh ./hop >/dev/null 2>&1 &\n")
        for _ in range(3):
            box.run("sh", "./hop")
        box.wait_for((box.work / "alive").exists)
        assert box.kill_all() > 0
        (box.work / "alive").unlink()
        time.sleep(0.2)     # the chance for one that escaped to show itself
        assert not (box.work / "alive").exists()
    finally:
        box.close()
    assert not box.path.exists()


def test_a_look_under_which_somebody_died_is_not_believed(sandbox, monkeypatch):
    """The one that is sought was born after /proc was listed, and its parent is dead by now."""
    listed, dead = sandbox_module._all_pids(), sandbox_module._newest_pid()
    monkeypatch.setattr(sandbox_module, "_newest_pid", iter([dead, sandbox_module._newest_pid() + 5000]).__next__)
    process = sandbox.spawn("sleep", "1000")
    monkeypatch.setattr(sandbox_module, "_all_pids", lambda: listed + [1 << 22])
    assert sandbox.pids() == [process.pid]
    monkeypatch.undo()
    assert sandbox.kill_all() == 1
    assert process.wait(10) == -9


def test_a_stranger_is_never_one_of_ours(sandbox):
    other = Sandbox()
    try:
        process = other.spawn("sleep", "1000")
        other.wait_for(lambda: other.pids() == [process.pid])
        assert sandbox.pids() == []
        assert sandbox.kill_all() == 0
        assert process.poll() is None
    finally:
        other.close()


@pytest.mark.parametrize("where", ["body", "module", "mark"])
def test_in_strict_mode_a_skip_is_a_failure(tmp_path, where):
    body = {
        "body": "def test_skips():\n    pytest.skip('no such tool')\n",
        "module": "pytest.skip('no such tool', allow_module_level=True)\n",
        "mark": "@pytest.mark.skipif(True, reason='no such tool')\ndef test_skips():\n    pass\n",
    }[where]
    assert run_pytest(tmp_path, body).returncode in (0, 5)
    strict = run_pytest(tmp_path, body, **STRICT_ENV)
    assert strict.returncode in (1, 2) and "skipped in strict mode: no such tool" in strict.stdout
    allowed = run_pytest(tmp_path, body.replace("no such tool", "machine cannot: fly"), **STRICT_ENV)
    assert allowed.returncode in (0, 5), allowed.stdout


def test_what_the_caller_ignores_or_blocks_is_passed_on_to_nobody(tmp_path):
    def start_as_nohup_does():
        for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGCHLD):
            signal.signal(signum, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    done = run_pytest(tmp_path, """
def test_signals(sandbox):
    shown = sandbox.run("grep", "Sig[BI]", "/proc/self/status", check=True).stdout.split()
    assert [int(shown[n], 16) & 0x7fffffff for n in (1, 3)] == [0, 0]      # 32 and 33 are the C library's own
    os.kill(os.getpid(), 1)
""", preexec_fn=start_as_nohup_does)
    assert done.returncode == 0, done.stdout


def test_a_test_that_hangs_is_ended(tmp_path):
    done = run_pytest(tmp_path, """
@pytest.mark.timeout_s(0.5)
def test_hangs():
    time.sleep(1000)
""")
    assert done.returncode == 1 and "the test took longer than 0.5 s" in done.stdout


def test_a_command_that_hangs_is_ended_with_what_holds_its_output(sandbox):
    before = time.monotonic()
    with pytest.raises(AssertionError, match="did not end in 0.5 s") as caught:
        sandbox.run("sh", "-c", "echo so far; setsid sleep 1000 & sleep 1000", timeout_s=0.5)
    assert "so far" in str(caught.value)
    assert time.monotonic() - before < 10
    assert sandbox.pids() == []


def test_nothing_of_the_callers_environment_gets_in(sandbox, monkeypatch):
    for name in ("MXQ_SPOOL", "SLURM_JOB_ID", "XDG_STATE_HOME", "PYTHONPATH", "LC_ALL"):
        monkeypatch.setenv(name, "/nonexistent")
    shown = sandbox.run("env", check=True).stdout
    assert not re.search("(?m)^(MXQ_SPOOL|SLURM|XDG|PYTHON|LC_)", shown)
    assert "MXQ_DIR=%s" % sandbox.mxq_dir in shown and "HOME=%s" % sandbox.home in shown
    assert "HOME" not in sandbox.run("env", env={"HOME": None}, check=True).stdout


def test_commands_have_a_group_of_their_own_and_no_terminal(sandbox):
    done = sandbox.run("sh", "-c", "ps -o pgid= -p $$; echo $$; : </dev/tty", env={"PATH": "/usr/bin:/bin"})
    group, pid = done.stdout.split()
    assert group == pid and "/dev/tty" in done.stderr


def test_the_impostor_is_the_only_mailer(sandbox):
    sandbox.run("sendmail", "-t", "-i", input="To: a@example.org\n\nhello\n", check=True)
    assert sandbox.mails() == ["To: a@example.org\n\nhello\n"]
    (sandbox.mail / "fail").write_text("75")
    assert sandbox.run("sendmail", "-t", input="x").returncode == 75
    assert len(sandbox.mails()) == 1


def test_every_byte_survives(sandbox):
    argument = bytes(range(1, 256))
    assert sandbox.run("printf", "%s", argument, text=False).stdout == argument
    assert sandbox.run("printf", "%s", argument).stdout.encode("utf-8", "surrogateescape") == argument
