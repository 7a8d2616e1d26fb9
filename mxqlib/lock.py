"""Locks in runners/: a file that is flocked says that somebody lives, and the kernel takes it away with the process.

A lock is inherited by fork and held until the last holder lets go (flock(2)). Files of the dead are removed by
whoever gets their lock; so a lock counts only while its name still means the file that was locked.
"""

import fcntl
import os

from mxqlib import durable, record, spool


class Lock:
    """A lock that this process holds: `name` in directory `folder`, open as `fd`."""

    def __init__(self, folder, name, fd):
        self.folder, self.name, self.fd = folder, name, fd

    def let_go(self):
        """Remove the file, then the lock: whoever waits for it finds another file or none."""
        durable.discard(os.path.join(self.folder, self.name))
        os.close(self.fd)

    def drop(self):
        """As let_go(), but the lock is kept when the file cannot be removed. Raises OSError."""
        try:
            os.unlink(os.path.join(self.folder, self.name))
        except FileNotFoundError:
            pass
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
        # For reading, which is enough on a local disk (flock(2)) and all there is on one that is mounted read-only.
        fd = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(fd)


def hold_running(where, entry):
    """Keep the reaper of running record `entry` in spool `where` from going on to another run.

    Returns a descriptor: a signal sent before it is closed is for this run; None when the run is over, or has
    another reaper by now. Raises OSError. A reaper that serves one run after the other needs the exclusive lock of
    the running record's file before it goes on.
    """
    path = where.record_path(entry["run"])
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
        except OSError:
            pass                    # no locks here: then no reaper goes on either
        now = spool.load(path)
        if now is not None and now["state"] == record.RUNNING and now["reaper"] == entry["reaper"] \
                and os.path.samestat(os.stat(path), os.fstat(fd)):
            held, fd = fd, None
            return held
    except (FileNotFoundError, record.Damaged):
        pass
    finally:
        if fd is not None:
            os.close(fd)
    return None


def try_exclusive(fd):
    """Take the exclusive lock of an open file without waiting. False when somebody has any lock on it, or where
    there are no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
