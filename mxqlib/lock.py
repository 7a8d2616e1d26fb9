"""Locks in runners/: a file that is flocked says that somebody lives, and the kernel takes it away with the process.

A lock is inherited by fork and held until the last holder lets go (flock(2)). Files of the dead are removed by
whoever gets their lock; so a lock counts only while its name still means the file that was locked.
"""

import fcntl
import os

from mxqlib import durable


class Lock:
    """A lock that this process holds: `name` in directory `folder`, open as `fd`."""

    def __init__(self, folder, name, fd):
        self.folder, self.name, self.fd = folder, name, fd

    def let_go(self):
        """Remove the file, then the lock: whoever waits for it finds another file or none."""
        durable.discard(os.path.join(self.folder, self.name))
        os.close(self.fd)

    def write(self, data):
        """Put `data` (bytes) into the file, for others to read."""
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, data, 0)


def take(folder, name, wait=False):
    """The Lock `name` in `folder`, or None when somebody else holds it; with `wait` it is waited for, as for a name
    that others only look at. Raises OSError."""
    path = os.path.join(folder, name)
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(fd)
            return None
        try:
            if os.path.samestat(os.stat(path), os.fstat(fd)):
                return Lock(folder, name, fd)
        except FileNotFoundError:
            pass
        os.close(fd)                # it was removed between our open and our flock


def is_held(folder, name):
    """True when a living process holds the lock `name`."""
    try:
        fd = os.open(os.path.join(folder, name), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(fd)


def share(fd):
    """Take a shared lock of an open file; whoever has the exclusive one is waited for. No locks here: nobody waits."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
    except OSError:
        pass


def try_exclusive(fd):
    """Take the exclusive lock of an open file without waiting. False when somebody has any lock on it, or where
    there are no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
