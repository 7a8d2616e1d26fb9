"""Records into the queue: what a running record and an outcome change, early, late or twice.

A run goes from loaded to running to its outcome and never back. Only `lost`, which means that nobody knew, and
`cancelled`, a run that was given back as not started, give way to what a record knows better. The job follows
its highest attempt; when that is only waiting to be started, an earlier one that finished after all makes it
unnecessary.
"""

import json

from mxqlib import outbox, record
from mxqlib.jobqueue import changes, to_column

NEW = "new"                     # the queue was changed
KNOWN = "known"                 # it says so already
CONTRADICTION = "contradiction"  # it says something else, for good

_FINAL = ("finished", "failed", "killed")


def known_state(queue, run, line):
    """(state of the run or None, whether `line` is the record that the queue has); changes nothing."""
    row = queue.db.execute("SELECT state, record = ? FROM run WHERE run = ?", (line, run)).fetchone()
    return (row[0], bool(row[1])) if row else (None, False)


def take_running(queue, entry, line):
    """Commit running record `entry`, whose JSON text is `line`: NEW, or KNOWN when it tells nothing new."""
    job, attempt = entry["job"], entry["attempt"]
    row = queue.db.execute("SELECT job, attempt, state, record = ? FROM run WHERE run = ?",
                           (line, entry["run"])).fetchone()
    if row is not None and (row[2] in _FINAL or row[2] == "lost" or row[3]):
        return KNOWN
    if row is None:
        job, _ = _find_job(queue, entry, "running", None)
        _insert_run(queue, job, entry, "running", line)
    else:
        job, attempt = row[:2]
        queue.db.execute(
            "UPDATE run SET state = 'running', host = ?, cpus = ?, date_start = ?, record = ? WHERE run = ?",
            (to_column(entry["host"]), _cpus(entry), entry["date_start"], line, entry["run"]))
    changes.follow(queue, job, attempt, "running")
    _note_start(queue, job, attempt, entry)
    return NEW


def take_outcome(queue, entry, line):
    """Commit ended record `entry`, whose JSON text is `line`: NEW, KNOWN or CONTRADICTION."""
    state = record.state_of(entry)
    row = queue.db.execute("SELECT job, attempt, state, status, reason FROM run WHERE run = ?",
                           (entry["run"],)).fetchone()
    made = False
    if row is None:
        attempt = entry["attempt"]
        job, made = _find_job(queue, entry, state, _date(entry))
        _insert_run(queue, job, entry, state, line)
    else:
        job, attempt, before = row[:3]
        if before in _FINAL:
            return KNOWN if row[3:] == (entry["status"], entry["reason"]) else CONTRADICTION
        if before == state:
            return KNOWN        # lost, and nothing better is known now
        queue.db.execute(
            "UPDATE run SET state = ?, host = ?, cpus = ?, date_start = ?, date_end = ?, real = ?, status = ?,"
            " reason = ?, record = ? WHERE run = ?",
            (state, to_column(entry["host"]), _cpus(entry), entry["date_start"], _date(entry), entry["real"],
             entry["status"], entry["reason"], line, entry["run"]))
    _note_start(queue, job, attempt, entry)
    if made and state != "lost":
        code = _code(entry)     # the job was made as it ended, nobody waits for it and nothing follows
    else:
        code = _conclude(queue, job, attempt, state, entry)
    queue.add_event(job, attempt, code, _date(entry), None, state, entry.get("deliveries"))
    return NEW


def _date(entry):
    return entry["date_end"] or entry["date_done"]


def _cpus(entry):
    cpus = entry.get("cpus")
    return None if cpus is None else json.dumps(cpus)


def _note_start(queue, job, attempt, entry):
    if entry["date_start"]:
        queue.add_event(job, attempt, outbox.EXECUTE, entry["date_start"], None, "running",
                          entry.get("deliveries"))


def _insert_run(queue, job, entry, state, line):
    ended = entry["state"] == record.ENDED
    queue.db.execute(
        "INSERT INTO run (run, job, attempt, state, host, cpus, date_start, date_end, real, status, reason, record)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (entry["run"], job, entry["attempt"], state, to_column(entry["host"]), _cpus(entry), entry["date_start"],
         _date(entry) if ended else None, entry["real"] if ended else None, entry["status"] if ended else None,
         entry["reason"] if ended else None, line))


def _find_job(queue, entry, state, date_end):
    """(number, made) of the job that a run unknown to the queue belongs to; it is made when it is unknown too.

    A run of a wrapper gets the next number; a run of a queue that was lost keeps the one it has.
    """
    number = record.job_and_attempt(entry["run"]) and entry["job"]
    if number and queue.db.execute("SELECT 1 FROM job WHERE job = ?", (number,)).fetchone():
        return number, False
    deliveries = entry.get("deliveries")
    submitted = entry.get("date_submit") or entry["date_start"] or _date_of_running(entry)
    number = queue.db.execute(
        "INSERT INTO job (job, state, attempt, priority, group_name, name, threads, memory, runtime, argv, cwd,"
        " umask, stdout, stderr, restart, deliveries, date_submit, date_end)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (number, state, entry["attempt"], _or(entry.get("priority"), 127), to_column(entry["group"]),
         to_column(entry["name"]), entry["threads"], entry.get("memory") or 0, entry.get("runtime") or 0,
         record.to_json(entry["argv"]), to_column(entry["cwd"]), entry["umask"], to_column(entry.get("stdout")),
         to_column(entry.get("stderr")), entry.get("restart") or "never",
         record.to_json(deliveries) if deliveries else None, submitted, date_end)).lastrowid
    queue.add_event(number, 0, outbox.SUBMIT, submitted, None, state, deliveries)
    return number, True


def _or(value, default):
    return default if value is None else value


def _date_of_running(entry):
    # A record without any date of its own: the running one of a MAIN that never got past the gate.
    return entry.get("date_done") or "1970-01-01T00:00:00.000000Z"


def _conclude(queue, job, attempt, state, entry):
    """What the outcome of run `attempt` means for its job. Returns the code of the run's event.

    | the job                  | finished   | failed            | killed | lost                |
    | its run `attempt` is the highest, loaded, running or lost:
    |                          | finished   | retry, or failed  | killed | restart, or lost    |
    | it waits for the next attempt, or is cancelled:
    |                          | finished   | as it is          | as it is | as it is          |
    | a higher attempt exists:   as it is
    """
    row = queue.db.execute("SELECT attempt, state, restart, retries - retried FROM job WHERE job = ?",
                           (job,)).fetchone()
    highest, now, restart, retries_left = row
    if attempt < highest:
        return outbox.EVICTED
    if now in ("queued", "held", "cancelled") and attempt == highest and state != "finished":
        return outbox.EVICTED
    if attempt > highest:
        queue.db.execute("UPDATE job SET attempt = ? WHERE job = ?", (attempt, job))
    if state == "failed" and retries_left > 0:
        changes.queue_again(queue, job, note="retried after run %s failed" % entry["run"], retried=1)
        return outbox.EVICTED
    if state == "lost" and restart in ("always", "samehost"):
        changes.queue_again(queue, job, host=entry["host"] if restart == "samehost" else "",
                            note="restarted after run %s was lost" % entry["run"])
        return outbox.EVICTED
    changes.end_job(queue, job, state, _date(entry))
    return _code(entry)


def _code(entry):
    return outbox.TERMINATED if entry["status"] is not None else outbox.ABORTED
