"""What tests of mxq-adopt share: runs that lose their reaper, a parent that reaps when it is told to."""

import contextlib
import ctypes
import os
import signal

from tests.harness import processes
from tests.harness.queueing import read_record, wait_until_ended
from tests.harness.sandbox import wait_for

_PR_SET_CHILD_SUBREAPER = 36


@contextlib.contextmanager
def parent_of_orphans():
    """Have all orphans of the sandbox fall to this process, which reaps them only by reap()."""
    prctl = ctypes.CDLL(None).prctl
    assert prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def reap_all():
    """Reap all orphans that have ended; what a test has started itself must be over."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def reap(pid):
    """Reap an orphan that has ended, or will, and fell to us."""
    return os.waitpid(pid, 0)[1]


def kill(pid, number=signal.SIGKILL):
    """Send a signal and, when it is KILL, wait until the process is dead."""
    os.kill(pid, number)
    if number == signal.SIGKILL:
        wait_for(lambda: not processes.is_alive(pid), what="the end of process %d" % pid)


def orphan(sandbox, *words, env=None):
    """Start a detached run, kill its reaper, and return the running record as it was."""
    run = sandbox.run("mxq-reap", "-b", *words, check=True, env=env).stdout.strip()
    record = read_record(sandbox, run)
    kill(record["reaper"]["pid"])
    return record


def on_gate(script, name="gate"):
    """A shell command that runs `script` once open_gate() was called; each job needs a gate of its own."""
    return ["sh", "-c", "test -p %s || mkfifo %s; read line <%s; %s" % (name, name, name, script)]


def open_gate(sandbox, name="gate"):
    """Let the job of on_gate() go on."""
    wait_for((sandbox.work / name).exists)
    with open(sandbox.work / name, "w") as gate:
        gate.write("\n")


def adopt(sandbox, *words, **kw):
    """What mxq-adopt prints, line by line; it must succeed in silence."""
    done = sandbox.run("mxq-adopt", *words, check=True, **kw)
    assert done.stderr == ""
    return done.stdout.splitlines()


def watcher_of(sandbox, run):
    """The pid of the process that is the run's reaper now."""
    return read_record(sandbox, run)["reaper"]["pid"]


def end(sandbox, run):
    """Wait for the outcome, and until its writer has left; return the record."""
    record = wait_until_ended(sandbox, run)
    wait_for(lambda: not processes.is_alive(record["reaper"]["pid"]) or record["reaper"]["pid"] == os.getpid(),
             what="the end of the watcher")
    return record


def rewrite(sandbox, run, change):
    """Put change(text) in the place of a record's text."""
    path = sandbox.runs / (run + ".json")
    text = change(path.read_text("utf-8"))
    path.with_name("new").write_text(text, "utf-8")
    path.with_name("new").chmod(0o600)
    path.with_name("new").rename(path)


def hidden(sandbox):
    """The names of hidden files in runs/."""
    return sorted(name for name in os.listdir(sandbox.runs) if name.startswith("."))
