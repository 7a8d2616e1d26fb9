"""Operands that name jobs and runs, and what is there to act on: the queue with the spool laid over it.

The queue tells jobs that wait and which runs a job has; the records in the spool tell what runs, also while the queue
is locked, missing, or does not know yet. Neither is changed here.
"""

from mxqlib import exits, process, record, signals, units
from mxqlib.cli import Failure, reason
from mxqlib.jobqueue import lookup, oblivion


class Target:
    """A job, or one run: `shown` is what messages call it, `number` its job or None, `run` the id when only that
    run is meant, `job` the lookup.Job and `known` the lookup.Run of it (of a job: of its last attempt) that the queue
    has, or None; `running` and `ended` are its records in the spool."""

    __slots__ = ("shown", "number", "run", "job", "known", "running", "ended")

    def __init__(self, shown, number=None, run=None):
        self.shown, self.number, self.run, self.job, self.known = shown, number, run, None, None
        self.running, self.ended = [], []

    @property
    def is_known(self):
        """True when there is, or was, such a job or run."""
        job = None if self.run is not None else self.job
        return bool(job or self.known or self.running or self.ended)

    def name(self, entry):
        """What to call the run of a record: its id, after the job number where the id does not begin with it."""
        if self.number is None or record.job_and_attempt(entry["run"]):
            return entry["run"]
        return "%d (%s)" % (self.number, entry["run"])


def parse(text):
    """The Target that an operand names. Raises ValueError."""
    if text.isascii() and text.isdigit():
        return Target(text, number=units.number(text, 1))
    if not text[:1].isdigit() or not record.valid_run(text):
        raise ValueError("not a job number or run id: %s" % text)
    known = record.job_and_attempt(text)
    return Target(text, known and known[0], text)


def parse_each(operands, refuse):
    """The Targets that operands name, each once; one that names none is told to `refuse(status, text)`."""
    seen = set()
    for text in operands:
        try:
            target = parse(text)
        except ValueError as failure:
            refuse(exits.USAGE, str(failure))
            continue
        if (target.number, target.run) not in seen:
            seen.add((target.number, target.run))
            yield target


def absence(queue, number, run=None):
    """In words, that there is no such job or run, and when the queue (or None) had it once, that it was forgotten."""
    what = "run" if run is not None else "job"
    if queue is not None:
        with queue.reading():
            if oblivion.is_forgotten(queue, number, run):
                return "no such %s any more: it was forgotten (mxq-collect --forget)" % what
    return "no such %s" % what


def check_order(operands):
    """Refuse an option that comes too late: as an operand it would only be no job. Raises Failure."""
    for word in operands:
        if word.startswith("-") and not word[1:].isdigit():
            raise Failure(exits.USAGE, "options come before the operands: %s" % word)


def elsewhere(reference):
    """None when the process of a reference could be found from here, else in words why it cannot."""
    here = process.context()
    if reference["host"] != here["host"] and reference.get("boot") != here["boot"]:
        return "it runs on host %s: run mxq-ctl there" % reference["host"]
    if reference.get("boot") != here["boot"]:
        return "it was started before the last boot of this host: mxq-adopt declares it lost"
    if (reference.get("pidns"), reference.get("timens")) != (here["pidns"], here["timens"]):
        return "it runs in another container (namespace) of this host: run mxq-ctl there"
    return None


def how(entry):
    """How the run of an ended record ended, in words: `failed (exit 3)`."""
    return how_ended(record.state_of(entry), entry["status"])


def how_ended(state, status):
    """A state and a raw wait status (or None) in words."""
    code, number, _ = record.split_status(status)
    if number is not None:
        return "%s (signal %s)" % (state, signals.name(number))
    return state if code is None else "%s (exit %d)" % (state, code)


def idle(target):
    """In words, why a Target has nothing that runs here."""
    if target.ended:
        return "has ended already: %s; mxq-collect commits it" % how(target.ended[-1])
    known = target.known
    if target.run is None and target.job is not None and target.job.state not in ("loaded", "running"):
        if target.job.is_over:
            same = known is not None and known.state == target.job.state
            return "has ended already: %s" % how_ended(target.job.state, known.status if same else None)
        return "is %s, it does not run yet" % target.job.state
    if known is None or not known.is_active:
        return "has ended already: %s" % (how_ended(known.state, known.status) if known else "not known how")
    if known.host != process.context()["host"]:
        return "it is %s on host %s: run mxq-ctl there" % (known.state, known.host)
    if known.state == "loaded":
        return "is loaded, it has not started yet"
    return "runs as far as the queue knows, but has no record in this spool; mxq-adopt clears it up"


class Finder:
    """Finds Targets in a spool.Spool and a queue (or None). What cannot be read is told to `complain(status, text)`."""

    def __init__(self, where, queue, complain):
        self.spool, self.queue, self._complain = where, queue, complain
        self._by_job = None         # job number -> file names of its runs

    def look(self, target):
        """Fill in what there is of a Target now."""
        target.job = target.known = None
        runs = {target.run} if target.run else set()
        if self.queue is not None:
            runs |= self.ask_queue(target)
        if target.run is None:
            runs.update(self._names_of(target.number))
        target.running, target.ended = [], []
        for run in sorted(runs):
            entry = self.load(run)
            if entry is not None:
                (target.running if entry["state"] == record.RUNNING else target.ended).append(entry)
        if self.queue is not None and not target.running and not target.ended:
            self.ask_queue(target)         # an outcome may have gone from the spool into the queue just now
        return target

    def ask_queue(self, target):
        """Fill in what the queue, which must be there, has of a Target; returns the runs whose records may be there."""
        with self.queue.reading():
            if target.run is not None:
                target.known = lookup.find_run(self.queue, target.run)
                target.number = target.known.job if target.known else target.number
            if target.number is None:
                return set()
            target.job = lookup.find_job(self.queue, target.number)
            if target.run is not None or target.job is None:
                return set()
            runs = lookup.runs_of(self.queue, target.number)
            target.known = runs[0] if runs else None
            return {run.run for run in runs if run.is_active}

    def load(self, run):
        """The record of a run, or None."""
        try:
            return self.spool.load(run + ".json")
        except record.Damaged as damage:
            self._complain(exits.DATA, "runs/%s.json: %s; mxq-collect puts it aside" % (run, damage))
        except OSError as failure:
            self._complain(exits.IOERR, "cannot read runs/%s.json: %s" % (run, reason(failure)))
        return None

    def find_run(self, run):
        """The lookup.Run of a run, or None."""
        if self.queue is None:
            return None
        with self.queue.reading():
            return lookup.find_run(self.queue, run)

    def _names_of(self, number):
        if self._by_job is None:
            self._by_job = {}
            for name in self.spool.names():
                known = record.job_and_attempt(name[:-5]) if name.endswith(".json") else None
                if known:
                    self._by_job.setdefault(known[0], []).append(name[:-5])
        return self._by_job.get(number, ())

    def forget(self):
        """Look at the spool's names again next time."""
        self._by_job = None

    # ---- all ----

    def all_running(self, group=None):
        """A Target for each run (of a group) that has a running record, runs that the queue does not know included."""
        for name in self.spool.names():
            run = name[:-5]
            if not name.endswith(".json") or not record.valid_run(run):
                continue
            entry = self.load(run)
            if entry is None or entry["state"] != record.RUNNING or group not in (None, entry["group"]):
                continue
            target = Target(run, entry["job"], run)
            if self.queue is not None:
                self.ask_queue(target)
            target.running = [entry]
            yield target

    def all_live(self, group=None, states=("queued", "held", "loaded", "running")):
        """A Target for each job of the queue (of a group) that is in one of `states`; records are not looked for."""
        if self.queue is None:
            return
        for job in lookup.live_jobs(self.queue, group, states):
            target = Target(str(job.number), job.number)
            target.job = job
            yield target
