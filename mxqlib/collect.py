"""mxq-collect: commit spool files to the queue, then deliver what is owed.

Guarantees: an outcome that was in the spool is in the queue, exactly once, before its file goes; a queue that cannot
be used leaves the spool untouched; what cannot be read is put aside and named, and the rest goes on. What is owed is
delivered at least once, after the commits, by one process at a time; what fails stays owed. With --forget, jobs that
were over long ago go, last of all.
"""

import os

from mxqlib import cli, exits, outbox, place, signals, units
from mxqlib.cli import Failure, Option
from mxqlib.intake import Intake
from mxqlib.spool import Spool

USAGE = "[OPTION]..."
TEXT = "Commit the outcomes of runs from the spool to the queue, remove their files, and deliver what is owed."
OPTIONS = cli.BASE + (
    Option(None, "no-deliver", None, "commit only, deliver nothing"),
    Option(None, "deliver", None, "deliver only, commit nothing"),
    Option(None, "retry", None, "deliver all that is owed now, also what is parked"),
    Option(None, "forget", "AGE", "then drop the jobs that ended at least AGE ago",
           lambda text: units.duration(text, 0)),
    Option(None, "vacuum", None, "then make the database smaller"),
)
EXITS = (exits.OK, exits.USAGE, exits.DATA, exits.UNAVAILABLE, exits.BUG, exits.CANTCREAT, exits.IOERR,
         exits.TEMPFAIL, exits.NOPERM, exits.CONFIG)
_ENDING = (signals.HUP, signals.INT, signals.QUIT, signals.TERM)


def main(argv):
    """Commit what is in the spool; make base, spool and queue where they are missing. Then deliver, then forget."""
    values, operands = cli.parse(OPTIONS, argv, USAGE, TEXT)
    if operands:
        raise Failure(exits.USAGE, "no operands are taken: %s" % operands[0])
    if values.no_deliver and (values.deliver or values.retry):
        other = "deliver" if values.deliver else "retry"
        raise Failure(exits.USAGE, "--no-deliver and --%s exclude each other" % other)
    limit_s = _limit_s()
    base = place.base(values.d)
    place.make_private(base)
    where = Spool(place.spool(base)).open()
    intake = Intake(where, lambda: _open_queue(base, where), may_fork=True)
    if not os.path.exists(place.queue(base)):
        intake.queue = _open_queue(base, where)
    statuses = []
    try:
        if not values.deliver:
            intake.collect()
            if intake.committed or intake.dropped:
                cli.step("%d committed, %d known already" % (intake.committed, intake.dropped))
        owes = not values.no_deliver and (values.retry or outbox.may_owe(place.queue(base)))
        forgets = values.forget is not None or values.vacuum
        if (owes or forgets) and intake.queue is None:
            intake.queue = _open_queue(base, where)
        if owes:
            statuses.append(_deliver(intake.queue, values.retry, limit_s))
        if forgets:
            statuses.append(_forget(intake.queue, where, values.forget, values.vacuum))
    finally:
        if intake.queue is not None:
            intake.queue.close()
    return max(statuses + [intake.status])


def _open_queue(base, where):
    # SQLite costs as much as half a start of Python: not before there is something to commit.
    from mxqlib import jobqueue
    return jobqueue.open_queue(place.queue(base), where.next_job)


def _limit_s():
    text = os.environ.get("MXQ_DELIVERY_TIMEOUT")
    try:
        return units.duration(text) if text else None
    except ValueError as failure:
        raise Failure(exits.CONFIG, "MXQ_DELIVERY_TIMEOUT: %s" % failure) from None


def _deliver(queue, retry, limit_s):
    """Deliver what is due. A signal that ends us ends a mailer that runs first; what is owed stays owed."""
    from mxqlib import delivery
    from mxqlib.delivery.deliverer import Deliverer
    from mxqlib.jobqueue import due
    if retry:
        with queue.transaction():
            due.retry(queue)
    heeded, got = [number for number in _ENDING if not signals.is_ignored(number)], []

    def must_stop():
        info = signals.wait(heeded, 0) if heeded else None
        if info is not None:
            got.append(info.si_signo)
        return bool(got)

    deliverer = Deliverer(queue, None if 1 in cli.were_closed else 1, limit_s or delivery.LIMIT_S, must_stop)
    signals.block(heeded)
    try:
        alone = deliverer.run()
    except delivery.Stopped:
        queue.close()
        signals.die(got[0])
    finally:
        signals.unblock(heeded)
    if retry and not alone:
        cli.warn("another process is delivering; it tries all that is owed")
        return exits.TEMPFAIL
    return exits.TEMPFAIL if deliverer.failed else exits.OK


def _forget(queue, where, age_s, vacuum):
    from mxqlib import forget
    from mxqlib.jobqueue import oblivion
    forgetting = forget.Forgetting(queue, where)
    if age_s is not None:
        forgetting.run(age_s)
        if forgetting.forgotten or forgetting.kept:
            cli.step("%d forgotten, %d kept" % (forgetting.forgotten, forgetting.kept))
    if vacuum:
        queue.vacuum(oblivion.drop_environments)
    return forgetting.status
