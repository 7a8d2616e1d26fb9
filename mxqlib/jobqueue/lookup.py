"""What the queue knows of jobs and runs that somebody asked for by number, id or group; nothing is changed here."""

from mxqlib.jobqueue import changes, from_column, to_column


class Job:
    """A job at one instant: number, state, attempt (the highest so far, 0: never loaded), group."""

    __slots__ = ("number", "state", "attempt", "group")

    def __init__(self, row):
        self.number, self.state, self.attempt, group = row
        self.group = from_column(group)

    @property
    def is_over(self):
        """True when it will not run again by itself."""
        return self.state in changes.OVER


class Run:
    """A run at one instant: run, job, attempt, state, host, status (raw, of MAIN), reason."""

    __slots__ = ("run", "job", "attempt", "state", "host", "status", "reason")

    def __init__(self, row):
        self.run, self.job, self.attempt, self.state, host, self.status, self.reason = row
        self.host = from_column(host)

    @property
    def is_active(self):
        """True when its outcome is not known yet."""
        return self.state in ("loaded", "running")


_PAGE = 1000
_JOB = "SELECT job, state, attempt, group_name FROM job "
_RUN = "SELECT run, job, attempt, state, host, status, reason FROM run "


def find_job(queue, number):
    """The Job, or None when there is no such number."""
    row = queue.db.execute(_JOB + "WHERE job = ?", (number,)).fetchone()
    return row and Job(row)


def find_run(queue, run):
    """The Run with this id, or None."""
    row = queue.db.execute(_RUN + "WHERE run = ?", (run,)).fetchone()
    return row and Run(row)


def running_record(queue, run):
    """The text of the running record of a run that has no outcome; None when it has one, or is not known."""
    row = queue.db.execute("SELECT record FROM run WHERE run = ? AND state = 'running'", (run,)).fetchone()
    return row and from_column(row[0])


def runs_of(queue, number):
    """All Runs of a job, the last attempt first."""
    return [Run(row) for row in queue.db.execute(_RUN + "WHERE job = ? ORDER BY attempt DESC", (number,))]


def live_jobs(queue, group=None, states=changes.LIVE):
    """The Jobs that are in one of `states`, which must be of the living, state by state, in the order of their numbers.

    Read a page at a time, each in a reading() of its own, so that the caller may change them meanwhile; a job that
    changes its state may be met twice or missed.
    """
    where, values = "", ()
    if group is not None:
        # Said twice where it is not the default: the index holds no others (schema).
        where, values = "AND group_name = ? ", (to_column(group),)
        where += "AND group_name <> 'default' " if group != "default" else ""
    for state in states:
        last = 0
        while True:
            with queue.reading():
                rows = queue.db.execute(
                    _JOB + "WHERE state = ? AND date_end IS NULL AND job > ? " + where + "ORDER BY job LIMIT ?",
                    (state, last) + values + (_PAGE,)).fetchall()
            yield from map(Job, rows)
            if len(rows) < _PAGE:
                break
            last = rows[-1][0]


def unfinished(queue, number):
    """The (number, state) of each job that job `number` waits for and that has not finished."""
    return queue.db.execute("SELECT p.job, p.state FROM dependency AS d JOIN job AS p ON p.job = d.after"
                            " WHERE d.job = ? AND p.state <> 'finished' ORDER BY d.after", (number,)).fetchall()
