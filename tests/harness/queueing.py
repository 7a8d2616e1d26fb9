"""What tests of the queue share: submit, start, look."""

import json

from tests.harness.sandbox import wait_for


def submit(sandbox, *words, **kw):
    """The number of the job that mxq-sub made of `words`."""
    return int(sandbox.run("mxq-sub", *words, check=True, **kw).stdout)


def states(sandbox):
    """State of each job by number, as the queue has it."""
    return {row["job"]: row["state"] for row in sandbox.queue("SELECT job, state FROM job")}


def detach(sandbox, *words, **kw):
    """Start a run of mxq-reap in the background and return its id; its first word may be an option."""
    return sandbox.run("mxq-reap", "-b", *words, check=True, **kw).stdout.strip()


def read_record(sandbox, run):
    """The record of a run, or None."""
    try:
        return json.loads((sandbox.runs / (run + ".json")).read_text("utf-8", "surrogateescape"))
    except FileNotFoundError:
        return None


def write_record(sandbox, entry):
    """Put a made-up record into the spool; for others to read only, it is not synced."""
    for folder in ("runs", "output", "corrupt"):
        (sandbox.spool / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    for folder in (sandbox.mxq_dir, sandbox.spool):
        folder.chmod(0o700)
    path = sandbox.runs / (entry["run"] + ".json")
    new = sandbox.spool / "new"
    new.write_text(json.dumps(entry) + "\n", "utf-8")
    new.chmod(0o600)
    new.rename(path)        # whole, as a collector may be waiting for it


def wait_until_ended(sandbox, run):
    """Wait until the record of a run in the spool is that of an ended one, and return it."""
    def look():
        entry = read_record(sandbox, run)
        return entry if entry and entry["state"] == "ended" else None
    return wait_for(look, what="the outcome of %s" % run)


def wait_until_running(sandbox, run):
    """Wait until a run has a running record, and return it."""
    return wait_for(lambda: read_record(sandbox, run), what="the record of %s" % run)
