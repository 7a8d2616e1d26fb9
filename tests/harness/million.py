"""A queue with any number of ended jobs: copies of one that the product itself committed, in the product's tables."""

from mxqlib import jobqueue
from tests.harness import owing, records

# What differs from copy to copy, by table and column; x is the number of the job. Dates of real jobs differ too.
_DATE = "strftime('%Y-%m-%dT%H:%M:%f', 1577836800 + x * 0.001, 'unixepoch') || '000Z'"
_DIFFERS = {
    "job": {"job": "x", "date_end": _DATE},
    "run": {"number": "x", "run": "x || '.1'", "job": "x", "date_end": _DATE,
            "record": "replace(replace(record, '\"1.1\"', '\"' || x || '.1\"'), '\"job\":1', '\"job\":' || x)"},
    "event": {"job": "x"},
}


def fill_with_ended(sandbox, count):
    """Have the queue hold jobs 1 to `count`, all finished in January 2020, with their runs and events."""
    lean = {name: records.MISSING for name in ("rusage", "children", "outer", "children_more", "signals")}
    owing.fill(sandbox, records.make_ended("1.1", date_end="2020-01-01T00:00:00.001000Z", front=None, **lean))
    sandbox.run("mxq-collect", check=True)
    queue = jobqueue.open_queue(str(sandbox.queue_file))
    try:
        queue.db.execute("PRAGMA synchronous = OFF")
        queue.db.execute("PRAGMA cache_size = -500000")
        with queue.transaction():
            for table, differs in _DIFFERS.items():
                columns = [row[1] for row in queue.db.execute("PRAGMA table_info(%s)" % table)]
                queue.db.execute("CREATE TEMP TABLE model_%s AS SELECT * FROM %s" % (table, table))
                queue.db.execute(
                    "WITH RECURSIVE counter (x) AS (SELECT 2 UNION ALL SELECT x + 1 FROM counter WHERE x < ?)"
                    " INSERT INTO %s (%s) SELECT %s FROM counter, model_%s" % (
                        table, ", ".join(columns), ", ".join(differs.get(name, name) for name in columns), table),
                    (count,))
    finally:
        queue.close()
    assert sandbox.queue("SELECT count(*) FROM run")[0][0] == count
