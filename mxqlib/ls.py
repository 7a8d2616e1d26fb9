"""mxq-ls: show jobs, from the queue with the spool laid over it.

Guarantees: nothing is changed; a queue or a spool that is missing is as good as an empty one; what is written
to a pipe or file is complete, for a terminal it is cut to the width.
"""

import os
import sys
import time

from mxqlib import cli, clock, detail, exits, listing, place, table, units
from mxqlib.cli import Failure, Option, printable, reason
from mxqlib.jobqueue import read_queue, roster
from mxqlib.spool import Spool
from mxqlib.table import Column

USAGE = "[OPTION]..."
TEXT = "Show jobs: those that run, those that wait, and the last ones that ended."
RECENT = 1000           # ended jobs that are shown when nothing is chosen


def _states(text):
    states = text.split(",")
    for state in states:
        if state not in listing.ORDER:
            raise ValueError("not a state: %s (known: %s)" % (state, " ".join(listing.ORDER)))
    return states


OPTIONS = cli.BASE + (
    Option("s", None, "STATE,...", "jobs in these states only", _states),
    Option("g", None, "GROUP", "jobs of this group only"),
    Option("N", None, "NAME", "jobs of this name only"),
    Option("n", None, "N", "the first N of the list only; 0: all", units.number),
    Option("l", None, "JOB", "all about one job or run", many=True),
    Option(None, "events", None, "the events of the jobs"),
    Option(None, "owed", None, "what is owed: log, record, mail, hook"),
    Option(None, "check", None, "what is wrong, and which command mends it"),
    Option(None, "report", "FILE", "write an HTML page about the jobs to FILE; -: standard output"),
    Option(None, "json", None, "one JSON object a line"),
    Option(None, "joblog", None, "ended jobs, in the columns of parallel --joblog"),
)
EXITS = (exits.OK, exits.NO, exits.USAGE, exits.UNAVAILABLE, exits.BUG, exits.CANTCREAT, exits.IOERR, exits.TEMPFAIL,
         exits.NOPERM, exits.CONFIG)


def main(argv):
    """Show what the options ask for."""
    values, operands = cli.parse(OPTIONS, argv, USAGE, TEXT)
    _check_options(values, operands)
    if 1 in cli.were_closed:
        raise Failure(exits.IOERR, "cannot write: standard output is closed")
    base = place.base(values.d)
    if values.check:
        return _show_findings(base, values.json)
    where = Spool(place.spool(base))
    records = listing.read_spool(where) if where.exists() and not values.owed else []
    queue = read_queue(place.queue(base))
    cli.step("%d records in %s; %s %s" % (len(records), where.path, "no queue" if queue is None else "the queue is",
                                          place.queue(base)))
    if queue is None:
        return _show(values, None, records)
    try:
        with queue.reading():
            return _show(values, queue, records)
    finally:
        queue.close()


def _check_options(values, operands):
    if operands:
        raise Failure(exits.USAGE, "no operands are taken: %s (a job is shown with -l)" % operands[0])
    shapes = [name for name, given in (("-l", values.l), ("--events", values.events), ("--owed", values.owed),
                                       ("--joblog", values.joblog), ("--check", values.check),
                                       ("--report", values.report is not None)) if given]
    if values.json and (values.joblog or values.report is not None):
        shapes.append("--json")
    if len(shapes) > 1:
        raise Failure(exits.USAGE, "options contradict each other: %s" % " ".join(shapes))
    if (values.l or values.owed or values.check) and (values.s or values.g or values.N):
        raise Failure(exits.USAGE, "options contradict each other: %s and -s, -g or -N" % shapes[0])


def _show_findings(base, as_json):
    """Write what is wrong to standard output, one finding a line. Returns the exit status."""
    from mxqlib import check
    found, out = check.check(base), sys.stdout.buffer
    if as_json:
        table.write_json(out, map(vars, found))
    else:
        out.write(b"".join(table.to_bytes(printable(finding.line())) + b"\n" for finding in found))
    out.flush()
    return exits.NO if found else exits.OK


def _show(values, queue, records):
    """Write what is asked for to standard output. Returns the exit status."""
    out = sys.stdout.buffer
    if values.l:
        return detail.show(out, queue, records, values.l, values.json)
    if values.report is not None:
        return _write_report(values, queue, records)
    columns, rows = _rows(values, queue, records)
    if queue is not None and queue.readers_delay_writers():
        rows = list(rows)       # a pager that stands still must not hold the queue's lock
    width = table.width_of_terminal(1)
    if values.json:
        table.write_json(out, rows)
    elif width is None or values.joblog:
        table.write_lines(out, columns[0], rows)
    else:
        table.write_table(out, columns[1], rows, width, table.wants_colours(1))
    out.flush()
    return exits.OK


def _write_report(values, queue, records):
    """Write the page to the file that --report names. Returns the exit status."""
    from mxqlib import durable, report
    choice = _choice(values)
    which = "The jobs that were chosen." if choice.most_over is None else \
        "All that run or wait, and the last %d that ended." % RECENT
    page = report.Report(queue, records, listing.rows(queue, records, choice), which, place.base(values.d))
    data = map(table.to_bytes, page.parts())
    if values.report == "-":
        sys.stdout.buffer.writelines(data)
        sys.stdout.flush()
        return exits.OK
    path = os.path.realpath(values.report)
    if os.path.lexists(path) and not os.path.isfile(path):
        raise Failure(exits.CANTCREAT, "cannot write %s: not a regular file (-: standard output)" % values.report)
    try:
        durable.replace(path, b"".join(data))
    except OSError as failure:
        raise Failure(exits.CANTCREAT, "cannot write %s: %s" % (values.report, reason(failure))) from None
    return exits.OK


def _choice(values):
    chosen = values.s or values.g is not None or values.N is not None or values.n is not None
    return listing.Choice(values.s or listing.ORDER, values.g, values.N, values.n or None, None if chosen else RECENT)


def _rows(values, queue, records):
    """((columns for programs, columns for a terminal), rows)."""
    if values.owed:
        return (OWED, _on_terminal(OWED)), _first(values.n, roster.owed(queue) if queue is not None else ())
    rows = listing.rows(queue, records, _choice(values))
    if values.joblog:
        return (JOBLOG, JOBLOG), (row for row in rows if row["date_end"] and row["run"])
    if values.events:
        of_job = listing.by_job(queue, records)
        return (EVENTS, _on_terminal(EVENTS)), (event for row in rows for event in listing.events(
            queue, row["job"], of_job.get(row["run"] if row["job"] is None else row["job"], ())))
    return (LINES, JOBS), rows


def _first(n, rows):
    return (row for _, row in zip(range(n), rows)) if n else rows


# ---- columns ----

def _plain(name):
    return lambda row: None if row[name] is None else str(row[name])


def _seconds(row):
    return None if row["real"] is None else "%.6f" % row["real"]


def _command(row):
    return table.quote(row["argv"])


def _result(row):
    """How it ended, in a word: what ended it, or the signal, or the exit status."""
    if row["reason"] not in (None, "exec"):
        return row["reason"]
    if row["signal"] is not None:
        return "SIG" + detail.signal_name(row["signal"])
    return None if row["exit"] is None else str(row["exit"])


def _local(name):
    return lambda row: detail.local_date(row[name])


def _on_terminal(columns):
    """The columns with dates as people read them."""
    return tuple(Column(column.heading, _local(column.heading), column.most, column.right)
                 if column.heading in ("date", "next_try") else column for column in columns)


def _took(row):
    if row["real"] is not None:
        return units.show_duration(row["real"])
    if row["state"] != "running" or row["date_start"] is None:
        return None
    return units.show_duration(max(0, time.time() - clock.epoch_s(row["date_start"])))


COLOURS = {"finished": table.GREEN, "failed": table.RED, "lost": table.RED, "killed": table.YELLOW,
           "cancelled": table.YELLOW, "held": table.YELLOW, "running": table.CYAN, "loaded": table.CYAN}
LINES = tuple(Column(name, _plain(name)) for name in (
    "job", "state", "run", "attempt", "name", "group", "host", "priority", "threads", "memory", "runtime",
    "date_submit", "date_start", "date_end")) + (Column("real", _seconds),) + tuple(
        Column(name, _plain(name)) for name in ("exit", "signal", "reason")) + (Column("command", _command),)
JOBS = (
    Column("job", _plain("job"), right=True), Column("state", _plain("state"), colours=COLOURS),
    Column("result", _result, 12), Column("name", _plain("name"), 20), Column("group", _plain("group"), 12),
    Column("thr", _plain("threads"), right=True),
    Column("memory", lambda row: units.show_size(row["memory"]), right=True),
    Column("start", _local("date_start")), Column("time", _took, right=True), Column("command", _command),
)
EVENTS = (
    Column("event", _plain("event")), Column("job", _plain("job"), right=True), Column("date", _plain("date")),
    Column("what", lambda row: detail.EVENTS.get(row["code"], "%03d" % row["code"])), Column("note", _plain("note")),
)
OWED = tuple(Column(name, _plain(name)) for name in (
    "event", "job", "sink", "target", "state", "tries", "next_try", "error"))
# parallel(1), --joblog: times in seconds, nothing is known of what was sent and received.
JOBLOG = (
    Column("Seq", _plain("job")), Column("Host", _plain("host")),
    Column("Starttime", lambda row: "%.3f" % clock.epoch_s(row["date_start"]) if row["date_start"] else "0.000"),
    Column("JobRuntime", lambda row: "%10.3f" % (row["real"] or 0)),
    Column("Send", lambda row: "0"), Column("Receive", lambda row: "0"),
    Column("Exitval", lambda row: str(row["exit"] or 0) if row["status"] is not None else "-1"),
    Column("Signal", lambda row: str(row["signal"] or 0)), Column("Command", _command),
)
