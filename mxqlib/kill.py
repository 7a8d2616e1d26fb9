"""The kill of runs: TERM by way of each reaper, KILL after the grace, all at once, until each run has an outcome.

A reaper is signalled through a pidfd after its reference was checked, and that pidfd tells when it has ended. When it
ended without an outcome, its front goes on in its place and is found in the rewritten record; it gets what the
dead one may not have acted on any more.
"""

import os
import select

from mxqlib import clock, exits, lock, process, record, request, signals, targets, units
from mxqlib.cli import Failure
from mxqlib.jobqueue import jobs
from mxqlib.kin import Kin

_LONGEST_MS = 60000     # CLOCK_BOOTTIME goes on while poll(2) sleeps with the machine
_LOOK_S = 0.1           # how often a run that is to start, or to be taken over, is looked for
_TAKE_OVER_S = 3.0      # how long a front may take to go on in its reaper's place
_START_S = 10.0         # how long a loaded run may take to start
_END_S = 15.0           # how long a reaper may take after KILL: 10 s until it names survivors, and its record
_LOCKED_S = 30.0        # how long a locked queue is waited for
BUSY_S = 0.5            # at a time: nobody hears a signal while SQLite waits
_HEARD = (signals.HUP, signals.INT, signals.QUIT, signals.TERM)


class _Victim:
    """A run to be killed: `shown` in messages, `entry` its running record or None, `fd` a pidfd of its reaper, `lock`
    what keeps that reaper from going on to another run, `sent` what it got, in words; at `due_s` (CLOCK_BOOTTIME)
    `step` is done, which gives up at `until_s`."""

    def __init__(self, shown, run, step, until_s=None):
        self.shown, self.run, self.step, self.until_s = shown, run, step, until_s
        self.entry = self.fd = self.lock = None
        self.sent, self.due_s = [], clock.boot_s()


class Victims:
    """Any number of runs to be killed. `now`: KILL at once; `grace_s`: None for the grace of each run.

    `finder` (a targets.Finder) finds their records. For each run `report(text)` or `refuse(status, text)` is called,
    and `waits_again(run)` for a loaded run that has no record and is not loaded any more.
    """

    def __init__(self, finder, base, now, grace_s, report, refuse, waits_again):
        self.finder, self.base, self.now, self.grace_s = finder, base, now, grace_s
        self.report, self.refuse, self.waits_again = report, refuse, waits_again
        self.victims = {}           # run -> _Victim
        self.met = set()            # runs that are or were among them
        self._by_fd = {}
        self._poll = select.poll()
        self.heard = [number for number in _HEARD if not signals.is_ignored(number)]
        signals.block(self.heard)
        self._heard_fd = process.signal_fd(self.heard)
        self._poll.register(self._heard_fd, select.POLLIN)

    # ---- who ----

    def add(self, shown, entry):
        """Kill the run of a running record."""
        victim = self._meet(shown, entry["run"], self._take_over)
        if victim is not None:
            victim.entry = entry
            self._strike(victim)

    def add_loaded(self, run):
        """Kill a run that was handed over and has no record yet, once it has one."""
        self._meet(run, run, self._wait_for_start, clock.boot_s() + _START_S)

    def _meet(self, shown, run, step, until_s=None):
        if run in self.met:
            return None
        self.met.add(run)
        victim = self.victims[run] = _Victim(shown, run, step, until_s)
        return victim

    # ---- the wait ----

    def wait(self):
        """Return None when each run has ended or was refused, or the number of the signal that came before."""
        while self.victims:
            number = self.turn()
            if number is not None:
                return number
        return None

    def turn(self):
        """Do what is due and wait a little. Returns None, or the number of a signal that came: all is told then."""
        now = clock.boot_s()
        for victim in [each for each in self.victims.values() if each.due_s <= now]:
            victim.step(victim)
        for fd, _ in self._poll.poll(self._timeout_ms()):
            if fd != self._heard_fd:
                self._reaper_ended(self._by_fd[fd])
        info = signals.wait(self.heard, 0)
        if info is None:
            return None
        for victim in list(self.victims.values()):
            self._refuse(victim, exits.TEMPFAIL, "%s, and has not ended yet; to go on: mxq-ctl kill --now %s"
                         % (_got(victim), victim.run))
        return info.si_signo

    def _timeout_ms(self):
        if not self.victims:
            return int(_LOOK_S * 1000)
        left_s = min(victim.due_s for victim in self.victims.values()) - clock.boot_s()
        return max(1, min(_LONGEST_MS, int(left_s * 1000) + 1))

    # ---- signals ----

    def _strike(self, victim):
        """Send the signal that is next to the reaper; when it has gone, look for who goes on in its place."""
        reaper = victim.entry["reaper"]
        why = targets.elsewhere(reaper)
        if why is not None:
            self._refuse(victim, exits.UNAVAILABLE, why)
            return
        if victim.fd is None:
            # Held until the end: a reaper that may serve another run after this one leaves instead.
            victim.lock = lock.hold_running(self.finder.spool, victim.entry)
            victim.fd = process.hold(reaper) if victim.lock is not None else None
        if victim.fd is None:
            self._release(victim)
            victim.step, victim.until_s, victim.due_s = self._take_over, clock.boot_s() + _TAKE_OVER_S, clock.boot_s()
            return
        kill = self.now or bool(victim.sent)
        if not process.rouse(victim.fd, reaper["pid"], signals.USR2 if kill else signals.USR1):
            self._reaper_ended(victim)
            return
        if victim.fd not in self._by_fd:
            self._by_fd[victim.fd] = victim
            self._poll.register(victim.fd, select.POLLIN)
        now = clock.boot_s()
        if kill:
            word = "KILL" if not victim.sent else "KILL after %s" % units.show_duration(self._grace_s(victim))
            victim.sent = victim.sent[:1] + [word]
            victim.step, victim.due_s = self._outlive, now + _END_S
        else:
            victim.sent = ["TERM"]
            victim.step, victim.due_s = self._end_grace, now + self._grace_s(victim)

    def _grace_s(self, victim):
        if self.grace_s is not None:
            return self.grace_s
        own_s = victim.entry.get("grace")       # None in records of an earlier version
        return request.GRACE_S if own_s is None else own_s

    def _end_grace(self, victim):
        # KILL to a reaper whose job has gone means "give up the spool": not what a kill of the job is to do.
        if _has_processes(victim.entry, self.base):
            self._strike(victim)
        else:
            victim.step, victim.due_s = self._outlive, clock.boot_s() + _END_S

    def _outlive(self, victim):
        if _has_processes(victim.entry, self.base):
            why = "some of its processes cannot be killed; the record will name them"
        else:
            why = "its processes have gone, its record cannot be written; the reaper goes on trying"
        self._refuse(victim, exits.TEMPFAIL, "%s; %s" % (_got(victim), why))

    # ---- the end ----

    def _reaper_ended(self, victim):
        self._release(victim)
        victim.until_s = clock.boot_s() + _TAKE_OVER_S
        self._take_over(victim)

    def _take_over(self, victim):
        """The reaper has gone: there is an outcome, or somebody else is reaper now, or will be soon, or never."""
        entry = self.finder.load(victim.run)
        if entry is None or entry["state"] == record.ENDED:
            self._end(victim, entry)
            return
        before, victim.entry = victim.entry["reaper"], entry
        if entry["reaper"] != before:
            victim.sent = victim.sent[:1] if len(victim.sent) > 1 else []
            self._strike(victim)
        elif entry.get("fallback") and os.path.lexists(entry["fallback"]):
            self._report(victim, "ended; its record is in %s, mxq-collect finds it there" % entry["fallback"])
        elif clock.boot_s() > victim.until_s or not self._has_front(entry):
            self._refuse(victim, exits.UNAVAILABLE,
                         "its reaper has died; mxq-adopt takes over or declares it lost, then kill it again")
        else:
            victim.step, victim.due_s = self._take_over, clock.boot_s() + _LOOK_S

    @staticmethod
    def _has_front(entry):
        front = entry.get("front")
        return bool(front) and targets.elsewhere(front) is None and process.find(front) is not None

    def _wait_for_start(self, victim):
        entry = self.finder.load(victim.run)
        if entry is not None and entry["state"] == record.RUNNING:
            victim.entry, victim.step = entry, self._take_over
            self._strike(victim)
        elif entry is not None:
            self._end(victim, entry)
        elif self._ended(victim.run) is not None:
            self._drop(victim)
            self.waits_again(victim.run)
        elif clock.boot_s() > victim.until_s:
            self._refuse(victim, exits.TEMPFAIL, "is loaded and has not started yet; kill it again, or let mxq-adopt "
                         "give it back")
        else:
            victim.due_s = clock.boot_s() + _LOOK_S

    def _end(self, victim, entry):
        if entry is not None:
            self._report(victim, "%s; mxq-collect commits it" % targets.how(entry))
            return
        known = self._ended(victim.run)
        self._report(victim, "ended" if known is None else targets.how_ended(known.state, known.status))

    def _ended(self, run):
        """The lookup.Run when the queue has its outcome, None when not, or when it cannot be asked now."""
        try:
            known = self.finder.find_run(run)
        except Failure:
            return None
        return None if known is None or known.is_active else known

    def _report(self, victim, text):
        self._drop(victim)
        self.report("%s: %s: %s" % (victim.shown, _got(victim), text))

    def _refuse(self, victim, status, text):
        self._drop(victim)
        self.refuse(status, "%s: %s" % (victim.shown, text))

    def _drop(self, victim):
        self._release(victim)
        self.victims.pop(victim.run, None)

    def _release(self, victim):
        if victim.fd is not None:
            if self._by_fd.pop(victim.fd, None):
                self._poll.unregister(victim.fd)
            os.close(victim.fd)
        if victim.lock is not None:
            os.close(victim.lock)
        victim.fd = victim.lock = None


def _has_processes(entry, base):
    """True while something of the run of a running record lives, below its reaper or, when that is a watcher, not."""
    main = entry["main"] and process.find(entry["main"])
    return bool(main and not main.has_ended or process.descendants(entry["reaper"]["pid"])
                or Kin(entry, base).members())


def _got(victim):
    return "sent %s" % ", ".join(victim.sent) if victim.sent else "sent nothing"


# ---- by state ----

def _cancel(queue, number):
    return jobs.cancel(queue, number, "by mxq-ctl kill")


class Kill:
    """What is done for each state that a job can be in, which may change while it is looked at.

    `control` has `queue` and `finder`, and is told what happened; `now` and `grace_s` as for Victims.
    """

    def __init__(self, control, now, grace_s):
        self.control, self.queue, self.finder = control, control.queue, control.finder
        self.victims = Victims(control.finder, control.base, now, grace_s, control.report, control.refuse,
                               self._waits_again)
        self.waiting = []           # Targets to be cancelled
        self.done = set()           # numbers of those that were

    def of(self, named, group):
        """Kill what the Targets `named` name; all (of a group) when it is None. Returns as Victims.wait()."""
        number = None
        try:
            number = self._aim_at_all(group) if named is None else self._aim_at_each(named)
        except Failure as failure:
            self.control.refuse(failure.status, str(failure))       # what was told to end is seen to all the same
        return self.victims.wait() if number is None else number

    def _aim_at_each(self, named):
        for target in named:
            self.aim(target)
        return self._cancel(self._not_done)

    def _aim_at_all(self, group):
        # What runs is told first, and what waits cancelled before it is looked for what was started meanwhile.
        for target in self.finder.all_running(group):
            self.victims.add(target.name(target.running[0]), target.running[0])
        number = self._cancel(lambda: self.finder.all_live(group, ("queued", "held")))
        return self._aim_at_newcomers(group) if number is None else number

    def _not_done(self):
        return [target for target in self.waiting if target.number not in self.done]

    def aim(self, target):
        """Do what the state of a Target asks for; what waits is left to cancel()."""
        for entry in target.running:
            self.victims.add(target.name(entry), entry)
        if target.run is None and target.job is not None and target.job.state in ("queued", "held"):
            self.waiting.append(target)
        elif not target.running:
            known = target.known
            if known is not None and known.state == "loaded" and known.host == process.context()["host"] \
                    and not target.ended:
                self.victims.add_loaded(known.run)
            elif not self._waits_after_all(target):
                self.control.refuse(exits.UNAVAILABLE, "%s: %s" % (target.shown, targets.idle(target)))

    def _waits_after_all(self, target):
        """True when an outcome that nobody collected yet lets the job be tried again: that is to be stopped."""
        if target.run is not None or self.queue is None:
            return False
        try:
            if not self.control.collect(target) or target.job is None or target.job.state not in ("queued", "held"):
                return False
        except Failure as failure:
            self.control.refuse(failure.status, "%s: %s" % (target.shown, failure))
            return False
        self.waiting.append(target)
        return True

    def _cancel(self, left):
        """Cancel the Targets of left(). The queue may be locked: what was told to end is seen to meanwhile.

        Returns as Victims.turn().
        """
        until_s, number = clock.boot_s() + _LOCKED_S, None
        while self.queue is not None and number is None:
            try:
                self.control.change(left(), _cancel, self._cancelled)
                return None
            except Failure as failure:
                if failure.status != exits.TEMPFAIL or clock.boot_s() > until_s:
                    self.control.refuse(failure.status, str(failure))
                    return None
            number = self.victims.turn()
        return number

    def _cancelled(self, target, done):
        self.done.add(target.number)
        if not done:
            # As a job that one cancelled before was waited for by, or started just now, or was forgotten.
            if self.control.state_now(target) is None:
                return
        if done or target.job.state == "cancelled":
            self.control.report("%s: cancelled; it will not be started" % target.shown)
        elif target.job.state in ("queued", "held"):
            self.control.refuse(exits.TEMPFAIL, "%s: changes too fast to be cancelled; try again" % target.shown)
        else:
            self.aim(target)

    def _aim_at_newcomers(self, group):
        # What runs on other hosts and has no record here is not ours to kill with --all.
        here = process.context()["host"]
        for target in self.finder.all_live(group, ("loaded", "running")):
            known = self.finder.look(target).known
            if target.running or (known is not None and known.is_active and known.host == here and not target.ended):
                self.aim(target)
            else:
                self._waits_after_all(target)
        return self._cancel(self._not_done)

    def _waits_again(self, run):
        """A run that was loaded was given back before it started: its job is as any other that waits."""
        target = self.finder.look(targets.parse(run.partition(".")[0]))
        if target.job is not None and target.job.state in ("queued", "held"):
            self.waiting.append(target)
            self._cancel(self._not_done)
        elif target.job is not None:
            self.aim(target)
