"""Fixtures and rules of all suites: the sandbox, leaks, time limits, strict mode.

    def test_status_is_passed_on(sandbox):
        done = sandbox.run("mxq-reap", "--", "sh", "-c", "exit 7")
        assert done.returncode == 7
        assert sandbox.record()["exit"] == 7

Strict mode (MXQ_TEST_STRICT=1, set in CI): a skipped test is a failed one,
unless its reason starts with "machine cannot:".
"""

import fcntl
import os
import shutil
import signal
import termios
import threading
import time

import pytest

pytest.register_assert_rewrite("tests.harness")

from tests.harness import sandbox as sandbox_module  # noqa: E402

STRICT = os.environ.get("MXQ_TEST_STRICT") == "1"
TIMEOUT_S = 120
PHASES = pytest.StashKey()


def pytest_configure(config):
    """Tests behave in a terminal, under nohup and in the background as they do in CI."""
    _leave_terminal()
    _pass_no_signals_on()


def _pass_no_signals_on():
    # What nohup, or sh for a background job, made us ignore would be inherited by every command. A handler that
    # does nothing keeps us alive as well, and exec makes it the default (execve(2)). PIPE and XFSZ are Python's.
    if threading.current_thread() is not threading.main_thread():
        return
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for signum in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, lambda _signum, _frame: None)


def _leave_terminal():
    # Ctrl-C still comes: it goes to the process group. A test that wants a terminal makes a pty.
    try:
        fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return
    try:
        if os.getsid(0) != os.getpid():
            fcntl.ioctl(fd, termios.TIOCNOTTY)
    finally:
        os.close(fd)


def pytest_collection_modifyitems(items):
    """Every test of tests/crash has the mark `crash`, so that the Makefile can say which run when."""
    for item in items:
        if "/tests/crash/" in item.path.as_posix():
            item.add_marker("crash")


def pytest_runtest_setup(item):
    """The marks `needs`, `as_root` and `as_user`."""
    for mark in item.iter_markers("needs"):
        for program in mark.args:
            if not shutil.which(program, path=sandbox_module.SYSTEM_PATH):
                pytest.skip("%s is not installed" % program)
    if item.get_closest_marker("as_root") and os.geteuid() != 0:
        pytest.skip("machine cannot: this user is not root")
    if item.get_closest_marker("as_user") and os.geteuid() == 0:
        pytest.skip("machine cannot: root is no ordinary user")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    """No test takes longer than its time: TimeoutError is raised in it, and its sandbox ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    mark = item.get_closest_marker("timeout_s")
    seconds = mark.args[0] if mark else TIMEOUT_S

    def expire(_signum, _frame):
        raise TimeoutError("the test took longer than %s s" % seconds)

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _judge_skip(report):
    """In strict mode turn a skip into a failure; what is expected to fail is no skip."""
    if not STRICT or not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = reason[len("Skipped: "):] if reason.startswith("Skipped: ") else reason
    if not reason.startswith("machine cannot:"):
        report.outcome = "failed"
        report.longrepr = "skipped in strict mode: %s" % reason


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    """Keep the report of each phase where a fixture finds it."""
    outcome = yield
    report = outcome.get_result()
    _judge_skip(report)
    item.stash.setdefault(PHASES, {})[report.when] = report


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report():
    """A whole file that is skipped counts as well."""
    outcome = yield
    _judge_skip(outcome.get_result())


@pytest.fixture
def sandbox(request):
    """A whole installation in a temporary folder (tests/harness/sandbox.py).

    What a test started with `spawn` and its descendants are ended quietly.
    Any other process that is left of it fails the test, unless it has the mark
    `leaves_processes`. The folder is kept, and named, when the test failed.
    """
    box = sandbox_module.Sandbox()
    yield box
    report = request.node.stash.get(PHASES, {}).get("call")
    failed = report is None or report.failed
    leaks = ""
    if not failed and not request.node.get_closest_marker("leaves_processes"):
        leaks = _find_leaks(box)
    box.close(keep=failed or bool(leaks))
    if failed:
        print("the folder of the failed test is kept: %s" % box.path)
    if leaks:
        pytest.fail("left running: %s\nfolder: %s" % (leaks, box.path), pytrace=False)


def _find_leaks(box, grace_s=1.0):
    """Who is left, once those that were about to leave had the time to."""
    deadline = time.monotonic() + grace_s
    while True:
        pids = box.leaks()
        if not pids:
            return ""
        if time.monotonic() > deadline:
            return sandbox_module.describe(pids)
        time.sleep(0.01)
