"""The check: what is not as it should be in spool, queue and /proc, and which command mends it. Changes nothing.

Jobs start and end meanwhile, and what is seen in one place may have gone from the next. So whatever is found is looked
for again, after a pause, and only what is there each time is told. That is enough, as each question is asked in the
order in which things move: a lock goes after the record has come, a file goes after the commit of what it says.
"""

import os
import time

from mxqlib import census, cli, clock, durable, lock, outbox, place, process, record, spool
from mxqlib.cli import Failure, reason
from mxqlib.jobqueue import due, jobs, outcomes, read_queue, roster
from mxqlib.rollcall import GONE, ORPHAN, REBOOTED, UNCLEAR, RollCall

_OLD_S = 900            # what mxq-collect should have done by then: cron calls it every minute
_PAUSES_S = (0.2, 0.5)
_ENDED = record.FINAL + ("lost",)


class Finding:
    """Something wrong: `what`, what it `means`, and the command or deed that would `mend` it."""

    def __init__(self, what, means, mend):
        self.what, self.means, self.mend = what, means, mend

    def line(self):
        """For people, on one line."""
        return "%s: %s; mend: %s" % (self.what, self.means, self.mend)


def check(base):
    """The Findings about base directory `base`, those that are there in each of several looks."""
    found = Look(base, thorough=True).found
    for pause_s in _PAUSES_S:
        if not found:
            break
        time.sleep(pause_s)
        again = Look(base).found
        found = {key: again.get(key, finding) for key, finding in found.items() if key in again or key[0] == "damage"}
    return list(found.values())


class _Roll(RollCall):
    """The roll call, with what it passes by: the oldest outcome, and how many there are; records of other hosts."""

    def __init__(self, where, complain):
        self.ended, self.oldest_ns, self.elsewhere = 0, None, 0
        RollCall.__init__(self, where, set(), complain)

    def pass_by(self, name, raw, state):
        """Take note of a record that is not judged."""
        if state != record.ENDED:
            self.elsewhere += 1
            return
        try:
            modified_ns = spool.decode(os.path.join(self.spool.runs, name), *raw)[2][2]
        except record.Damaged:
            self.damaged.append(name)
            return
        self.ended += 1
        self.oldest_ns = min(self.oldest_ns or modified_ns, modified_ns)


class Look:
    """One look at everything. `found` has a Finding by key, the same key for the same trouble; `thorough`: the whole
    database is read too."""

    def __init__(self, base, thorough=False):
        self.base, self.spool, self.found = base, spool.Spool(place.spool(base)), {}
        self.path, self.runners, self.here = place.queue(base), place.runners(base), process.context()["host"]
        self.elsewhere = 0
        self.queue = self.roll = None
        # Processes before records, records before the queue: the way that a run takes.
        self.census = census.Census(base)
        if self._look_at_places():
            self._look_at_spool()
        self._open_queue()
        if self.queue is not None:
            try:
                with self.queue.reading():
                    self._look_at_runs()
                    self._look_at_outbox()
            except Failure as failure:
                self._refuse_queue("queue", failure)
            if thorough:
                self._look_at_pages()
            self.queue.close()
        if self.elsewhere:
            cli.step("%d runs of other hosts, or that cannot be seen from here: left to those" % self.elsewhere)

    def _note(self, key, what, means, mend):
        self.found[key] = Finding(what, means, mend)

    # ---- places ----

    def _look_at_places(self):
        """Directories that MXQ would refuse; True when there is a spool to look at."""
        where = self.spool
        usable = True
        for path in dict.fromkeys((self.base, os.path.dirname(self.path), self.runners, place.fallback(), where.path,
                                   where.runs, where.output, where.corrupt)):
            try:
                there = place.check_private(path)
            except Failure as failure:
                there = False
                self._note(("place", path), str(failure), "MXQ refuses it", "change its owner or mode, or name another")
            if path in (where.path, where.runs):
                usable = usable and there
        for end in ("-wal", "-shm", "-journal", "-owed"):
            try:
                owner = os.lstat(self.path + end).st_uid
            except OSError:
                continue
            if owner != os.geteuid():
                self._note(("place", end), "%s belongs to user %d" % (self.path + end, owner),
                           "the queue cannot be changed by you", "chown it")
        return usable

    # ---- spool ----

    def _look_at_spool(self):
        where = self.spool
        self._look_at_drains()
        try:
            self.roll = roll = _Roll(where, lambda _, text: self._note(
                ("unread", text), text, "what it says is not known", "see to the disk"))
            put_aside = sorted(os.listdir(where.corrupt)) if os.path.isdir(where.corrupt) else []
        except OSError as failure:
            self._note(("unread",), "cannot read %s: %s" % (failure.filename, reason(failure)), "no run is known",
                       "see to the disk")
            return
        self.elsewhere += roll.elsewhere
        for name in roll.damaged:
            why = self._why_damaged(name)
            if why is not None:
                self._note(("file", name), "runs/%s is no record (%s)" % (name, why), "its outcome cannot be known",
                           "mxq-collect puts it aside")
        for name in put_aside:
            if not name.endswith(".reason"):
                self._note(("corrupt", name), "corrupt/%s was put aside (%s)" % (name, self._why_aside(name)),
                           "nobody looks at it again", "look at it, then remove it and NAME.reason")
        if roll.oldest_ns is not None and time.time() - roll.oldest_ns / 1e9 > _OLD_S:
            self._note(("uncollected",), "%d outcomes in runs/, the oldest since %s" % (
                roll.ended, clock.iso(roll.oldest_ns / 1e9)[:19] + "Z"),
                       "nobody collects them, and nothing is delivered", "mxq-collect, from cron")
        for found in roll.found:
            self._look_at_run(found)
        self._look_at_hidden()

    def _why_damaged(self, name):
        try:
            self.spool.load(name)
        except record.Damaged as damage:
            return str(damage)
        except OSError as failure:
            return reason(failure)
        return None             # it was replaced meanwhile

    def _why_aside(self, name):
        try:
            with open(os.path.join(self.spool.corrupt, name + ".reason"), encoding="utf-8", errors="replace") as file:
                return file.readline(500).strip()
        except OSError:
            return "no reason given"

    def _look_at_drains(self):
        for name in sorted(os.listdir(self.spool.path)):
            if name == "drain" or name.startswith("drain."):
                why = self.spool.drain_reason(os.path.join(self.spool.path, name))
                if why is not None:
                    self._note(("drain", name), "%s is there (%s)" % (name, why), "nothing is started from the queue%s"
                               % (" on " + name[6:] if name != "drain" else ""), "mxq-ctl resume")

    def _look_at_run(self, found):
        run, entry = found.run, found.entry
        kept = entry.get("fallback")
        if kept and os.path.lexists(kept):
            self._note(("fallback", run), "%s: its outcome is in %s" % (run, kept), "the spool could not take it",
                       "mxq-collect takes it from there")
        elif found.word == ORPHAN:
            self._note(("run", run), "%s: its reaper is dead, MAIN %d is not" % (run, entry["main"]["pid"]),
                       "nobody keeps its limits or waits for its end", "mxq-adopt takes it over")
        elif found.word in (GONE, REBOOTED):
            means = "its processes are gone" if found.word == GONE else "its host was booted since"
            self._note(("run", run), "%s: running, says its record" % run, means,
                       "mxq-adopt finds its outcome or declares it lost")
        elif found.word == UNCLEAR:
            self.elsewhere += 1

    def _look_at_hidden(self):
        """Rooms and temporary files that nobody has locked, and that belong to no record."""
        for path in self.roll.iter_left():
            if not durable.is_in_use(path) and os.path.lexists(path):       # else it has become a record meanwhile
                self._note(("hidden", path), "runs/%s is nobody's" % os.path.basename(path),
                           "a process died while it wrote", "mxq-adopt removes it")

    # ---- queue ----

    def _open_queue(self):
        try:
            self.queue = read_queue(self.path)
        except Failure as failure:
            self._refuse_queue("queue", failure)

    def _refuse_queue(self, kind, failure):
        text = str(failure)
        mend = "install the later version" if "newer than" in text else "see mxq-queue(5), DIAGNOSTICS"
        if "malformed" in text or "not a database" in text:
            mend = "put back a copy of it, or what 'sqlite3 %s .recover' gives" % self.path
        self._note((kind, "failure"), text, "nothing can be collected or started; the spool keeps what it has", mend)

    def _look_at_pages(self):
        try:
            if self.queue.readers_delay_writers():
                cli.step("the pages of the database are not looked at: others would wait (network file system)")
                return
            with self.queue.reading():
                for text in roster.damage(self.queue):
                    self._note(("damage", text), "the database is damaged (%s)" % text, "jobs may be missing from it",
                               "put back a copy of it, or what 'sqlite3 %s .recover' gives" % self.path)
        except Failure as failure:
            self._refuse_queue("damage", failure)

    def _look_at_runs(self):
        for run, job, state, host, runner, *_ in jobs.active(self.queue):
            if host != self.here:
                self.elsewhere += 1
            elif state == "loaded":
                if not (runner and lock.is_held(self.runners, runner)) and self._is_without_record(run):
                    self._note(("loaded", run), "%s: handed over by an mxq-run that is dead" % run,
                               "it was not started, and job %d does not go on" % job, "mxq-adopt gives it back")
            elif self._is_without_record(run):
                kept = os.path.join(place.fallback(), run + ".json")
                where = "its outcome is in %s" % kept if os.path.lexists(kept) else "its record has gone from the spool"
                self._note(("gone", run), "%s: running, says the queue, but %s" % (run, where),
                           "its end may stay unknown", "mxq-adopt puts it back and judges it")
        for job, state in roster.without_run(self.queue):
            self._note(("job", job), "job %d: %s, but no run of it is" % (job, state), "the queue was changed by hand",
                       "put back a copy of it")
        for run, pids in self.census.runs.items():
            if not record.valid_run(run):
                continue        # of another queue, or nonsense in the environment of somebody else
            state = outcomes.known_state(self.queue, run, "")[0]
            if state in _ENDED and self._is_without_record(run):
                self._note(("left", run), "%s: has ended, but of its processes %s %s" % (
                    run, " ".join(map(str, sorted(pids))), "lives" if len(pids) == 1 else "live"),
                           "they take CPU and memory that nobody counts", "kill them by hand")

    def _is_without_record(self, run):
        return not os.path.lexists(self.spool.record_path(run)) and not durable.is_in_use(self.spool.embryo_path(run))

    def _look_at_outbox(self):
        for sink, target, count, error in roster.parked(self.queue):
            self._note(("parked", sink, target), "%d owed to %s %s: parked (%s)" % (count, sink, target, error),
                       "20 tries failed, and no more are made", "mxq-collect --retry, after its cause")
        if lock.is_held(os.path.dirname(self.path), os.path.basename(self.path) + "-deliverer"):
            return              # somebody is at it
        if not outbox.may_owe(self.path):
            if roster.owes(self.queue):
                self._note(("unmarked",), "%s-owed has gone, but something is owed" % self.path, "nobody looks for it",
                           "mxq-collect --retry")
        elif _is_older(self.path + "-owed", _OLD_S):
            for first in due.overdue(self.queue, time.time() - _OLD_S):
                self._note(("owed", first.sink), "%s: not delivered to %s %s" % (first.event, first.sink, first.target),
                           "nobody delivers; it could have been since %s" % first.date[:19] + "Z",
                           "mxq-collect, from cron")


def _is_older(path, age_s):
    try:
        return time.time() - os.stat(path).st_mtime > age_s
    except OSError:
        return False
