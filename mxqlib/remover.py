"""Helpers that remove files while their parent reads on: a thousand at a time, of many thousands.

On many file systems the removal of a file waits for the disk, which costs more than to commit what was in it.
What is given to a helper is removed, whatever becomes of the parent: it is committed.
"""

import os

from mxqlib import child, durable, signals
from mxqlib.cli import error, reason


class Remover:
    """Processes that remove files of directory `folder`; the first is made when it is needed."""

    def __init__(self, folder, helpers=2):
        self._folder, self._most = folder, helpers
        self._helpers = []              # (pid, the end of its pipe that is written to)
        self._turn, self._failed = 0, False

    def give(self, names):
        """Have files removed. False when nobody can be had for it: the caller does it himself."""
        if len(self._helpers) < self._most:
            try:
                self._helpers.append(self._make())
            except OSError:
                self._most = len(self._helpers)
        while self._helpers:
            self._turn += 1
            at = self._turn % len(self._helpers)
            try:
                _write_all(self._helpers[at][1], "".join(name + "\n" for name in names).encode("ascii"))
                return True
            except OSError:             # it was killed: what it had not done yet is found again next time
                self._end(self._helpers.pop(at))
                self._most = len(self._helpers)
        return False

    def finish(self):
        """Wait until all is removed. False when a helper failed; what it left is named by it, or was not tried."""
        for helper in self._helpers:
            self._end(helper)
        failed, self._helpers, self._failed = self._failed, [], False
        return not failed

    def _end(self, helper):
        pid, pipe = helper
        os.close(pipe)
        self._failed = child.wait_for(pid) != 0 or self._failed

    def _make(self):
        reading, writing = os.pipe()
        try:
            pid = child.fork()
        except OSError:
            os.close(reading)
            os.close(writing)
            raise
        if pid == 0:
            for _, pipe in self._helpers:
                os.close(pipe)          # or the others would never see the end of theirs
            os.close(writing)
            _serve(self._folder, reading)
        os.close(reading)
        return pid, writing


def _write_all(fd, data):
    """Write to a pipe; when its reader was killed that is an error, not the end of this process."""
    ignored = signals.is_ignored(signals.PIPE)
    signals.ignore(signals.PIPE)
    try:
        durable.write_all(fd, data)
    finally:
        if not ignored:
            signals.restore_default(signals.PIPE)


def _serve(folder, reading):
    """Remove what is named on a pipe, until it is closed; never returns."""
    status = 0
    try:
        with open(reading, encoding="ascii", newline="\n") as names:
            for name in names:
                try:
                    os.unlink("%s/%s" % (folder, name[:-1]))
                except FileNotFoundError:
                    pass
                except OSError as failure:
                    error("cannot remove %s/%s: %s; it is committed" % (folder, name[:-1], reason(failure)))
                    status = 1
    except BaseException:
        status = 1
    finally:
        os._exit(status)
