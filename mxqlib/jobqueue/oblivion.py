"""Oblivion: which jobs can be forgotten, and the removal of all that is known of one.

The ids of the runs of a forgotten job are kept, some tens of bytes each: a record that comes late must not be taken for
that of a job that the queue has never heard of. All of this is called inside queue.transaction(), or queue.reading()
where nothing is changed.
"""

from mxqlib.jobqueue import changes

_PAGE = ("SELECT job, date_end FROM (SELECT job, date_end FROM job WHERE state = '%s' AND date_end <= ?1"
         " AND (date_end, job) < (?1, ?2) ORDER BY date_end DESC, job DESC LIMIT ?3)")
_PAGES = " UNION ALL ".join(_PAGE % state for state in changes.OVER) + " ORDER BY date_end DESC, job DESC LIMIT ?3"


def page(queue, before, most):
    """At most `most` (job, date of its end) of jobs that are over, the latest first: those that come after `before`, a
    pair of the same kind, in this order."""
    return [row[::-1] for row in queue.db.execute(_PAGES, tuple(before) + (most,))]


def runs_of(queue, job):
    """The ids of the runs of a job that can be forgotten; None when it must be kept: something is owed, a run of it has
    no outcome, or a job that was submitted to run after it is still there."""
    keep = queue.db.execute(
        "SELECT EXISTS (SELECT 1 FROM delivery WHERE job = ?1 AND state <> 'done')"
        " OR EXISTS (SELECT 1 FROM run WHERE job = ?1 AND state IN ('loaded', 'running'))"
        " OR EXISTS (SELECT 1 FROM dependency WHERE after = ?1)", (job,)).fetchone()[0]
    return None if keep else [row[0] for row in queue.db.execute("SELECT run FROM run WHERE job = ?", (job,))]


def forget(queue, job):
    """Remove a job with its runs, events and deliveries."""
    queue.db.execute("INSERT OR IGNORE INTO forgotten (run) SELECT run FROM run WHERE job = ?", (job,))
    for table in ("delivery", "event", "dependency", "run", "job"):
        queue.db.execute("DELETE FROM %s WHERE job = ?" % table, (job,))


def is_forgotten(queue, number, run=None):
    """True when there was such a job (`number`, or None) or run once, and is no more."""
    if run is not None and queue.db.execute("SELECT 1 FROM forgotten WHERE run = ?", (run,)).fetchone():
        return True
    row = queue.db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'job'").fetchone()
    return number is not None and row is not None and number <= row[0] and not queue.db.execute(
        "SELECT 1 FROM job WHERE job = ?", (number,)).fetchone()


def drop_environments(queue):
    """Remove the environments that no job has any more; looks at all jobs."""
    # Foreign keys would have each removal look at all jobs again, so they are off in vacuum().
    queue.db.execute("DELETE FROM environment WHERE id NOT IN"
                     " (SELECT environment FROM job WHERE environment IS NOT NULL)")
