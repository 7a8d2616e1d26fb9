"""A whole installation of MXQ in a temporary folder, and the end of all that ran in it.

A test gets one through the fixture `sandbox` (tests/conftest.py). Everything
started in it carries a token in its environment, by which it is found again
however often it forked, called setsid or lost its parents; a process that
was given a clean environment is found by MXQ_DIR, which contains the token
too, or by its working directory.
"""

import errno
import json
import os
import select
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent.parent
BIN = Path(os.environ.get("MXQ_TEST_BIN") or TREE / "bin")

# Nobody's ~/bin, virtual environment or Python shim has a say in a test.
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

OURS, OTHER, DEAD = "ours", "other", "dead"

# Stands for sendmail. What the mailer is to do is said by files in mail/:
# "fail" holds an exit status, "hang" makes it sleep. A message appears under
# its final name when it is complete.
SENDMAIL = """#!/bin/sh
cd '{mail}' || exit 75
printf '%s\\n' "$@" >"$$.arguments"
if [ -e hang ]; then exec sleep 3600; fi
if [ -e fail ]; then
    echo "sendmail: told to fail" >&2
    exit "$(cat fail)"
fi
cat >"$$.part" && mv "$$.part" "$(date +%s.%N).$$.eml"
"""


class Sandbox:
    """One installation: folder, environment, and what was started in it.

    `path` is the folder; in it are `mxq_dir` (MXQ_DIR, not made yet: the
    commands make it), `home`, `mail`, `work` (where commands start), and
    `bin` with the impostor sendmail. `env` is the environment of everything
    started here, a dict that a test may change. Commands are found in the
    tree's bin, or in the folder MXQ_TEST_BIN names.
    """

    def __init__(self):
        self.path = Path(tempfile.mkdtemp(prefix="mxq-test-"))
        self.token = self.path.name
        self.mxq_dir = self.path / "mxq"
        self.spool = self.mxq_dir / "spool"
        self.runs = self.spool / "runs"
        self.queue_file = self.mxq_dir / "queue.db"
        self.home = self._make("home")
        self.mail = self._make("mail")
        self.work = self._make("work")
        self.bin = self._make("bin")
        self.spawned = []
        sendmail = self.bin / "sendmail"
        sendmail.write_text(SENDMAIL.format(mail=self.mail))
        sendmail.chmod(0o755)
        # Made from nothing: no MXQ_*, SLURM_*, XDG_*, PYTHON* gets through.
        self.env = {
            "PATH": "%s:%s:%s" % (BIN, self.bin, SYSTEM_PATH),
            "HOME": str(self.home),
            "USER": "tester",
            "LOGNAME": "tester",
            "SHELL": "/bin/sh",
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "MXQ_DIR": str(self.mxq_dir),
            "MXQ_FALLBACK": str(self.path / "fallback"),
            "MXQ_TEST_SANDBOX": self.token,
        }

    def _make(self, name):
        folder = self.path / name
        folder.mkdir(mode=0o700)
        return folder

    # --- running ------------------------------------------------------------

    def environment(self, changes=None):
        """The environment with `changes` applied; a value of None removes a name."""
        env = dict(self.env)
        for name, value in (changes or {}).items():
            if value is None:
                env.pop(name, None)
            else:
                env[name] = os.fspath(value)
        return env

    def spawn(self, *argv, env=None, cwd=None, text=True, new_session=False, preexec_fn=None, **kw):
        r"""Start a command and return its Popen; it is ended with the sandbox, with all its descendants.

        `env` holds changes (None removes). By default: stdin /dev/null,
        stdout and stderr pipes, text with surrogateescape (any bytes
        survive, but Popen makes \r and \r\n a \n), cwd `work`, a process group of its own (a signal to
        the group must not hit pytest), no controlling terminal.
        `new_session` calls setsid instead. `preexec_fn` runs last in the child.
        """

        def prepare():
            if new_session:
                os.setsid()
            else:
                os.setpgid(0, 0)
            if preexec_fn:
                preexec_fn()

        if text:
            kw.setdefault("encoding", "utf-8")
            kw.setdefault("errors", "surrogateescape")
        kw.setdefault("stdin", subprocess.DEVNULL)
        kw.setdefault("stdout", subprocess.PIPE)
        kw.setdefault("stderr", subprocess.PIPE)
        environment = self.environment(env)
        argv = [argument if isinstance(argument, bytes) else os.fspath(argument) for argument in argv]
        # Popen searches the PATH of pytest, not the one in env.
        program = kw.pop("executable", None) or shutil.which(os.fsdecode(argv[0]), path=environment.get("PATH"))
        process = subprocess.Popen(argv, executable=program, env=environment, cwd=cwd or self.work,
                                   preexec_fn=prepare, **kw)
        self.spawned.append(process)
        return process

    def run(self, *argv, input=None, text=True, timeout_s=60, check=False, **kw):
        """Run a command to its end and return a CompletedProcess; options as for `spawn`.

        Returns when the command has ended and nobody holds its stdout and
        stderr. After `timeout_s` everything in the sandbox is killed and
        AssertionError raised, with what was printed so far. `check` asserts
        exit 0. Text keeps every byte; `input` may be text or bytes.
        """
        if input is not None:
            kw["stdin"] = subprocess.PIPE
            input = _encode(input)
        decode = _decode if text else lambda data: data
        process = self.spawn(*argv, text=False, **kw)
        try:
            stdout, stderr = map(decode, process.communicate(input, timeout=timeout_s))
        except subprocess.TimeoutExpired:
            self.kill_all()
            stdout, stderr = map(decode, process.communicate(timeout=10))
            raise AssertionError("%r did not end in %s s\nstdout: %r\nstderr: %r"
                                 % (argv, timeout_s, stdout, stderr)) from None
        done = subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
        if check:
            assert done.returncode == 0, "%r: status %s\nstdout: %s\nstderr: %s" % (
                argv, done.returncode, stdout, stderr)
        return done

    # --- looking ------------------------------------------------------------

    def records(self):
        """The records in the spool, parsed, in the order of their file names.

        A file that vanishes meanwhile is left out; one that is not JSON
        fails the test: under its final name a record is always whole.
        """
        records = []
        for file in sorted(self.runs.glob("[!.]*.json")):
            try:
                text = file.read_bytes()
            except FileNotFoundError:
                continue
            records.append(json.loads(text.decode("utf-8", "surrogateescape")))
        return records

    def record(self):
        """The only record in the spool; anything but exactly one fails the test."""
        records = self.records()
        assert len(records) == 1, "expected one record, found %s" % [r.get("run") for r in records]
        return records[0]

    def queue(self, sql, *parameters):
        """The rows (sqlite3.Row) that a query on the queue gives; nothing can be changed this way."""
        connection = sqlite3.connect("file:%s?mode=rw" % self.queue_file, uri=True, timeout=30)
        try:
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA query_only = on")
            return connection.execute(sql, parameters).fetchall()
        finally:
            connection.close()

    def mails(self):
        """The messages that were sent, as text, oldest first."""
        return [file.read_text("utf-8", "surrogateescape") for file in sorted(self.mail.glob("*.eml"))]

    def wait_for(self, predicate, timeout_s=20, what=None):
        """Poll `predicate` every 10 ms until it is true and return what it gave."""
        return wait_for(predicate, timeout_s, what)

    # --- ending -------------------------------------------------------------

    def pids(self):
        """The living processes of this sandbox, zombies left out.

        A pass over /proc that finds nobody is followed by looks at what was
        born meanwhile, until none of the new ones was dead when its turn
        came: what forks and leaves, over and over, is outrun by nothing that lists
        /proc. As others come and go too, a second without anybody of ours is
        believed.
        """
        deadline = time.monotonic() + 1
        newest = _newest_pid()
        found = self._judge_all(_all_pids())
        while not found[OURS] and found[DEAD] and time.monotonic() < deadline:
            before, newest = newest, _newest_pid()
            # Numbers that went round need a whole pass.
            found = self._judge_all(range(newest, before, -1) if newest >= before else _all_pids())
        return found[OURS]

    def _judge_all(self, pids):
        found = {OURS: [], OTHER: [], DEAD: []}
        for pid in pids:
            found[self._judge(pid)].append(pid)
        return found

    def leaks(self):
        """Living processes that are neither a spawned one nor below one that still runs."""
        roots = {process.pid for process in self.spawned if process.poll() is None}
        return [pid for pid in self.pids() if not _has_ancestor(pid, roots)]

    def kill_all(self, timeout_s=20):
        """Kill every process of the sandbox and return their number.

        Stops all before it kills any: a loop of forks would outrun it. A
        stranger is never hit: each is held by a pidfd before its
        environment is read.
        """
        killed = set()
        deadline = time.monotonic() + timeout_s
        while True:
            pids = self.pids()
            if not pids:
                break
            assert time.monotonic() < deadline, "processes that cannot be killed: %s" % describe(pids)
            for signum in (signal.SIGSTOP, signal.SIGKILL):
                for pid in pids:
                    self._send(pid, signum)
            killed.update(pids)
            for process in self.spawned:
                process.poll()
        return len(killed)

    def close(self, keep=False):
        """Kill what is left, close the pipes, and remove the folder unless `keep`."""
        self.kill_all()
        for process in self.spawned:
            process.wait(10)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream:
                    try:
                        stream.close()
                    except BrokenPipeError:
                        pass
        if not keep:
            remove_tree(self.path)

    def _judge(self, pid):
        """OURS, OTHER or DEAD, by environment and working directory (proc(5)); a zombie has neither."""
        if pid == os.getpid():
            return OTHER
        try:
            with open("/proc/%d/environ" % pid, "rb") as file:
                environment = file.read()
            if self.token.encode() in environment:
                return OURS
            if not environment and _stat(pid)[0] in "ZX":
                return DEAD
            return OURS if self.token in os.readlink("/proc/%d/cwd" % pid).split("/") else OTHER
        except PermissionError:
            return OTHER
        except (FileNotFoundError, ProcessLookupError):
            return DEAD

    def _send(self, pid, signum):
        try:
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            if error.errno in (errno.ESRCH, errno.EINVAL):     # EINVAL: gone, and its session lives (before 6.16)
                return
            raise
        try:
            if self._judge(pid) == OURS:
                signal.pidfd_send_signal(pidfd, signum)
        except ProcessLookupError:
            pass
        finally:
            os.close(pidfd)


def wait_for(predicate, timeout_s=20, what=None):
    """Poll `predicate` every 10 ms until it is true and return what it gave; AssertionError when it never is."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError("%s: not so within %s s" % (what or "the condition", timeout_s))
        time.sleep(0.01)


def read_until(stream, wanted, timeout_s=20):
    """Read from a pipe or pty until `wanted` (bytes) came and return all bytes read.

    `stream` is a descriptor or has fileno(). Reads past no buffer of a file object: use it alone.
    """
    fd = stream if isinstance(stream, int) else stream.fileno()
    deadline = time.monotonic() + timeout_s
    data = b""
    while wanted not in data:
        left = deadline - time.monotonic()
        assert left > 0, "%r did not come within %s s, only %r" % (wanted, timeout_s, data)
        if select.select([fd], [], [], min(left, 0.5))[0]:
            try:
                more = os.read(fd, 65536)
            except OSError as error:
                if error.errno != errno.EIO:  # the other end of a pty is closed
                    raise
                more = b""
            assert more, "%r did not come before the end, only %r" % (wanted, data)
            data += more
    return data


def describe(pids):
    """`pid comm: command line` of each, for messages."""
    lines = []
    for pid in pids:
        try:
            command = Path("/proc/%d/cmdline" % pid).read_bytes().replace(b"\0", b" ")
            state, comm = _stat(pid)[0], Path("/proc/%d/comm" % pid).read_text().strip()
        except OSError:
            lines.append("%d (gone)" % pid)
        else:
            lines.append("%d %s %s: %s" % (pid, state, comm, command.decode("utf-8", "replace").strip()))
    return "; ".join(lines)


def remove_tree(path):
    """Remove a folder, also where a test took away its permissions."""
    for folder, folders, _ in os.walk(path):
        for name in folders:
            inner = os.path.join(folder, name)
            if not os.path.islink(inner):
                os.chmod(inner, 0o700)
    shutil.rmtree(path)


def _encode(text):
    return text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text


def _decode(data):
    return None if data is None else data.decode("utf-8", "surrogateescape")


def _newest_pid():
    """The process id given out last (proc(5), loadavg)."""
    return int(Path("/proc/loadavg").read_text().split()[4])


def _all_pids():
    # The youngest first: these are the ones that may be gone in a moment.
    return sorted((int(name) for name in os.listdir("/proc") if name.isdigit()), reverse=True)


def _stat(pid):
    """Fields of /proc/PID/stat from the state on (proc(5)): the name before it may hold anything."""
    return Path("/proc/%d/stat" % pid).read_text("utf-8", "surrogateescape").rpartition(")")[2].split()


def _has_ancestor(pid, roots):
    while pid > 1:
        if pid in roots:
            return True
        try:
            pid = int(_stat(pid)[1])
        except OSError:
            return False
    return False
