"""The record as one JSON line: what `--record` and `--hook` are given.

It is the record of the run as the spool had it (mxq-spool(5)) with `event`, the stable id, in front, and the job
number filled in, which a run that no queue knew did not have. A job that ended without a run (cancelled) has
no record: its line says what the queue knows, and has state `cancelled`.
"""

from mxqlib import record


def text(due):
    """The line for `due` (a jobqueue.due.Due), as bytes, newline included."""
    if due.line is not None and due.entry.get("job") is not None:
        return b'{"event":' + record.to_json(due.event).encode("ascii") + b"," + due.line[1:].encode("utf-8") + b"\n"
    entry = {"event": due.event}
    if due.line is not None:
        entry.update(due.entry, job=due.job)
    else:
        entry.update(format=record.FORMAT, state="cancelled", run=None, job=due.job, attempt=due.attempt,
                     name=due.name, group=due.group, argv=due.argv, cwd=due.cwd, umask=due.umask,
                     date_submit=due.date_submit, date_end=due.date, note=due.note)
    return record.encode(entry)
