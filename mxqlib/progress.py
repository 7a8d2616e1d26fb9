"""One line of progress on a terminal: done, failed, running, rate, time left."""

import os
import sys

from mxqlib import cli, clock, units

_EVERY_S = 0.5


class Progress:
    """Shown on standard error when that is a terminal; otherwise nothing is written."""

    def __init__(self):
        self.shown = os.isatty(2)
        self.begin_s = clock.boot_s()
        self.next_s = 0.0
        self.width = 0
        if self.shown:
            cli.clear_line = self.end

    def is_due(self):
        """True when there is a terminal and the line is old enough."""
        return self.shown and clock.boot_s() >= self.next_s

    def show(self, done, failed, running, waiting):
        """Rewrite the line; `waiting` is the number of jobs in the queue."""
        now = clock.boot_s()
        self.next_s = now + _EVERY_S
        rate = done / (now - self.begin_s) if now > self.begin_s else 0.0
        left = units.show_duration((waiting + running) / rate) if rate else "-"
        line = "done %d  failed %d  running %d  waiting %d  %.1f/s  left %s" % (
            done, failed, running, waiting, rate, left)
        sys.stderr.write("\r" + line.ljust(self.width))
        sys.stderr.flush()
        self.width = len(line)

    def end(self):
        """Leave the line clean for whatever is written next."""
        if self.width:
            sys.stderr.write("\r" + " " * self.width + "\r")
            sys.stderr.flush()
            self.width = 0
