"""Spools of runs that owe something, and what came of it: for tests of deliveries."""

import os
import re

from mxqlib import record
from tests.harness import records


def fill(sandbox, *entries):
    """Put records into the spool, which is made as mxq-reap makes it."""
    for folder in (sandbox.mxq_dir, sandbox.spool, sandbox.runs, sandbox.spool / "output", sandbox.spool / "corrupt"):
        folder.mkdir(mode=0o700, exist_ok=True)
    for entry in entries:
        (sandbox.runs / (entry["run"] + ".json")).write_bytes(record.encode(entry))


def owing(sandbox, n=1, status=3 << 8, log=None, line=None, mail=None, on="always", hook=None, **changes):
    """An ended record of a run that no queue knew, which owes these; `log` and `line` are names in work/."""
    deliveries = []
    if log:
        deliveries.append({"sink": "log", "path": os.path.join(sandbox.work, log)})
    if line:
        deliveries.append({"sink": "record", "path": line if line == "-" else os.path.join(sandbox.work, line)})
    if mail:
        deliveries.append({"sink": "mail", "to": mail, "on": on})
    if hook:
        deliveries.append({"sink": "hook", "command": hook})
    changes.setdefault("cwd", str(sandbox.work))
    return records.make_ended(records.make_run_id(n), status, deliveries=deliveries, **changes)


def events(path):
    """[(code, id of the event)] in a user log; fails unless it consists of whole events."""
    found, text = [], path.read_text() if path.exists() else ""
    for part in text.split("...\n")[:-1]:
        head, event = re.match(r"(\d{3}) \(\d+\.000\.000\) ", part), re.search(r'MxqEvent +[=:] +"([^"]+)"', part)
        assert head and event and part.endswith("\n"), "not a whole event: %r" % part
        assert len(re.findall(r"(?m)^\d{3} \(", part)) == 1, "torn: %r" % part
        found.append((int(head.group(1)), event.group(1)))
    assert not text or text.endswith("\n...\n"), "half an event at the end: %r" % text[-300:]
    return found


def owed(sandbox):
    """{(event code, sink): (state, tries, error)} of what is not done."""
    return {(row["code"], row["sink"]): (row["state"], row["tries"], row["error"])
            for row in sandbox.queue("SELECT * FROM delivery WHERE state <> 'done'")}


def make_due(sandbox):
    """Let the pauses of all that is owed be over, as time would."""
    import sqlite3
    with sqlite3.connect(sandbox.queue_file) as db:
        db.execute("UPDATE delivery SET next_try = '' WHERE state = 'owed'")
    db.close()
