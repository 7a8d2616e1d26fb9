"""The wire from a reaper to its front: a pipe with one line for each thing that happens.

The reaper tells before it acts, so that a front that takes over knows as much: `main PID START DATE` (forked),
`gate SECONDS` (about to open, CLOCK_BOOTTIME), `reason WORD`, `time-killed`, `ended STATUS DATE REAL`, and as the last
one `recorded`, `kept PATH` (in the fallback), `nothing SIGNAL` (MAIN died before the gate opened) or `failed`.
"""

import fcntl
import os

from mxqlib import process

LAST = ("recorded", "kept", "nothing", "failed")


def wake_by_signal(fd):
    """Have SIGIO sent to this process when there is something to read from `fd`, or its end (fcntl(2), F_SETOWN)."""
    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)


class Teller:
    """The reaper's end."""

    def __init__(self, fd):
        self.fd = fd
        os.set_blocking(fd, False)

    def tell(self, line):
        """Send one line. A front that has gone, or is stopped with a full pipe, is not waited for."""
        try:
            os.write(self.fd, (line + "\n").encode("utf-8", "surrogateescape"))
        except OSError:
            pass


class Listener:
    """The front's end: `facts` maps the first word of each line to its rest, `main` is the Process that MAIN is,
    `date_start` its date, `started_s` the opening of the gate; None as long as it was not told."""

    def __init__(self, fd):
        self.fd = fd
        self.facts = {}
        self.main = self.date_start = self.started_s = None
        self.over = False           # nobody is left who could tell us anything
        self._rest = b""
        wake_by_signal(fd)

    def listen(self):
        """Take in what was told since; never blocks."""
        try:
            while not self.over:
                data = os.read(self.fd, 65536)
                self.over = not data
                self._rest += data
        except BlockingIOError:
            pass
        lines = self._rest.split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            word, _, rest = line.decode("utf-8", "surrogateescape").partition(" ")
            self.facts[word] = rest
            if word == "main":
                pid, start, self.date_start = rest.split()
                self.main = process.Process()
                self.main.pid, self.main.start = int(pid), int(start) if start != "None" else None
            elif word == "gate":
                self.started_s = float(rest)

    def forget(self, *but):
        """Forget what was told of a run that is over, but for these words."""
        self.facts = {word: self.facts[word] for word in but if word in self.facts}
        self.main = self.date_start = self.started_s = None

    @property
    def last(self):
        """The word that ended the run's story, or None."""
        for word in LAST:
            if word in self.facts:
                return word
        return None

    def main_reference(self):
        """The process reference of MAIN, as records hold it."""
        return dict(process.context(), pid=self.main.pid, start=self.main.start)
