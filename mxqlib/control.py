"""One call of mxq-ctl: what its operands name, changes in batches, what is said, and the exit status."""

import os

from mxqlib import cli, clock, exits, jobqueue, place, targets
from mxqlib.cli import Failure
from mxqlib.intake import Intake
from mxqlib.spool import Spool

_BATCH = 500                # jobs changed in one transaction


class Control:
    """Where things are, what was said, and how the call will exit; `busy_s`: how long a lock is waited for."""

    def __init__(self, base, values, busy_s):
        self.base, self.values, self.status = base, values, exits.OK
        self.spool = Spool(place.spool(base))
        self.spool.exists()
        self.queue = self._open_queue(busy_s)
        self.finder = targets.Finder(self.spool, self.queue, self.refuse)

    def _open_queue(self, busy_s):
        # What runs can be killed without a queue: one that is locked or damaged is said, and gone on without.
        if not os.path.exists(place.queue(self.base)):
            return None
        until_s = clock.boot_s() + jobqueue.BUSY_S
        while True:
            try:
                return jobqueue.open_queue(place.queue(self.base), busy_s=busy_s)
            except Failure as failure:
                if failure.status != exits.TEMPFAIL or clock.boot_s() > until_s:
                    self.refuse(failure.status, str(failure))
                    return None

    def close(self):
        """Let go of the queue."""
        if self.queue is not None:
            self.queue.close()

    def report(self, text):
        """One line on standard output: the job, what was done, what happens next."""
        self.status = max(self.status, cli.report(text))

    def collect(self, target):
        """Have the queue take in a Target's outcomes, and look at it again. True when there was one. Raises Failure."""
        if not target.ended:
            return False
        Intake(self.spool, lambda: self.queue).take([entry["run"] + ".json" for entry in target.ended])
        self.finder.look(target)
        return True

    def state_now(self, target):
        """The state of the job of a Target; None, which is said, when mxq-collect --forget dropped it meanwhile."""
        job = self.finder.look(target).job
        if job is None:
            self.refuse(exits.UNAVAILABLE, "%s: %s" % (target.shown, targets.absence(self.queue, target.number)))
        return job and job.state

    def refuse(self, status, text):
        """One line on standard error; the highest status is how it ends."""
        cli.error(text)
        self.status = max(self.status, status)

    def named(self, operands):
        """The Targets of the operands, looked at, each once; what names nothing is refused."""
        for target in targets.parse_each(operands, self.refuse):
            if self.finder.look(target).is_known:
                yield target
            elif self.queue is not None or not os.path.exists(place.queue(self.base)):
                self.refuse(exits.UNAVAILABLE, "%s: %s" % (
                    target.shown, targets.absence(self.queue, target.number, target.run)))
            else:
                self.refuse(exits.UNAVAILABLE, "%s: not in the spool, and the queue cannot be asked" % target.shown)

    def running(self, operands):
        """(name, running record) of each run that is named, or of all (of the group); what does not run is refused."""
        if not operands:
            for target in self.finder.all_running(self.values.group):
                yield target.name(target.running[0]), target.running[0]
            return
        for target in self.named(operands):
            for entry in target.running:
                yield target.name(entry), entry
            if not target.running:
                self.refuse(exits.UNAVAILABLE, "%s: %s" % (target.shown, targets.idle(target)))

    def change(self, chosen, act, done):
        """Call act(queue, number) for each Target, many in one transaction; then done(target, what it returned)."""
        batch = []
        for target in chosen:
            batch.append(target)
            if len(batch) == _BATCH:
                self._change(batch, act, done)
                batch = []
        self._change(batch, act, done)

    def _change(self, batch, act, done):
        if not batch:
            return
        with self.queue.transaction():
            results = [(target, act(self.queue, target.number)) for target in batch]
        for target, result in results:
            done(target, result)
