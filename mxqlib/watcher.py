"""The watcher: a reaper for a MAIN that is not our child, after its own reaper and front died.

It does what a Reaper does: signals, limits, leftovers, the outcome for ever. What differs: MAIN's end is seen
through a pidfd that is open from the beginning; its status comes from the kernel (see census) or, where that does not
tell, is never known; the processes of the run are found by what they have (see kin), not below us.
"""

import os
import select

from mxqlib import census, child, cli, clock, durable, exits, process, record, signals
from mxqlib.cli import reason, warn
from mxqlib.kin import Kin
from mxqlib.reaper import Reaper

_LOOK_FIRST_S, _LOOK_CLEARING_S, _LOOK_LINGERING_S = 0.01, 0.5, 10.0
_REWRITE_S = 30.0           # how often a running record is tried that could not be written
_GRACE_S = 10


class Orphan:
    """A run without reaper and front, in the place of an attempt.Attempt: `entry` is its running record."""

    def __init__(self, entry, where):
        self.entry, self.spool = entry, where
        self.dead = entry["reaper"]["pid"]      # the record will name the watcher
        self.grace_s = _GRACE_S if entry.get("grace") is None else entry["grace"]
        self.linger = bool(entry.get("linger"))


class Watcher(Reaper):
    """Supervision of an Orphan; `fd` is a pidfd of its MAIN, None when that has gone and was reaped."""

    def __init__(self, orphan, fd=None):
        Reaper.__init__(self, orphan)
        main = orphan.entry["main"] or {"pid": None, "start": None}
        self.tree = Kin(orphan.entry)
        self.main, self.start = main["pid"], main.get("start")
        self.adopted = True
        self._fd, self._poll = fd, None
        self._over = fd is None
        self._executed = False      # MAIN was seen as the command, not on its way there
        self._pause_s_to_look = _LOOK_FIRST_S
        self._used = {}
        self._steps.update({"look": lambda: None, "rewrite": self._rewrite})

    @property
    def is_over(self):
        """True once MAIN has ended."""
        return self._over

    def begin(self):
        """Go on with the limits where they are; MAIN may have ended already."""
        self.started_s = (self.start or 0) / process.TICKS
        if self._over:
            self.blame("lost")
            self.after_main()
            return
        self._meet_main()
        Reaper.begin(self)
        if "kill" in self.due:      # one that is overdue gets its grace all the same
            self.due["kill"] = max(self.due["kill"], clock.boot_s() + self.attempt.grace_s)
        self._poll = select.poll()
        self._poll.register(process.signal_fd(signals.CATCHABLE), select.POLLIN)
        self._poll.register(self._fd, select.POLLIN)

    def _meet_main(self):
        found = process.look(self.main)
        if found is not None and found.start == self.start:
            self.tree.seen[found.pid] = found
            self._executed = self._executed or found.comm != process.MAIN

    def wait(self, timeout_s):
        """Take or wait for a signal, or for MAIN's end; None when there was none."""
        if self._poll is None:
            return signals.wait(signals.CATCHABLE, timeout_s)
        self._poll.poll(None if timeout_s is None else max(0, int(timeout_s * 1000) + 1))
        return signals.wait(signals.CATCHABLE, 0)

    # ---- processes ----

    def look(self):
        """Take note of what ended; False when there is nothing left to supervise."""
        if not self._over:
            self._look_at_main()
        if not self._over:
            return True
        if self.done or self._is_deserted():
            return False
        self._look_again()
        return True

    def _look_again(self):
        longest = _LOOK_LINGERING_S if self.attempt.linger and not self.clearing else _LOOK_CLEARING_S
        self._pause_s_to_look = min(self._pause_s_to_look * 2, longest)
        self.due["look"] = clock.boot_s() + self._pause_s_to_look

    def _is_deserted(self):
        # A pass over /proc may miss what is being forked: where something was left, one is not enough.
        return not self.tree.members() and (not self.tree.leftovers or not self.tree.members())

    def _look_at_main(self):
        if not census.has_ended(self._fd):
            return
        if self.date_end is None:
            self.date_end, self.real_s = clock.iso(), round(clock.boot_s() - self.started_s, 6)
        zombie = process.look(self.main)
        if zombie is not None and (zombie.start != self.start or not zombie.has_ended):
            zombie = None
        self._take_usage(zombie)
        status = census.reaped_status(self._fd)
        if status is None:
            status = census.zombie_status(self.main, self.start)
        if status is None:
            status = census.reaped_status(self._fd)     # it was reaped in between
        if status is None and zombie is not None:
            self._poll = None       # would be ready all the time
            self._look_again()
            return                  # its parent takes its time
        self.main_ended(status)

    def main_ended(self, status):
        """MAIN has ended with this raw wait status, or None when nobody can know; turn to what is left."""
        if not self._executed and status is not None and status >> 8 in (exits.FAILURE, exits.NOEXEC, exits.NOTFOUND):
            status, self.error = None, "its reaper died when it was about to start; it may not have been executed"
        self._over, self.status, self._poll = True, status, None
        if status is None:
            self.error = self.error or "its reaper died; how it ended cannot be known"
            self.blame("lost")
        self._pause_s_to_look = _LOOK_FIRST_S
        self.after_main()

    # ---- usage ----

    def _sample(self):
        Reaper._sample(self)
        self._take_usage()
        if not self._executed:
            self._meet_main()

    def _take_usage(self, zombie=None):
        seen = list(self.tree.seen.values())
        if zombie is not None:
            seen = [each for each in seen if each.pid != zombie.pid] + [zombie]
        now = {"utime": sum(each.utime + each.cutime for each in seen) / process.TICKS,
               "stime": sum(each.stime + each.cstime for each in seen) / process.TICKS,
               "maxrss": max([each.rss * process.PAGE_B // 1024 for each in seen] + [census.peak_kib(self.main) or 0])}
        for name, value in now.items():
            self._used[name] = max(value, self._used.get(name, 0))

    def usage(self):
        """What was seen of the job's usage; None for what cannot be seen from outside."""
        return dict(dict.fromkeys(child.usage()), **self._used)

    # ---- the record ----

    def name_itself(self):
        """Rewrite the running record: this process is the run's reaper now. Returns what went wrong, or None."""
        entry = self.attempt.entry
        entry["reaper"], entry["front"] = process.reference(os.getpid()), None
        try:
            self.attempt.spool.put(entry)
        except OSError as failure:
            self.due["rewrite"] = clock.boot_s() + _REWRITE_S
            return reason(failure)
        return None

    def _rewrite(self):
        self.name_itself()


def reservation_of(orphan):
    """The room that the dead reaper had reserved, or room of our own; publish() does without when there is none."""
    run, where = orphan.entry["run"], orphan.spool
    room = durable.Reservation.taken_over(where.embryo_path(run))
    if room.fd is None:
        try:
            return where.reserve(run, len(record.encode(orphan.entry)))
        except OSError:
            pass
    return room


def become(orphan, fd, ready, locks):
    """In a child that was forked for it: be the reaper of an Orphan. Never returns. All signals are blocked.

    `fd` is a pidfd of MAIN or None, `ready` a descriptor that is told `RUN PID WHAT WENT WRONG` once the record
    names this process, `locks` descriptors to be let go then.
    """
    child.end_with(lambda: _serve(orphan, fd, ready, locks))


def _serve(orphan, fd, ready, locks):
    run = orphan.entry["run"]
    process.set_name(process.REAPER)
    child.new_session()
    child.let_go([each for each in [fd, ready, *locks] if each is not None], (0, 1, 2))
    cli.message_file = orphan.spool.output_path(run)
    room = reservation_of(orphan)
    watcher = Watcher(orphan, fd)
    trouble = watcher.name_itself()
    os.write(ready, ("%s %d %s\n" % (run, os.getpid(), trouble or "")).encode("ascii", "replace"))
    for each in [ready, *locks]:
        os.close(each)
    rewrite_s = watcher.due.get("rewrite")
    watcher.begin()
    if rewrite_s is not None and not watcher.is_over:
        watcher.due["rewrite"] = rewrite_s
    watcher.supervise()
    if watcher.reason == "lost":
        stop_starting(orphan)
    return exits.OK if watcher.record(room) is None else exits.IOERR


# ---- lost ----

def stop_starting(orphan):
    """A run of mxq-run was lost, and no reboot explains it: have nothing more started on its host until somebody has
    looked. True when that was written."""
    entry = orphan.entry
    if record.job_and_attempt(entry["run"]) is None:
        return False
    path = orphan.spool.drain_path(entry["host"])
    why = "run %s was lost: its reaper (pid %d) vanished without a record; find out why (killed? out of memory? see" \
        " the kernel's log), then: mxq-ctl resume\n" % (entry["run"], orphan.dead)
    try:
        before = b""
        try:
            with open(path, "rb") as file:
                before = file.read(65536)
        except FileNotFoundError:
            pass
        if len(before) < 65536:
            durable.replace(path, before + why.encode("ascii", "replace"))
        return True
    except OSError as failure:
        warn("cannot write %s: %s; jobs are still started here" % (path, reason(failure)))
        return False
