"""The reaper: it supervises one run from the fork of MAIN to the durable outcome.

What it keeps: MAIN's status is looked at before it is reaped, told to the front before that, and fixed with its time
at that instant; everything MAIN left behind is ended before the outcome is written; the outcome is written for
ever while that can succeed. Every wait is a signal wait.

A Reaper is also what a front becomes when its reaper died (take_over), then without gate and reservation of its own.
For a MAIN that is not our child see watcher.
"""

import os

from mxqlib import child, clock, outcome, outer, process, signals
from mxqlib.cli import error
from mxqlib.tree import Tree

_SURVIVE_S = 10.0           # how long what was sent KILL may take to go before it is called a survivor
_KILL_EVERY_S = 0.1         # how often it is looked for newcomers while killing
_SAMPLE_FIRST_S, _SAMPLE_LIMITED_S, _SAMPLE_FREE_S = 0.1, 1.0, 10.0
_KEPT_CHILDREN, _KEPT_SIGNALS = 1000, 100
_NOTED = (signals.TERM, signals.INT, signals.HUP, signals.QUIT, signals.XCPU)


class _Facts:
    """What a reaper has seen: the fields of an ended record come from here (see outcome.compose)."""

    def __init__(self):
        self.status = self.date_end = self.real_s = self.reason = self.error = None
        self.signals, self.children, self.children_more, self.survivors = [], [], 0, []
        self.used = dict.fromkeys(child.USAGE, 0)       # by the children that were reaped, and theirs
        self.max_sumrss_b = self.maxrss_floor_kib = None
        self.adopted = self.time_killed = False

    def blame(self, reason):
        """Keep the first of the things that ended the job. True when this was it."""
        if self.reason is None:
            self.reason = reason
            return True
        return False

    def keep_signal(self, number, to, date, pid, uid):
        """Keep a signal that was received; the first hundred tell the story."""
        if len(self.signals) < _KEPT_SIGNALS:
            self.signals.append({"signal": signals.name(number), "to": to, "date": date, "pid": pid, "uid": uid})


class Reaper(_Facts):
    """Supervision of one attempt.Attempt by this process.

    `tell(line)` reports to the front, `relay(signal)` stops and continues it with MAIN, `pass_on(signal)` hands
    signals that are MAIN's on to it (a reaper that is its own front has to).
    """

    def __init__(self, attempt, tell=lambda line: None, relay=lambda number: None, pass_on=lambda number: None):
        _Facts.__init__(self)
        self.attempt, self.tell, self.relay, self.pass_on = attempt, tell, relay, pass_on
        self.strangers = set()      # pids of children that are none of the job's
        self.tree = Tree(os.getpid(), self.strangers)
        self.main = None            # pid of MAIN
        self.started_s = None       # CLOCK_BOOTTIME at the gate
        self.unstarted = False      # the gate closed before MAIN could pass
        self.clearing = False       # MAIN has ended, what it left behind is being ended
        self.killing = False
        self.done = False           # only survivors are left
        self.to = "reaper"
        self._stopped = False       # MAIN is, and the front with it
        self.due = {}               # what is to be done -> when (CLOCK_BOOTTIME)
        self._sample_pause_s = _SAMPLE_FIRST_S
        self._steps = {"xcpu": self._limit_warn, "term": self._limit_term, "kill": self._limit_kill,
                       "sweep": self._sweep, "grace": self._start_killing, "again": self._kill_again,
                       "survive": self._give_up_on_survivors, "sample": self._sample}

    @property
    def is_over(self):
        """True once MAIN has ended."""
        return self.status is not None

    @property
    def is_to_blame(self):
        """True while an order or a limit ends the job: MAIN runs, or what it left behind is waited for (--linger)."""
        return not self.is_over or (self.attempt.linger and not self.clearing)

    def usage(self):
        """Resource usage of the job so far, as records hold it."""
        return dict(self.used, utime=round(self.used["utime"], 6), stime=round(self.used["stime"], 6))

    def begin(self):
        """MAIN runs from now on: arm the limits."""
        now = self.started_s = clock.boot_s() if self.started_s is None else self.started_s
        limit = self.attempt.entry["runtime"]
        if limit:
            # 100, 105, 110 percent, at least the grace apart.
            self.due["xcpu"] = now + limit
            self.due["term"] = now + max(limit * 1.05, limit + self.attempt.grace_s)
            self.due["kill"] = max(now + limit * 1.10, self.due["term"] + self.attempt.grace_s)
        self.due["sample"] = now + _SAMPLE_FIRST_S

    def supervise(self):
        """Return when MAIN and all that it left behind have ended, or only survivors are left."""
        while self.look():
            info = self.wait(self._pause_s())
            is_left = self.look()       # what has ended before a signal or a limit came was not ended by it
            if info is not None:
                self.receive(info)
            if is_left:                 # most jobs leave nothing behind, and that costs no look at /proc
                self._do_what_is_due()

    def wait(self, timeout_s):
        """The next signal, or None when `timeout_s` seconds (None: no limit) went by."""
        return signals.wait(signals.CATCHABLE, timeout_s)

    # ---- children ----

    def look(self):
        """Take note of children that changed; False when there is nothing left to supervise."""
        while True:
            try:
                change = child.look()
            except ChildProcessError:
                return False
            if change is None:
                return not self.done and not (self.strangers and self._only_strangers())
            if change.pid in self.strangers:
                if change.status is not None:
                    child.reap(change.pid)
                    self.strangers.discard(change.pid)
            elif change.status is not None:
                self._ended(change)
            elif change.pid == self.main:
                self._relay(change.stopped)

    def _relay(self, stopped):
        self._stopped = stopped
        self.relay(signals.STOP if stopped else signals.CONT)

    def _only_strangers(self):
        return self.strangers.issuperset(process.children(os.getpid()))

    def _ended(self, change):
        seen = process.look(change.pid)
        if change.pid == self.main and not self.is_over:
            self.main_ended(change.status)
        used = child.reap(change.pid)       # from here on the pid may mean another process
        child.add_usage(self.used, used)
        if len(self.children) >= _KEPT_CHILDREN:
            self.children_more += 1
            return
        self.children.append({
            "pid": change.pid, "comm": seen.comm if seen else None, "status": change.status,
            "utime": used.ru_utime, "stime": used.ru_stime, "maxrss": used.ru_maxrss})

    def main_ended(self, status):
        """MAIN's raw wait status is known: fix it and its time, tell the front, turn to what is left."""
        self.status, self.date_end = status, clock.iso()
        self.real_s = round(clock.boot_s() - self.started_s, 6)
        refused, text = child.read_report(self.attempt.report)
        self.unstarted = refused == "G"
        if text is not None:
            self.error = text
            if self.blame("exec"):
                self.tell("reason exec")
            error(text)
        self.tell("ended %d %s %r" % (self.status, self.date_end, self.real_s))
        if self._stopped:
            self._relay(False)          # killed while it was stopped: there was no going on to be seen
        self.after_main()

    def after_main(self):
        """End what MAIN left behind; with --linger wait for it, limits still on."""
        if self.attempt.linger and not self.killing:
            return
        self.clearing = True
        self.tree.leftovers = set()
        self.due = {"sweep": clock.boot_s()}        # when it is known that there are children still

    def _sweep(self):
        now = clock.boot_s()
        if self.killing:
            self.due["survive"] = now + _SURVIVE_S
            self._kill_again()
        else:
            self.tree.hit(signals.TERM)
            self.due["grace"] = now + self.attempt.grace_s

    # ---- signals ----

    def receive(self, info):
        """Act on a signal to the reaper."""
        number = info.si_signo
        if number in (signals.CHLD, signals.IO):
            return
        ours = number in (signals.USR1, signals.USR2, signals.TSTP, signals.CONT)
        if ours or number in _NOTED or self.to == "front":
            self.keep_signal(number, self.to, clock.iso(), info.si_pid, info.si_uid)
        if number in (signals.USR1, signals.USR2) and outer.is_supervisor(info.si_pid):
            ours = False        # Slurm and Grid Engine warn every process of a job so: it is no order to us
        if not ours:
            if number != signals.RTMIN:
                self.pass_on(number)
            return
        if number == signals.USR1:
            self._end_by(signals.TERM, "kill")
        elif number == signals.USR2:
            self._end_by(signals.KILL, "kill-now")
        elif number == signals.TSTP:
            self.tree.hit(signals.STOP)
        elif number == signals.CONT:
            self.tree.hit(signals.CONT)

    def _end_by(self, number, why):
        if self.is_to_blame and self.blame(why):
            self.tell("reason " + why)      # before it acts: a front that takes over must know who did it
        if number == signals.KILL:
            self._start_killing()
        else:
            self.tree.hit(signals.TERM)

    def _start_killing(self):
        self.killing = True
        self.due.pop("grace", None)
        if self.is_over:
            if not self.clearing:
                self.after_main()
            self.due["survive"] = clock.boot_s() + _SURVIVE_S
        self._kill_again()

    # ---- what is due ----

    def _pause_s(self):
        return min(self.due.values()) - clock.boot_s() if self.due else None

    def _do_what_is_due(self):
        now = clock.boot_s()
        for step in [step for step, when in self.due.items() if when <= now]:
            if self.due.pop(step, None) is not None:
                self._steps[step]()

    def _limit_warn(self):
        if self.is_to_blame and self.blame("time"):
            self.tell("reason time")
        self.tree.hit(signals.XCPU)

    def _limit_term(self):
        self.tree.hit(signals.TERM)

    def _limit_kill(self):
        if self.reason == "time" and not self.is_over:
            self.time_killed = True
            self.tell("time-killed")
        self._start_killing()

    def _kill_again(self):
        # Always again: a scan may miss what is being forked, and only "no children" says that all have gone.
        self.tree.kill()
        self.due["again"] = clock.boot_s() + _KILL_EVERY_S

    def _give_up_on_survivors(self):
        self.done = True
        self.survivors = [{"pid": left.pid, "comm": left.comm, "state": left.state} for left in self.tree.members()]

    def _sample(self):
        members = self.tree.near()
        size_b = process.resident_b(members)
        if members:
            self.max_sumrss_b = max(size_b, self.max_sumrss_b or 0)
        limit_b = self.attempt.entry["memory"]
        if limit_b and size_b > limit_b and "grace" not in self.due and not self.killing:
            if self.is_to_blame and self.blame("memory"):
                self.tell("reason memory")
            self.tree.hit(signals.TERM)
            self.due["grace"] = clock.boot_s() + self.attempt.grace_s
        longest = _SAMPLE_LIMITED_S if limit_b else _SAMPLE_FREE_S
        self._sample_pause_s = min(self._sample_pause_s * 2, longest)
        self.due["sample"] = clock.boot_s() + self._sample_pause_s

    # ---- the end ----

    def record(self, reservation):
        """Write the outcome, for ever while that can succeed. Returns None, or the fallback path ("": none)."""
        return outcome.publish(self.attempt, self, reservation, self.receive_after)

    def receive_after(self, info):
        """A signal while the outcome is being written: noted; children that end now were survivors."""
        if info.si_signo == signals.CHLD:
            while True:
                try:
                    change = child.look()
                except ChildProcessError:
                    return
                if change is None:
                    return
                if change.status is not None:
                    child.add_usage(self.used, child.reap(change.pid))
        else:
            self.keep_signal(info.si_signo, self.to, clock.iso(), info.si_pid, info.si_uid)
