"""Adoption: every run of this host gets somebody who tells its end, or an end.

The order is the promise. A run is not touched unless its record is the same after it was judged. It is not lost
before all this was looked at: its processes, the fallback directory, the room for its outcome, the record again, the
queue, and what it left behind. Watchers are forked before SQLite is imported, and name themselves in the record before
the lock of the one adoption per host goes: no second one meets a run half adopted.
"""

import os

from mxqlib import census, durable, exits, kin, lock, outcome, place, process, record, signals, watcher
from mxqlib.cli import error, reason, report, step, warn
from mxqlib.intake import BATCH, Intake
from mxqlib.rollcall import ATTACHED, FORSAKEN, GONE, ORPHAN, REBOOTED, UNCLEAR, RollCall

LOCK = "mxq-adopt.lock"
_AT_ONCE = 250              # watchers that are forked together: each needs descriptors here until it has its own


class Adoption:
    """One mxq-adopt over spool `where` of directory `base`, under the lock.Lock `held`; without one nothing is changed.

    `hosts`: those the operator says are dead. Each run that was, or would be, changed is told on standard output.
    """

    def __init__(self, where, base, held, hosts):
        self.spool, self.base, self.lock, self.hosts = where, base, held, hosts
        self.status = exits.OK
        self.here = process.context()["host"]
        self.runners = place.runners(base)
        self.intake = Intake(where, self._open_queue)
        self.roll = RollCall(where, hosts, self.fail)
        self.gone = []              # Founds without a process
        self.unstarted = []         # ids of runs that were not executed
        self.lost = []              # (Found, watcher.Orphan, the outcome that says so)
        self.commit = []            # names of records that the queue is to know
        self.known = {}             # run -> (its state in the queue or None, whether the queue has this very record)
        self.active = {}            # run -> (host, lock file, state) of runs that are loaded or running in the queue
        self.has_queue, self.knows_queue = os.path.exists(place.queue(base)), False
        self._census = None

    @property
    def dry(self):
        """True when nothing is to be changed."""
        return self.lock is None

    def fail(self, status, text):
        """Say what could not be done; the rest goes on."""
        error(text)
        if self.status == exits.OK:
            self.status = status

    def tell(self, run, word, text):
        """Say what became of a run, or what would."""
        status = report("%s: %s%s: %s" % (run, "would be " if self.dry else "", word, text))
        self.status = self.status or status

    def seen(self):
        """The one pass over /proc, made when it is needed first: after the references of records were judged."""
        if self._census is None:
            self._census = census.Census(self.base, nested=any(found.word == UNCLEAR for found in self.roll.found))
        return self._census

    # ---- orphans ----

    def adopt(self, runs):
        """Give each of the Founds `runs` whose MAIN lives, or was not reaped yet, a watcher; the others are gone."""
        orphans = []
        for found in runs:
            fd = None
            if found.word == ORPHAN:
                try:
                    fd = process.hold(found.entry["main"])
                except OSError as failure:
                    self.fail(exits.TEMPFAIL, "%s: cannot watch its MAIN: %s" % (found.run, reason(failure)))
                    continue
            if fd is not None:
                orphans.append((found, fd, "MAIN %d runs on without a reaper" % found.entry["main"]["pid"]))
                if len(orphans) == _AT_ONCE:
                    self._fork(orphans)
                    orphans = []
            elif found.word != ATTACHED:
                found.word = GONE if found.word == ORPHAN else found.word       # in this very moment
                self.gone.append(found)
            elif found.entry["host"] in self.hosts - {self.here}:
                self.fail(exits.UNAVAILABLE, "%s: not declared lost: its reaper lives on this very machine; is %s dead?"
                          % (found.run, found.entry["host"]))
        self._fork(orphans)

    def _fork(self, orphans):
        """Fork a watcher for each (Found, pidfd of MAIN or None, text); returns when their records name them."""
        if self.dry or not orphans:
            for found, fd, text in orphans:
                self.tell(found.run, "adopted", text)
                if fd is not None:
                    os.close(fd)
            return
        if os.environ.get("MXQ_RUN"):
            warn("run inside a job: what is adopted here ends with it")
        signals.block(signals.CATCHABLE)
        texts, prepared = {}, []
        for found, fd, text in orphans:
            texts[found.run] = found, text
            prepared.append(watcher.Watcher(watcher.Orphan(found.entry, self.spool, self.base), fd))
            prepared[-1].prepare()
        try:
            ready, _ = watcher.fork_all(prepared, [self.lock.fd])
        except OSError as failure:
            self.fail(exits.TEMPFAIL, "cannot fork watchers: %s; nothing is adopted this time" % reason(failure))
            return
        finally:
            signals.unblock(signals.CATCHABLE)
        self._listen(ready, texts)

    def _listen(self, ready, texts):
        with os.fdopen(ready, "r", encoding="ascii") as lines:
            for line in lines:
                run, pid, trouble = line.rstrip("\n").split(" ", 2)
                found, text = texts.pop(run)
                self.tell(run, "adopted", "%s, process %s is its reaper now" % (text, pid))
                if trouble:
                    self.fail(exits.IOERR, "cannot rewrite runs/%s: %s; process %s watches it all the same"
                              % (found.name, trouble, pid))
                self.commit.append(found.name)
        for run in texts:
            self.fail(exits.TEMPFAIL, "%s: no process for its watcher, or it was killed; adopt it again" % run)

    # ---- outcomes that are there after all ----

    def bring_home(self):
        """Put outcomes into their place that were left elsewhere; leave alone what cannot be judged."""
        self.gone = [found for found in self.gone
                     if (found.word != UNCLEAR or self._clear_up(found)) and not self._bring_home(found)]

    def _clear_up(self, found):
        """Where the processes of a record could not be seen: True when they are gone all the same."""
        entry = found.entry
        references = [each for each in (entry["reaper"], entry.get("front"), entry["main"]) if each]
        words = set(map(census.judge, references))
        if census.HIDDEN in words:
            words = {self.seen().judge(each) if census.judge(each) == census.HIDDEN else census.judge(each)
                     for each in references}
        if census.LIVING in words:
            found.word = ATTACHED
        elif words <= {census.GONE, census.ENDED}:
            if not any(map(self.seen().has_namespace, references)):
                found.word = REBOOTED if entry["reaper"].get("pidns") != process.context()["pidns"] else GONE
        elif entry["host"] in self.hosts:
            if not durable.is_in_use(self.spool.embryo_path(found.run)):
                found.word = FORSAKEN
            else:
                self.fail(exits.UNAVAILABLE, "%s: not declared lost: a living process has its record locked; is %s"
                          " dead?" % (found.run, entry["host"]))
        if found.word == UNCLEAR:
            step("%s: cannot be judged from here (another container, or hidden): left alone" % found.run)
        return found.word in (GONE, REBOOTED, FORSAKEN)

    def _bring_home(self, found):
        """True when the outcome is somewhere; it is in the spool then."""
        entry, where = None, found.entry.get("fallback")
        kept = self.intake.look_into_fallback(found.entry) if where else None
        if kept is not None:
            entry = kept[0]
        else:
            entry, where = self.spool.finished_embryo(found.run), "the room for it: its reaper died before it was named"
        if entry is None:
            return False
        if not self.dry and (not found.is_same() or not self._publish(found, entry, "its outcome stays in %s" % where)):
            return True
        if kept is not None and not self.dry:
            durable.discard(found.entry["fallback"])
        self.tell(found.run, "ended", "its outcome was in %s" % where)
        return True

    def _publish(self, found, entry, otherwise):
        """Put an ended record over the running one. False when that failed, which was told."""
        try:
            durable.Reservation.taken_over(self.spool.embryo_path(found.run)).publish(found.path, record.encode(entry))
        except OSError as failure:
            self.fail(exits.IOERR, "cannot write runs/%s: %s; %s" % (found.name, reason(failure), otherwise))
            return False
        self.commit.append(found.name)
        return True

    # ---- the queue ----

    def _open_queue(self):
        from mxqlib import jobqueue
        if self.dry:
            return jobqueue.read_queue(place.queue(self.base))
        return jobqueue.open_queue(place.queue(self.base), self.spool.next_job)

    def ask_queue(self):
        """What the queue knows of our runs: after the fallback was looked at, as an outcome goes from there to here.

        Raises Failure; then nothing may be declared lost.
        """
        queue = self._open_queue() if self.has_queue else None
        if queue is None:
            return
        from mxqlib.jobqueue import jobs, outcomes
        try:
            with queue.reading():
                for found in self.roll.found:
                    self.known[found.run] = outcomes.known_state(queue, found.run, found.line)
                for row in jobs.active(queue):
                    self.active[row[0]] = row[3], row[4], row[2]
            self.knows_queue = True
            self._restore(queue)
        finally:
            queue.close()

    def _restore(self, queue):
        """Runs that the queue has as running, and whose record has gone: put it back, and judge it as all others.

        But where the lock was not let go, MAIN has found its gate closed and taken the record back.
        """
        from mxqlib.jobqueue import lookup
        for run, (host, name, state) in self.active.items():
            if state != "running" or host != self.here or not self._is_without_record(run):
                continue
            # After the record: mxq-collect commits an outcome before it removes the file.
            text = lookup.running_record(queue, run)
            if text is None:
                continue
            try:
                entry = record.decode((text + "\n").encode("utf-8", "surrogateescape"), run)
                if entry["reaper"].get("boot") == process.context()["boot"] and self._is_dropped(name):
                    self.unstarted.append(run)
                    continue
                if not self.dry:
                    self.spool.put(entry)
            except record.Damaged:
                continue
            except OSError as failure:
                self.fail(exits.IOERR, "cannot write runs/%s.json: %s" % (run, reason(failure)))
                continue
            self.tell(run, "restored", "its record had gone from the spool, the queue had it")
            if not self.dry:
                self.adopt(self.roll.call(run + ".json"))
                self.bring_home()

    def _is_without_record(self, run):
        return not os.path.lexists(self.spool.record_path(run)) and not durable.is_in_use(self.spool.embryo_path(run))

    def commit_all(self):
        """Have the queue know what runs here, and what was found out. Raises Failure."""
        news = [found for found in self.roll.found if found.word == ATTACHED and self._is_news(found)]
        if not self.dry:
            self.intake.take(sorted(self.roll.damaged))
            names = sorted(set(self.commit) | {found.name for found in news}) if self.has_queue else ()
            for at in range(0, len(names), BATCH):
                self.intake.take(names[at:at + BATCH])
            if self.intake.queue is not None:
                self.intake.queue.close()
        for found in news:
            self.tell(found.run, "re-attached", "its reaper %d lives" % found.entry["reaper"]["pid"])

    def _is_news(self, found):
        state, same = self.known.get(found.run, (None, False))
        return self.has_queue and not same and state in (None, "loaded", "running")

    # ---- lost ----

    def settle(self):
        """Runs whose processes are gone and whose outcome is nowhere: given back, ended, or lost. Loaded ones too."""
        left = []
        for found in self.gone:
            host, name, _ = self.active.get(found.run, (None, None, None))
            if self.known.get(found.run, (None, False))[0] in record.FINAL:
                self.commit.append(found.name)      # what a crash left: the intake removes it
            elif found.word == GONE and host == self.here and self._is_dropped(name):
                self._withdraw(found)
            elif found.word == GONE and self._left_behind(found):
                left.append((found, None, "MAIN is gone, what it left behind is being ended"))
            else:
                self._declare(found)
        for at in range(0, len(left), _AT_ONCE):
            self._fork(left[at:at + _AT_ONCE])
        self._write_lost()
        self._give_back_all()

    def _is_dropped(self, name):
        """True when a lock file is there that nobody holds: a reaper removes it before it opens the gate, so it had
        not come that far. (Not after a power loss: the file may be back.)"""
        return bool(name) and os.path.exists(os.path.join(self.runners, name)) and not lock.is_held(self.runners, name)

    def _withdraw(self, found):
        if not self.dry:
            if not found.is_same():
                return
            # The record first: without it the run is still loaded, or is restored and comes here again.
            durable.discard(self.spool.embryo_path(found.run))
            durable.discard(found.path)
        self.unstarted.append(found.run)

    def _left_behind(self, found):
        return found.is_same() and kin.find(self.seen(), found.entry, kin.sessions_of(found.entry))

    def _declare(self, found):
        orphan = watcher.Orphan(found.entry, self.spool, self.base)
        facts = watcher.Watcher(orphan)
        facts.reason, facts.error = self._explain(found)
        self.lost.append((found, orphan, outcome.compose(orphan, facts)))

    def _write_lost(self):
        """Say of these runs that nobody can know how they ended, over their running records and over nothing else.

        In the queue where there is one: one commit, while files have to be made durable one by one.
        """
        lost = [each for each in self.lost if self.dry or each[0].is_same()]
        drained = not self.dry and watcher.stop_starting([each[1] for each in lost if each[0].word == GONE])
        if not self.dry and self.has_queue:
            for at in range(0, len(lost), BATCH):
                self.intake.take_judged([(each[0].name, each[0].identity, each[2]) for each in lost[at:at + BATCH]])
        elif not self.dry:
            lost = [each for each in lost if self._publish(each[0], each[2], "it stays running until the next call")]
        for found, _, entry in lost:
            more = drained and found.word == GONE and record.job_and_attempt(found.run)
            self.tell(found.run, entry["reason"], entry["error"] + (
                "; nothing is started on %s until mxq-ctl resume" % self.here if more else ""))

    def _explain(self, found):
        if found.word == FORSAKEN:
            return "lost", "its host %s is dead, says the operator" % found.entry["host"]
        if found.word == GONE:
            return "lost", "its reaper and MAIN are gone, and no outcome was left"
        if found.entry["reaper"].get("boot") != process.context()["boot"]:
            return "reboot", "its host was booted since"
        return "reboot", "its container (pid namespace) has ended"

    # ---- loaded ----

    def _give_back_all(self):
        """Runs that were handed over and cannot have been started: free lock, no record, still loaded; and those whose
        reaper died before it opened the gate."""
        given = self.unstarted
        for run, (host, name, state) in self.active.items():
            if state != "loaded" or (host != self.here and host not in self.hosts):
                continue
            if host == self.here and name and lock.is_held(self.runners, name):
                continue            # a claimer, or a reaper on its way
            # After the lock: a reaper lets go of it only when the record is there.
            if self._is_without_record(run) and run not in self.seen().runs:
                given.append(run)
        if given and not self.dry:
            given = self._give_back(given)
        for run in given:
            self.tell(run, "given back", "it was handed over, and not started")

    def _give_back(self, runs):
        from mxqlib.jobqueue import jobs
        queue = self._open_queue()
        try:
            with queue.transaction():
                return [run for run in runs if jobs.give_back(queue, run)]
        finally:
            queue.close()

    # ---- what the dead left ----

    def sweep(self):
        """Remove rooms, temporary files and locks of those who died."""
        if self.dry:
            return
        if self.has_queue and self.knows_queue:
            used = {name for _, name, _ in self.active.values()}
            for name in os.listdir(self.runners):
                # "mxq-run.PID.lock", and "PID.START.N.lock" of a claim that was never committed, or that is over.
                if name.endswith(".lock") and (name[:1].isdigit() or name.startswith("mxq-run.")) and name not in used:
                    durable.clear(os.path.join(self.runners, name))
        for path in self.roll.iter_left():
            if durable.clear(path):
                step("runs/%s removed: nobody writes it" % os.path.basename(path))
