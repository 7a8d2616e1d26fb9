"""Files that survive: the one home of fsync, rename and allocation.

A write here is: a temporary name in the same directory, write, fsync, rename, fsync of the directory, every
result checked. When replace() or Reservation.publish() returns, the content is on the disk under its name;
when they raise, the name shows the old content or the new one, never a part. After a failed fsync a fresh
file is written: the kernel reports a lost page once, and a second fsync of the same file may lie (fsync(2)).
Whoever writes a file under a hidden name holds its lock (flock(2)), which the kernel takes away with the process: so
what the dead left behind can be told from what is in use.
MXQ_SYNC=0 skips the fsyncs, and with them what a power loss would keep.
"""

import fcntl
import os

_SYNC = os.environ.get("MXQ_SYNC") != "0"
_NETWORK = ("nfs", "cifs", "smb", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "afs", "9p", "ocfs2", "gfs2",
            "orangefs", "pvfs2", "coda", "ncpfs", "fuse", "virtiofs")
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


def is_lazy():
    """True when MXQ_SYNC=0 asks for no fsyncs at all."""
    return not _SYNC


def filesystem_type(path):
    """The type of the file system that `path` is on, like `ext4` or `nfs4`; "" when it cannot be told (proc(5))."""
    path = os.path.realpath(path)
    found, longest = "", -1
    try:
        with open("/proc/self/mounts", "rb") as mounts:
            for line in mounts:
                fields = line.split(b" ")
                point = os.fsdecode(_unescape(fields[1]))
                below = path == point or path.startswith(point.rstrip("/") + "/")
                if below and len(point) >= longest:     # the last of those on one point is on top
                    found, longest = fields[2].decode("ascii", "replace"), len(point)
    except (OSError, IndexError):
        pass
    return found


def _unescape(field):
    # Blanks, tabs, newlines and backslashes are written as \040 and so on (getmntent(3)).
    parts = field.split(b"\\")
    return parts[0] + b"".join(bytes((int(part[:3], 8),)) + part[3:] for part in parts[1:])


def is_on_network(path):
    """True when other hosts may see `path` too, or when its locks and shared memory cannot be relied on."""
    kind = filesystem_type(path)
    return kind.rstrip("0123456789") in _NETWORK or kind in _NETWORK or kind.startswith("fuse.")


def sync(fd):
    """fsync an open file or directory."""
    if _SYNC:
        os.fsync(fd)


def sync_directory(path):
    """Make the names in directory `path` durable."""
    if not _SYNC:
        return
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd, data):
    """Write all of `data`; a short write is gone on with, until the error that cut it shows itself."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view):]


def create(path, mode=0o600):
    """Create, lock and open a new file for writing; what a dead process of our pid left under the name goes."""
    while True:
        try:
            fd = os.open(path, _NEW, mode)
        except FileExistsError:
            os.unlink(path)
            continue
        if _hold(fd, fcntl.LOCK_EX):
            return fd
        os.close(fd)                # taken for left behind, and removed, between our open and our lock


def _hold(fd, how):
    """Lock an open file for as long as a process has it open. False when its name has gone by then."""
    try:
        fcntl.flock(fd, how)
    except OSError:
        return True                 # no locks here (ENOLCK): then clear() gets none either
    return os.fstat(fd).st_nlink > 0


def is_in_use(path):
    """True when a living process has the file at `path` locked; False when nobody has, or it cannot be told."""
    try:
        os.close(_take(path))
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def clear(path):
    """Remove the file at `path` unless a living process writes it. True when it was removed."""
    try:
        fd = _take(path)
    except OSError:
        return False
    try:
        if not os.path.samestat(os.stat(path), os.fstat(fd)):
            return False            # another one by now
        os.unlink(path)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def _take(path):
    """The file at `path`, open and locked. Raises BlockingIOError when somebody has it, OSError when it is not to be
    had."""
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd


def replace(path, data):
    """Put `data` (bytes) under `path`, atomically and durably; the temporary name is `.NAME.PID`."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, ".%s.%d" % (name, os.getpid()))
    fd = create(temporary)
    try:
        try:
            write_all(fd, data)
            sync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except BaseException:
        discard(temporary)
        raise
    sync_directory(folder)


def move(source, target):
    """Rename within one file system, durably in both directories."""
    os.rename(source, target)
    sync_directory(os.path.dirname(target))
    if os.path.dirname(source) != os.path.dirname(target):
        sync_directory(os.path.dirname(source))


def remove(path):
    """Remove `path`, durably. Raises OSError."""
    os.unlink(path)
    sync_directory(os.path.dirname(path))


def discard(path):
    """Remove `path` if it can be removed; nothing depends on it being gone."""
    try:
        os.unlink(path)
    except OSError:
        pass


def make_directory(path):
    """Make directory `path` with mode 0700 whatever the umask, and its parents alike, durably."""
    parent = os.path.dirname(path)
    try:
        _make(path, parent)
    except FileExistsError:
        return
    os.chmod(path, 0o700)       # a umask of 0777 would have left it closed to ourselves
    sync_directory(parent)


def _make(path, parent):
    try:
        os.mkdir(path, 0o700)
    except FileNotFoundError:
        if parent == path:
            raise
        make_directory(parent)
        os.mkdir(path, 0o700)


class Reservation:
    """Room for one record, allocated under a hidden name before it is needed.

    A disk that fills later cannot keep the record out: its blocks are there, and a rename over an
    existing name needs no new directory block.
    """

    def __init__(self, path, size_b):
        """Allocate `size_b` bytes under `path`; OSError (ENOSPC, EDQUOT, EFBIG, ...) when there is no room."""
        self.path = path
        self.fd = create(path)
        try:
            os.posix_fallocate(self.fd, 0, size_b)
        except BaseException:
            self.drop()
            raise

    @classmethod
    def taken_over(cls, path):
        """The room that a process which died has reserved; none is no error, publish() then writes afresh."""
        self = cls.__new__(cls)
        self.path = path
        try:
            self.fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            if not _hold(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB):
                self._close()
        except OSError:
            self.fd = None
        return self

    def publish(self, target, data):
        """Fill with `data` and rename over `target`, durably; after an error call it again.

        The reserved file is used until its fsync fails or it is gone; then a fresh one is written.
        """
        if self.fd is None:
            replace(target, data)
            discard(self.path)      # it may be back: gone was perhaps only the way to it
            return
        try:
            os.lseek(self.fd, 0, os.SEEK_SET)
            write_all(self.fd, data)
            os.ftruncate(self.fd, len(data))
        except OSError:
            self._reopen()
            raise
        try:
            sync(self.fd)
        except OSError:
            self.drop()
            raise
        try:
            os.rename(self.path, target)
        except FileNotFoundError:   # somebody removed it
            self.drop()
            return self.publish(target, data)
        except OSError:
            self._reopen()
            raise
        self._close()
        sync_directory(os.path.dirname(target))

    def _reopen(self):
        """Have the room by a new descriptor next time, or a fresh file where it is gone.

        The old one may fail for ever: its handle is stale, or it is of an NFS server that has restarted and no longer
        knows of it (EBADF, EIO). The blocks stay reserved.
        """
        try:
            before = os.fstat(self.fd)
        except OSError:
            self.drop()
            return
        self._close()
        self.fd = Reservation.taken_over(self.path).fd
        if self.fd is not None and not os.path.samestat(before, os.fstat(self.fd)):
            self.drop()

    def _close(self):
        fd, self.fd = self.fd, None
        if fd is not None:
            try:
                os.close(fd)
            except OSError:
                pass            # NFS may report here what fsync has already confirmed or reported

    def drop(self):
        """Give the room back."""
        if self.fd is not None:
            self._close()
            discard(self.path)
