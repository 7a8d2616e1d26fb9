"""All about one job: its fields, its runs with their records, events and deliveries."""

import json
import time

from mxqlib import clock, exits, listing, outbox, record, signals, table, units
from mxqlib.cli import error, printable
from mxqlib.jobqueue import lookup, oblivion, roster

EVENTS = {outbox.SUBMIT: "submitted", outbox.EXECUTE: "executing", outbox.EVICTED: "evicted",
          outbox.TERMINATED: "terminated", outbox.ABORTED: "aborted", outbox.HELD: "held", outbox.RELEASED: "released"}
_REFERENCES = ("reaper", "front", "main")


def local_date(date):
    """A date of a record in local time, without the parts of a second; None stays None, what is no date as it is."""
    if date is None:
        return None
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(clock.epoch_s(date)))
    except (ValueError, OverflowError, OSError):
        return date


def signal_name(number):
    """`TERM` for 15."""
    return signals.name(number)


def show(out, queue, records, wanted, as_json):
    """Write all about each job or run of `wanted` (texts). Returns the exit status; unknown ones are named."""
    status = exits.OK
    for text in wanted:
        found = gather(queue, records, text)
        if found is None:
            number, run = _number_and_run(text)
            known = run and record.job_and_attempt(run)
            was = queue is not None and oblivion.is_forgotten(queue, known[0] if known else number, run)
            error("no such job or run: %s%s" % (text, ", it was forgotten (mxq-collect --forget)" if was else ""))
            status = exits.UNAVAILABLE
        elif as_json:
            table.write_json(out, [found])
        else:
            _write(out, found)
    out.flush()
    return status


def _number_and_run(text):
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
    return number, None if number is not None else text


def gather(queue, records, text):
    """Everything about the job or run that `text` names, or None: the row of the job (see roster), and lists `after`,
    `runs`, `events`, `deliveries`. A run's own fields are `run state host record`."""
    number, run = _number_and_run(text)
    if run is not None:
        known = lookup.find_run(queue, run) if queue is not None else None
        number = known.job if known else None
    base = roster.job(queue, number) if queue is not None and number is not None else None
    if base is None and number is None:
        number = next((entry["job"] for entry in records if entry["run"] == run), None)
        base = roster.job(queue, number) if queue is not None and number is not None else None
    runs = runs_of(queue, records, number if base is not None else None, number, run)
    if base is None and not runs:
        return None
    numbered, loose = listing.lay_over(queue, [entry for entry in records if entry["run"] in runs])
    row = numbered.get(number) or base or (loose[0] if loose else None)
    found = dict(row)
    found["runs"] = list(runs.values())
    known = queue is not None and base is not None
    found["after"] = roster.after(queue, number) if known else []
    found["events"] = [event for event in listing.events(queue, number, [
        entry for entry in records if entry["run"] in runs]) if run in (None, event["run"])]
    found["deliveries"] = [owed for owed in roster.deliveries(queue, number) if run in (None, owed["run"])] \
        if known else []
    return found


def runs_of(queue, records, known_number, number, run):
    """The runs of a job, or the one run, by id: those of the queue, then what the spool knows better."""
    runs = {}
    for found in roster.runs(queue, known_number) if known_number is not None else ():
        if run in (None, found["run"]):
            found["record"] = json.loads(found["record"]) if found["record"] else None
            runs[found["run"]] = found
    for entry in records:
        if entry["run"] == run or entry["run"] in runs or (run is None and entry["job"] == number):
            found = runs.setdefault(entry["run"], dict.fromkeys(
                ("run", "attempt", "state", "host", "date_load", "date_start", "date_end", "real", "status", "reason")))
            if found["state"] in (None, "loaded", "running", "cancelled") or (
                    found["state"] == "lost" and entry["state"] == record.ENDED):
                row = listing.row_of(entry)
                found.update({name: row[name] for name in found if name in row}, record=entry)
    return runs


# ---- for people ----

def _write(out, found):
    lines = ["job %s: %s" % (found["job"] or "-", found["state"])]
    lines += _fields("  ", {name: value for name, value in found.items() if name not in (
        "job", "state", "runs", "events", "deliveries", "after", "run", "exit", "signal", "core", "status", "reason",
        "host", "cpus", "date_start", "date_end", "real", "stdout", "stderr")})
    if found["after"]:
        lines += _fields("  ", {"after": " ".join(map(str, found["after"]))})
    for run in found["runs"]:
        lines += ["run %s: %s" % (run["run"], run["state"])]
        lines += _record("  ", run["record"]) if run["record"] else _fields(
            "  ", {name: value for name, value in run.items() if name not in ("run", "state", "record")})
    for event in found["events"]:
        lines.append("event %s: %s, %s%s" % (event["event"], EVENTS.get(event["code"], event["code"]),
                                             local_date(event["date"]), _after_colon(event["note"])))
    for owed in found["deliveries"]:
        lines.append("%s to %s for %s: %s, tried %d times%s%s" % (
            owed["sink"], owed["target"], owed["event"], owed["state"], owed["tries"],
            ", next at " + local_date(owed["next_try"]) if owed["next_try"] else "", _after_colon(owed["error"])))
    out.write(b"".join(table.to_bytes(printable(line)) + b"\n" for line in lines))


def _after_colon(text):
    return ": " + text if text else ""


def _record(indent, entry):
    hidden = ("format", "state", "run", "job", "argv", "name", "group", "priority", "restart")
    return _fields(indent, {name: value for name, value in entry.items() if name not in hidden})


def _fields(indent, values):
    lines = []
    for name, value in values.items():
        if value is None or value in ([], {}, ""):
            continue
        if name in ("children", "signals", "survivors", "deliveries") and value.__class__ is list:
            lines += ["%s%-14s%s" % (indent, name if at == 0 else "", _words(each)) for at, each in enumerate(value)]
        else:
            lines.append("%s%-14s%s" % (indent, name, _value(name, value)))
    return lines


def _value(name, value):
    if name == "argv":
        return table.quote(value)
    if name.startswith("date_"):
        return local_date(value)
    if name in ("memory", "max_sumrss") and value.__class__ is int:
        return units.show_size(value)
    if name in ("runtime", "grace") and value.__class__ is int:
        return units.show_duration(value)
    if name == "umask" and value.__class__ is int:
        return "%04o" % value
    if name in _REFERENCES and value.__class__ is dict:
        return "pid %s on %s, started at tick %s of boot %s" % (
            value.get("pid"), value.get("host"), value.get("start"), value.get("boot"))
    if name == "signal" and value.__class__ is int:
        return "%d (%s)" % (value, signal_name(value))
    return _words(value)


def _words(value):
    if value.__class__ is dict:
        return " ".join("%s=%s" % (key, _words(inner)) for key, inner in value.items() if inner is not None)
    if value.__class__ is list:
        return " ".join(map(_words, value))
    if value.__class__ is bool:
        return "yes" if value else "no"
    if value.__class__ is float:
        return "%g" % value if abs(value) < 1e5 else "%.1f" % value
    return str(value)
