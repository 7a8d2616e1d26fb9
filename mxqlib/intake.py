"""Intake: spool files into the queue, in batches; each outcome exactly once, and no file removed before its commit.

The order is the promise: read a batch, commit it in one transaction, and when the commit is durable remove the
files whose outcomes it holds. A crash at any point leaves files that are committed again and change nothing. Two
intakes at once do the same work twice at worst: whoever commits second finds everything known.

A file may be replaced between reading and removing: running by ended, `lost` by an outcome that came late. So
only the very file that was read is removed, and only when what it says is in the queue. Damaged files, and
records that contradict what is committed, are put aside after the commit, and judged again before that.
"""

import fcntl
import gc
import os

from mxqlib import cli, durable, exits, outbox, place, record, spool
from mxqlib.cli import Failure, error, reason, step
from mxqlib.remover import Remover

BATCH = 1000                    # files in one transaction
BATCH_B = 16 << 20              # or as many bytes: a record may have megabytes of argv


class _File:
    """A record that was read: its name in runs/, what it says, its text, which file it was, and the path in the
    fallback directory when that is where the outcome was."""

    __slots__ = ("name", "entry", "line", "identity", "fallback")

    def __init__(self, name, entry, line, identity, fallback=None):
        self.name, self.entry, self.line, self.identity, self.fallback = name, entry, line, identity, fallback

    @property
    def ended(self):
        """True when it has the outcome."""
        return self.entry["state"] == record.ENDED

    @property
    def is_final(self):
        """True when nobody writes to this name any more and nothing else is to go: its own reaper saw it end."""
        return (self.ended and self.fallback is None and self.entry["status"] is not None
                and not self.entry.get("adopted"))


def load_outcomes():
    """Import what commits need, which an empty spool does not. Who waits calls it before: the package may be upgraded
    or removed meanwhile."""
    from mxqlib.jobqueue import outcomes
    return outcomes


class Intake:
    """One pass after the other over a spool. `open_queue()` is called when there is something to commit.

    `committed`, `dropped`, `corrupt` count outcomes committed, outcomes known already, files put aside; `status` is
    what a command that did nothing else would exit with. `may_fork`: large batches are removed by helper
    processes while the next one is read.
    """

    def __init__(self, where, open_queue, may_fork=False):
        self.spool, self._open_queue, self.queue = where, open_queue, None
        self._remover = Remover(where.runs) if may_fork else None
        self.committed = self.dropped = self.corrupt = 0
        self.status = exits.OK
        self._safe = {}                 # fallback folder -> may what is there be believed?

    def collect(self):
        """One pass over all files of the spool. Raises Failure when the queue cannot be used; the rest stays."""
        embryos = []
        was_on = gc.isenabled()
        gc.disable()                    # records are trees: looking for circles in thousands of them finds none
        try:
            for names in self._batches(embryos):
                self.take(names)
        finally:
            if was_on:
                gc.enable()
            if self._remover is not None and not self._remover.finish():
                self._fail(exits.IOERR, "not all files that are committed could be removed")
        if self.queue is not None and embryos:
            self._drop_embryos(embryos)
        return self.status

    def _batches(self, embryos):
        """Lists of names of runs/, while the directory is being read: it may hold any number."""
        try:
            entries = os.scandir(self.spool.runs)
        except FileNotFoundError:
            return
        names = []
        with entries:
            for found in entries:
                if found.name.startswith("."):
                    if record.valid_run(found.name[1:]):
                        embryos.append(found.name)
                    continue
                names.append(found.name)
                if len(names) == BATCH:
                    yield sorted(names, key=_in_order)
                    names = []
        if names:
            yield sorted(names, key=_in_order)

    # ---- a batch ----

    def take(self, names):
        """One pass over the files `names` of runs/. Raises Failure when the queue cannot be used; the rest stays."""
        files, damaged, size_b = [], [], 0
        for name in names:
            try:
                found = self._read(name)
            except record.Damaged as damage:
                damaged.append((name, str(damage)))
                continue
            except OSError as failure:
                self._fail(exits.IOERR, "cannot read runs/%s: %s" % (name, reason(failure)))
                continue
            if found is None:
                continue                # another intake was faster
            files.append(found)
            size_b += len(found.line)
            if size_b > BATCH_B:
                self._commit(files, damaged)
                files, damaged, size_b = [], [], 0
        self._commit(files, damaged)

    def take_judged(self, judged):
        """Commit outcomes that are in no file: (name of a running record, which file that is, the outcome). The file
        goes after the commit unless it was replaced. Raises Failure when the queue cannot be used."""
        self._commit([_File(name, entry, record.encode(entry)[:-1].decode("ascii"), identity)
                      for name, identity, entry in judged], [])

    def _read(self, name):
        """The _File, the outcome from the fallback directory included; None when it has gone."""
        found = spool.read("%s/%s" % (self.spool.runs, name))
        if found is None:
            return None
        entry, line, identity = found
        outbox.check(entry.get("deliveries"))
        if entry["state"] == record.RUNNING and entry.get("fallback"):
            kept = self.look_into_fallback(entry)
            if kept is not None:
                return _File(name, kept[0], kept[1], identity, entry["fallback"])
        return _File(name, entry, line, identity)

    def look_into_fallback(self, entry):
        """(record, text) of the outcome that the reaper of running record `entry` had to leave elsewhere, or None."""
        path = entry["fallback"]
        if not path.startswith("/") or not os.path.lexists(path):
            return None
        if not self._is_safe(os.path.dirname(path)):
            return None
        try:
            found = spool.read(path)
            if found is None:
                return None
            kept, line, _ = found
            outbox.check(kept.get("deliveries"))
            if kept["run"] != entry["run"] or kept["state"] != record.ENDED:
                raise record.Damaged("is not the outcome of run %s" % entry["run"])
        except record.Damaged as damage:
            self._fail(exits.DATA, "cannot believe %s: %s; left where it is" % (path, damage))
            return None
        except OSError as failure:
            self._fail(exits.IOERR, "cannot read %s: %s" % (path, reason(failure)))
            return None
        return kept, line

    def _is_safe(self, folder):
        if folder not in self._safe:
            try:
                self._safe[folder] = place.check_private(folder)
            except Failure as failure:
                self._fail(failure.status, "%s; what is there is not believed" % failure)
                self._safe[folder] = False
        return self._safe[folder]

    def _commit(self, files, damaged):
        """One transaction for `files`; then, and only then, what is to go goes."""
        done, contradicting = [], []
        fresh = self._unknown(files, done)
        if fresh:
            outcomes = load_outcomes()
            with self.queue.transaction():
                batch = outcomes.Batch(self.queue, [found.entry["run"] for found in fresh])
                for found in fresh:
                    result = batch.take(found.entry, found.line)
                    if result is outcomes.CONTRADICTION:
                        contradicting.append((found, "contradicts the outcome of run %s in the queue"))
                    elif result is outcomes.FORGOTTEN and found.ended:
                        contradicting.append((found, "comes too late: the job of run %s was forgotten"))
                    elif found.ended:
                        if cli.verbose:
                            step("%s: %s" % (found.entry["run"], record.state_of(found.entry)))
                        done.append(found)
                        if result is outcomes.NEW:
                            self.committed += 1
                        else:
                            self.dropped += 1
            done = self._given_back(done)
        if self._remover is not None and len(done) > BATCH // 2:
            final = [found.name for found in done if found.is_final]
            if self._remover.give(final):
                done = [found for found in done if not found.is_final]
        for found in done:
            self._remove(found)
        if damaged or contradicting:
            self._put_aside(damaged, contradicting)

    def _given_back(self, done):
        """Those of `done` that the queue gives back as they are: not all damage is seen by SQLite when it writes."""
        outcomes = load_outcomes()
        with self.queue.reading():
            missing = outcomes.missing(self.queue, [found.entry for found in done if found.ended])
        if missing:
            self._fail(exits.UNAVAILABLE, "the queue %s is damaged: it does not give back run %s%s; what is in the"
                       " spool stays" % (self.queue.path, min(missing), " and others" if len(missing) > 1 else ""))
        return [found for found in done if found.entry["run"] not in missing]

    def _unknown(self, files, done):
        """Those of `files` that may change the queue; running ones that tell nothing new need no transaction.

        A running record whose run has its outcome in the queue is what a crash between removing the fallback file
        and the record leaves: it goes into `done`.
        """
        if not files:
            return []
        if self.queue is None:
            self.queue = self._open_queue()
        outcomes = load_outcomes()
        fresh = []
        with self.queue.reading():
            for found in files:
                if not found.ended:
                    state, same = outcomes.known_state(self.queue, found.entry["run"], found.line)
                    if state in ("finished", "failed", "killed"):
                        done.append(found)
                        continue
                    if same or state == "lost":
                        continue
                fresh.append(found)
        return fresh

    # ---- after the commit ----

    def _remove(self, found):
        """Remove the files of a committed outcome; what is left of them after a crash is removed next time."""
        run = found.entry["run"]
        try:
            if found.fallback is not None:
                _unlink(found.fallback)
            path = "%s/%s" % (self.spool.runs, found.name)
            if not found.is_final and spool.identity(path) != found.identity:
                return                  # replaced meanwhile: its turn is next time
            _unlink(path)
        except OSError as failure:
            self._fail(exits.IOERR, "cannot remove %s: %s; it is committed" % (failure.filename, reason(failure)))
            return
        if not found.is_final:
            durable.clear(self.spool.embryo_path(run))

    def _drop_embryos(self, names):
        """Remove room that was reserved for outcomes which are in the queue: a crash came before it was removed."""
        outcomes = load_outcomes()
        for name in names:
            if os.path.lexists(self.spool.record_path(name[1:])):
                continue
            with self.queue.reading():
                state = outcomes.known_state(self.queue, name[1:], "")[0]
            if state in ("finished", "failed", "killed"):
                durable.clear(os.path.join(self.spool.runs, name))

    def _put_aside(self, damaged, contradicting):
        """Move files to corrupt/, one intake at a time, each one judged again: it may have been replaced."""
        place.make_private(self.spool.corrupt)
        lock = os.open(self.spool.corrupt, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for name, _ in damaged:
                try:
                    found = self._read(name)
                except record.Damaged as damage:
                    self._quarantine(name, str(damage))
                except OSError:
                    pass                # said when it was met first
                else:
                    if found is not None:
                        step("runs/%s was replaced meanwhile; its turn is next time" % name)
            for found, why in contradicting:
                self._put_contradiction_aside(found, why % found.entry["run"])
        finally:
            os.close(lock)

    def _put_contradiction_aside(self, found, why):
        if spool.identity(os.path.join(self.spool.runs, found.name)) != found.identity:
            return
        if found.fallback is not None:
            try:
                self.spool.put(found.entry)
                _unlink(found.fallback)
            except OSError as failure:
                self._fail(exits.IOERR, "cannot move %s to corrupt/: %s" % (found.fallback, reason(failure)))
                return
        self._quarantine(found.name, why)

    def _quarantine(self, name, why):
        try:
            kept = self.spool.quarantine(name, why)
        except OSError as failure:
            self._fail(exits.IOERR, "cannot move runs/%s (%s) to corrupt/: %s" % (name, why, reason(failure)))
            return
        if kept is not None:
            self.corrupt += 1
            self._fail(exits.DATA, "runs/%s: %s; moved to corrupt/%s" % (name, why, kept))

    def _fail(self, status, text):
        # The worst counts: an input or output error means that something is left to be done.
        error(text)
        if self.status in (exits.OK, exits.DATA):
            self.status = status


def _in_order(name):
    # Runs that have a job number first, so that none of the others is given theirs; the others' ids sort by time.
    return record.job_and_attempt(name[:-5]) is None, name


def _unlink(path):
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
