"""Appending whole texts to a file that others append to and read as well.

The file is locked the way HTCondor locks its user logs (fcntl(2), F_SETLK), texts are written in one write(2) at its
end, and are on the disk when append() returns. Nobody sees a part of a text: room is allocated first, and what a short
write left all the same is cut off again. What a crash left is mended by whoever appends next: texts that are
there already are not written twice, a torn one is completed, a torn one of somebody else is closed.
"""

import errno
import fcntl
import os
import re
import stat
import time

from mxqlib import durable
from mxqlib.cli import reason
from mxqlib.delivery import LIMIT_S, Stopped, Undelivered, never, stream

_WRITE_ONLY = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
_FLAGS = _WRITE_ONLY & ~os.O_WRONLY | os.O_RDWR | os.O_CREAT
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)
_KEEP_SIZE = 1                  # FALLOC_FL_KEEP_SIZE (fallocate(2))
_EVENT_HEAD = re.compile(rb"\d{3} \(\d")
_TAIL_B = 65536


def append(path, texts, umask, limit_s=LIMIT_S, stop=never):
    """Append `texts` (bytes, each ended by a newline) to the file at `path`, which is made when it is missing, with the
    permissions that `umask` leaves.

    Raises Undelivered (nothing was appended, but by a stream: `done`), Stopped.
    """
    until = time.monotonic() + limit_s
    try:
        while True:
            fd = _open(path, umask)
            try:
                if not _is_file(os.fstat(fd)):
                    return stream.write(fd, texts, limit_s, stop)
                _lock(fd, until, stop)
                if not _is_still(path, fd):
                    continue            # rotated away between our open and our lock
                is_new = os.fstat(fd).st_size == 0
                _put(fd, texts)
                durable.sync(fd)
            finally:
                os.close(fd)
            if is_new:
                durable.sync_directory(os.path.dirname(path))
            return None
    except OSError as failure:
        raise Undelivered(reason(failure)) from None


def _is_file(found):
    return stat.S_ISREG(found.st_mode)


def _open(path, umask):
    try:
        if not _is_file(os.stat(path)):
            # A FIFO that is opened for both would be its own reader, and swallow everything.
            return os.open(path, _WRITE_ONLY)
    except FileNotFoundError:
        pass
    before = os.umask(umask)
    try:
        return os.open(path, _FLAGS, 0o666)
    except OSError as failure:
        if failure.errno != errno.EACCES:
            raise
        # May be written but not read: what a crash left cannot be seen then.
        return os.open(path, _WRITE_ONLY | os.O_CREAT, 0o666)
    finally:
        os.umask(before)


def _lock(fd, until, stop):
    while True:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as failure:
            if failure.errno in _NO_LOCKS:
                return                  # a file system without locks: one write at the end must do
            if failure.errno not in (errno.EAGAIN, errno.EACCES):
                raise
        if time.monotonic() > until:
            raise Undelivered("locked by another process")
        if stop():
            raise Stopped()
        time.sleep(0.05)


def _is_still(path, fd):
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


def _put(fd, texts):
    size_b = os.fstat(fd).st_size
    data = b"".join(texts)
    tail = _read_tail(fd, size_b, max(len(data), _TAIL_B))
    there_b, torn_b = overlap(tail, len(tail) == size_b, texts, data)
    if torn_b:
        size_b -= torn_b
        os.ftruncate(fd, size_b)
        tail = tail[:-torn_b]
    rest = data[there_b:]
    if rest:
        _write_whole(fd, size_b, closing(tail) + rest)


def _read_tail(fd, size_b, most_b):
    if not size_b:
        return b""
    try:
        return os.pread(fd, most_b, max(0, size_b - most_b))
    except OSError as failure:
        if failure.errno == errno.EBADF:
            return b""                  # opened for writing only
        raise


def overlap(tail, is_all, texts, data):
    """(bytes of `data`, the joined `texts`, that the end of a file has already; bytes of that end to be cut off).

    `tail` is the end of the file, `is_all` when it is all of it. Whole texts that are there count; of a torn one what
    is there is to be cut off. Only the very end is looked at, and only from the beginning of a line on.
    """
    def begins_line(at):
        return tail[at - 1:at] == b"\n" if at else is_all

    first = texts[0]
    at = tail.rfind(first)
    if at >= 0 and begins_line(at) and data.startswith(tail[at:]):
        have = len(tail) - at
    else:
        have = next((size for size in range(min(len(first) - 1, len(tail)), 0, -1)
                     if tail.endswith(first[:size]) and begins_line(len(tail) - size)), 0)
    whole = 0
    for text in texts:
        if whole + len(text) > have:
            break
        whole += len(text)
    return whole, have - whole


def closing(tail):
    """What ends the last thing in a file that somebody else left unfinished: a line, an event of a user log."""
    if not tail:
        return b""
    close = b"" if tail.endswith(b"\n") else b"\n"
    start = tail.rfind(b"\n...\n") + 5 if b"\n...\n" in tail else 0
    if _EVENT_HEAD.match(tail, start):
        close += b"...\n"
    return close


def _write_whole(fd, size_b, data):
    """Write `data` at the end of a file of `size_b` bytes, all of it or nothing."""
    try:
        _allocate(fd, size_b, len(data))
        durable.write_all(fd, data)
    except OSError:
        _cut(fd, size_b, len(data))
        raise


def _cut(fd, size_b, most_b):
    # Not when another one appended behind us: there was no lock then, and its text is worth more than our litter.
    try:
        if size_b <= os.fstat(fd).st_size <= size_b + most_b:
            os.ftruncate(fd, size_b)
    except OSError:
        pass                            # whoever appends next finds it


def _allocate(fd, at_b, size_b):
    """Have the blocks before anything is written, so that a full disk shows no half text even for an instant.

    The size of the file stays as it is, which os.posix_fallocate cannot. Where that cannot be had, a short write is
    cut off afterwards.
    """
    import ctypes                       # only where something is appended: it costs 5 ms
    fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate64", None)
    if fallocate is None:
        return
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if fallocate(fd, _KEEP_SIZE, at_b, size_b) != 0 and ctypes.get_errno() in _FULL:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
