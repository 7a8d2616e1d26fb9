"""The watcher: a reaper for a MAIN that is not our child, after its own reaper and front died.

It does what a Reaper does: signals, limits, leftovers, the outcome for ever. What differs: MAIN's end is seen
through a pidfd that is open from the beginning; its status comes from the kernel (see census) or, where that does not
tell, is never known; the processes of the run are found by what they have (see kin), not below us.

Hundreds may wait at once, forked from one process, so that they share their memory. A page is copied when anything
on it is touched, be it a reference count: so all that can be is made ready before the fork, and what needs much, like
encoding a record, is done by a child of its own that leaves.
"""

import gc
import marshal
import os
import select

from mxqlib import census, child, cli, clock, durable, exits, process, record, signals
from mxqlib.cli import reason, warn
from mxqlib.kin import Kin
from mxqlib.reaper import Reaper

_LOOK_FIRST_S, _LOOK_CLEARING_S, _LOOK_LINGERING_S = 0.01, 0.5, 1.0
_SAMPLE_FREE_S = 30.0
_REWRITE_S = 30.0           # how often a running record is tried that could not be written
_GRACE_S = 10
_NAMED, _DRAIN_B = 20, 65536       # what a drain file holds


class Orphan:
    """A run without reaper and front, in the place of an attempt.Attempt: `entry` is its running record, in Spool
    `where` of directory `base`."""

    def __init__(self, entry, where, base):
        self.entry, self.spool, self.base = entry, where, base
        self.dead = entry["reaper"]["pid"]      # the record will name the watcher
        self.grace_s = _GRACE_S if entry.get("grace") is None else entry["grace"]
        self.linger = bool(entry.get("linger"))


class Watcher(Reaper):
    """Supervision of an Orphan; `fd` is a pidfd of its MAIN, None when that has gone and was reaped."""

    def __init__(self, orphan, fd=None):
        Reaper.__init__(self, orphan)
        main = orphan.entry["main"] or {"pid": None, "start": None}
        self.tree = Kin(orphan.entry, orphan.base)
        self.main, self.start = main["pid"], main.get("start")
        self.adopted = True
        self._fd, self._poll, self._room, self._report = fd, None, None, None
        self._over = fd is None
        self._executed = False      # MAIN was seen as the command, not on its way there
        self._pause_s_to_look = _LOOK_FIRST_S
        self._used = {}
        self._aside, self._pause_s_to_sample = b"", _LOOK_CLEARING_S
        self._steps.update({"look": lambda: None, "rewrite": self.name_itself})

    @property
    def is_over(self):
        """True once MAIN has ended."""
        return self._over

    def inherit(self, told, report):
        """Before prepare(), where the dead reaper told us (told: a wire.Listener): go on with what it knew. `report` is
        the memfd in which MAIN says what kept it from the exec."""
        self._report = os.dup(report)
        self.reason, self.time_killed = told.facts.get("reason"), "time-killed" in told.facts
        if "ended" in told.facts:
            status, self.date_end, real_s = told.facts["ended"].split()
            self.status, self.real_s, self._over = int(status), float(real_s), True
            self.error = child.read_report(report)[1]

    def prepare(self):
        """Before the fork: take over the room for the outcome, and go on with the limits where they are; MAIN may have
        ended already."""
        self._room = _room_of(self.attempt)
        self.started_s = (self.start or 0) / process.TICKS
        if self._over:
            if self.status is None:
                self.blame("lost")
            self.after_main()
            return
        self._meet_main()
        Reaper.begin(self)
        if "kill" in self.due:      # one that is overdue gets its grace all the same
            self.due["kill"] = max(self.due["kill"], clock.boot_s() + self.attempt.grace_s)
        self._poll = select.poll()
        self._poll.register(_signal_fd(), select.POLLIN)
        self._poll.register(self._fd, select.POLLIN)
        self.tree.near()
        self._take_usage()

    def descriptors(self):
        """What was given to, or opened by, a prepared Watcher: for the forked process only."""
        return [fd for fd in (self._fd, self._room.fd, self._report) if fd is not None]

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
        return not self.tree.near() and not self.tree.members() and (not self.tree.leftovers or not self.tree.members())

    def _look_at_main(self):
        if not census.has_ended(self._fd):
            return
        self._recall()
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
        if self._report is not None:
            refused, self.error = child.read_report(self._report)
            self.unstarted = refused == "G"
            if self.error is not None:
                self.blame("exec")
        elif not self._executed and status is not None and status >> 8 in (exits.FAILURE, exits.NOEXEC, exits.NOTFOUND):
            status, self.error = None, "its reaper died when it was about to start; it may not have been executed"
        self._over, self.status, self._poll = True, status, None
        if status is None:
            self.error = self.error or "its reaper died; how it ended cannot be known"
            self.blame("lost")
        self._pause_s_to_look = _LOOK_FIRST_S
        self.after_main()

    # ---- usage ----

    def _sample(self):
        if self.attempt.entry["memory"]:
            self._sample_here()
            return
        # What is only to be known, not acted on, is worth no memory of ours.
        answer, told = os.pipe()
        pid = child.fork()
        if pid == 0:
            child.end_with(lambda: self._sample_aside(told))
        os.close(told)
        self._aside = os.read(answer, 4096) or self._aside
        os.close(answer)
        child.wait_for(pid)
        self._pause_s_to_sample = min(self._pause_s_to_sample * 2, _SAMPLE_FREE_S)
        self.due["sample"] = clock.boot_s() + self._pause_s_to_sample

    def _sample_here(self):
        Reaper._sample(self)
        self._take_usage()
        if not self._executed:
            self._meet_main()

    def _sample_aside(self, told):
        self._recall()
        self._sample_here()
        os.write(told, marshal.dumps((self.max_sumrss_b, self._used, self._executed)))
        return exits.OK

    def _recall(self):
        if self._aside:
            self.max_sumrss_b, self._used, self._executed = marshal.loads(self._aside)

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
        return dict(dict.fromkeys(child.USAGE), **self._used)

    # ---- the record ----

    def name_itself(self, told=None):
        """Rewrite the running record: this process is the run's reaper now. When that fails it is tried
        again and again.

        `told` is a descriptor that gets `RUN PID WHAT WENT WRONG`.
        """
        me, pid = os.getpid(), child.fork()
        if pid == 0:
            child.end_with(lambda: self._put(me, told))
        if child.wait_for(pid) != 0 and not self._over:
            self.due["rewrite"] = clock.boot_s() + _REWRITE_S

    def _put(self, me, told):
        trouble = ""
        try:
            self._name(me)
            self.attempt.spool.put(self.attempt.entry)
        except OSError as failure:
            trouble = reason(failure)
        try:
            if told is not None:
                os.write(told, ("%s %d %s\n" % (self.attempt.entry["run"], me, trouble)).encode("ascii", "replace"))
        except OSError:
            pass                    # whoever forked us has gone
        return exits.IOERR if trouble else exits.OK

    def _name(self, me):
        self.attempt.entry["reaper"], self.attempt.entry["front"] = process.reference(me), None

    def serve(self):
        """From the fork to the durable outcome. Returns the exit status."""
        self.supervise()
        if self.unstarted:
            return exits.OK             # who forked us sees it in the report, too, and gives the job back
        self._name(os.getpid())
        if self.reason == "lost":
            stop_starting([self.attempt])
        return exits.OK if self.record(self._room) is None else exits.IOERR


_signals = None


def _signal_fd():
    # One for all: whoever polls it is told of its own signals (signalfd(2)).
    global _signals
    if _signals is None:
        _signals = process.signal_fd(signals.CATCHABLE)
    return _signals


def _room_of(orphan):
    """The room that the dead reaper had reserved, or room of our own; publish() does without when there is none."""
    run, where = orphan.entry["run"], orphan.spool
    room = durable.Reservation.taken_over(where.embryo_path(run))
    if room.fd is None:
        try:
            return where.reserve(run, len(record.encode(orphan.entry)))
        except OSError:
            pass
    return room


def fork_all(watchers, locks=()):
    """Fork a process for each prepared Watcher. All signals are blocked.

    Returns (descriptor, pids): what is read from it is `RUN PID WHAT WENT WRONG` for each, once its record names the
    process; nothing for the last ones, if these could not be forked. `locks` are descriptors that they hold until then.
    The Watchers are of no use here any more. Raises OSError when none could be forked.
    """
    ready, told = os.pipe()
    null, shared = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC), _signal_fd()
    highest = child.highest_fd()
    plans = [(watcher, child.gaps([told, null, shared, *locks, *watcher.descriptors()], highest),
              watcher.attempt.spool.output_path(watcher.attempt.entry["run"])) for watcher in watchers]
    gc.freeze()
    pids = []
    try:
        for watcher, gaps, log in plans:    # little is done here: a page that we change is a copy for each before
            pid = child.fork()
            if pid == 0:
                child.end_with(lambda: _serve(watcher, gaps, log, null, told, locks))
            pids.append(pid)
    except OSError:                 # no process to be had: what is missing is seen by what is not told
        if not pids:
            os.close(ready)
            raise
    finally:
        for fd in [told, null] + [fd for watcher in watchers for fd in watcher.descriptors()]:
            os.close(fd)
    return ready, pids


def _serve(watcher, gaps, log, null, told, locks):
    process.set_name(process.REAPER)
    child.new_session()
    for low, high in gaps:
        os.closerange(low, high)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    cli.message_file = log
    watcher.name_itself(told)
    for fd in (null, told, *locks):
        os.close(fd)
    return watcher.serve()


# ---- lost ----

def stop_starting(orphans):
    """Of these runs nobody knows how they ended, and no reboot explains it: where mxq-run started them, have nothing
    more started on their host until somebody has looked. True when that was written."""
    serious = [orphan for orphan in orphans if record.job_and_attempt(orphan.entry["run"])]
    if not serious:
        return False
    path = serious[0].spool.drain_path(serious[0].entry["host"])
    lines = ["run %s was lost: its reaper (pid %d) vanished without a record; find out why (killed? out of memory? see"
             " the kernel's log), then: mxq-ctl resume\n" % (orphan.entry["run"], orphan.dead) for orphan in serious]
    if len(lines) > _NAMED:
        lines[_NAMED:] = ["and %d more\n" % (len(lines) - _NAMED)]
    try:
        before = b""
        try:
            with open(path, "rb") as file:
                before = file.read(_DRAIN_B)
        except FileNotFoundError:
            pass
        if len(before) < _DRAIN_B:
            durable.replace(path, before + "".join(lines).encode("ascii", "replace"))
        return True
    except OSError as failure:
        warn("cannot write %s: %s; jobs are still started here" % (path, reason(failure)))
        return False
