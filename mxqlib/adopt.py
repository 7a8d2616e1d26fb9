"""mxq-adopt: compare records with processes: re-attach, take over orphans, declare lost.

Guarantees: no process is signalled that is not the run's; no run is lost that lives or whose outcome is somewhere; each
run of this host that has nobody gets somebody who tells its end; an outcome is written over a running record only.
"""

import gc
import os

from mxqlib import child, cli, exits, lock, place, process
from mxqlib.adoption import LOCK, Adoption
from mxqlib.cli import Failure, Option
from mxqlib.record import encode
from mxqlib.spool import Spool

USAGE = "[OPTION]..."
TEXT = "Find the runs of this host that lost their reaper, take over those that live, and tell what became of the rest."
OPTIONS = cli.BASE + (
    Option("n", "dry-run", None, "say what would be done, and do nothing"),
    Option(None, "host", "HOST", "HOST is dead: declare its runs lost; more than once for several", many=True),
)
EXITS = (exits.OK, exits.USAGE, exits.DATA, exits.UNAVAILABLE, exits.BUG, exits.CANTCREAT, exits.IOERR,
         exits.TEMPFAIL, exits.NOPERM, exits.CONFIG)


def main(argv):
    """Look at the records of this host, and see to each run."""
    os.umask(0o077)
    values, operands = cli.parse(OPTIONS, argv, USAGE, TEXT)
    if operands:
        raise Failure(exits.USAGE, "no operands are taken: %s" % operands[0])
    base = place.base(values.d)
    where = Spool(place.spool(base))
    place.check_private(base)
    if not where.exists():              # the base may be missing where MXQ_SPOOL is elsewhere: mxq-reap needs none
        return exits.OK
    _check_proc()
    gc.disable()                            # a collection in a watcher would copy pages that are shared
    held = None if values.dry_run else _take_lock(base)
    child.raise_limits()
    try:
        return _see_to_all(Adoption(where, base, held, set(values.host)))
    finally:
        if held is not None:
            held.let_go()


def _check_proc():
    try:
        own = process.has_own_proc()
    except OSError:
        raise Failure(exits.UNAVAILABLE, "there is no /proc to look at") from None
    if not own:
        raise Failure(exits.UNAVAILABLE, "another pid namespace is mounted on /proc: nothing can be judged")


def _take_lock(base):
    place.make_private(base)
    place.make_private(place.runners(base))
    held = lock.take(place.runners(base), LOCK)
    if held is None:
        raise Failure(exits.TEMPFAIL, "another mxq-adopt is at work here")
    held.write(encode(process.reference(os.getpid())))
    return held


def _see_to_all(adoption):
    cli.step("%d running records of this host" % len(adoption.roll.found))
    adoption.adopt(adoption.roll.found)     # before SQLite is there: a watcher is small
    adoption.bring_home()
    try:
        adoption.ask_queue()
        adoption.settle()
        adoption.commit_all()
    except Failure as failure:
        adoption.fail(failure.status, "%s; the rest is for the next call" % failure)
    adoption.sweep()
    return adoption.status or adoption.intake.status
