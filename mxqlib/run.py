"""mxq-run: claim jobs that fit on this host and start a reaper for each.

Guarantees: a job is claimed once, whoever else claims; nothing is overbooked; what was claimed is started or can be
given back; the jobs do not depend on this process once their reapers live.
"""

import os

from mxqlib import capacity, cli, exits, place, process, signals, units
from mxqlib.cli import Failure, Option
from mxqlib.crew import Crew
from mxqlib.spool import Spool

USAGE = "[OPTION]..."
TEXT = "Start the jobs of the queue that fit on this host, each under a reaper of its own."
OPTIONS = cli.BASE + (
    Option("j", "threads", "N", "threads to use at once (default: the CPUs we may use)",
           lambda text: units.number(text, 1, 1 << 20)),
    Option("m", "memory", "SIZE", "memory to use at once (default: all of this machine)", units.size),
    Option(None, "max", "N", "jobs to run at once (default: any number)", lambda text: units.number(text, 1, 1 << 20)),
    Option(None, "wait", None, "stay until the queue is empty; TERM drains, INT kills, QUIT detaches"),
    Option(None, "grace", "TIME", "with --wait, after INT: from TERM to KILL (10s)",
           lambda text: units.duration(text, 0)),
)
_READY = 8              # reapers that are forked before there is a job for them, at most
EXITS = (exits.OK, exits.USAGE, exits.UNAVAILABLE, exits.BUG, exits.CANTCREAT, exits.IOERR, exits.TEMPFAIL,
         exits.NOPERM, exits.CONFIG)


def main(argv):
    """Start what fits; with --wait stay until the queue is empty."""
    os.umask(0o077)
    values, operands = cli.parse(OPTIONS, argv, USAGE, TEXT)
    if operands:
        raise Failure(exits.USAGE, "no operands are taken: %s" % operands[0])
    base = place.base(values.d)
    if not os.path.exists(place.queue(base)):
        cli.step("there is no queue yet")
        return exits.OK
    place.make_private(base)
    place.make_private(place.runners(base))
    process.check_proc()
    room = capacity.Capacity(values.threads, values.memory, values.max)
    crew = Crew(Spool(place.spool(base)).open(), base, process.reference(os.getpid()) if values.wait else None)
    if values.wait:
        signals.block(signals.CATCHABLE)
        process.become_subreaper()
        crew.prepare(min(room.threads, _READY))
    from mxqlib.dispatch import Dispatcher        # the database comes with it
    work = Dispatcher(base, values, room, crew)
    try:
        return work.stay() if values.wait else work.start_and_leave()
    finally:
        work.close()
