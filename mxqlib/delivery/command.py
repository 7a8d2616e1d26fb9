"""Running a mailer or a hook: input, time limit, what it said, and the end of all that it started.

All of the input is there before the command is started: when we are killed it goes on with a whole message, and no
half one is ever sent. The shell of the command is made a subreaper: whatever the command starts stays below it,
however often it forks or calls setsid, and can be ended with it. A command that ends in time may leave processes
behind, as mailers do that deliver in the background: they are let alone.
"""

import fcntl
import os
import select
import subprocess
import termios
import time

from mxqlib import child, durable, process, signals
from mxqlib.cli import printable, reason
from mxqlib.delivery import LIMIT_S, PATIENCE_S, Stopped, Undelivered, never
from mxqlib.tree import Tree

_SAID_B = 4096              # of what a command says the last bytes are kept; a flood is read and dropped
_GRACE_S = 2.0              # from TERM to KILL at the time limit
_KILL_S = 5.0
_SHELL = "/bin/sh"
_F_SETPIPE_SZ = 1031        # fcntl(2); the module has the name since Python 3.10


class Command:
    """A command line for sh -c: `text`, `environ` (str to str), `cwd`, `umask`.

    `must_read`: a command that leaves some of its input unread has failed, whatever it says.
    """

    def __init__(self, text, environ, cwd="/", umask=0o077, must_read=False):
        self.text, self.environ, self.cwd, self.umask, self.must_read = text, environ, cwd, umask, must_read

    def run(self, data, limit_s=LIMIT_S, stop=never):
        """Run it with `data` (bytes) on its standard input. Raises Undelivered unless it exits 0 in time; Stopped.

        Signals that the caller blocked are not blocked in it.
        """
        try:
            with _Run(self, data) as running:
                running.watch(time.monotonic() + limit_s, limit_s, stop)
                running.judge()
        except OSError as failure:
            raise Undelivered("cannot run it: %s" % reason(failure)) from None
        except subprocess.SubprocessError as failure:
            raise Undelivered("cannot run it: %s" % failure) from None


class _Run:
    """A command that runs."""

    def __init__(self, command, data):
        self.said, self.status, self.size_b = b"", None, len(data)
        self.fds = []
        self.process = self.exit = self.unread = None
        try:
            self._start(command, data)
        except BaseException:
            if self.process is not None:        # no descriptor was left to watch it with
                self.process.kill()
                self.process.wait()
            self._close()
            raise

    def _start(self, command, data):
        if command.must_read:
            self.unread = self._fill_pipe(data)
        source = self._fill_file(data) if self.unread is None else self.unread
        self.output, writing = self._pipe()
        os.set_blocking(self.output, False)
        self.process = subprocess.Popen(
            [_SHELL, "-c", command.text], stdin=source, stdout=writing, stderr=writing, cwd=command.cwd,
            env=command.environ, start_new_session=True, preexec_fn=lambda: _prepare(command.umask))
        self._close_one(writing)
        self.exit = process.open_pidfd(self.process.pid)
        self.fds.append(self.exit)

    def _fill_pipe(self, data):
        """The reading end of a pipe that holds all of `data`, or None when it does not fit.

        It stays open here, so that what the command left unread can be counted.
        """
        reading, writing = self._pipe()
        os.set_blocking(writing, False)
        try:
            if len(data) > 65536:
                fcntl.fcntl(writing, _F_SETPIPE_SZ, len(data))
            written = os.write(writing, data)
        except OSError:                 # over the limits of pipe(7)
            written = -1
        self._close_one(writing)
        if written == len(data):
            return reading
        self._close_one(reading)
        return None

    def _fill_file(self, data):
        """A file of no name that holds `data`. Not for mail: who opens /dev/stdin leaves no trace of what it read."""
        fd = os.memfd_create("mxq-input")
        self.fds.append(fd)
        durable.write_all(fd, data)
        os.lseek(fd, 0, os.SEEK_SET)
        return fd

    def _pipe(self):
        ends = os.pipe()
        self.fds += ends
        return ends

    def _close_one(self, fd):
        self.fds.remove(fd)
        os.close(fd)

    def _close(self):
        for fd in self.fds:
            os.close(fd)
        self.fds = []

    def __enter__(self):
        return self

    def __exit__(self, kind, _failure, _trace):
        if self.status is None:
            self.end()
        self._close()

    # ---- while it runs ----

    def watch(self, until, limit_s, stop):
        """Read what it says until it has exited."""
        poll = select.poll()
        poll.register(self.exit, select.POLLIN)
        poll.register(self.output, select.POLLIN)
        while True:
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise Undelivered("not done within %s s, and ended%s" % (_plain(limit_s), self._words()))
            if stop():
                raise Stopped()
            ready = dict(poll.poll(min(left_s, PATIENCE_S) * 1000))
            if self.output in ready and not self._listen():
                poll.unregister(self.output)
                self._close_one(self.output)
                self.output = None
            if self.exit in ready:
                self.status = child.look_at(self.process.pid)
                self._listen()
                self.process.wait()
                return

    def _listen(self):
        """Read what is there of its output, a bounded part of a flood; False when nobody writes any more."""
        for _ in range(16):
            if self.output is None:
                return False
            try:
                data = os.read(self.output, 65536)
            except BlockingIOError:
                return True
            if not data:
                return False
            self.said = (self.said + data)[-_SAID_B:]
        return True

    # ---- how it ended ----

    def judge(self):
        """Raise Undelivered unless it succeeded."""
        if self.status is None:
            raise Undelivered("its exit status was lost")
        if self.status & 0x7f:
            raise Undelivered("died by signal %s%s" % (signals.name(self.status & 0x7f), self._words()))
        if self.status:
            raise Undelivered("exit %d%s" % (self.status >> 8, self._words()))
        left_b = self._count_unread()
        if left_b:
            raise Undelivered("read only %d of %d bytes%s" % (self.size_b - left_b, self.size_b, self._words()))

    def _count_unread(self):
        if self.unread is None:
            return 0
        return int.from_bytes(fcntl.ioctl(self.unread, termios.FIONREAD, bytes(4)), "little")

    def _words(self):
        """The last line of what it said."""
        lines = self.said.decode("utf-8", "replace").strip().splitlines()
        return ": " + printable(lines[-1].strip())[:500] if lines else ""

    def end(self):
        """End the command and all below it, first politely, and leave nobody who can be ended."""
        if self.process is None:
            return
        # The shell is stopped meanwhile, and goes last: once the subreaper is dead, who is below it gets away.
        tree = Tree(self.process.pid)
        self._tell(signals.STOP)
        tree.hit(signals.TERM)
        if not _wait(lambda: not tree.members(), _GRACE_S):
            _wait(lambda: not tree.kill(), _KILL_S)
        self._tell(signals.TERM)
        self._tell(signals.CONT)
        if not _wait(self._has_exited, _GRACE_S):
            self._tell(signals.STOP)
            _wait(lambda: not tree.kill(), _KILL_S)
            self._tell(signals.KILL)
            _wait(self._has_exited, _KILL_S)
        if self._has_exited():              # else it is a set-user-ID program, which we may not signal
            self.process.wait()

    def _tell(self, number):
        process.send_pidfd(self.exit, number)

    def _has_exited(self):
        return child.look_at(self.process.pid) is not None


def _prepare(umask):
    process.become_subreaper()
    os.umask(umask)
    signals.restore_job(())


def _wait(condition, limit_s):
    """Poll `condition`; False when it did not come true within `limit_s` seconds."""
    until = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def _plain(seconds):
    return "%d" % seconds if seconds == int(seconds) else "%.1f" % seconds
