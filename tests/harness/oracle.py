"""What must be true of an installation whatever was killed, failed or lost power in it.

    oracle.check(sandbox, {"17.1": 768})        # AssertionError with all that is wrong
    oracle.findings(sandbox, ...)               # the same as a list of texts

Reads the files of the spool and the tables of the queue itself; of mxqlib only
the table of record fields (record.decode) is believed. `snapshot` is for
"running it again changes nothing".
"""

import os
import sqlite3

from mxqlib import record as format_of

ENDED = ("finished", "failed", "killed", "lost", "cancelled")
EXECUTE, EVICTED, TERMINATED, ABORTED = 1, 4, 5, 9
SUBMIT = 0
TABLES = {"job": "job", "run": "run", "event": "job, attempt, code, n",
          "delivery": "job, attempt, code, n, sink, target", "dependency": "job, after"}


def check(sandbox, outcomes=None, **knowledge):
    """Raise AssertionError unless findings() finds nothing."""
    found = findings(sandbox, outcomes, **knowledge)
    assert not found, "%d findings:\n%s" % (len(found), "\n".join(found))


def findings(sandbox, outcomes=None, lost=(), running=(), corrupt=(), settled=True):
    """List of what is wrong.

    outcomes: {run id: raw wait status} that was acknowledged, each of which
    must be there exactly once (None: nothing is known about outcomes); lost:
    run ids of which nobody can know how they ended; running: run ids whose
    running record is right; corrupt: names that belong into corrupt/; settled:
    recovery is over, so the spool holds nothing but living runs.
    """
    found = []
    records = read_spool(sandbox, found)
    queue = Tables(sandbox)
    found += queue.damage
    for run in queue.runs.values():
        found += run_findings(run, queue)
    for job in queue.jobs.values():
        found += job_findings(job, queue)
    if settled:
        found += spool_findings(sandbox, records, running)
    kept = set(list_folder(sandbox.spool / "corrupt"))
    found += ["corrupt/%s is alone" % name for name in sorted(kept)
              if name.endswith(".reason") and name[:-len(".reason")] not in kept]
    kept = {name for name in kept if not name.endswith(".reason")}
    found += ["corrupt/%s does not belong there" % name for name in sorted(kept - set(corrupt))]
    found += ["corrupt/%s is missing" % name for name in sorted(set(corrupt) - kept)]
    if outcomes is not None:
        found += outcome_findings(outcomes, lost, running, records, queue)
    return found


# --- reading ----------------------------------------------------------------------

class Tables:
    """The queue as dicts: runs by id, jobs by number, events and deliveries as sets of keys."""

    def __init__(self, sandbox):
        self.damage, self.jobs, self.runs = [], {}, {}
        self.events, self.deliveries = set(), set()
        if not sandbox.queue_file.exists() or not sandbox.queue_file.stat().st_size:
            return
        found = sandbox.queue("PRAGMA integrity_check")
        self.damage += ["integrity_check: %s" % row[0] for row in found if row[0] != "ok"]
        self.damage += ["foreign_key_check: row %s of %s" % (row[1], row[0])
                        for row in sandbox.queue("PRAGMA foreign_key_check")]
        if not sandbox.queue("SELECT 1 FROM sqlite_master LIMIT 1"):
            return
        self.jobs = {row["job"]: row for row in sandbox.queue("SELECT * FROM job")}
        rows = sandbox.queue("SELECT * FROM run")
        self.runs = {row["run"]: row for row in rows}
        if len(rows) != len(self.runs):
            self.damage.append("a run is in the queue twice")
        self.events = {tuple(row) for row in sandbox.queue("SELECT job, attempt, code FROM event")}
        self.deliveries = {tuple(row) for row in
                           sandbox.queue("SELECT job, attempt, code, sink, target FROM delivery")}

    def runs_of(self, job):
        """The runs of a job, the first attempt first."""
        return sorted((run for run in self.runs.values() if run["job"] == job), key=lambda run: run["attempt"])


def list_folder(folder):
    """Names in a folder; none when it is not there."""
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def read_spool(sandbox, found):
    """{run id: record} of the visible files; what cannot be believed is noted in `found`."""
    records = {}
    for name in list_folder(sandbox.runs):
        if name.startswith("."):
            continue
        try:
            entry = format_of.decode((sandbox.runs / name).read_bytes(), name[:-len(".json")])
        except format_of.Damaged as damage:
            found.append("runs/%s: %s" % (name, damage))
            continue
        records[entry["run"]] = entry
    return records


# --- rules ------------------------------------------------------------------------

def run_findings(run, queue):
    """A run's columns say what its record says; its events are there, and what they owe."""
    name = "run %s" % run["run"]
    if run["record"] is None:
        needless = run["state"] in ("loaded", "cancelled", "lost")
        return [] if needless else ["%s is %s without a record" % (name, run["state"])]
    try:
        entry = format_of.decode(run["record"].encode("utf-8", "surrogateescape") + b"\n", run["run"])
    except format_of.Damaged as damage:
        return ["%s: its record: %s" % (name, damage)]
    found = []
    if run["state"] == "running" and entry["state"] != "running":
        found.append("%s is running, its record is not" % name)
    if run["state"] in ENDED and entry["state"] == "ended":
        if run["state"] != format_of.state_of(entry):
            found.append("%s is %s, its record says %s" % (name, run["state"], format_of.state_of(entry)))
        if (run["status"], run["reason"]) != (entry["status"], entry["reason"]):
            found.append("%s: status or reason is not that of its record" % name)
    if run["state"] in ("finished", "failed", "killed") and entry["state"] != "ended":
        found.append("%s is %s, its record is not ended" % (name, run["state"]))
    wanted = [EXECUTE] if entry["date_start"] else []
    got = {code for job, attempt, code in queue.events if (job, attempt) == (run["job"], run["attempt"])}
    found += ["%s has no event %03d" % (name, code) for code in wanted if code not in got]
    outcomes = got & {EVICTED, TERMINATED, ABORTED}
    if run["state"] in ENDED and entry["state"] == "ended" and not outcomes:
        found.append("%s is %s without an event that says so" % (name, run["state"]))
    if run["state"] == "running" and outcomes:
        found.append("%s is running, but its end was told" % name)
    for delivery in entry.get("deliveries") or ():
        found += debt_findings(run, delivery, outcomes, queue)
    return found


def debt_findings(run, delivery, outcomes, queue):
    """An outcome that was committed owes what the record asks for: the log and the record each outcome."""
    sink = delivery["sink"]
    target = delivery.get("path") or delivery.get("to") or delivery.get("command")
    if sink not in ("log", "record", "hook"):
        return []
    return ["run %s owes event %03d to %s %s, which is not in the outbox" % (run["run"], code, sink, target)
            for code in outcomes if (run["job"], run["attempt"], code, sink, target) not in queue.deliveries]


def job_findings(job, queue):
    """A job follows its highest attempt, has an end exactly when it has ended, and its submission was told."""
    name = "job %d" % job["job"]
    found = []
    runs = queue.runs_of(job["job"])
    if (job["date_end"] is not None) != (job["state"] in ENDED):
        found.append("%s is %s, its end is %s" % (name, job["state"], job["date_end"]))
    if (job["job"], 0, SUBMIT) not in queue.events:
        found.append("%s has no event 000" % name)
    attempts = [run["attempt"] for run in runs]
    if len(set(attempts)) != len(attempts):
        found.append("%s has an attempt twice: %s" % (name, attempts))
    if attempts and job["attempt"] < max(attempts):
        found.append("%s is at attempt %d, but has run %d" % (name, job["attempt"], max(attempts)))
    if job["state"] in ("loaded", "running", "finished", "failed", "killed", "lost"):
        if not runs:
            found.append("%s is %s without a run" % (name, job["state"]))
        elif job["state"] != runs[-1]["state"] and job["state"] != "finished":
            found.append("%s is %s, its last run is %s" % (name, job["state"], runs[-1]["state"]))
    if job["state"] == "finished" and not any(run["state"] == "finished" for run in runs):
        found.append("%s is finished, none of its runs is" % name)
    active = [run["run"] for run in runs if run["state"] in ("loaded", "running")]
    if len(active) > 1:
        found.append("%s runs more than once: %s" % (name, active))
    return found


def spool_findings(sandbox, records, running):
    """After recovery runs/ holds living runs only, and room only beside their records."""
    found = []
    for run, entry in sorted(records.items()):
        if entry["state"] == "ended":
            found.append("runs/%s.json has ended, but was not collected" % run)
        elif run not in running and not is_alive(entry):
            found.append("runs/%s.json says running, but nobody of it lives" % run)
    for name in sorted(list_folder(sandbox.runs)):
        if name.startswith(".") and name[1:] not in records:
            found.append("runs/%s belongs to nobody" % name)
    return found


def is_alive(entry):
    """True when reaper, front or MAIN of a running record lives: same pid, same start time."""
    for role in ("reaper", "front", "main"):
        reference = entry.get(role)
        try:
            with open("/proc/%d/stat" % reference["pid"], encoding="utf-8", errors="surrogateescape") as file:
                fields = file.read().rpartition(")")[2].split()
        except (OSError, TypeError):
            continue
        if fields[0] not in "ZX" and int(fields[19]) == reference["start"]:
            return True
    return False


def outcome_findings(outcomes, lost, running, records, queue):
    """Every acknowledged outcome is there, exactly once and true; nothing is there that did not happen."""
    found = []
    for run, status in sorted(outcomes.items()):
        row, entry = queue.runs.get(run), records.get(run)
        if row is None and entry is None:
            found.append("run %s is nowhere" % run)
        elif row is not None and row["state"] in ("finished", "failed", "killed"):
            if row["status"] != status:
                found.append("run %s ended with %s, the queue says %s" % (run, status, row["status"]))
        elif entry is not None and entry["state"] == "ended":
            if entry["status"] != status:
                found.append("run %s ended with %s, its record says %s" % (run, status, entry["status"]))
        elif run not in running:
            found.append("run %s ended with %s, the queue says %s" % (run, status, row and row["state"]))
    for run, row in sorted(queue.runs.items()):
        if row["state"] in ("finished", "failed", "killed") and run not in outcomes:
            found.append("run %s is %s, but that did not happen" % (run, row["state"]))
        if row["state"] == "lost" and run not in lost:
            found.append("run %s is lost, but it need not be" % run)
    return found


# --- again ------------------------------------------------------------------------

def snapshot(sandbox):
    """All that has a meaning: rows of the queue, files of the spool. Equal before and after: nothing changed.

    How often a delivery was tried and when the next try is due has no meaning here.
    """
    seen = {"runs": {}, "corrupt": sorted(list_folder(sandbox.spool / "corrupt"))}
    for name in list_folder(sandbox.runs):
        if not name.startswith("."):
            seen["runs"][name] = (sandbox.runs / name).read_bytes()
    if sandbox.queue_file.exists():
        for table, order in TABLES.items():
            try:
                rows = sandbox.queue("SELECT * FROM %s ORDER BY %s" % (table, order))
            except sqlite3.OperationalError:
                continue        # not made yet
            seen[table] = [{name: row[name] for name in row.keys() if name not in ("tries", "next_try", "error")}
                           for row in rows]
    return seen
