"""What is owed and due: found, claimed, done with, put off, parked.

Nothing is forgotten by being tried: a delivery stays owed until done() is durable, whoever dies meanwhile. Files (logs
and record files) are served per target and in the order in which things were owed, so that no event
overtakes an earlier one of its job: while the first has to wait, all of that target wait. Mail and hooks go each for
itself. Writing functions are called inside queue.transaction(), the others inside queue.reading().
"""

import json

from mxqlib import clock, outbox
from mxqlib.jobqueue import from_column, to_column

FILES, COMMANDS = ("log", "record"), ("mail", "hook")
TRIES = 20
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 10, 21600
_COLUMNS = ("number job attempt code n sink target tries next_try date note run line name argv cwd umask group"
            " date_submit").split()
_SELECT = (
    "SELECT d.number, d.job, d.attempt, d.code, d.n, d.sink, d.target, d.tries, d.next_try, e.date, e.note, run.run,"
    " run.record, job.name, job.argv, job.cwd, job.umask, job.group_name, job.date_submit FROM delivery AS d"
    " JOIN event AS e USING (job, attempt, code, n) JOIN job USING (job) LEFT JOIN run USING (job, attempt)"
    " WHERE d.state = 'owed' AND ")


class Due:
    """One delivery, with all that the texts are made of.

    Of the delivery: number, sink, target, tries, next_try. Of the event: event (the stable id), job, attempt (0: of
    the job itself), code, n, date, note. Of the run: run, line (its record as text), entry (the same as a
    dict); None, None and {} for an event of the job. Of the job: name, argv, cwd, umask, group, date_submit.
    """

    def __init__(self, queue, values):
        for name, value in zip(_COLUMNS, map(from_column, values)):
            setattr(self, name, value)
        self.event = outbox.event_id(self.job, self.run, self.attempt, self.code, self.n)
        self.argv = json.loads(self.argv)
        self.entry = json.loads(self.line) if self.line else {}
        self._earlier = _earlier_records(queue, self) if self.attempt > 1 and self.code == outbox.TERMINATED else []

    def earlier(self):
        """The records (dicts) of the attempts before this one, of an event that ends the job."""
        return self._earlier


def _earlier_records(queue, due):
    rows = queue.db.execute("SELECT record FROM run WHERE job = ? AND attempt < ? AND record IS NOT NULL",
                            (due.job, due.attempt))
    return [json.loads(row[0]) for row in rows]


def pause_s(tries):
    """Seconds to wait after `tries` failures: 10, 20, 40 ... up to six hours, two days in all."""
    return min(_FIRST_PAUSE_S << min(tries - 1, 30), _LONGEST_PAUSE_S)


def _is_due(next_try, now_s):
    # A date further off than any pause was written when the clock was wrong.
    return next_try <= clock.iso(now_s) or next_try > clock.iso(now_s + 2 * _LONGEST_PAUSE_S)


# ---- files ----

def targets(queue, sink, now_s):
    """The targets of `sink` whose first delivery is due; costs one look into an index for each target owed."""
    query = ("SELECT target, next_try FROM delivery INDEXED BY delivery_target WHERE state = 'owed' AND sink = ?"
             " AND target > ? ORDER BY target, number LIMIT 1")
    row = queue.db.execute(query, (sink, "")).fetchone()
    while row is not None:
        if _is_due(row[1], now_s):
            yield from_column(row[0])
        row = queue.db.execute(query, (sink, row[0])).fetchone()


def batch(queue, sink, target, most, most_b):
    """The first deliveries to a target, in the order in which they were owed: at most `most`, about `most_b` bytes."""
    found, size_b = [], 0
    rows = queue.db.execute(_SELECT + "d.sink = ? AND d.target = ? ORDER BY d.number LIMIT ?",
                            (sink, to_column(target), most))
    for values in rows:
        found.append(Due(queue, values))
        size_b += len(found[-1].line or "")
        if size_b > most_b:
            break
    return found


# ---- commands ----

def next_command(queue, sink, now_s, after=("", 0)):
    """The Due to `sink` that waited longest, of those behind `after`, its (next_try, number); None when none is due."""
    for since, until in (("", clock.iso(now_s)), (clock.iso(now_s + 2 * _LONGEST_PAUSE_S), "~")):
        row = queue.db.execute(
            _SELECT + "d.sink = ? AND d.next_try BETWEEN ? AND ? AND (d.next_try, d.number) > (?, ?)"
            " ORDER BY d.next_try, d.number LIMIT 1", (sink, since, until) + tuple(after)).fetchone()
        if row is not None:
            return Due(queue, row)
    return None


def claim(queue, due):
    """Count a try before it is made: neither a queue that takes no more changes nor a command that ends its caller has
    it made again and again.

    When we die now, the next one tries at once, but only after the first try; the last one is made as a parked one.
    False when it is not owed any more.
    """
    wait_s = pause_s(due.tries) if due.tries else 0
    return queue.db.execute(
        "UPDATE delivery SET tries = tries + 1, error = 'no result: ended meanwhile', next_try = ?,"
        " state = CASE WHEN tries + 1 >= ? THEN 'parked' ELSE 'owed' END WHERE number = ? AND state = 'owed'",
        (clock.iso(_now_s() + wait_s), TRIES, due.number)).rowcount == 1


# ---- results ----

def done(queue, numbers):
    """These were delivered."""
    date = clock.iso()
    queue.db.executemany("UPDATE delivery SET state = 'done', tries = max(tries, 1), error = NULL, date_done = ?"
                         " WHERE number = ? AND state IN ('owed', 'parked')", [(date, number) for number in numbers])


def put_off(queue, dues, error, claimed=False):
    """These failed alike: they are tried again after a pause, or parked. Returns the seconds, None when parked.

    `claimed`: the try is counted already. All get the pause of the first, as they wait for it anyway.
    """
    extra = 0 if claimed else 1
    tries = dues[0].tries + 1
    wait_s = pause_s(tries)
    queue.db.executemany(
        "UPDATE delivery SET tries = tries + ?, error = ?, next_try = ?,"
        " state = CASE WHEN tries + ? >= ? THEN 'parked' ELSE 'owed' END WHERE number = ? AND state <> 'done'",
        [(extra, to_column(error), clock.iso(_now_s() + wait_s), extra, TRIES, due.number) for due in dues])
    return None if tries >= TRIES else wait_s


def _now_s():
    return clock.epoch_s(clock.iso())


def settle(queue):
    """Take the marker away when nothing is owed; parked deliveries wait to be asked for."""
    if queue.db.execute("SELECT 1 FROM delivery WHERE state = 'owed' LIMIT 1").fetchone() is None:
        outbox.unmark(queue.path)


def retry(queue):
    """Have all that is owed or parked tried now, and 20 times again. Returns how many these are."""
    changed = 0
    for state in ("owed", "parked"):
        changed += queue.db.execute("UPDATE delivery SET state = 'owed', next_try = '', tries = 0 WHERE state = '%s'"
                                    % state).rowcount
    queue.owes = queue.owes or changed > 0
    return changed


def overdue(queue, since_s):
    """The Dues that head the line of their target or sink, and could have been delivered since `since_s`."""
    first = [each for sink in FILES for target in targets(queue, sink, since_s) if (sink, target) != ("record", "-")
             for each in batch(queue, sink, target, 1, 1)]
    first += [next_command(queue, sink, since_s) for sink in COMMANDS]
    return [each for each in first if each is not None and each.date <= clock.iso(since_s)]


def is_untried(queue, job):
    """True while a delivery of `job` to a log or a record file was never tried (mxq-wait waits for that).

    `--record -` is not waited for: only an mxq-collect can make that one.
    """
    return queue.db.execute("SELECT 1 FROM delivery WHERE job = ? AND state = 'owed' AND tries = 0"
                            " AND (sink = 'log' OR (sink = 'record' AND target <> '-')) LIMIT 1",
                            (job,)).fetchone() is not None
