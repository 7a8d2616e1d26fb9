"""What was seen from outside of a machine (uml.py), and the queue beside it.

A command that printed something, or returned a status, has confirmed it to this process; a job says on the serial line
when it starts and how it is about to end. None of that depends on a disk. So it is what the queue is judged by.

    job = Job("t1", status=7)
    machine.run("mxq-reap", "-N", job.tag, "--", *job.argv)     # returns 7: job.end = 7
    Truth(sandbox, machine.words).job_findings(job)             # [] or what is wrong
"""

from mxqlib import outbox
from tests.harness import owing
from tests.harness.uml import HOST

ENDED = ("finished", "failed", "killed", "lost", "cancelled")
SCRIPT = """#!/bin/sh
# job TAG SECONDS STATUS
echo "start $MXQ_RUN $1" >/dev/ttyS1
sleep "$2"
echo "end $MXQ_RUN $3" >/dev/ttyS1
exit "$3"
"""


def put_script(sandbox):
    """Have the script that jobs are made of in the machines of a sandbox."""
    path = sandbox.path / "job"
    path.write_text(SCRIPT)
    path.chmod(0o755)


class Job:
    """A job, and what was confirmed of it, in whatever order.

    `number` by mxq-sub; `run` by mxq-reap -b; `end`, the exit status, by mxq-reap or mxq-wait; `fate`, held or
    cancelled, by mxq-sub --hold and mxq-ctl kill, or "asked" where that is open. `argv` is its command: it takes
    `seconds` and ends with `status`.
    """

    def __init__(self, tag, status=0, restart="never", seconds=0.0):
        self.tag, self.status, self.restart = tag, status, restart
        self.number = self.run = self.end = self.fate = None
        self.argv = [HOST + "/job", tag, "%.1f" % seconds, str(status)]

    def __str__(self):
        return "%s, number %s, run %s, restart %s, end %s, fate %s" % (
            self.tag, self.number, self.run, self.restart, self.end, self.fate)


class Truth:
    """The queue of a sandbox beside `words`, what the jobs said; `jobs` and `runs` are its rows."""

    def __init__(self, sandbox, words):
        self.sandbox = sandbox
        self.jobs = {row["job"]: row for row in sandbox.queue("SELECT * FROM job")}
        self.runs = {row["run"]: row for row in sandbox.queue("SELECT * FROM run")}
        self.started, self.ended = [], {}           # (run, tag); run -> status
        for word in words:
            what, run, text = word.split(" ")
            if what == "start":
                self.started.append((run, text))
            else:
                self.ended[run] = int(text)

    def run_findings(self, may_be_lost):
        """Each run that started is known, and started once; each outcome is what the job said.

        A lost run is right where `may_be_lost(row)`.
        """
        started = [run for run, _tag in self.started]
        found = ["run %s started twice" % run for run in set(started) if started.count(run) > 1]
        found += ["run %s started, and nobody knows it" % run for run in set(started) if run not in self.runs]
        for run, row in self.runs.items():
            where = "run %s is %s (%s), it said %s" % (run, row["state"], row["reason"], self.ended.get(run))
            if row["state"] in ("finished", "failed"):
                if self.ended.get(run, -1) << 8 != row["status"]:
                    found.append("invented: " + where)
            elif row["state"] == "cancelled":
                if run in started:
                    found.append("given back, and it had started: " + where)
            elif row["state"] != "lost" or not may_be_lost(row):
                found.append("not over, or lost without need: " + where)
        return found

    def job_findings(self, job):
        """What was confirmed of a job is so, and it ran no more often than its restart policy allows."""
        row = self.jobs.get(job.number) if job.number is not None else next(
            (each for each in self.jobs.values() if each["name"] == job.tag), None)
        runs = [run for run, tag in self.started if tag == job.tag]
        where = "%s: it is %s, started as %s" % (job, row and row["state"], runs)
        if row is None:
            return ["missing: " + where] if (job.number, job.run, job.end) != (None, None, None) else []
        found = []
        if job.number is not None and job.tag not in row["argv"]:
            found.append("another job: " + where)
        if job.run is not None and (job.run not in self.runs or self.runs[job.run]["job"] != row["job"]):
            found.append("another run: " + where)
        if job.end is not None and row["state"] != ("failed" if job.end else "finished"):
            found.append("its end was told: " + where)
        if job.restart == "never" and len(runs) > 1:
            found.append("ran again: " + where)
        if job.fate in ("held", "cancelled") and (row["state"] != job.fate or runs):
            found.append("its fate was told: " + where)
        return found

    def log_findings(self, path):
        """Each event that the queue has as delivered to the user log is in it; the log is at `path` now."""
        there = {name for _code, name in owing.events(path)}
        runs = {(row["job"], row["attempt"]): run for run, row in self.runs.items()}
        found = []
        for row in self.sandbox.queue("SELECT * FROM delivery WHERE sink = 'log' AND state = 'done'"):
            key = row["job"], row["attempt"]
            name = outbox.event_id(row["job"], runs.get(key), row["attempt"], row["code"], row["n"])
            if name not in there:
                found.append("event %s is not in the log" % name)
        return found

    def outcomes(self):
        """{run: (state, status)} of what has ended."""
        return {run: (row["state"], row["status"]) for run, row in self.runs.items() if row["state"] in ENDED}
