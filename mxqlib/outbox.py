"""What a run owes when something happened to it: which sinks are told which events.

The outbox is rows of table `delivery`, written in the transaction that commits the event itself (jobqueue.changes),
so that neither is ever there without the other. A marker file beside the database says that something is
owed: without it nobody opens a database to find nothing. It is made before the commit, and taken away by whoever
holds the database's write lock and sees that nothing is owed.
"""

import os

from mxqlib import durable, record

# The events of HTCondor's user log that are used here.
SUBMIT, EXECUTE, EVICTED, TERMINATED, ABORTED, HELD, RELEASED = 0, 1, 4, 5, 9, 12, 13
CODES = (SUBMIT, EXECUTE, EVICTED, TERMINATED, ABORTED, HELD, RELEASED)
_OUTCOMES = (EVICTED, TERMINATED, ABORTED)      # of a run
_FINAL = (TERMINATED, ABORTED)                  # of the job: it will not run again by itself
_FIELD = {"log": "path", "record": "path", "mail": "to", "hook": "command"}
_MAIL_ON = ("always", "failure", "never")


def event_id(job, run, attempt, code, n=0):
    """The stable id of an event: `RUN/005`, `JOB/012` for events of a job (attempt 0), `JOB/012.2` for the second."""
    return "%s/%03d%s" % (run if attempt else job, code, ".%d" % (n + 1) if n else "")


def check(deliveries):
    """Raise record.Damaged unless the list `deliveries` of a record can be understood.

    Sinks of a later version are no damage: they are left out.
    """
    for entry in deliveries or ():
        sink = entry.get("sink")
        if sink.__class__ is not str:
            raise record.Damaged("a delivery without a sink")
        if sink not in _FIELD:
            continue
        target = entry.get(_FIELD[sink])
        if target.__class__ is not str or not target or "\0" in target:
            raise record.Damaged("a delivery to %s without a %s" % (sink, _FIELD[sink]))
        if _FIELD[sink] == "path" and target[0] != "/" and (sink, target) != ("record", "-"):
            raise record.Damaged("a delivery to a relative path")
        if sink == "mail" and entry.get("on", "failure") not in _MAIL_ON:
            raise record.Damaged("a delivery at an unknown time")


def owed(deliveries, code, state):
    """The (sink, target) pairs that event `code` of a job or run in `state` owes, in the order of the exit.

    The log is told everything. The record and the hook are told each outcome, also of an attempt that
    another one follows. Mail is for the end of the job.
    """
    pairs = []
    for entry in deliveries or ():
        sink = entry["sink"]
        if sink == "log" or (sink in ("record", "hook") and code in _OUTCOMES) or (
                sink == "mail" and code in _FINAL and _is_wanted(entry.get("on", "failure"), state)):
            pairs.append((sink, entry[_FIELD[sink]]))
    return sorted(pairs, key=lambda pair: ("log", "record", "mail", "hook").index(pair[0]))


def _is_wanted(on, state):
    return on == "always" or (on == "failure" and state != "finished")


# ---- the marker ----

def _marker(queue_path):
    return queue_path + "-owed"


def may_owe(queue_path):
    """False when nothing is owed for sure; costs one look at a file."""
    return os.path.exists(_marker(queue_path))


def mark(queue_path):
    """Say that something may be owed; called inside the write transaction, before its commit. Raises OSError."""
    if not may_owe(queue_path):
        durable.replace(_marker(queue_path), b"")


def unmark(queue_path):
    """Say that nothing is owed; only inside a write transaction in which that was seen. Raises OSError."""
    try:
        os.unlink(_marker(queue_path))
    except FileNotFoundError:
        pass
