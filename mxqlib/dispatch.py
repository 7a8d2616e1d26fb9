"""The work of mxq-run: claims in one transaction, reapers for what was claimed, and with --wait the wait for them.

The order is the promise. A lock file is taken before the claim is committed, and the reaper inherits it: a claim whose
lock is free and that has no record cannot have run, and mxq-adopt gives it back. Room is counted inside the
transaction of the claim, so no two mxq-runs fill the same gap.
"""

import os
import sys

from mxqlib import capacity, child, clock, durable, exits, jobqueue, lock, outbox, place, process, record, signals
from mxqlib.attempt import withdraw
from mxqlib.cli import Failure, step, warn
from mxqlib.intake import Intake, load_outcomes
from mxqlib.jobqueue import jobs
from mxqlib.progress import Progress

_LOOK_S = 1.0               # how often --wait looks for jobs that others put into the queue or that fit by now
_COLLECT_S = 10.0           # how often it looks for records of others
_COMMIT_S, _BATCH = 0.1, 100   # when outcomes of ours are committed, at the latest
_COLLECT = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "mxq-collect")
_LONGEST_PAUSE_S = 30.0     # after a failed start or a locked queue


class Dispatcher:
    """One mxq-run. `values` are its options, `room` a capacity.Capacity, `crew` a Crew."""

    def __init__(self, base, values, room, crew):
        self.base, self.runners = base, place.runners(base)
        self.spool, self.capacity, self.crew = crew.spool, room, crew
        # With --wait a locked queue is asked again in the loop, where signals are heard.
        self.queue = jobqueue.open_queue(place.queue(base), self.spool.next_job,
                                         **({"busy_s": 1.0} if values.wait else {}))
        me = process.reference(os.getpid())
        self._own_start = me["start"]
        self.lock = lock.take(self.runners, "mxq-run.%d.lock" % os.getpid(), wait=True)
        self.lock.write(record.encode(dict(me, wait=bool(values.wait))))
        self.host = me["host"]
        self.occupied = capacity.Occupied(self.spool, self.runners)
        self.grace_s = 10 if values.grace is None else values.grace
        self._locks = 0
        self._environments = {}
        self._reported = set()      # kinds of jobs that can never fit, said once

    def close(self):
        """Let go of what names this mxq-run, and of reapers that wait for a job."""
        self.crew.dismiss()
        self.lock.let_go()
        self.queue.close()

    # ---- claim and start ----

    def drained(self):
        """Why nothing may be started here, or None."""
        for host in (None, self.host):
            why = self.spool.drain_reason(self.spool.drain_path(host))
            if why is not None:
                return why
        return None

    def start_what_fits(self, over=()):
        """Claim jobs and start their reapers. Returns the crew's new Members. Raises Failure.

        `over`: names of records of ours that are ended.
        """
        claimed, started = self._claim(over), []
        for at, (job, held) in enumerate(claimed):
            try:
                started.append(self.crew.start(job, self._environments.get(job["environment"]), held))
                step("%s: handed to a reaper" % job["run"])
            except OSError as failure:
                self.give_back([rest["run"] for rest, _ in claimed[at:]])
                for _, rest in claimed[at:]:
                    rest.let_go()
                raise Failure(exits.IOERR, "cannot start %s: %s; given back" % (job["run"], failure.strerror)) \
                    from None
        return started

    def _claim(self, over):
        claimed = []
        try:
            with self.queue.transaction():
                room = capacity.Room(self.capacity, self.occupied.shares(jobs.active(self.queue), over))
                while True:
                    choice = room.choose(jobs.kinds(self.queue, self.host))
                    if choice is None:
                        return claimed
                    claimed.append(self._claim_one(room, *choice))
        except BaseException:
            for _, held in claimed:
                held.let_go()
            raise

    def _claim_one(self, room, number, threads, memory_b, group):
        self._locks += 1
        held = lock.take(self.runners, "%d.%d.%d.lock" % (os.getpid(), self._own_start, self._locks))
        cpus = room.pick_cpus(threads)
        job = jobs.claim(self.queue, number, self.host, held.name, cpus)
        job["cpus"] = cpus
        room.occupy(threads, memory_b, cpus, group)
        key = job["environment"]
        if key is not None and key not in self._environments:
            if len(self._environments) > 100:
                self._environments.clear()
            self._environments[key] = jobs.environment(self.queue, key)
        return job, held

    def give_back(self, runs):
        """Runs that were claimed and not executed: their jobs wait again."""
        with self.queue.transaction():
            for run in runs:
                jobs.give_back(self.queue, run)

    def report_misfits(self):
        """True when all waiting jobs can never fit here; each kind of them is reported once."""
        fitting = False
        with self.queue.reading():
            for _, group, threads, memory_b, job in jobs.kinds(self.queue, self.host):
                if self.capacity.can_ever_hold(threads, memory_b):
                    fitting = True
                elif (threads, memory_b) not in self._reported:
                    self._reported.add((threads, memory_b))
                    warn("job %d can never be started here: it %s" % (job, self.capacity.lack(threads, memory_b)))
        return bool(self._reported) and not fitting

    # ---- without --wait ----

    def start_and_leave(self):
        """Start what fits; return once each job may run or is given back."""
        why = self.drained()
        if why is not None:
            step("nothing is started: %s" % why)
            return exits.OK
        if os.environ.get("MXQ_RUN"):
            warn("run inside a job: what is started here ends with it")
        signals.block(signals.CATCHABLE)
        failed, trouble = [], None
        while not failed and trouble is None:       # a full disk: not a reason to try the whole queue
            try:
                started = self.start_what_fits()
            except Failure as failure:
                started, trouble = True, failure    # what was started before it may have failed for the same reason
            if not started:
                step("nothing more waits that fits")
                break
            failed = self._wait_for_gates()
        if trouble is not None:
            raise trouble
        self.report_misfits()
        return exits.IOERR if failed else exits.OK

    def _wait_for_gates(self):
        """Wait until each reaper has opened its gate or failed; give back and return what was not started."""
        failed = []
        while True:
            for member in self.crew.listen():
                if self.is_unstarted(member):
                    failed.append(member.entry["run"])
                member.let_go()
            failed += [entry["run"] for entry, member in iter_ended(self.crew) if self.is_unstarted(member)]
            if not self.crew.starting:
                break
            signals.wait(signals.CATCHABLE)
        if failed:
            self.give_back(failed)
        return failed

    def is_unstarted(self, member):
        """True when the run of a Member whose reaper ended was not executed; nothing of it is left then."""
        told = member.told
        if told.last in ("failed", "nothing"):
            if told.last == "failed":
                warn("%s: not started, its job waits again: %s" % (member.entry["run"], told.facts["failed"]))
            self._remove_lock(member)
            return True
        if told.last is None and (told.started_s is None or child.read_report(member.report)[0] == "G"):
            # The reaper died with the gate closed, and MAIN left with it; its record says more than happened.
            withdraw(self.spool, member.entry["run"], member.pid)
            self._remove_lock(member)
            return True
        return False

    def _remove_lock(self, member):
        # Its reaper has not come to it. Nobody holds it by now, and nobody looks for it once the run was given back.
        durable.discard(os.path.join(self.runners, member.lock))

    # ---- with --wait ----

    def stay(self):
        """Start, wait and collect until the queue is empty, or TERM, INT, QUIT say otherwise."""
        return _Stay(self).loop()


def iter_ended(crew):
    """What crew.reap() returns, until it returns nothing."""
    while True:
        ended = crew.reap()
        if not ended:
            return
        for entry, member in ended:
            yield entry, member
            if not crew.is_watched(member):
                member.let_go()


class _Stay:
    """The loop of --wait."""

    def __init__(self, work):
        self.work, self.crew = work, work.crew
        self.intake = Intake(work.spool, lambda: work.queue)
        self.intake.queue = work.queue
        load_outcomes()
        self.progress = Progress()
        self.draining = self.leaving = False
        self.kill_at_s = None
        self.retry_at_s, self.pause_s = 0.0, 0.1
        self.look_at_s = self.collect_at_s = self.commit_at_s = 0.0
        self.done = self.failed = 0
        self.deliver_at_s = 0.0     # None: all that is owed was tried after the last commit
        self.names = []             # records of our runs to be committed
        self.unstarted = []         # runs to be given back

    def loop(self):
        """Returns the exit status."""
        while True:
            status = self._turn()
            if status is not None:
                self.progress.end()
                return status
            info = signals.wait(signals.CATCHABLE, self._timeout_s())
            if info is not None:
                self._receive(info.si_signo)
            if self.leaving:
                self.progress.end()
                return exits.TEMPFAIL if self.crew.busy else exits.OK
            for member in self.crew.listen():
                self._ended(member.entry, member)
                member.let_go()
            for entry, member in iter_ended(self.crew):
                self._ended(entry, member)

    def _timeout_s(self):
        due_s = self.look_at_s
        if self.names or self.unstarted:
            due_s = min(due_s, self.commit_at_s)
        due_s = max(due_s, self.retry_at_s)
        if self.kill_at_s:
            due_s = min(due_s, self.kill_at_s)
        return max(0.0, due_s - clock.boot_s())

    def _receive(self, number):
        if number == signals.TERM:
            self.draining = True
        elif number == signals.INT:
            self.draining = True
            self.crew.signal(signals.USR1)
            self.kill_at_s = clock.boot_s() + self.work.grace_s
        elif number in (signals.QUIT, signals.HUP):
            self.leaving = True
        elif number == signals.TSTP:
            self.progress.end()
            signals.stop_self()

    def _ended(self, entry, member):
        """A run is over, or its reaper, or the watcher that came after that."""
        self.look_at_s = 0.0        # there is room now
        run = entry["run"]
        if member.told.last in ("recorded", "kept"):
            self.done += 1
            self.failed += member.told.facts["ended"].split()[0] != "0" or "reason" in member.told.facts
            self.names.append(run + ".json")
        elif self.work.is_unstarted(member):
            self.unstarted.append(run)
        elif self.crew.take_over(run, member):
            warn("%s: its reaper died; process %d goes on in its place" % (run, max(self.crew.watched)))
        else:
            self.done += 1
            self.names.append(run + ".json")

    def _turn(self):
        """Do what can be done now. Returns the exit status when nothing is left to do."""
        now = clock.boot_s()
        if self.kill_at_s and now >= self.kill_at_s:
            self.kill_at_s = None
            self.crew.signal(signals.USR2)
        if now < self.retry_at_s:
            return None
        try:
            # First what keeps the host busy; outcomes are safe in the spool and are committed many at a time.
            if now >= self.look_at_s:
                self._start(now)
            self._commit(now)
            self._deliver(now)
            if not self.crew.busy and not self.names:
                return self._conclude()
            self.pause_s = 0.1
        except Failure as failure:
            self.retry_at_s = self.look_at_s = now + self.pause_s
            self.pause_s = min(self.pause_s * 2, _LONGEST_PAUSE_S)
            warn("%s; trying again in %.1f s" % (failure, self.retry_at_s - now))
        return None

    def _commit(self, now):
        """Put the outcomes of our runs into the queue, now and then those of others too."""
        if self.unstarted:
            self.work.give_back(self.unstarted)
            self.unstarted = []
            # A start that failed would fail again at once: a full disk, no processes.
            raise Failure(exits.TEMPFAIL, "a run could not be started and was given back")
        if now >= self.collect_at_s:
            self.intake.collect()
            self.collect_at_s = now + _COLLECT_S
        elif len(self.names) >= _BATCH or now >= self.commit_at_s or not self.crew.busy:
            self.intake.take(self.names)
        else:
            return
        if self.names and not self.crew.busy:
            self.look_at_s = 0.0        # what waited for these may be started now
        if self.names and self.deliver_at_s is None:
            self.deliver_at_s = now + _LOOK_S
        self.names = []
        self.commit_at_s = now + _COMMIT_S

    def _deliver(self, now):
        """Have what is owed delivered by a process of its own: a mailer that hangs delays nobody."""
        if self.crew.errand is not None or self.deliver_at_s is None:
            return
        if now >= self.deliver_at_s or not self.crew.busy:
            self.deliver_at_s = None
            if outbox.may_owe(self.work.queue.path):
                self.crew.send([_COLLECT, "-d", self.work.base, "--deliver"])

    def _start(self, now):
        self.look_at_s = now + _LOOK_S
        if self.draining:
            return
        if self.work.drained() is None:
            self.work.start_what_fits(set(self.names))
        self._show()

    def _show(self):
        if self.progress.is_due():
            with self.work.queue.reading():
                waiting = jobs.count_waiting(self.work.queue)[0]
            self.progress.show(self.done, self.failed, self.crew.busy, waiting)

    def _conclude(self):
        """Nothing of ours runs: the exit status, or None when there may be something to start later."""
        work = self.work
        if self.crew.errand is not None:
            return None
        self.intake.collect()           # what others ran may be to be tried again, or be waited for
        if self.draining:
            return exits.OK
        why = work.drained()
        with work.queue.reading():
            waiting, dependent = jobs.count_waiting(work.queue)
            claimable = next(iter(jobs.kinds(work.queue, work.host)), None) is not None
            active = bool(jobs.active(work.queue))
        if waiting and why is not None:
            warn("%d jobs are left: nothing is started here: %s" % (waiting, why))
            return exits.TEMPFAIL
        if claimable:
            return exits.UNAVAILABLE if work.report_misfits() else None
        return None if dependent and active else exits.OK
