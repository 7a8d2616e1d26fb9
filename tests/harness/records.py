"""Records as mxq-reap writes them, made up: for tests of those who read them.

The fields are those of mxqlib/record.py and mxq-spool(5); anything can be changed by keyword, a value of
MISSING leaves the field out.
"""

import os
from pathlib import Path

from mxqlib import record

MISSING = object()
BOOT = "5b8a3e2c-7d41-4f0a-9c66-0123456789ab"
RUSAGE = ("utime", "stime", "maxrss", "ixrss", "idrss", "isrss", "minflt", "majflt", "nswap", "inblock", "oublock",
          "msgsnd", "msgrcv", "nsignals", "nvcsw", "nivcsw")


def make_run_id(n=1, host="node7"):
    """The id of a run that no queue knows; `n` tells one from the other, in the order of time."""
    seconds, us = divmod(n, 1000000)
    return "20261130T1745%02d.%06dZ-%s-%d" % (seconds, us, host, 1000 + n % 30000)


def make_reference(pid, host="node7"):
    """A process reference."""
    return {"host": host, "boot": BOOT, "pidns": 4026531836, "timens": 4026531834, "pid": pid, "start": 1000 + pid}


def _set(entry, changes):
    entry.update(changes)
    return {name: value for name, value in entry.items() if value is not MISSING}


def make_running(run=None, **changes):
    """A running record; `run` is an id (job and attempt follow from one like `17.1`) or None."""
    run = run or make_run_id()
    job, attempt = record.job_and_attempt(run) or (None, 1)
    return _set({
        "format": 1, "state": "running", "run": run, "job": job, "attempt": attempt, "name": "true",
        "group": "default", "user": "tester", "uid": os.geteuid(), "gid": os.getegid(), "host": "node7",
        "reaper": make_reference(41), "front": make_reference(40), "main": make_reference(42),
        "argv": ["true"], "cwd": "/", "umask": 18, "stdout": None, "stderr": None, "threads": 1, "memory": None,
        "cpus": None, "runtime": None, "priority": 127, "restart": "never", "grace": 10, "linger": False,
        "date_submit": "2026-11-30T17:45:27.000000Z", "date_start": "2026-11-30T17:45:27.123456Z",
        "fallback": None, "deliveries": [], "outer": None,
    }, changes)


def make_ended(run=None, status=0, **changes):
    """An ended record; `status` is MAIN's raw wait status (256 is exit 1, 9 is death by KILL), None for unknown."""
    code, signal, core = record.split_status(status)
    return _set(make_running(run), {**{
        "state": "ended", "date_end": "2026-11-30T17:46:27.123456Z", "date_done": "2026-11-30T17:46:27.223456Z",
        "real": 60.0, "status": status, "exit": code, "signal": signal, "core": core,
        "reason": "lost" if status is None else None, "error": None, "signals": [],
        "rusage": {name: 0.0 if name[1:] == "time" else 0 for name in RUSAGE}, "maxrss_floor": 10240,
        "max_sumrss": 1048576,
        "children": [{"pid": 42, "comm": "true", "status": status, "utime": 0.0, "stime": 0.0, "maxrss": 1024}],
        "children_more": 0, "leftovers": 0, "survivors": [], "adopted": False,
    }, **changes})


def make_spool(folder):
    """The directories of a spool at `folder`, private; returns runs/."""
    for name in (folder, folder / "runs", folder / "output", folder / "corrupt"):
        name.mkdir(mode=0o700, parents=True, exist_ok=True)
        name.chmod(0o700)
    return folder / "runs"


def put(runs, entry, name=None):
    """Write a record into folder `runs` as a reaper would have; returns the path."""
    path = Path(runs) / (name or entry["run"] + ".json")
    temporary = path.with_name(".%s.new" % path.name)
    temporary.write_bytes(record.encode(entry))
    temporary.rename(path)
    return path
