"""mxq-ctl: drain and resume a spool; kill, detach, stop, continue, hold, release and retry jobs.

Guarantees: a signal reaches only the process that a record or lock names, never one that has its pid by now; what
cannot be done for one job is said in a line that names it, and the rest is done.
"""

import os
import select

from mxqlib import (child, cli, clock, durable, exits, jobqueue, kill, lock, place, process, request, runners, signals,
                    targets, units)
from mxqlib.cli import Failure, Option, reason
from mxqlib.control import Control
from mxqlib.jobqueue import changes, jobs, lookup

USAGE = ("drain [-r REASON] | resume\n"
         "       mxq-ctl kill [--now | --grace TIME] JOB... | -g GROUP | --all\n"
         "       mxq-ctl detach | stop | cont | hold | release JOB... | -g GROUP | --all\n"
         "       mxq-ctl retry JOB...")
TEXT = "Control the jobs of a queue and the mxq-runs of this host. JOB is a job number or a run id."
OPTIONS = cli.BASE + (
    Option("r", "reason", "REASON", "drain: why, for others to read"),
    Option(None, "now", None, "kill: KILL at once"),
    Option(None, "grace", "TIME", "kill: from TERM to KILL (that of the run)", lambda text: units.duration(text, 0)),
    Option("g", "group", "GROUP", "all jobs of GROUP", units.label),
    Option(None, "all", None, "all jobs, runs of mxq-reap included"),
)
EXITS = (exits.OK, exits.USAGE, exits.DATA, exits.UNAVAILABLE, exits.BUG, exits.CANTCREAT, exits.IOERR,
         exits.TEMPFAIL, exits.NOPERM, exits.CONFIG)

_LEAVE_MS = 2000            # how long a front may take to leave


def main(argv):
    """Do what the verb says to each job that is named."""
    verb, values, operands = _parse(argv)
    os.umask(0o077)
    signals.ignore(signals.PIPE)        # a reader that leaves must not keep the KILL from coming
    process.check_proc()
    base = place.base(values.d)
    control = Control(base, values, kill.BUSY_S if verb == "kill" else jobqueue.BUSY_S)
    try:
        VERBS[verb][0](control, operands)
    finally:
        control.close()
    return control.status


def _parse(argv):
    """(verb, values, operands); options may come before the verb and after it. Raises Failure."""
    values, rest = cli.parse(OPTIONS, argv, USAGE, TEXT)
    if not rest:
        raise Failure(exits.USAGE, "no verb (%s; try --help)" % " ".join(VERBS))
    verb = rest[0]
    if verb not in VERBS:
        raise Failure(exits.USAGE, "unknown verb: %s (known: %s)" % (verb, " ".join(VERBS)))
    flags = cli.quiet, cli.verbose
    later, operands = cli.parse(OPTIONS, rest[1:], USAGE, TEXT)
    cli.quiet, cli.verbose = cli.quiet or flags[0], cli.verbose or flags[1]
    for option in OPTIONS:
        if getattr(later, option.key) is not None:
            setattr(values, option.key, getattr(later, option.key))
    _check(verb, values, operands)
    return verb, values, operands


def _check(verb, values, operands):
    allowed = VERBS[verb][1].split()
    for option in OPTIONS[len(cli.BASE):]:
        if getattr(values, option.key) is not None and option.key not in allowed:
            raise Failure(exits.USAGE, "%s takes no --%s" % (verb, option.long))
    if "JOB" not in allowed:
        if operands:
            raise Failure(exits.USAGE, "%s takes no operands: %s" % (verb, operands[0]))
        return
    targets.check_order(operands)
    if bool(operands) + bool(values.all) + (values.group is not None) != 1:
        raise Failure(exits.USAGE, "%s needs %s" % (verb, "one or more jobs" if allowed == ["JOB"] else
                                                    "jobs, or -g GROUP, or --all, and only one of these"))
    if values.now and values.grace is not None:
        raise Failure(exits.USAGE, "--now and --grace at once")


# ---- drain, resume ----

def drain(control, _operands):
    """Nothing is started any more, by no mxq-run of no host that uses this spool."""
    place.make_private(control.base)
    path = control.spool.open().drain_path()
    why = "%s; %s by %s on %s" % (cli.printable(control.values.reason or "drained"), clock.iso(),
                                  request.user_name(), process.context()["host"])
    try:
        durable.replace(path, (why + "\n").encode("utf-8", "backslashreplace"))
    except OSError as failure:
        raise Failure(exits.NOPERM if isinstance(failure, PermissionError) else exits.IOERR,
                      "cannot write %s: %s" % (path, reason(failure))) from None
    control.report("drained: nothing is started until mxq-ctl resume")
    _tell(control, runners.living(control.base, control.refuse), signals.TERM,
          "sent TERM; it ends when its runs have ended")


def resume(control, _operands):
    """Jobs may be started again, as far as this host is concerned."""
    lifted = False
    for path in (control.spool.drain_path(), control.spool.drain_path(process.context()["host"])):
        why = control.spool.drain_reason(path)
        if why is None:
            continue
        try:
            durable.remove(path)
        except OSError as failure:
            control.refuse(exits.NOPERM if isinstance(failure, PermissionError) else exits.IOERR,
                           "cannot remove %s: %s" % (path, reason(failure)))
            continue
        lifted = True
        control.report("resumed: %s removed (%s); mxq-run starts jobs again at its next call"
                       % (os.path.basename(path), why))
    if not lifted and control.status == exits.OK:
        control.report("resumed: nothing was drained")


def _tell(control, found, number, text):
    """Send a signal to each mxq-run --wait among `found`; a call without --wait ends by itself."""
    for runner in found:
        why = targets.elsewhere(runner)
        if why is not None:
            control.refuse(exits.UNAVAILABLE, "mxq-run %d: %s" % (runner["pid"], why))
        elif runner.get("wait"):
            fd = process.hold(runner)
            if fd is not None:
                if process.send_pidfd(fd, number):
                    control.report("mxq-run %d: %s" % (runner["pid"], text))
                os.close(fd)


# ---- what runs ----

def kill_jobs(control, operands):
    """Cancel what waits; TERM, then KILL for what runs."""
    values = control.values
    child.raise_limits()                # a pidfd for each of them
    order = kill.Kill(control, bool(values.now), values.grace)
    number = order.of(control.named(operands) if operands else None, values.group)
    if number is not None:
        control.close()
        signals.die(number)


def stop(control, operands):
    """Suspend what runs."""
    _signal_all(control, operands, signals.TSTP,
                "sent TSTP, its processes are stopped; mxq-ctl cont %s lets them go on")


def go_on(control, operands):
    """Let what was stopped go on."""
    _signal_all(control, operands, signals.CONT, "sent CONT, its processes go on")


def _signal_all(control, operands, number, text):
    for name, entry in control.running(operands):
        why = targets.elsewhere(entry["reaper"])
        if why is not None:
            control.refuse(exits.UNAVAILABLE, "%s: %s" % (name, why))
        elif _signal(control, entry, number):
            control.report("%s: %s" % (name, text % entry["run"] if "%" in text else text))
        else:
            control.refuse(exits.UNAVAILABLE, "%s: has just ended, or its reaper has died: mxq-adopt takes over" % name)


def _signal(control, entry, number):
    """Send a signal to the reaper of a running record; False when it has gone, or serves another run by now."""
    held = lock.hold_running(control.spool, entry)
    if held is None:
        return False
    fd = process.hold(entry["reaper"])
    try:
        return fd is not None and process.rouse(fd, entry["reaper"]["pid"], number)
    finally:
        for each in (fd, held):
            if each is not None:
                os.close(each)


def detach(control, operands):
    """Have the fronts leave, and every mxq-run --wait; the runs go on."""
    found = runners.living(control.base, control.refuse)
    if control.values.all:
        _tell(control, found, signals.QUIT, "sent QUIT; it leaves, and its runs go on")
    own = {(runner["pid"], runner["start"]): runner for runner in found}
    for name, entry in control.running(operands):
        front = entry.get("front")
        why = targets.elsewhere(front) if front else None
        runner = own.get((front["pid"], front.get("start"))) if front else None
        if why is not None:
            control.refuse(exits.UNAVAILABLE, "%s: %s" % (name, why))
        elif runner is None:
            _detach_front(control, name, entry, front)
        elif not control.values.all:
            _tell(control, [runner], signals.QUIT, "sent QUIT for %s; it leaves, and all its runs go on" % name)


def _detach_front(control, name, entry, front):
    fd = process.hold(front) if front else None
    if fd is None:
        if not (control.values.all or control.values.group):
            control.report("%s: is detached already; it goes on" % name)
        return
    try:
        if front == entry["reaper"]:
            control.refuse(exits.UNAVAILABLE, "%s: its front has become its reaper and has to stay" % name)
        elif process.send_pidfd(fd, signals.RTMIN) and not _ends(fd):
            control.refuse(exits.UNAVAILABLE, "%s: sent RTMIN, and its front did not leave; its own message says why"
                           % name)
        else:
            control.report("%s: sent RTMIN, its front left with status %d; the run goes on" % (name, exits.TEMPFAIL))
    finally:
        os.close(fd)


def _ends(fd):
    """True when the process of a pidfd ends soon."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(_LEAVE_MS))


# ---- what waits or is over ----

def hold(control, operands):
    """Queued jobs are not started until they are released."""
    _turn(control, operands, "queued", jobs.hold, "held; mxq-ctl release %s lets it start",
          "only a queued job can be held; mxq-ctl stop suspends one that runs")


def release(control, operands):
    """Held jobs may be started."""
    _turn(control, operands, "held", jobs.release, "released; mxq-run starts it when it fits", "only a held job can be "
          "released")


def _turn(control, operands, state, act, text, rule):
    def done(target, changed):
        if changed:
            control.report("%s: %s" % (target.shown, text % target.number if "%" in text else text))
        else:
            now = control.state_now(target)
            if now is not None:
                control.refuse(exits.UNAVAILABLE, "%s: is %s; %s" % (target.shown, now, rule))

    chosen = _queued(control, operands) if operands else control.finder.all_live(control.values.group, (state,))
    control.change(chosen, act, done)


def _queued(control, operands):
    """The Targets that are jobs of the queue; others are refused."""
    for target in control.named(operands):
        if target.job is None:
            control.refuse(exits.UNAVAILABLE, "%s: is not in the queue; mxq-collect takes it in" % target.shown)
        else:
            yield target


def retry(control, operands):
    """Jobs that are over wait for their next attempt."""
    def unfinished(target):
        with control.queue.reading():
            return lookup.unfinished(control.queue, target.number)

    def done(target, changed):
        if not changed:
            state = control.state_now(target)
            why = "is %s; only a job that is over can be tried again" % state
            if state in changes.OVER:
                why = next("waits for job %d, which is %s: mxq-ctl retry %d %d" % (number, cause, number, target.number)
                           for number, cause in unfinished(target) if cause in changes.OVER)
            if state is not None:
                control.refuse(exits.UNAVAILABLE, "%s: %s" % (target.shown, why))
            return
        blocking = unfinished(target)
        rest = "".join(", it waits for job %d (%s)" % pair for pair in blocking[:3])
        control.report("%s: queued again as run %d.%d%s; mxq-run starts it when it fits"
                       % (target.shown, target.number, target.job.attempt + 1, rest))

    control.change(_collected(control, _queued(control, operands)), jobs.retry, done)


def _collected(control, chosen):
    # An outcome that is in the spool only would come after the new attempt, and be taken for a late one.
    for target in chosen:
        control.collect(target)
        yield target


VERBS = {      # name -> (function, options and operands it takes)
    "drain": (drain, "reason"), "resume": (resume, ""), "kill": (kill_jobs, "JOB group all now grace"),
    "detach": (detach, "JOB group all"), "stop": (stop, "JOB group all"), "cont": (go_on, "JOB group all"),
    "hold": (hold, "JOB group all"), "release": (release, "JOB group all"), "retry": (retry, "JOB"),
}
