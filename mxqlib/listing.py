"""The list of jobs: the queue with the spool laid over it, so that what nobody collected yet is seen as it is.

The spool is read before the queue: a record that is collected meanwhile is then seen in both, never in none.
"""

import heapq

from mxqlib import outbox, record
from mxqlib.cli import reason, warn
from mxqlib.jobqueue import changes, lookup, outcomes, roster

ORDER = ("running", "loaded", "queued", "held") + changes.OVER      # as they are listed
_OF_THE_RUN = ("run", "attempt", "host", "cpus", "date_start", "stdout", "stderr")
_OF_THE_JOB = ("name", "group", "priority", "threads", "memory", "runtime", "restart", "date_submit", "argv", "cwd")


class Choice:
    """Which jobs are wanted: `states` (of ORDER), `group`, `name` (None: any), at most `most` in all, `most_over`
    of those that are over (None: all)."""

    def __init__(self, states=ORDER, group=None, name=None, most=None, most_over=None):
        self.states, self.group, self.name, self.most, self.most_over = states, group, name, most, most_over

    def takes(self, row):
        """True when a job is wanted."""
        return (row["state"] in self.states and self.group in (None, row["group"])
                and self.name in (None, row["name"]))


def read_spool(where):
    """The records of a spool.Spool, by file name; what cannot be read is warned of and left out."""
    found = []
    for name in sorted(where.names()):
        try:
            entry = where.load(name)
        except record.Damaged as damage:
            warn("runs/%s: %s; left out, mxq-collect puts it aside" % (name, damage))
            continue
        except OSError as failure:
            warn("cannot read runs/%s: %s; left out" % (name, reason(failure)))
            continue
        if entry is not None:
            found.append(entry)
    return found


def row_of(entry, base=None):
    """The row of a job (see roster) whose newest run has record `entry`; `base` is what the queue says of the job."""
    row = dict(base) if base else {"job": entry["job"], "waits": 0}
    for name in _OF_THE_RUN + (() if base else _OF_THE_JOB):
        row[name] = entry.get(name)
    ended = entry["state"] == record.ENDED
    row["state"] = record.state_of(entry) if ended else "running"
    row["date_end"] = (entry["date_end"] or entry["date_done"]) if ended else None
    for name in ("real", "status", "exit", "signal", "core", "reason"):
        row[name] = entry.get(name) if ended else None
    row["note"] = entry.get("error") if ended else None
    return {name: row[name] for name in roster.FIELDS}


def lay_over(queue, records):
    """(rows by job number, rows without one) of the jobs that `records` know better than the queue (or None)."""
    numbered, loose = {}, []
    for entry in records:
        known = lookup.find_run(queue, entry["run"]) if queue is not None else None
        if known is not None and (known.state in record.FINAL or known.state == "lost" == _state(entry)):
            continue
        number = known.job if known is not None else entry["job"]
        base = numbered.get(number)
        if base is None and queue is not None and number is not None:
            base = roster.job(queue, number)
        if base is not None and not _supersedes(entry, base):
            continue
        if number is None:
            loose.append(row_of(entry))
        else:
            numbered[number] = row_of(entry, base)
    return numbered, loose


def by_job(queue, records):
    """`records` in lists, by the number of their job; those of runs without one by the id of the run."""
    found = {}
    for entry in records:
        known = lookup.find_run(queue, entry["run"]) if queue is not None else None
        number = known.job if known is not None else entry["job"]
        found.setdefault(entry["run"] if number is None else number, []).append(entry)
    return found


def events(queue, number, records):
    """The events of a job (None: it has no number yet) in the order of time, as roster.events() gives them: those of
    the queue, and those of `records`, which are the job's and may not be collected yet."""
    found = list(roster.events(queue, number)) if queue is not None and number is not None else []
    known = {event["event"] for event in found}
    for entry in records:
        for attempt, code, date in outcomes.foresee(queue, entry):
            # The number of the job is missing in the id of its first event, as long as nobody gave it one.
            event = outbox.event_id(number, entry["run"], attempt, code) if attempt or number else None
            if event is None or event not in known:
                known.add(event)
                found.append({"event": event, "job": number, "run": entry["run"] if attempt else None, "date": date,
                              "code": code, "note": None})
    return sorted(found, key=lambda event: event["date"])


def _state(entry):
    return record.state_of(entry) if entry["state"] == record.ENDED else "lost"


def _supersedes(entry, base):
    """True when the job is as its run `entry` is: the rules of jobqueue.outcomes."""
    if base["state"] in ("queued", "held", "cancelled") and entry["attempt"] == base["attempt"]:
        return _state(entry) == "finished"
    return entry["attempt"] >= base["attempt"]


def rows(queue, records, choice):
    """The rows wanted, in order: those that run, those that wait, those that are over, the latest first.

    A generator, to be used up inside queue.reading().
    """
    numbered, loose = lay_over(queue, records)
    over_there = [row for row in list(numbered.values()) + loose if choice.takes(row)]
    left = choice.most
    for part, most in ((_live(queue, choice, numbered, over_there), None),
                       (_over(queue, choice, numbered, over_there), choice.most_over)):
        for row in part:
            if left == 0 or most == 0:
                break
            yield row
            left = left and left - 1
            most = most and most - 1


def _live(queue, choice, hidden, over_there):
    for state in ORDER:
        if state not in choice.states or state not in changes.LIVE:
            continue
        lists = [sorted((row for row in over_there if row["state"] == state), key=_by_number)]
        if queue is not None:
            lists.append(row for row in roster.live(queue, state, choice.group, choice.name)
                         if row["job"] not in hidden)
        yield from heapq.merge(*lists, key=_by_number)


def _by_number(row):
    # What has no number yet is the newest.
    return row["job"] is None, row["job"] or 0, row["run"] or ""


def _over(queue, choice, hidden, over_there):
    lists = [sorted((row for row in over_there if row["state"] in changes.OVER), key=_by_end, reverse=True)]
    if queue is not None:
        lists.append(row for row in roster.over(queue, choice.states, choice.group, choice.name)
                     if row["job"] not in hidden)
    return heapq.merge(*lists, key=_by_end, reverse=True)


def _by_end(row):
    return row["date_end"]
