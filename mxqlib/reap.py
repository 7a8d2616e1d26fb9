"""mxq-reap: run one job and spool how it ended, whatever happens.

Guarantees: nothing runs before its record is durable; the outcome is durable before the caller hears of it; the caller
sees the job end as without the wrapper; what the job left behind is gone when mxq-reap returns.
"""

import gc
import os

from mxqlib import child, cli, clock, exits, outer, place, process, request, signals, units
from mxqlib.attempt import Attempt
from mxqlib.cli import Failure, Option
from mxqlib.front import Front
from mxqlib.spool import Spool

USAGE = "[OPTION]... [--] COMMAND [ARGUMENT]..."
TEXT = "Run COMMAND, wait for it, end as it does, and keep a record of how it ended."
OPTIONS = cli.BASE + request.OPTIONS + (
    Option("b", "detach", None, "print the run id and return once the job is executed"),
    Option(None, "cpus", "LIST", "run on these CPUs, like 0,2-3", units.cpus),
    Option(None, "grace", "TIME", "time from TERM to KILL (10s)", lambda text: units.duration(text, 0)),
    Option(None, "linger", None, "wait for what the job leaves behind, do not end it"),
) + request.DELIVERY_OPTIONS
EXITS = (exits.TEMPFAIL, exits.IOERR, exits.TIMEOUT, exits.FAILURE, exits.NOEXEC, exits.NOTFOUND)


def main(argv):
    """Run the job of the command line; does not return where the job was started, as it ends like it."""
    try:
        attempt = prepare(argv)
        front = Front(attempt)
        front.start()
    except Failure as failure:
        cli.error(str(failure))
        return exits.FAILURE
    except OSError as failure:
        cli.error("cannot start: %s" % cli.reason(failure))
        return exits.FAILURE
    except Exception:
        cli.show_bug()
        return exits.FAILURE            # nothing was started: the caller must not take our bug for the job's status
    if not attempt.detached:
        child.end_like(*front.wait())
    kind, number = front.wait_for_start()
    if (kind, number) == ("exit", exits.OK):
        try:
            cli.output((attempt.entry["run"] + "\n").encode("ascii"))
        except OSError as failure:
            cli.error("%s runs, but that cannot be written: %s" % (attempt.entry["run"], cli.reason(failure)))
            return exits.IOERR
    child.end_like(kind, number)


def prepare(argv):
    """The Attempt that the command line asks for; all that can be checked before the start is. Raises Failure."""
    ignored = signals.inherited_ignores()
    gc.disable()                            # nothing here makes cycles, and a collection would unshare forked pages
    umask = os.umask(0o077)
    values, argv = cli.parse(OPTIONS, argv, USAGE, TEXT)
    if not argv:
        raise Failure(exits.FAILURE, "no command (try --help)")
    process.check_proc()
    base = place.base(values.d)
    if not os.environ.get("MXQ_SPOOL"):
        place.make_private(base)
    where = Spool(place.spool(base)).open()
    entry = _entry(values, argv, umask)
    launch = child.Launch(argv, request.environ(process.own_environ(), entry, base), entry["cwd"], entry["umask"])
    launch.cpus, launch.ignored = entry["cpus"], ignored
    attempt = Attempt(entry, launch, where)
    attempt.detached = bool(values.detach)
    attempt.terminal = not attempt.detached and _has_terminal()
    _direct_output(attempt)
    return attempt


def _has_terminal():
    us = process.look(os.getpid())
    if us is None:
        raise Failure(exits.FAILURE, "cannot read /proc/self/stat")
    return us.terminal != 0


def _entry(values, argv, umask):
    """The running record as far as it is known before the start."""
    context = process.context()
    now = clock.iso()
    host = "".join(c if c.isalnum() and c.isascii() or c in "-_" else "-" for c in context["host"])[:64]
    run = "%sT%s-%s-%d" % (now[:10].replace("-", ""), now[11:].replace(":", ""), host, os.getpid())
    entry = {"format": 1, "state": "running", "run": run, "job": None, "attempt": 1, "host": context["host"],
             "reaper": None, "front": None, "main": None, "date_submit": now, "date_start": None,
             "fallback": os.path.join(place.fallback(), run + ".json"), "outer": outer.ids(os.environ)}
    entry.update(request.fields(values, argv, umask))
    entry["cpus"], entry["linger"] = _cpus(values.cpus), bool(values.linger)
    entry["grace"] = request.GRACE_S if values.grace is None else values.grace
    entry["stdout"] = request.output(entry["stdout"], entry)
    entry["stderr"] = request.output(entry["stderr"], entry)
    if not os.access(entry["cwd"], os.X_OK):
        raise Failure(exits.FAILURE, "cannot change to directory %s: Permission denied" % entry["cwd"])
    return entry


def _cpus(wanted):
    if wanted is not None and not set(wanted) <= os.sched_getaffinity(0):
        raise Failure(exits.FAILURE, "option --cpus: not all of these CPUs may be used here")
    return wanted


def _direct_output(attempt):
    """Where the job's output goes; a detached job never has the caller's."""
    entry, launch = attempt.entry, attempt.launch
    if attempt.detached:
        launch.stdin, launch.own_group = os.devnull, True
        entry["stdout"] = entry["stdout"] or attempt.spool.output_path(entry["run"])
        entry["stderr"] = entry["stderr"] or entry["stdout"]
    launch.stdout, launch.stderr = entry["stdout"], entry["stderr"]
