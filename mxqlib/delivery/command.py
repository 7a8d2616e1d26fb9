"""Running a mailer or a hook: input, time limit, what it said, and the end of all that it started.

The shell of the command is made a subreaper: whatever the command starts stays below it, however often it forks or
calls setsid, and can be ended with it. A command that ends in time may leave processes behind, as mailers do
that deliver in the background: they are let alone.
"""

import errno
import fcntl
import os
import select
import subprocess
import termios
import time

from mxqlib import child, process, signals
from mxqlib.cli import printable, reason
from mxqlib.delivery import LIMIT_S, PATIENCE_S, Stopped, Undelivered, never
from mxqlib.tree import Tree

_SAID_B = 4096              # of what a command says the last bytes are kept; a flood is read and dropped
_GRACE_S = 2.0              # from TERM to KILL at the time limit
_KILL_S = 5.0
_SHELL = "/bin/sh"


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
                running.judge(self.must_read)
        except OSError as failure:
            raise Undelivered("cannot run it: %s" % reason(failure)) from None
        except subprocess.SubprocessError as failure:
            raise Undelivered("cannot run it: %s" % failure) from None


class _Run:
    """A command that runs. The reading end of its input stays open here, so that what it left unread can be counted,
    and writing never fails."""

    def __init__(self, command, data):
        self.data, self.said, self.status = memoryview(data), b"", None
        self.fds = []
        self.process = self.exit = None
        try:
            self._start(command)
        except BaseException:
            self._close()
            raise

    def _start(self, command):
        reading, self.input = self._pipe()
        self.output, writing = self._pipe()
        for fd in (self.input, self.output):
            os.set_blocking(fd, False)
        self.size_b, self.unread = len(self.data), reading
        self.process = subprocess.Popen(
            [_SHELL, "-c", command.text], stdin=reading, stdout=writing, stderr=writing, cwd=command.cwd,
            env=command.environ, start_new_session=True, preexec_fn=lambda: _prepare(command.umask))
        self._close_one(writing)
        self.exit = process.open_pidfd(self.process.pid)
        self.fds.append(self.exit)

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
        """Feed it, read what it says, until it has exited."""
        poll = select.poll()
        poll.register(self.exit, select.POLLIN)
        poll.register(self.output, select.POLLIN)
        poll.register(self.input, select.POLLOUT)
        while True:
            self._feed(poll)
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

    def _feed(self, poll):
        if self.input is None:
            return
        try:
            while self.data:
                self.data = self.data[os.write(self.input, self.data[:65536]):]
        except BlockingIOError:
            return
        poll.unregister(self.input)
        self._close_one(self.input)
        self.input = None

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

    def judge(self, must_read):
        """Raise Undelivered unless it succeeded."""
        if self.status is None:
            raise Undelivered("its exit status was lost")
        if self.status & 0x7f:
            raise Undelivered("died by signal %s%s" % (signals.name(self.status & 0x7f), self._words()))
        if self.status:
            raise Undelivered("exit %d%s" % (self.status >> 8, self._words()))
        left_b = len(self.data) + self._count_unread()
        if must_read and left_b:
            raise Undelivered("read only %d of %d bytes%s" % (self.size_b - left_b, self.size_b, self._words()))

    def _count_unread(self):
        try:
            return int.from_bytes(fcntl.ioctl(self.unread, termios.FIONREAD, bytes(4)), "little")
        except OSError as failure:
            if failure.errno in (errno.ENOTTY, errno.EINVAL):
                return 0
            raise

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
