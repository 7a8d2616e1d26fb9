"""Records into the queue: what a running record and an outcome change, early, late or twice.

A run goes from loaded to running to its outcome and never back. Only `lost`, which means that nobody knew, and
`cancelled`, a run that was given back as not started, give way to what a record knows better. The job follows
its highest attempt; when that is only waiting to be started, an earlier one that finished after all makes it
unnecessary.
"""

import json

from mxqlib import outbox, record
from mxqlib.jobqueue import NEW_JOB, NEW_RUN, changes, to_column

NEW = "new"                     # the queue was changed
KNOWN = "known"                 # it says so already
CONTRADICTION = "contradiction"  # it says something else, for good
FORGOTTEN = "forgotten"         # it knew this run once, and has dropped its job

_AT_ONCE = 500                  # runs in one question; the least that SQLite ever allowed is 999


def known_state(queue, run, line):
    """(state of the run or None, whether `line` is the record that the queue has); changes nothing."""
    row = queue.db.execute("SELECT state, record = ? FROM run WHERE run = ?", (line, run)).fetchone()
    return (row[0], bool(row[1])) if row else (None, False)


def missing(queue, entries):
    """The ids of those of the ended records `entries`, all of which were committed, that the queue does not give back:
    its pages are damaged, and SQLite does not see it."""
    known = {}
    runs = [entry["run"] for entry in entries]
    for at in range(0, len(runs), _AT_ONCE):
        part = runs[at:at + _AT_ONCE]
        for run, state, status, reason in queue.db.execute(
                "SELECT run, state, status, reason FROM run WHERE run IN (%s)" % ", ".join("?" * len(part)), part):
            known[run] = state, status, reason
    return {entry["run"] for entry in entries if not _says(known.get(entry["run"]), entry)}


def _says(row, entry):
    # Why a run is lost is not told twice.
    return row is not None and (row[1:] == (entry["status"], entry["reason"]) or
                                row[0] == "lost" == record.state_of(entry))


def foresee(queue, entry):
    """The events (attempt, code, date) that record `entry` adds when it is committed; `queue` may be None. Some may be
    there already. Changes nothing."""
    row = known = None
    if queue is not None:
        known = queue.db.execute("SELECT job, state FROM run WHERE run = ?", (entry["run"],)).fetchone()
        row = queue.db.execute(_STANDING, (known[0] if known else entry["job"],)).fetchone()
    attempt, found = entry["attempt"], []
    if row is None:
        found.append((0, outbox.SUBMIT, _date_submit(entry)))
    if entry["date_start"]:
        found.append((attempt, outbox.EXECUTE, entry["date_start"]))
    if entry["state"] == record.ENDED and not (known and known[1] in record.FINAL):
        state = record.state_of(entry)
        standing = row or (attempt, state, entry.get("restart"), 0)
        code = _code(entry) if _meaning(attempt, state, *standing) is _OVER else outbox.EVICTED
        found.append((attempt, code, _date(entry)))
    return found


class Batch:
    """Records that are committed in one transaction, inside which all of this is called.

    `runs`: the ids of all of them, each once. What the queue knows of them is asked at once, and most rows
    are written at the end, as one by one they would cost twice as much.
    """

    def __init__(self, queue, runs):
        self.queue, self._known, self._forgotten, self._next_job = queue, {}, set(), None
        for at in range(0, len(runs), _AT_ONCE):
            part = runs[at:at + _AT_ONCE]
            for row in queue.db.execute(
                    "SELECT run, job, attempt, state, status, reason, CASE WHEN state = 'running' THEN record END"
                    " FROM run WHERE run IN (%s)" % ", ".join("?" * len(part)), part):
                self._known[row[0]] = row[1:]
            self._forgotten.update(row[0] for row in queue.db.execute(
                "SELECT run FROM forgotten WHERE run IN (%s)" % ", ".join("?" * len(part)), part))

    def take(self, entry, line):
        """Commit record `entry`, whose JSON text is `line`. Returns NEW, KNOWN, CONTRADICTION or FORGOTTEN."""
        if entry["run"] in self._forgotten:
            return FORGOTTEN
        if entry["state"] == record.ENDED:
            return self._take_outcome(entry, line)
        return self._take_running(entry, line)

    def _take_running(self, entry, line):
        row = self._known.get(entry["run"])
        if row is not None and (row[2] in record.FINAL or row[2] == "lost" or row[5] == line):
            return KNOWN
        if row is None:
            job, attempt = self._find_job(entry, "running", None)[0], entry["attempt"]
            self._add_run(job, entry, "running", line)
            self.queue.flush()
        else:
            job, attempt = row[:2]
            self.queue.db.execute(
                "UPDATE run SET state = 'running', host = ?, cpus = ?, date_start = ?, record = ? WHERE run = ?",
                (to_column(entry["host"]), _cpus(entry), entry["date_start"], line, entry["run"]))
        changes.follow(self.queue, job, attempt, "running")
        self._note_start(job, attempt, entry)
        return NEW

    def _take_outcome(self, entry, line):
        state = record.state_of(entry)
        row = self._known.get(entry["run"])
        made = False
        if row is None:
            attempt = entry["attempt"]
            job, made = self._find_job(entry, state, _date(entry))
            self._add_run(job, entry, state, line)
        else:
            job, attempt, before = row[:3]
            if before in record.FINAL:
                return KNOWN if row[3:5] == (entry["status"], entry["reason"]) else CONTRADICTION
            if before == state:
                return KNOWN        # lost, and nothing better is known now
            self.queue.db.execute(
                "UPDATE run SET state = ?, host = ?, cpus = ?, date_start = ?, date_end = ?, real = ?, status = ?,"
                " reason = ?, record = ? WHERE run = ?",
                (state, to_column(entry["host"]), _cpus(entry), entry["date_start"], _date(entry), entry["real"],
                 entry["status"], entry["reason"], line, entry["run"]))
        self._note_start(job, attempt, entry)
        # A job that was made as it ended has nobody who waits for it, and nothing follows.
        alone = made and state != "lost"
        code = _code(entry) if alone else _conclude(self.queue, job, attempt, state, entry)
        self.queue.add_event(job, attempt, code, _date(entry), None, state, entry.get("deliveries"))
        if not alone and code != outbox.EVICTED:
            changes.tell_dependents(self.queue, job, state)     # a log is to tell the cause before them
        return NEW

    def _note_start(self, job, attempt, entry):
        if entry["date_start"]:
            self.queue.add_event(job, attempt, outbox.EXECUTE, entry["date_start"], None, "running",
                                 entry.get("deliveries"))

    def _add_run(self, job, entry, state, line):
        ended = entry["state"] == record.ENDED
        self.queue.pending[NEW_RUN].append(
            (entry["run"], job, entry["attempt"], state, to_column(entry["host"]), _cpus(entry), entry["date_start"],
             _date(entry) if ended else None, entry["real"] if ended else None, entry["status"] if ended else None,
             entry["reason"] if ended else None, line))

    def _find_job(self, entry, state, date_end):
        """(number, made) of the job that a run unknown to the queue belongs to; it is made when it is unknown too.

        A run of a wrapper gets the next number; a run of a queue that was lost keeps the one it has, unless a
        queue that was made anew, or restored from an older copy, has given that to another job.
        """
        number = entry["job"] if record.job_and_attempt(entry["run"]) else None
        if number is not None:
            self.queue.flush()
            row = self.queue.db.execute(
                "SELECT date_submit, EXISTS (SELECT 1 FROM run WHERE run.job = job.job AND attempt = ?)"
                " FROM job WHERE job = ?", (entry["attempt"], number)).fetchone()
            if row and not row[1] and (row[0] == entry.get("date_submit")
                                       or None in (row[0], entry.get("date_submit"))):
                return number, False
            if row:
                number = None
            else:
                self._next_job = None       # this number may be above all others
        if number is None:
            number = self._take_number()
        self._add_job(number, entry, state, date_end)
        return number, True

    def _add_job(self, number, entry, state, date_end):
        deliveries = entry.get("deliveries")
        submitted = _date_submit(entry)
        self.queue.pending[NEW_JOB].append(
            (number, state, entry["attempt"], _or(entry.get("priority"), 127), to_column(entry["group"]),
             to_column(entry["name"]), entry["threads"], entry.get("memory") or 0, entry.get("runtime") or 0,
             record.to_json(entry["argv"]), to_column(entry["cwd"]), entry["umask"], to_column(entry.get("stdout")),
             to_column(entry.get("stderr")), entry.get("restart") or "never",
             record.to_json(deliveries) if deliveries else None, submitted, date_end))
        self.queue.add_event(number, 0, outbox.SUBMIT, submitted, None, state, deliveries)

    def _take_number(self):
        if self._next_job is None:
            self.queue.flush()
            row = self.queue.db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'job'").fetchone()
            self._next_job = row[0] + 1 if row else 1
        self._next_job += 1
        return self._next_job - 1


_NEVER = "1970-01-01T00:00:00.000000Z"      # the date of a run that has none: MAIN never got past the gate


def _date_submit(entry):
    return entry.get("date_submit") or entry["date_start"] or entry.get("date_done") or _NEVER


def _date(entry):
    return entry["date_end"] or entry["date_done"]


def _cpus(entry):
    cpus = entry.get("cpus")
    return None if cpus is None else json.dumps(cpus)


def _or(value, default):
    return default if value is None else value


def _code(entry):
    return outbox.TERMINATED if entry["status"] is not None else outbox.ABORTED


_STANDING = "SELECT attempt, state, restart, retries - retried FROM job WHERE job = ?"
_BYGONE, _RETRIED, _RESTARTED, _OVER = "bygone", "retried", "restarted", "over"


def _meaning(attempt, state, highest, now, restart, retries_left):
    """What the outcome `state` of run `attempt` means for its job, which stands as _STANDING says.

    | the job                                       | finished | failed           | killed   | lost             |
    | its highest attempt is this run, not over yet | finished | again, or failed | killed   | again, or lost   |
    | it waits for the next one, or is cancelled    | finished | as it is         | as it is | as it is         |
    | it has a higher attempt                       | as it is | as it is         | as it is | as it is         |
    """
    if attempt < highest:
        return _BYGONE
    if now in ("queued", "held", "cancelled") and attempt == highest and state != "finished":
        return _BYGONE
    if state == "failed" and retries_left > 0:
        return _RETRIED
    if state == "lost" and restart in ("always", "samehost"):
        return _RESTARTED
    return _OVER


def _conclude(queue, job, attempt, state, entry):
    """Have the job follow the outcome of run `attempt`. Returns the code of the run's event."""
    queue.flush()
    standing = queue.db.execute(_STANDING, (job,)).fetchone()
    meaning = _meaning(attempt, state, *standing)
    if meaning is not _BYGONE and attempt > standing[0]:
        queue.db.execute("UPDATE job SET attempt = ? WHERE job = ?", (attempt, job))
    if meaning is _RETRIED:
        changes.queue_again(queue, job, note="retried after run %s failed" % entry["run"], retried=1)
    elif meaning is _RESTARTED:
        changes.queue_again(queue, job, host=entry["host"] if standing[2] == "samehost" else "",
                            note="restarted after run %s was lost" % entry["run"])
    elif meaning is _OVER:
        changes.end_job(queue, job, state, _date(entry))
        return _code(entry)
    return outbox.EVICTED
