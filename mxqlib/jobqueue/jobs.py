"""Jobs without a record: submitted, claimed, given back, held, released, cancelled, tried again.

Every function is called inside queue.transaction(), so that a rule like "never overbooked" can be checked and
acted on in one piece. Those that change the state of one job return False when its state does not allow it.
"""

import itertools
import json

from mxqlib import clock, outbox, record
from mxqlib.jobqueue import changes, from_column, lookup, to_column

# Fields of a job as mxq-sub gives them -> default. Texts may hold any bytes; argv and deliveries are lists.
FIELDS = {
    "argv": None, "name": None, "cwd": None, "umask": 0o022, "group": "default", "priority": 127, "threads": 1,
    "memory": None, "runtime": None, "stdout": None, "stderr": None, "restart": "never", "retries": 0,
    "deliveries": None, "environment": None,
}

_AT_ONCE = 100          # rows in one INSERT: with what they share 217 parameters, and SQLite takes 999 at least


def keep_environment(queue, content):
    """The number of the environment `content` (bytes, NAME=VALUE, each ended by NUL), stored once."""
    import hashlib          # 3 ms, and libcrypto, for those who submit only
    digest = hashlib.sha256(content).digest()
    row = queue.db.execute("SELECT id FROM environment WHERE digest = ?", (digest,)).fetchone()
    if row:
        return row[0]
    return queue.db.execute("INSERT INTO environment (digest, content) VALUES (?, ?)", (digest, content)).lastrowid


def environment(queue, number):
    """The content (bytes) of an environment."""
    return queue.db.execute("SELECT content FROM environment WHERE id = ?", (number,)).fetchone()[0]


def submit(queue, fields, commands, state="queued", after=(), encode=record.to_json):
    """Add a job for each argv (list of texts) of `commands`, all with the same other `fields` (see FIELDS).
    With `encode` a function, `commands` may be of what it makes the JSON text of an argv of.

    `state` queued or held. `after`: numbers of jobs that must finish first; unknown ones raise KeyError with the
    number. Returns (first number, how many); the numbers follow each other. Memory does not grow with
    the number of commands.
    """
    job = dict(FIELDS, **fields)
    deliveries, now, first = job["deliveries"] or [], clock.iso(), _next_number(queue)
    waits = _count_unfinished(queue, after)
    same = (state, job["priority"], to_column(job["group"]), to_column(job["name"]), job["threads"],
            job["memory"] or 0, job["runtime"] or 0, waits, to_column(job["cwd"]), job["umask"],
            to_column(job["stdout"]), to_column(job["stderr"]), job["restart"], job["retries"], job["environment"],
            record.to_json(deliveries) if deliveries else None, now)
    _add(queue, first, map(encode, commands), same)
    last = _next_number(queue) - 1
    queue.db.execute("INSERT INTO event (job, attempt, code, n, date) SELECT job, 0, ?, 0, date_submit FROM job"
                     " WHERE job BETWEEN ? AND ?", (outbox.SUBMIT, first, last))
    if state == "held":
        queue.db.execute("INSERT INTO event (job, attempt, code, n, date) SELECT job, 0, ?, 0, date_submit FROM job"
                         " WHERE job BETWEEN ? AND ?", (outbox.HELD, first, last))
    for sink, target in outbox.owed(deliveries, outbox.SUBMIT, state):
        queue.owes = queue.owes or last >= first
        queue.db.execute(
            "INSERT INTO delivery (job, attempt, code, n, sink, target) SELECT job, attempt, code, n, ?, ? FROM event"
            " WHERE job BETWEEN ? AND ? ORDER BY job, attempt, code", (sink, to_column(target), first, last))
    for number in after:
        queue.db.execute("INSERT OR IGNORE INTO dependency (job, after) SELECT job, ? FROM job"
                         " WHERE job BETWEEN ? AND ?", (number, first, last))
    _cancel_hopeless(queue, after)
    return first, last - first + 1


def _add(queue, first, texts, same):
    """Insert a row for each argv (JSON) of `texts`; many in one statement, as binding costs more than inserting."""
    rest = []

    def batches():
        number = first
        while True:
            batch = list(itertools.islice(texts, _AT_ONCE))
            if len(batch) < _AT_ONCE:
                rest.extend(enumerate(batch, number))
                return
            yield same + tuple(itertools.chain.from_iterable(enumerate(batch, number)))
            number += _AT_ONCE

    queue.db.executemany(_insertion(_AT_ONCE), batches())
    queue.db.executemany(_insertion(1), (same + row for row in rest))


def _insertion(count):
    shared = ",".join("?%d" % n for n in range(1, 18))
    rows = ",".join("(%s,?%d,?%d)" % (shared, n, n + 1) for n in range(18, 18 + 2 * count, 2))
    return ("INSERT INTO job (state, priority, group_name, name, threads, memory, runtime, waits, cwd, umask, stdout,"
            " stderr, restart, retries, environment, deliveries, date_submit, job, argv) VALUES " + rows)


def _next_number(queue):
    row = queue.db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'job'").fetchone()
    return row[0] + 1 if row else 1


def _count_unfinished(queue, after):
    count = 0
    for number in set(after):
        row = queue.db.execute("SELECT state FROM job WHERE job = ?", (number,)).fetchone()
        if row is None:
            raise KeyError(number)
        count += row[0] != "finished"
    return count


def _cancel_hopeless(queue, after):
    for number in after:
        state = queue.db.execute("SELECT state FROM job WHERE job = ?", (number,)).fetchone()[0]
        if state in changes.OVER and state != "finished":
            changes.tell_dependents(queue, number, state)


# ---- claims ----

def kinds(queue, host):
    """The kinds of waiting jobs that may run on `host`: (priority, group, threads, memory in bytes (0: no limit),
    number of the oldest), higher priorities first, in the order of groups, threads and memory within one.

    A kind costs one look into an index, however many jobs are of it.
    """
    row = _first_below(queue, (), None)
    while row is not None:
        if row[4] in ("", to_column(host)):
            yield row[0], from_column(row[1]), row[2], row[3], row[5]
        # The next kind differs in the last column, or else in the last but one ... `(a, b) < (?, ?)` would say the
        # same at once, but then SQLite walks along all jobs of the kind.
        row = next(filter(None, (_first_below(queue, row[:at], row[at]) for at in reversed(range(5)))), None)


_KIND = ("priority", "group_name", "threads", "memory", "host")


def _first_below(queue, same, below):
    """The first job, in the order of kinds(), whose first columns are `same` and whose next one is less than `below`
    (None: any): its five columns and its number; or None."""
    terms = ["%s = ?" % column for column in _KIND[:len(same)]] + ["%s < ?" % _KIND[len(same)]] * (below is not None)
    return queue.db.execute(
        "SELECT %s, job FROM job INDEXED BY job_waiting WHERE state = 'queued' AND waits = 0%s"
        " ORDER BY priority DESC, group_name DESC, threads DESC, memory DESC, host DESC, job LIMIT 1"
        % (", ".join(_KIND), "".join(" AND " + term for term in terms)),
        same + (() if below is None else (below,))).fetchone()


def count_waiting(queue):
    """(number of queued jobs, whether some of them wait for others)."""
    return (queue.db.execute("SELECT count(*) FROM job WHERE state = 'queued'").fetchone()[0],
            queue.db.execute("SELECT 1 FROM dependency JOIN job USING (job) WHERE state = 'queued' AND waits > 0"
                             " LIMIT 1").fetchone() is not None)


def active(queue):
    """(run, job, state, host, runner, cpus, threads, memory, group, date_load) of each loaded and running run."""
    rows = queue.db.execute(
        "SELECT run.run, run.job, run.state, run.host, run.runner, run.cpus, job.threads, job.memory, job.group_name,"
        " run.date_load FROM run JOIN job USING (job) WHERE run.state IN ('loaded', 'running')").fetchall()
    return [(row[0], row[1], row[2], from_column(row[3]), row[4], json.loads(row[5]) if row[5] else None, row[6],
             row[7], from_column(row[8]), row[9]) for row in rows]


def claim(queue, job, host, runner, cpus):
    """LOADED: hand queued `job` over, to be started under lock file `runner` on `cpus` (list or None).

    Returns the job as a dict of FIELDS with `job`, `attempt`, `run` and `date_submit` added, or None when
    it is not waiting any more.
    """
    row = queue.db.execute("SELECT attempt + 1 FROM job WHERE job = ? AND state = 'queued' AND waits = 0",
                           (job,)).fetchone()
    if row is None:
        return None
    run = "%d.%d" % (job, row[0])
    queue.db.execute("INSERT INTO run (run, job, attempt, state, host, runner, cpus, date_load)"
                     " VALUES (?, ?, ?, 'loaded', ?, ?, ?, ?)",
                     (run, job, row[0], to_column(host), runner, None if cpus is None else json.dumps(cpus),
                      clock.iso()))
    changes.follow(queue, job, row[0], "loaded")
    return dict(read_job(queue, job), run=run)


def read_job(queue, job):
    """The job as a dict of FIELDS with `job`, `attempt` (the highest so far), `date_submit`; None when unknown."""
    row = queue.db.execute(
        "SELECT job, attempt, argv, name, cwd, umask, group_name, priority, threads, memory, runtime, stdout, stderr,"
        " restart, retries, deliveries, environment, date_submit FROM job WHERE job = ?", (job,)).fetchone()
    if row is None:
        return None
    found = dict(zip(("job", "attempt", "argv", "name", "cwd", "umask", "group", "priority", "threads", "memory",
                      "runtime", "stdout", "stderr", "restart", "retries", "deliveries", "environment",
                      "date_submit"), map(from_column, row)))
    found["argv"] = json.loads(found["argv"])
    found["deliveries"] = json.loads(found["deliveries"] or "[]")
    found["memory"], found["runtime"] = found["memory"] or None, found["runtime"] or None
    return found


def give_back(queue, run):
    """A run that cannot have been executed: its job waits again, for its next attempt.

    It is loaded, or running when somebody committed a record that was withdrawn since.
    """
    row = queue.db.execute("SELECT job, attempt FROM run WHERE run = ? AND state IN ('loaded', 'running')",
                           (run,)).fetchone()
    if row is None:
        return False
    queue.db.execute("UPDATE run SET state = 'cancelled', date_end = ? WHERE run = ?", (clock.iso(), run))
    now, highest = queue.db.execute("SELECT state, attempt FROM job WHERE job = ?", row[:1]).fetchone()
    if now in ("loaded", "running") and highest == row[1]:
        queue.db.execute("UPDATE job SET state = 'queued', note = ? WHERE job = ?",
                         ("run %s was given back, it was not started" % run, row[0]))
    return True


# ---- by hand ----

def hold(queue, job, note=None):
    """A queued job is not started until it is released."""
    return _turn(queue, job, ("queued",), "held", note, outbox.HELD)


def release(queue, job, note=None):
    """A held job may be started."""
    return _turn(queue, job, ("held",), "queued", note, outbox.RELEASED)


def cancel(queue, job, note=None):
    """A job that waits will not be started, nor those that wait for it."""
    if not _turn(queue, job, ("queued", "held"), "cancelled", note, outbox.ABORTED):
        return False
    changes.tell_dependents(queue, job, "cancelled")
    return True


def retry(queue, job, note=None):
    """A job that is over waits for its next attempt, on any host, with all its retries.

    False when it is not over, or waits for one that is, and did not finish: it would wait for ever.
    """
    if _state(queue, job) not in changes.OVER or any(
            state in changes.OVER for _, state in lookup.unfinished(queue, job)):
        return False
    changes.queue_again(queue, job, note=note)
    after = [row[0] for row in queue.db.execute("SELECT after FROM dependency WHERE job = ?", (job,))]
    queue.db.execute("UPDATE job SET retried = 0, waits = ? WHERE job = ?", (_count_unfinished(queue, after), job))
    return True


def _state(queue, job):
    row = queue.db.execute("SELECT state FROM job WHERE job = ?", (job,)).fetchone()
    return row and row[0]


def _turn(queue, job, allowed, state, note, code):
    if _state(queue, job) not in allowed:
        return False
    date = clock.iso()
    queue.db.execute("UPDATE job SET state = ?, date_end = ?, note = ? WHERE job = ?",
                     (state, date if state in changes.OVER else None, to_column(note), job))
    queue.add_event(job, 0, code, date, note, state, changes.deliveries_of(queue, job))
    return True
