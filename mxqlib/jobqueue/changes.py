"""Changes that all others are made of: the end of a job, and what it means for others; a new attempt.

Every function here is called inside queue.transaction(), and leaves a queue that makes sense: a job that
has ended has its date, its events and deliveries, and those who waited for it were told.
"""

import json

from mxqlib import clock, outbox
from mxqlib.jobqueue import to_column

LIVE = ("queued", "held", "loaded", "running")
OVER = ("finished", "failed", "killed", "lost", "cancelled")
STATES = LIVE + OVER


def deliveries_of(queue, job):
    """The list of deliveries that `job` asked for."""
    text = queue.db.execute("SELECT deliveries FROM job WHERE job = ?", (job,)).fetchone()[0]
    return json.loads(text) if text else []


def end_job(queue, job, state, date, note=None):
    """The job is over. Its event is the caller's, and after that those that wait for it: see tell_dependents()."""
    queue.db.execute("UPDATE job SET state = ?, date_end = ?, note = ? WHERE job = ?",
                     (state, date, to_column(note), job))


def tell_dependents(queue, job, state):
    """Let those that wait for `job`, which ended as `state`, wait for one less; or cancel them, and theirs."""
    if state == "finished":
        queue.db.execute(
            "UPDATE job SET waits = (SELECT count(*) FROM dependency AS d JOIN job AS p ON p.job = d.after"
            " WHERE d.job = job.job AND p.state <> 'finished')"
            " WHERE job IN (SELECT job FROM dependency WHERE after = ?)", (job,))
        return
    hopeless = [job]
    while hopeless:
        after = hopeless.pop()
        waiting = queue.db.execute(
            "SELECT d.job FROM dependency AS d JOIN job AS j ON j.job = d.job"
            " WHERE d.after = ? AND j.state IN ('queued', 'held')", (after,)).fetchall()
        for dependent, in waiting:
            note = "job %d, which it waits for, did not finish" % after
            date = clock.iso()
            queue.db.execute("UPDATE job SET state = 'cancelled', date_end = ?, note = ? WHERE job = ?",
                             (date, note, dependent))
            queue.add_event(dependent, 0, outbox.ABORTED, date, note, "cancelled", deliveries_of(queue, dependent))
            hopeless.append(dependent)


def queue_again(queue, job, host="", note=None, retried=0):
    """The job waits for its next attempt, on `host` only unless that is empty; `retried` counts against --retries."""
    queue.db.execute("UPDATE job SET state = 'queued', date_end = NULL, host = ?, note = ?, retried = retried + ?"
                     " WHERE job = ?", (to_column(host), to_column(note), retried, job))


def follow(queue, job, attempt, state):
    """The job is in the live state of its run `attempt`, unless a higher one is known."""
    queue.db.execute("UPDATE job SET state = ?, attempt = ?, date_end = NULL WHERE job = ? AND attempt <= ?",
                     (state, attempt, job, attempt))
