"""The outcome of a run: composed from what its reaper saw, and written until it is safe.

There is no end to the trying: the reaper retries with growing pauses, each of them a signal wait, so that it is
never deaf, and only USR2 makes it give the place up. Then the record goes to the fallback directory and to
standard error, and the status is 74.
"""

import os

from mxqlib import cli, clock, durable, exits, place, record, signals, spool
from mxqlib.cli import Failure, reason, say, warn

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 30.0
_EXTRA_B = spool.EXTRA_B - 16384        # what children and survivors may take; the rest is for the other fields


def compose(attempt, facts):
    """The ended record: `attempt.entry`, the running record, with what `facts` (a reaper) has seen."""
    entry = dict(attempt.entry, state=record.ENDED)
    status, signal, core = record.split_status(facts.status)
    children, more = _fitting(facts.children, facts.children_more)
    entry.update({
        "date_end": facts.date_end, "date_done": clock.iso(), "real": facts.real_s,
        "status": facts.status, "exit": status, "signal": signal, "core": core,
        "reason": facts.reason, "error": facts.error and facts.error[:2000],
        "signals": facts.signals, "rusage": facts.usage(), "maxrss_floor": facts.maxrss_floor_kib,
        "max_sumrss": facts.max_sumrss_b, "children": children, "children_more": more,
        "leftovers": len(facts.tree.leftovers or ()), "survivors": facts.survivors[:100], "adopted": facts.adopted,
    })
    return entry


def _fitting(children, more):
    # What was reserved must do: 1000 children with long names in other scripts would not fit.
    room = _EXTRA_B
    for at, each in enumerate(children):
        room -= len(record.to_json(each)) + 1
        if room < 0:
            return children[:at], more + len(children) - at
    return children, more


def publish(attempt, facts, reservation, note):
    """Write the outcome and return None once it is safe, or the path of the fallback (or "") once it is given up.

    `note(info)` is told each signal that arrives meanwhile.
    """
    pause_s, warned = _FIRST_PAUSE_S, False
    target = attempt.spool.record_path(attempt.entry["run"])
    while True:
        try:
            reservation.publish(target, record.encode(compose(attempt, facts)))
            if warned:
                warn("%s: the record is written now" % attempt.entry["run"])
            return None
        except FileNotFoundError as failure:
            trouble = failure
            _make_again(attempt.spool)
        except OSError as failure:
            trouble = failure
        if not warned:
            _take_earlier(note)
            warn("%s: cannot write the record to %s: %s; trying until it can be written "
                 "(kill -USR2 %d gives up this place)"
                 % (attempt.entry["run"], target, reason(trouble), os.getpid()))
            warned = True
        if _pause(pause_s, note, attempt.entry["run"], trouble):
            return give_up(attempt, compose(attempt, facts))
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


def _make_again(where):
    # Somebody removed the spool while the job ran: an outcome is worth more than a tidy file system.
    try:
        where.open()
    except Failure:
        pass                    # told by the next try


def _take_earlier(note):
    # A USR2 that is pending still was meant for the job: it gives no place up.
    info = signals.wait(signals.CATCHABLE, 0)
    while info is not None:
        note(info)
        info = signals.wait(signals.CATCHABLE, 0)


def _pause(pause_s, note, run, trouble):
    """Wait for `pause_s` seconds and all signals; True when USR2 came."""
    until = clock.boot_s() + pause_s
    while True:
        left = until - clock.boot_s()
        if left <= 0:
            return False
        info = signals.wait(signals.CATCHABLE, left)
        if info is None:
            continue
        note(info)
        if info.si_signo == signals.USR2:
            return True
        if info.si_signo in (signals.TERM, signals.INT, signals.QUIT, signals.HUP, signals.USR1):
            warn("%s: %s noted; the job has ended, its record cannot be written yet: %s "
                 "(kill -USR2 %d gives up this place)"
                 % (run, signals.name(info.si_signo), reason(trouble), os.getpid()))


def give_up(attempt, entry):
    """Put the record into the fallback directory and on standard error. Returns the path, "" when that failed too."""
    path, data = attempt.entry.get("fallback") or "", record.encode(entry)
    try:
        place.make_private(os.path.dirname(path))
        durable.replace(path, data)
    except (OSError, Failure) as failure:
        say("error", "%s: cannot write the record to %s either: %s" % (entry["run"], path, failure))
        path = ""
    if path:
        say("error", "%s: the record is not in its place but in %s, where mxq-collect finds it" % (entry["run"], path))
    cli.write(data)
    return path


def ending(status, why, time_killed):
    """How the caller sees a run end whose MAIN has this raw wait status: ("exit", status) or ("signal", number)."""
    if why == "time":
        return "exit", exits.SIGNALLED + signals.KILL if time_killed else exits.TIMEOUT
    code, number, _ = record.split_status(status)
    return ("exit", code) if number is None else ("signal", number)
