"""The processes of one job: all that descend from its reaper, hit with signals until they are gone.

A subreaper gets every orphaned descendant, so setsid and double forks lead nowhere. A reaper of ours among them
(a nested run) is told with USR1, USR2, TSTP instead, so that the inner run ends with a record, and what is below it
is its own business.
"""

from mxqlib import clock, process, signals

# What is sent: to most processes, to an inner reaper, to an inner front (who waits for its reaper).
_PLANS = {
    signals.TERM: ((signals.TERM, signals.CONT), (signals.USR1,), ()),
    signals.KILL: ((signals.KILL,), (signals.USR2,), ()),
    signals.STOP: ((signals.STOP,), (signals.TSTP,), ()),
    signals.CONT: ((signals.CONT,), (signals.CONT,), ()),
    signals.XCPU: ((signals.XCPU, signals.CONT), (), (signals.XCPU,)),
}
_ROUNDS = 8         # scans in a row that find newcomers before they are stopped rather than outrun
_STOP_ROUNDS = 200
_PATIENCE_S = 2


def below_us(found):
    """True for a process whose descendants belong to the same run."""
    return found.comm != process.REAPER


class Tree:
    """The job whose processes descend from pid `root`, our own."""

    def __init__(self, root, strangers=frozenset()):
        """`strangers`: pids of children of `root` that are none of the job's, nor is what is below them."""
        self.root, self.strangers = root, strangers
        self.leftovers = None       # once MAIN has ended: (pid, start) of all that TERM or KILL was meant for
        self._told = {}             # (pid, start) of an inner reaper -> when USR2 was sent

    def members(self):
        """The living Processes of the job now."""
        if not self.strangers:
            return process.descendants(self.root, below_us)
        found = process.descendants(self.root, lambda each: below_us(each) and each.pid not in self.strangers)
        return [each for each in found if each.pid not in self.strangers]

    def near(self):
        """As members(), where it is called often: it may cost less, and miss some."""
        return self.members()

    def hit(self, number):
        """Send `number` (TERM, KILL, STOP, CONT, XCPU) to each process once, newcomers of the meantime too."""
        done = set()
        for _ in range(_ROUNDS):
            fresh = [found for found in self.members() if (found.pid, found.start) not in done]
            if not fresh:
                return
            for found in fresh:
                self._strike(found, number)
                done.add((found.pid, found.start))

    def kill(self):
        """KILL each process; stop them first when they fork faster than they die. Returns what was found last."""
        struck = set()
        for n in range(_ROUNDS + 1):
            found = self.members()
            fresh = [each for each in found if (each.pid, each.start) not in struck]
            if not fresh:
                break
            if n == _ROUNDS - 1:
                self._freeze()
                fresh = found = self.members()
            for each in fresh:
                self._strike(each, signals.KILL)
                struck.add((each.pid, each.start))
        return found

    def _freeze(self):
        # A stopped process forks no more: when a scan finds nobody running, the next kill gets them all.
        for _ in range(_STOP_ROUNDS):
            running = [each for each in self.members() if each.state not in "TtD" and not _ours(each)]
            if not running:
                return
            for each in running:
                process.send(each, signals.STOP)

    def _strike(self, found, number):
        ordinary, reaper, front = _PLANS[number]
        plan = reaper if found.comm == process.REAPER else front if found.comm == process.FRONT else ordinary
        who = found.pid, found.start
        if self.leftovers is not None and number in (signals.TERM, signals.KILL):
            self.leftovers.add(who)
        if plan is reaper and number == signals.KILL:
            # A second USR2 tells a reaper that cannot write its record to give up the place: give it time first.
            if clock.boot_s() - self._told.get(who, 0) < _PATIENCE_S:
                return
            self._told[who] = clock.boot_s()
        for each in plan:
            process.send(found, each)


def _ours(found):
    return found.comm in (process.REAPER, process.FRONT)
