"""mxq-wait: wait for jobs and end as they did.

Guarantees: it returns when the outcomes are committed and their log and record were tried once, and sees to that
itself when nobody else does; a job of which nobody can know how it ended is never taken for a success.
"""

import collections
import os
import select

from mxqlib import child, cli, clock, exits, jobqueue, lock, outcome, place, process, signals, targets, units
from mxqlib.cli import Failure, Option
from mxqlib.delivery import Stopped, deliverer
from mxqlib.intake import Intake, load_outcomes
from mxqlib.jobqueue import due
from mxqlib.spool import Spool

USAGE = "[--timeout TIME] JOB... | -g GROUP | --all"
TEXT = "Wait until the jobs have ended, and end as the job did when it is one. JOB is a job number or a run id."
OPTIONS = cli.BASE + (
    Option("g", "group", "GROUP", "all jobs of GROUP that are there now", units.label),
    Option(None, "all", None, "all jobs that are there now, runs of mxq-reap included"),
    Option(None, "timeout", "TIME", "wait no longer than TIME", lambda text: units.duration(text, 0)),
)
EXITS = (exits.OK, exits.NO, exits.UNKNOWN, exits.USAGE, exits.DATA, exits.UNAVAILABLE, exits.BUG, exits.CANTCREAT,
         exits.IOERR, exits.TEMPFAIL, exits.NOPERM, exits.CONFIG)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_WINDOW = 50            # how many are looked at in each turn: all must end, so the others' turn comes
_HELD = 5               # for how few the end of a reaper is waited for
_COLLECT_SHARE = 10     # a pass over the whole spool is followed by ten times its duration without one
_BUSY_S = 1.0           # a locked queue is asked again, where --timeout is looked at
_DELIVER_S = 1.0        # what deliveries may take when there is no time left


def main(argv):
    """Wait for what is named. Does not return for one job, as it ends like it."""
    values, operands = cli.parse(OPTIONS, argv, USAGE, TEXT)
    targets.check_order(operands)
    if bool(operands) + bool(values.all) + (values.group is not None) != 1:
        raise Failure(exits.USAGE, "name jobs, or -g GROUP, or --all, and only one of these")
    os.umask(0o077)
    process.check_proc()
    load_outcomes()
    wait = Wait(place.base(values.d))
    try:
        if operands:
            wait.choose(operands)
        else:
            wait.choose_all(values.group)
        in_time = wait.until(None if values.timeout is None else clock.boot_s() + values.timeout)
    finally:
        wait.close()
    if not in_time:
        return exits.TEMPFAIL
    if len(operands) == 1 and wait.last is not None:
        child.end_like(*ending(wait.last))
    return wait.status()


def ending(target):
    """How the one job or run ended, as outcome.ending() says it."""
    known, state = target.known, target.known.state if target.run else target.job.state
    if state == "finished":
        return "exit", exits.OK         # also where an earlier attempt did so after all
    if state == "cancelled":
        return "exit", exits.NO
    if state == "lost" or known is None or known.status is None:
        return "exit", exits.UNKNOWN
    # A KILL for the time limit shows as the signal of a run that has that reason.
    return outcome.ending(known.status, known.reason, known.status & 0x7f == signals.KILL)


class Wait:
    """Jobs and runs that are waited for: `left` those that have not ended (Targets, or numbers of jobs), `last` the
    Target that ended last."""

    def __init__(self, base):
        self.base, self.spool = base, Spool(place.spool(base))
        self.spool.exists()
        self.path = place.queue(base)
        self.finder = targets.Finder(self.spool, jobqueue.read_queue(self.path), self._complain)
        self.intake = Intake(self.spool, self._open_queue)
        self.left, self.last = collections.deque(), None
        self.wrong = exits.OK           # what the operands alone make the status
        self.states = set()             # of those that ended
        self._collect_at_s = 0.0
        self._said, self._missed = set(), set()     # complaints; runs whose reaper was not there
        self.deadline_s = None

    def close(self):
        """Let go of the queue."""
        for queue in (self.finder.queue, self.intake.queue):
            if queue is not None:
                queue.close()

    def _open_queue(self):
        place.make_private(self.base)
        return jobqueue.open_queue(self.path, self.spool.next_job, busy_s=_BUSY_S)

    def _complain(self, _status, text):
        if text not in self._said:
            self._said.add(text)
            cli.warn(text)

    # ---- what ----

    def choose(self, operands):
        """Wait for the jobs and runs that operands name; what names none is said, and counts."""
        for target in targets.parse_each(operands, self._refuse):
            if self.finder.look(target).is_known:
                self.left.append(target)
                if target.job is not None and target.job.state == "held":
                    cli.warn("%s: is held; mxq-ctl release %d lets it start" % (target.shown, target.number))
            else:
                self._refuse_unknown(target)

    def _refuse_unknown(self, target):
        self._refuse(exits.UNKNOWN, "%s: %s" % (
            target.shown, targets.absence(self.finder.queue, target.number, target.run)))

    def _refuse(self, status, text):
        cli.error(text)
        self.wrong = max(self.wrong, status)

    def choose_all(self, group):
        """Wait for all jobs (of a group) that are alive now, and all runs that the queue does not know yet."""
        for target in self.finder.all_running(group):
            if target.job is None and target.known is None:
                self.left.append(target)
        self.left.extend(target.number for target in self.finder.all_live(group))

    # ---- the wait ----

    def until(self, deadline_s):
        """Wait until all have ended: True; or until `deadline_s` (CLOCK_BOOTTIME; None: for ever): False."""
        self.deadline_s, pause_s = deadline_s, _FIRST_PAUSE_S
        cli.step("waiting for %d" % len(self.left))
        while True:
            try:
                running = self._turn()
            except Failure as failure:
                self._put_up_with(failure)
                running = []
            if not self.left:
                return True
            if self._is_late():
                cli.warn(self._lateness())
                return False
            left_s = pause_s if deadline_s is None else min(pause_s, deadline_s - clock.boot_s())
            pause_s = _FIRST_PAUSE_S if self._pause(running, left_s) else min(pause_s * 1.5, _LONGEST_PAUSE_S)

    def _turn(self):
        """Look at the first of those that are left; returns the running records among them."""
        looked = self._drop_those_over()
        self.finder.forget()
        running, ended = [], []
        for target in looked:
            if not self.finder.look(target).is_known:
                self._refuse_unknown(target)
                self.left.remove(target)
            for entry in target.running:
                self._see(entry, running, ended)
            ended += target.ended
        if ended:
            cli.step("%d outcomes are in the spool: collecting" % len(ended))
            self._collect(ended)
            self._drop_those_over()
        return running

    def _drop_those_over(self):
        """Take those that are over off what is left, as far as the first _WINDOW that are not; returns these."""
        if self.finder.queue is None:
            self.finder.queue = jobqueue.read_queue(self.path)
        window = []
        try:
            while self.left and len(window) < _WINDOW:
                target = self.left[0]
                if target.__class__ is int:
                    target = self.left[0] = targets.Target(str(target), target)
                if not self._is_over(target):
                    window.append(target)
                self.left.popleft()
        finally:
            self.left.extendleft(reversed(window))
        return window

    def _see(self, entry, running, ended):
        if entry.get("fallback") and os.path.lexists(entry["fallback"]):
            ended.append(entry)         # its outcome lies there: the intake knows
        else:
            running.append(entry)

    def _is_over(self, target):
        """True when the queue has the outcome, and log and record were told."""
        if self.finder.queue is None:
            return False
        self.finder.ask_queue(target)
        if target.run is not None:
            if target.known is None or target.known.is_active:
                return False
            state, number = target.known.state, target.known.job
        else:
            if target.job is None or not target.job.is_over:
                return False
            state, number = target.job.state, target.number
        if not self._was_told(number):
            return False
        cli.step("%s: %s" % (target.shown, state))
        self.states.add(state)
        self.last = target
        return True

    def _was_told(self, number):
        """True when log and record of a job were tried; they are tried here when nobody else does."""
        with self.finder.queue.reading():
            if not due.is_untried(self.finder.queue, number):
                return True
        try:
            if self.intake.queue is None:
                self.intake.queue = self._open_queue()
            # What is untried after that waits for an earlier one to the same file, which failed.
            until_s = clock.boot_s() + _DELIVER_S
            return deliverer.Deliverer(self.intake.queue, files_only=True,
                                       stop=lambda: self._is_late() and clock.boot_s() > until_s).run()
        except Stopped:
            return False
        except Failure as failure:
            self._put_up_with(failure)
            return False

    def _is_late(self):
        return self.deadline_s is not None and clock.boot_s() >= self.deadline_s

    def _lateness(self):
        if len(self.left) > 1:
            return "%d jobs have not ended in time" % len(self.left)
        return "%s: has not ended in time" % getattr(self.left[0], "shown", self.left[0])

    def _put_up_with(self, failure):
        if failure.status != exits.TEMPFAIL:
            raise failure
        self._complain(failure.status, "%s; still waiting" % failure)

    def _collect(self, ended):
        """Commit outcomes that are in the spool: these only, or all when there are many to wait for."""
        now = clock.boot_s()
        try:
            if len(self.left) <= _WINDOW:
                self.intake.take([entry["run"] + ".json" for entry in ended])
            elif now >= self._collect_at_s:
                self.intake.collect()
                self._collect_at_s = clock.boot_s() + _COLLECT_SHARE * (clock.boot_s() - now)
        except Failure as failure:
            self._put_up_with(failure)

    def _pause(self, running, pause_s):
        """Wait; True when a reaper that is local ended meanwhile."""
        fds, poll, missed = [], select.poll(), False
        try:
            for entry in running:
                if targets.elsewhere(entry["reaper"]) is not None:
                    continue
                if process.find(entry["reaper"]) is None:
                    missed = self._miss(entry) or missed
                elif len(self.left) <= _HELD:
                    self._hold(entry, fds, poll)
            return bool(poll.poll(1 if missed else max(1, int(pause_s * 1000)))) or missed
        finally:
            for fd in fds:
                os.close(fd)

    def _hold(self, entry, fds, poll):
        # The lock makes a reaper that could serve another run after this one leave instead; so not for many.
        held = lock.hold_running(self.spool, entry)
        fd = process.hold(entry["reaper"]) if held is not None else None
        fds += [each for each in (held, fd) if each is not None]
        if fd is not None:
            poll.register(fd, select.POLLIN)

    def _miss(self, entry):
        """A reaper has gone that a record names: True the first time, as it may have written its outcome just now."""
        if entry["run"] not in self._missed:
            self._missed.add(entry["run"])
            return True
        front = entry.get("front")
        if front is None or targets.elsewhere(front) is not None or process.find(front) is None:
            self._complain(exits.UNAVAILABLE, "%s: its reaper has died; waiting until mxq-adopt says what became of it"
                           % entry["run"])
        return False

    # ---- the end ----

    def status(self):
        """The exit status for several."""
        if self.wrong != exits.OK:
            return self.wrong
        if "lost" in self.states:
            return exits.UNKNOWN
        return exits.OK if self.states <= {"finished"} else exits.NO
