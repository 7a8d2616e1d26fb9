"""One attempt at a job, from nothing to a job that runs under a durable record: steps 2 to 6 of a run.

The order is the promise. Room for the final record first: without it nothing starts. Then MAIN, held at a gate; then
the running record that names it, durable; then the gate opens. Before that instant the job cannot have run,
after it the record says that it may.
"""

import os
import sys

from mxqlib import child, cli, clock, durable, exits, process, record
from mxqlib.cli import error, reason, step
from mxqlib.reaper import Reaper
from mxqlib.wire import Teller

_REFERENCES_B = 2048        # what the references and the date add to a record that has none yet


class Attempt:
    """What is to be run and how.

    `entry` is the running record, completed here; `launch` a child.Launch; `spool` a spool.Spool; `grace_s` seconds
    from TERM to KILL; `linger`: wait for what MAIN leaves behind; `detached`: no terminal, no caller; `terminal`: there
    is a controlling terminal; `lock`: a lock.Lock to be let go once the record is durable, or None.
    """

    lock = None
    linger = detached = terminal = False
    grace_s = 10

    def __init__(self, entry, launch, where):
        self.entry, self.launch, self.spool = entry, launch, where
        self.report = os.memfd_create("mxq-report")


def serve(attempt, front, wire, extra):
    """Be the reaper of `attempt`; never returns.

    `front` is the pid of the process that is stopped and continued with MAIN, or None, `wire` the descriptor on which
    it is told what happens, `extra` the one on which it tells which signals it got, or None. All signals are blocked.
    """
    status = exits.BUG
    try:
        process.set_name(process.REAPER)
        status = _serve(attempt, front, wire, extra)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def _serve(attempt, front, fd, extra):
    wire, what, reservation = Teller(fd), "become the job's reaper", None
    try:
        front_fd = _open_front(front)
        process.become_subreaper()
        attempt.launch.limits = child.raise_limits()
        what = "reserve room for the record in %s" % attempt.spool.runs
        _make_log(attempt)
        reservation = attempt.spool.reserve(attempt.entry["run"], len(record.encode(attempt.entry)) + _REFERENCES_B)
        what = "start a process for the job"
        reaper = Reaper(attempt, wire.tell,
                        lambda number: front_fd is not None and process.send_pidfd(front_fd, number))
        gate = _fork_main(attempt, reaper, reservation, wire)
    except OSError as failure:          # a MAIN that was forked finds its gate closed when we exit
        error("cannot %s: %s" % (what, reason(failure)))
        if reservation is not None:
            reservation.drop()
        wire.tell("failed")
        return exits.FAILURE
    kept = [fd, extra, gate, attempt.report, front_fd, attempt.lock and attempt.lock.fd, reservation.fd]
    child.let_go([each for each in kept if each is not None], (0, 1, 2) if attempt.detached else (0, 1))
    if attempt.detached:
        cli.message_file = attempt.spool.output_path(attempt.entry["run"])
    if not _open_gate(attempt, reaper, reservation, wire, gate):
        return exits.FAILURE
    reaper.supervise()
    _hear(reaper, extra)
    path = reaper.record(reservation)
    step("%s: the outcome is safe" % attempt.entry["run"])
    wire.tell("recorded" if path is None else "kept " + path)
    return exits.OK if path is None else exits.IOERR


def _make_log(attempt):
    # Ours, so 0600 whatever the job's umask; MAIN opens it when it is the job's turn.
    path = attempt.spool.output_path(attempt.entry["run"])
    if path in (attempt.launch.stdout, attempt.launch.stderr):
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))


def _open_front(front):
    if front is None:
        return None
    # A pidfd, as the front may die and its pid come to mean another process.
    front_fd = process.open_pidfd(front)
    return front_fd if os.getppid() == front else None


def _fork_main(attempt, reaper, reservation, wire):
    """Fork MAIN, waiting at the gate, and leave its process group; return the end of the gate that opens it."""
    if attempt.detached:
        child.new_session()         # MAIN belongs to it too
    me = os.getpid()
    # Should front and reaper both die before the gate opens, MAIN alone knows that nothing was executed.
    attempt.launch.refused = lambda: withdraw(attempt.spool, attempt.entry["run"], me)
    outside, gate = os.pipe()
    reaper.maxrss_floor_kib = child.own_maxrss_kib()
    reaper.main = child.fork()
    if reaper.main == 0:
        os.close(gate)              # or the gate would never close when the reaper dies
        process.set_name(process.MAIN)
        os.close(reservation.fd)    # its lock says that the reaper lives
        if attempt.lock is not None:
            os.close(attempt.lock.fd)
        child.become(attempt.launch, outside, attempt.report)
    if attempt.terminal:
        child.new_group()
    elif not attempt.detached:
        child.new_session()         # so that MAIN's group stays as orphaned as it was (setpgid(2), NOTES)
    attempt.entry["main"] = process.reference(reaper.main)
    attempt.entry["reaper"] = process.reference(os.getpid())
    attempt.entry["date_start"] = clock.iso()
    wire.tell("main %d %s %s" % (reaper.main, attempt.entry["main"]["start"], attempt.entry["date_start"]))
    return gate


def _open_gate(attempt, reaper, reservation, wire, gate):
    """Write the running record and, once it is durable, let MAIN run. False when nothing was started."""
    try:
        attempt.spool.put(attempt.entry)
    except OSError as failure:
        error("cannot write the record to %s: %s" % (attempt.spool.runs, reason(failure)))
        os.close(gate)
        child.reap(reaper.main)
        withdraw(attempt.spool, attempt.entry["run"], os.getpid())
        wire.tell("failed")
        return False
    if attempt.lock is not None:
        attempt.lock.let_go()
    status = child.look_at(reaper.main)     # that MAIN was stopped is left for supervise() to see and to relay
    if status is not None:
        # A signal to the front was passed on to MAIN before the gate opened.
        withdraw(attempt.spool, attempt.entry["run"], os.getpid())
        text = child.read_report(attempt.report)[1]
        if text is not None:
            error(text)
        wire.tell("nothing %d" % (status & 0x7f))
        return False
    reaper.begin()
    step("%s: recorded, MAIN %d may run" % (attempt.entry["run"], reaper.main))
    wire.tell("gate %r" % reaper.started_s)
    try:
        os.write(gate, b"x")        # at this instant the job may run
    except BrokenPipeError:
        pass                        # MAIN died just now: its status tells
    os.close(gate)
    return True


def withdraw(where, run, reaper):
    """Nothing was executed: take back what reaper (a pid) has put into spool `where` for `run`.

    The record goes last: as long as it is there, mxq-adopt cleans up what is left.
    """
    durable.discard(os.path.join(where.runs, ".%s.json.%d" % (run, reaper)))
    durable.discard(where.embryo_path(run))
    durable.discard(where.record_path(run))


def _hear(reaper, extra):
    """Add the signals that the front received to those of the reaper."""
    if extra is None:
        return
    os.set_blocking(extra, False)
    try:
        heard = os.read(extra, 65536).decode("ascii")
    except BlockingIOError:
        return
    for line in heard.split("\n")[:-1]:
        number, pid, uid, date = line.split()
        reaper.keep_signal(int(number), "front", date, int(pid), int(uid))
