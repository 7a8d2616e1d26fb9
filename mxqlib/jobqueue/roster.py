"""Reading the queue: jobs in order, all about one, events, what is owed. Changes nothing.

Every function is called inside queue.reading(), so that what it shows is one state of the queue. Rows are dicts; texts
may hold lone surrogates. Lists are generators: a queue may have millions of jobs.
"""

import heapq
import json

from mxqlib import outbox, record
from mxqlib.jobqueue import changes, from_column, to_column

# Names of the fields of a row -> where they come from. A run that is over, or that was never started, is not shown
# with a job that waits for its next one.
_COLUMNS = {
    "job": "job.job", "state": "job.state", "run": "run.run", "attempt": "job.attempt", "name": "job.name",
    "group": "job.group_name", "host": "run.host", "priority": "job.priority", "threads": "job.threads",
    "memory": "nullif(job.memory, 0)", "runtime": "nullif(job.runtime, 0)", "restart": "job.restart",
    "cpus": "run.cpus", "date_submit": "job.date_submit", "date_start": "run.date_start", "date_end": "job.date_end",
    "real": "run.real", "status": "run.status", "reason": "run.reason", "waits": "job.waits", "note": "job.note",
    "argv": "job.argv", "cwd": "job.cwd", "stdout": "job.stdout", "stderr": "job.stderr",
}
FIELDS = tuple(_COLUMNS) + ("exit", "signal", "core")     # of every row, in the order they are shown
_SELECT = "SELECT %s FROM job LEFT JOIN run ON run.job = job.job AND run.attempt = job.attempt" \
    " AND job.state NOT IN ('queued', 'held', 'cancelled')" % ", ".join(_COLUMNS.values())


def _row(values):
    row = dict(zip(_COLUMNS, map(from_column, values)))
    row["argv"] = json.loads(row["argv"])
    row["cpus"] = json.loads(row["cpus"]) if row["cpus"] else None
    row["exit"], row["signal"], row["core"] = record.split_status(row["status"])
    return row


def _choose(group, name):
    """The condition for a group and a name (None: any), and its parameters; as the indexes want it."""
    condition, parameters = "", []
    if name is not None:
        condition, parameters = condition + " AND job.name = ?", parameters + [to_column(name)]
    if group is not None:
        condition, parameters = condition + " AND job.group_name = ?", parameters + [to_column(group)]
        if group != "default" and name is None:
            condition += " AND job.group_name <> 'default'"
    return condition, parameters


def live(queue, state, group=None, name=None):
    """The jobs in one of the live states, by number."""
    condition, parameters = _choose(group, name)
    query = _SELECT + " WHERE job.state = ? AND job.date_end IS NULL" + condition + " ORDER BY job.job"
    return map(_row, queue.db.execute(query, [state] + parameters))


def over(queue, states, group=None, name=None):
    """The jobs in any of the states that are over, the latest first."""
    condition, parameters = _choose(group, name)
    query = _SELECT + " WHERE job.state = ? AND job.date_end IS NOT NULL" + condition + " ORDER BY job.date_end DESC"
    lists = [map(_row, queue.db.execute(query, [state] + parameters)) for state in states if state in changes.OVER]
    return heapq.merge(*lists, key=lambda row: row["date_end"], reverse=True)


def job(queue, number):
    """The row of one job, or None."""
    values = queue.db.execute(_SELECT + " WHERE job.job = ?", (number,)).fetchone()
    return values and _row(values)


def runs(queue, number):
    """All runs of a job, by attempt: dicts of run, attempt, state, host, date_load, date_start, date_end, real, status,
    reason, and `record`, the record as text or None."""
    names = ("run", "attempt", "state", "host", "date_load", "date_start", "date_end", "real", "status", "reason",
             "record")
    for values in queue.db.execute("SELECT %s FROM run WHERE job = ? ORDER BY attempt" % ", ".join(names), (number,)):
        yield dict(zip(names, map(from_column, values)))


def after(queue, number):
    """The numbers of the jobs that job `number` waits or waited for."""
    return [row[0] for row in queue.db.execute("SELECT after FROM dependency WHERE job = ? ORDER BY after", (number,))]


def events(queue, number):
    """The events of a job in the order of time: dicts of event (its stable id), job, run, date, code, note."""
    for attempt, code, n, date, note, run in queue.db.execute(
            "SELECT e.attempt, e.code, e.n, e.date, e.note, run.run FROM event AS e LEFT JOIN run USING (job, attempt)"
            " WHERE e.job = ? ORDER BY e.date, e.attempt, e.code, e.n", (number,)):
        yield {"event": outbox.event_id(number, run, attempt, code, n), "job": number, "run": run, "date": date,
               "code": code, "note": from_column(note)}


_DELIVERY = ("SELECT d.job, d.attempt, d.code, d.n, run.run, d.sink, d.target, d.state, d.tries, d.next_try, d.error,"
             " d.date_done FROM delivery AS d%s LEFT JOIN run USING (job, attempt) WHERE ")


def _delivery(values):
    number, attempt, code, n, run, sink, target, state, tries, next_try, error, done = map(from_column, values)
    return {"event": outbox.event_id(number, run, attempt, code, n), "job": number, "run": run, "sink": sink,
            "target": target, "state": state, "tries": tries, "next_try": next_try or None, "error": error,
            "date_done": done}


def deliveries(queue, number):
    """The deliveries of a job, made and owed, in the order they were owed."""
    return map(_delivery, queue.db.execute(_DELIVERY % "" + "d.job = ? ORDER BY d.number", (number,)))


def owed(queue):
    """The deliveries that are owed or parked, of all jobs, the oldest first."""
    for state in ("owed", "parked"):
        # Without the index, which holds these alone, all that was ever delivered would be looked at.
        query = _DELIVERY % " INDEXED BY delivery_%s" % state + "d.state = '%s' ORDER BY d.number" % state
        yield from map(_delivery, queue.db.execute(query))


# ---- is it sound? ----

def damage(queue):
    """What is wrong with the pages of the database, in SQLite's words; all of it is read."""
    return [row[0] for row in queue.db.execute("PRAGMA quick_check(10)") if row[0] != "ok"]


def without_run(queue):
    """(number, state) of each job that is loaded or running, and no run of it is."""
    return queue.db.execute(
        "SELECT job, state FROM job WHERE state IN ('loaded', 'running') AND date_end IS NULL AND NOT EXISTS"
        " (SELECT 1 FROM run WHERE run.job = job.job AND run.state IN ('loaded', 'running'))").fetchall()


def parked(queue):
    """(sink, target, how many, the error of one of them) of what is parked."""
    rows = queue.db.execute("SELECT sink, target, count(*), max(error) FROM delivery INDEXED BY delivery_parked"
                            " WHERE state = 'parked' GROUP BY sink, target ORDER BY sink, target")
    return [tuple(map(from_column, row)) for row in rows]


def owes(queue):
    """True when something is owed, not parked."""
    return queue.db.execute("SELECT 1 FROM delivery INDEXED BY delivery_owed WHERE state = 'owed' LIMIT 1"
                            ).fetchone() is not None
