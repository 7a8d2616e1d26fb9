"""One attempt at a job, from nothing to a job that runs under a durable record: steps 2 to 6 of a run.

The order is the promise. Room for the final record first: without it nothing starts. Then MAIN, held at a gate; then
the running record that names it, durable; then the gate opens. Before that instant the job cannot have run,
after it the record says that it may.
"""

import os

from mxqlib import child, cli, clock, durable, exits, process, record
from mxqlib.cli import error, reason, step
from mxqlib.reaper import Reaper
from mxqlib.wire import Teller

_REFERENCES_B = 2048        # what the references and the date add to a record that has none yet


class Attempt:
    """What is to be run and how.

    `entry` is the running record, completed here; `launch` a child.Launch; `spool` a spool.Spool; `detached`: no
    terminal, no caller; `terminal`: there is a controlling terminal; `lock`: a lock.Lock to be let go once the record
    is durable, or None.
    """

    lock = None
    detached = terminal = False

    def __init__(self, entry, launch, where, report=None):
        self.entry, self.launch, self.spool = entry, launch, where
        self.report = os.memfd_create("mxq-report") if report is None else report

    @property
    def grace_s(self):
        """Seconds from TERM to KILL."""
        return self.entry["grace"]

    @property
    def linger(self):
        """Whether what MAIN leaves behind is waited for."""
        return self.entry["linger"]


def serve(attempt, front, wire, extra):
    """Be the reaper of `attempt`; never returns.

    `front` is the pid of the process that waits for this one and is stopped and continued with MAIN, `wire` the
    descriptor on which it is told what happens, `extra` the one on which it tells which signals it got. All signals are
    blocked.
    """
    child.end_with(lambda: _serve(attempt, front, wire, extra))


def _serve(attempt, front, wire, extra):
    tell = Teller(wire).tell
    attempt.launch.limits = become_reaper(tell)
    if attempt.launch.limits is None:
        return exits.FAILURE
    reaper = Reaper(attempt, tell)
    try:
        front_fd = _open_front(front)
    except OSError as failure:
        _fail(reaper.tell, "cannot watch the front: %s" % reason(failure))
        return exits.FAILURE
    kept = [wire, extra, attempt.report] + ([] if front_fd is None else [front_fd])
    standard = (0, 1, 2) if attempt.detached else (0, 1)
    if front_fd is not None:
        reaper.relay = lambda number: process.send_pidfd(front_fd, number)
    return go_through(reaper, lambda more: child.let_go(kept + more, standard), extra)


def become_reaper(tell):
    """Make this process fit to be a reaper, once. Returns the limits that its jobs are to have (see child.Launch), or
    None when that failed and was told."""
    process.set_name(process.REAPER)
    try:
        process.become_subreaper()
        return child.raise_limits()
    except OSError as failure:
        _fail(tell, "cannot become the job's reaper: %s" % reason(failure))
        return None


def go_through(reaper, let_go, extra=None, opened=lambda: None):
    """Run the attempt of `reaper` from the reservation to the durable outcome; returns the reaper's exit status.

    `let_go(descriptors)` is called once MAIN is forked: close all that is the caller's and not among these; `opened()`
    once the gate is open. `extra`: see serve().
    """
    attempt, reservation = reaper.attempt, None
    run, what = attempt.entry["run"], "reserve room for the record in %s" % attempt.spool.runs
    try:
        _make_log(attempt)
        reservation = attempt.spool.reserve_first(run, len(record.encode(attempt.entry)) + _REFERENCES_B)
        what = "start a process for the job"
        gate = _fork_main(attempt, reaper, reservation)
    except OSError as failure:          # a MAIN that was forked finds its gate closed when we exit
        if reservation is not None:
            reservation.drop()
        _fail(reaper.tell, "cannot %s: %s" % (what, reason(failure)))
        return exits.FAILURE
    let_go([gate, reservation.fd] + ([] if attempt.lock is None else [attempt.lock.fd]))
    if attempt.detached:
        cli.message_file = attempt.spool.output_path(run)
    if not _open_gate(attempt, reaper, gate):
        return exits.FAILURE
    opened()
    reaper.supervise()
    _hear(reaper, extra)
    path = reaper.record(reservation)
    step("%s: the outcome is safe" % run)
    reaper.tell("recorded" if path is None else "kept " + path)
    return exits.OK if path is None else exits.IOERR


def _fail(tell, text):
    error(text)
    tell("failed " + cli.printable(text))


def _make_log(attempt):
    # Ours, so 0600 whatever the job's umask; MAIN opens it when it is the job's turn.
    path = attempt.spool.output_path(attempt.entry["run"])
    if path in (attempt.launch.stdout, attempt.launch.stderr):
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))


def _open_front(front):
    # A pidfd, as the front may die and its pid come to mean another process.
    front_fd = process.open_pidfd(front)
    return front_fd if os.getppid() == front else None


def _fork_main(attempt, reaper, reservation):
    """Fork MAIN, waiting at the gate, and leave its process group; return the end of the gate that opens it."""
    if attempt.detached and not child.leads_session():
        child.new_session()         # MAIN belongs to it too
    me = os.getpid()
    # Should front and reaper both die before the gate opens, MAIN alone knows that nothing was executed.
    attempt.launch.refused = lambda: withdraw(attempt.spool, attempt.entry["run"], me)
    outside, gate = os.pipe()
    reaper.maxrss_floor_kib = child.maxrss_floor_kib()
    reaper.main = child.fork()
    if reaper.main == 0:
        # The gate would never close when the reaper dies; the locks say that the reaper lives.
        held = [gate, reservation.fd] + ([] if attempt.lock is None else [attempt.lock.fd])
        child.become(attempt.launch, outside, attempt.report, lambda: _be_main(held))
    if attempt.terminal:
        child.new_group()
    elif not attempt.detached:
        child.new_session()         # so that MAIN's group stays as orphaned as it was (setpgid(2), NOTES)
    attempt.entry["main"] = process.reference(reaper.main)
    attempt.entry["reaper"] = process.reference(os.getpid())
    attempt.entry["date_start"] = clock.iso()
    reaper.tell("main %d %s %s" % (reaper.main, attempt.entry["main"]["start"], attempt.entry["date_start"]))
    return gate


def _be_main(held):
    process.set_name(process.MAIN)
    for fd in held:
        try:
            os.close(fd)
        except OSError:
            pass                    # closed all the same: NFS tells here what was not written, and that is not ours


def _open_gate(attempt, reaper, gate):
    """Write the running record and, once it is durable, let MAIN run. False when nothing was started."""
    what = "write the record to %s" % attempt.spool.runs
    try:
        attempt.spool.put(attempt.entry)
        if attempt.lock is not None:
            what = "remove the lock %s" % attempt.lock.name
            attempt.lock.drop()         # one that is there and free says that the gate was not opened
    except OSError as failure:
        os.close(gate)
        child.reap(reaper.main)
        withdraw(attempt.spool, attempt.entry["run"], os.getpid())
        _fail(reaper.tell, "cannot %s: %s" % (what, reason(failure)))
        return False
    status = child.look_at(reaper.main)     # that MAIN was stopped is left for supervise() to see and to relay
    if status is not None:
        # A signal to the front was passed on to MAIN before the gate opened.
        withdraw(attempt.spool, attempt.entry["run"], os.getpid())
        text = child.read_report(attempt.report)[1]
        if text is not None:
            error(text)
        reaper.tell("nothing %d" % (status & 0x7f))
        return False
    reaper.begin()
    step("%s: recorded, MAIN %d may run" % (attempt.entry["run"], reaper.main))
    reaper.tell("gate %r" % reaper.started_s)
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
