"""Events as HTCondor's user log has them, as text: condor_wait(1) and the JobEventLog of its Python bindings read them.

An event is a head line `005 (CLUSTER.PROC.SUBPROC) DATE TIME ...`, further lines, and a line `...`. The cluster is the
job number, the other two are 0. Dates are local time without a zone, as HTCondor's default is. What each event holds,
and in what order, is what the readers expect (condor_utils/condor_event.cpp of HTCondor); they skip what follows.

The stable id of an event stands where those readers hand it back: in the notes of 000 (LogNotes), the properties of
001 (ExecuteProps), the reason of 004, 009, 012 and 013, and in the column "Assigned" of the table of 005
(AssignedMxqEvent). In the text it always looks like `MxqEvent = "17.1/005"` or `MxqEvent : "17.1/005"`.
"""

import os
import time

from mxqlib import clock, outbox, process
from mxqlib.cli import printable

END = b"...\n"
_BYTES = ("Sent", "Received")
_REASONS = {"kill": "killed on request", "kill-now": "killed on request", "time": "time limit",
            "memory": "memory limit", "exec": "the command could not be executed",
            "lost": "lost: nobody can know how it ended", "reboot": "lost: the host was rebooted"}


def text(due):
    """The event of `due` (a jobqueue.due.Due), as bytes."""
    lines = _BODIES[due.code](due)
    head = "%03d (%03d.000.000) %s %s" % (due.code, due.job, _local(due.date), lines[0])
    return "\n".join([head] + lines[1:] + ["..."]).encode("utf-8", "backslashreplace") + b"\n"


def _local(date):
    try:
        when = time.localtime(clock.epoch_s(date))
    except (ValueError, OverflowError):
        when = time.localtime(0)        # a record with a date that makes no sense
    return "%04d-%02d-%02d %02d:%02d:%02d" % when[:6]


def _host():
    return process.context()["host"]


def _id(due):
    return 'MxqEvent = "%s"' % due.event


def _line(words):
    """Words of the user's, or of a system's, on one line."""
    return printable(words)[:1000]


# Hosts have a port, 0 for none: condor_userlog(1) dies of a host without one.

def _submitted(due):
    return ["Job submitted from host: <%s:0>" % _host(), "    " + _id(due), "    Name: " + _line(due.name)]


def _executing(due):
    return ["Job executing on host: <%s:0>" % _line(due.entry.get("host") or _host()), "\t" + _id(due)]


def _terminated(due):
    entry = due.entry
    lines = ["Job terminated."] + _ending(entry) + _usage(entry, "Run")
    lines += _usages("Total", *_sum([entry] + due.earlier()))
    lines += ["\t0  -  %s Bytes %s By Job" % (span, way) for span in ("Run", "Total") for way in _BYTES]
    extra = [("MxqEvent", due.event)]
    if entry.get("reason"):
        extra.append(("MxqReason", entry["reason"]))
    return lines + _table(entry, extra)


def _evicted(due):
    entry = due.entry
    requeued = entry.get("status") is not None
    lines = ["Job was evicted.", "\t(0) Job terminated and was requeued" if requeued else "\t(0) CPU times"]
    lines += _usage(entry, "Run") + ["\t0  -  Run Bytes %s By Job" % way for way in _BYTES]
    reason = "%s (%s)" % (_line(due.note or _REASONS.get(entry.get("reason")) or "it is to run again"), _id(due))
    if requeued:
        lines += _ending(entry) + ["\t" + reason]
    else:
        lines.append("\tReason: " + reason)
    return lines + _table(entry, [])


def _aborted(due):
    return ["Job was aborted.", _because(due, "cancelled")]


def _held(due):
    return ["Job was held.", _because(due, "held by the user"), "\tCode 1 Subcode 0"]


def _released(due):
    return ["Job was released.", _because(due, "released by the user")]


def _because(due, otherwise):
    return "\t%s (%s)" % (_line(due.note or _REASONS.get(due.entry.get("reason")) or otherwise), _id(due))


_BODIES = {outbox.SUBMIT: _submitted, outbox.EXECUTE: _executing, outbox.EVICTED: _evicted,
           outbox.TERMINATED: _terminated, outbox.ABORTED: _aborted, outbox.HELD: _held, outbox.RELEASED: _released}


# ---- parts of 004 and 005 ----

def _ending(entry):
    """How the main process ended. A core is where core(5) says it is by default: the kernel tells no name."""
    if entry.get("signal") is None:
        # A record of a lost run that was committed before a better one has no status at all.
        return ["\t(1) Normal termination (return value %d)" % (entry.get("exit") or 0)]
    core = "\t(1) Corefile in: %s" % _line(os.path.join(entry["cwd"], "core")) if entry.get("core") else \
        "\t(0) No core file"
    return ["\t(0) Abnormal termination (signal %d)" % entry["signal"], core]


def _seconds(entry, field):
    value = (entry.get("rusage") or {}).get(field)
    return max(0, value) if isinstance(value, (int, float)) else 0


def _sum(entries):
    return sum(_seconds(each, "utime") for each in entries), sum(_seconds(each, "stime") for each in entries)


def _usage(entry, span):
    return _usages(span, *_sum([entry]))


def _usages(span, user_s, system_s):
    """Two lines: the job's own usage, which HTCondor calls remote, and that of who ran it, which is not counted."""
    return ["\t\tUsr %s, Sys %s  -  %s Remote Usage" % (_days(user_s), _days(system_s), span),
            "\t\tUsr %s, Sys %s  -  %s Local Usage" % (_days(0), _days(0), span)]


def _days(seconds):
    whole = int(min(seconds, 1e12))
    return "%d %02d:%02d:%02d" % (whole // 86400, whole // 3600 % 24, whole // 60 % 60, whole % 60)


def _table(entry, extra):
    """Usage, request and allocation; then what else is known, in the column that may hold anything."""
    real = entry.get("real")
    used = "%.2f" % (sum(_sum([entry])) / real) if real and real > 0 else ""
    asked = str(entry.get("threads") or 1)
    given = str(len(entry["cpus"])) if entry.get("cpus") else asked
    limit = _mebibytes(entry.get("memory"))
    rows = [("Cpus", used, asked, given, ""), ("Memory (MB)", _mebibytes(_peak_b(entry)), limit, limit, "")]
    rows += [(name, "", "", "", '"%s"' % value) for name, value in extra]
    lines = ["\tPartitionable Resources : %8s %8s %9s %s" % ("Usage", "Request", "Allocated", "Assigned")]
    # Readers take the columns by their width: the blanks at the end of a line belong to it.
    return lines + ["\t   %-20s : %8s %8s %9s %s" % row for row in rows]


def _peak_b(entry):
    """The most that was resident at once; of one process where the tree was never looked at."""
    peak, rusage = entry.get("max_sumrss"), entry.get("rusage") or {}
    if peak:
        return peak
    kib = rusage.get("maxrss")
    return kib * 1024 if isinstance(kib, int) and kib > (entry.get("maxrss_floor") or 0) else None


def _mebibytes(size_b):
    return "" if not size_b else str(-(-size_b // (1 << 20)))
