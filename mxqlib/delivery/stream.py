"""Writing to what is no file: standard output, a FIFO, a terminal; somebody may read it slowly, or not at all.

A pipe is never made non-blocking, as that would change it for all who share it: a write of at most PIPE_BUF bytes to a
pipe that poll(2) calls writable does not block (pipe(7)).
"""

import fcntl
import os
import select
import stat
import time

from mxqlib import durable
from mxqlib.cli import reason
from mxqlib.delivery import LIMIT_S, PATIENCE_S, Stopped, Undelivered, never

_CHUNK_B = select.PIPE_BUF


def write(fd, texts, limit_s=LIMIT_S, stop=never):
    """Write `texts` (bytes) one after the other, within `limit_s` seconds.

    Raises Undelivered, whose `done` says how many are written whole; Stopped before the next one begins.
    """
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return _write_file(fd, texts)
    until = time.monotonic() + limit_s
    for done, text in enumerate(texts):
        try:
            _write(fd, text, until, stop)
        except OSError as failure:
            raise Undelivered(reason(failure), done) from None
        except Undelivered as failure:
            raise Undelivered(str(failure), done) from None


def _write(fd, text, until, stop):
    view, poll = memoryview(text), select.poll()
    poll.register(fd, select.POLLOUT)
    while view:
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise Undelivered("nobody reads it")
        if len(view) == len(text) and stop():
            raise Stopped()
        for _, seen in poll.poll(min(left_s, PATIENCE_S) * 1000):
            if seen & select.POLLNVAL:
                raise Undelivered("closed")
            try:
                view = view[os.write(fd, view[:_CHUNK_B]):]
            except BlockingIOError:
                time.sleep(0.01)        # another one filled the pipe meanwhile


def _write_file(fd, texts):
    """Standard output is a file: all of `texts` or nothing."""
    try:
        appends = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND
        start_b = os.fstat(fd).st_size if appends else os.lseek(fd, 0, os.SEEK_CUR)
        try:
            durable.write_all(fd, b"".join(texts))
            durable.sync(fd)
        except OSError:
            _take_back(fd, start_b)
            raise
    except OSError as failure:
        raise Undelivered(reason(failure)) from None


def _take_back(fd, start_b):
    try:
        os.ftruncate(fd, start_b)
        os.lseek(fd, start_b, os.SEEK_SET)
    except OSError:
        pass
