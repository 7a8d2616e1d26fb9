"""mxq-collect: commit spool files to the queue.

Guarantees: an outcome that was in the spool is in the queue, exactly once, before its file goes; a queue that cannot
be used leaves the spool untouched; what cannot be read is put aside and named, and the rest goes on.
"""

import os

from mxqlib import cli, exits, place
from mxqlib.cli import Failure
from mxqlib.intake import Intake
from mxqlib.spool import Spool

USAGE = "[OPTION]..."
TEXT = "Commit the outcomes of runs from the spool to the queue, and remove their files."
OPTIONS = cli.BASE
EXITS = (exits.OK, exits.USAGE, exits.DATA, exits.UNAVAILABLE, exits.BUG, exits.CANTCREAT, exits.IOERR,
         exits.TEMPFAIL, exits.NOPERM, exits.CONFIG)


def main(argv):
    """Commit what is in the spool; make base, spool and queue where they are missing."""
    values, operands = cli.parse(OPTIONS, argv, USAGE, TEXT)
    if operands:
        raise Failure(exits.USAGE, "no operands are taken: %s" % operands[0])
    base = place.base(values.d)
    place.make_private(base)
    where = Spool(place.spool(base)).open()
    intake = Intake(where, lambda: _open_queue(base, where))
    if not os.path.exists(place.queue(base)):
        intake.queue = _open_queue(base, where)
    try:
        intake.collect()
    finally:
        if intake.queue is not None:
            intake.queue.close()
    if intake.committed or intake.dropped:
        cli.step("%d committed, %d known already" % (intake.committed, intake.dropped))
    return intake.status


def _open_queue(base, where):
    # SQLite costs as much as half a start of Python: not before there is something to commit.
    from mxqlib import jobqueue
    return jobqueue.open_queue(place.queue(base), where.next_job)
