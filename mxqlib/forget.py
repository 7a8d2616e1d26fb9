"""Forgetting: jobs that were over long ago go from the queue, and what their detached runs wrote from the spool.

The order is the promise. Within one transaction the output files of a batch go first, durably, then the rows: a crash
in between leaves jobs without output, which the next call meets again, and never output of which nobody knows whose it
was. Only output/RUN.log is removed, which MXQ named itself; a file that the user named with -o is the user's.
"""

import os
import time

from mxqlib import cli, clock, durable, exits
from mxqlib.cli import reason
from mxqlib.jobqueue import oblivion

BATCH = 500             # jobs in one transaction: a tenth of a second


class Forgetting:
    """Forgets jobs of a queue, and their output in the spool.Spool `where`. `forgotten`, `kept` count jobs of those
    that are old enough; `status` is what a command that did nothing else would exit with."""

    def __init__(self, queue, where):
        self.queue, self.spool = queue, where
        self.forgotten = self.kept = 0
        self.status = exits.OK

    def run(self, age_s):
        """Forget what ended `age_s` seconds ago or earlier, the latest first: who waited for a job ended after it.

        Raises Failure when the queue cannot be used; what is done until then stays done.
        """
        until_s = time.time() - age_s
        before = clock.iso(until_s), 1 << 62
        while before is not None:
            began_s = clock.boot_s()
            before = self._batch(before, until_s)
            if before is not None:
                time.sleep(clock.boot_s() - began_s)        # others want the lock too

    def _batch(self, before, until_s):
        """One transaction; returns where the next one goes on, None when there is no more."""
        with self.queue.transaction():
            page = oblivion.page(self.queue, before, BATCH)
            going, is_changed = [], False
            for _, job in page:
                runs = oblivion.runs_of(self.queue, job)
                if runs is None or not all(self._is_settled(run, until_s) for run in runs):
                    continue
                removed = [self._remove_output(run) for run in runs]
                is_changed = is_changed or True in removed
                if None not in removed:
                    oblivion.forget(self.queue, job)
                    going.append(job)
            if is_changed:
                durable.sync_directory(self.spool.output)
        self.forgotten += len(going)
        self.kept += len(page) - len(going)
        return page[-1] if len(page) == BATCH else None

    def _is_settled(self, run, until_s):
        """True when nobody writes a file of the run any more: none in runs/, and no output that is younger."""
        if os.path.lexists(self.spool.record_path(run)) or os.path.lexists(self.spool.embryo_path(run)):
            return False
        try:
            return os.lstat(self.spool.output_path(run)).st_mtime <= until_s
        except FileNotFoundError:
            return True

    def _remove_output(self, run):
        """True when there was output, False when there was none, None when it cannot be removed: the job is kept."""
        path = self.spool.output_path(run)
        try:
            os.unlink(path)
            return True
        except FileNotFoundError:
            return False
        except OSError as failure:
            cli.error("cannot remove %s: %s; its job is kept" % (path, reason(failure)))
            self.status = exits.IOERR
            return None
