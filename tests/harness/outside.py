"""What the tests inside a batch system share: the record of a job of that system, found by the id the record has of it.

`name` is the variable that the id is in, such as JOB_ID; `inside(*argv)` runs a command where the jobs do and returns
what it prints.
"""

import json

from tests.harness.sandbox import wait_for

STATE_S = 60        # how long a state of the system's may take to come


def record_of(box, name, job):
    """The only record of a job of the batch system."""
    found = [record for record in box.records() if record["outer"][name] == job]
    assert len(found) == 1, found
    return found[0]


def ended(box, name, job):
    """(exit, signal, reason) of the record, once it is there."""
    wait_for(lambda: record_of(box, name, job)["state"] == "ended", STATE_S, "the record of %s" % job)
    record = record_of(box, name, job)
    return record["exit"], record["signal"], record["reason"]


def rows(box, inside):
    """What mxq-ls says once the spool was collected: in the order of the queue, the record's ids under `outer`."""
    inside("mxq-collect")
    assert box.records() == []
    numbers = [json.loads(line)["job"] for line in inside("mxq-ls", "--json").splitlines()]
    shown = inside("mxq-ls", "--json", *(word for number in numbers for word in ("-l", number)))
    found = [json.loads(line) for line in shown.splitlines()]
    return [dict(row, outer=row["runs"][0]["record"]["outer"]) for row in found]


def wait_ready(box, *names):
    """Wait until jobs have made files of these names."""
    for name in names:
        wait_for((box.work / name).exists, STATE_S, name)
