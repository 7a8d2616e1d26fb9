"""The crew of one mxq-run: forked reapers, one job each at a time, and what they tell.

A reaper is forked, never executed, and takes the next job when it has done one: starting a process is most of what a
short job costs. All are detached and outlive mxq-run: one whose link to it has closed leaves after its run.

A signal that is meant for a run must not meet the next one. Who signals a reaper holds a shared lock on the running
record meanwhile (lock.hold_running); the reaper goes on only when it gets that file's exclusive lock, and what
was sent until then it drops.
"""

import gc
import marshal
import os
import select
import socket

from mxqlib import attempt as steps
from mxqlib import child, cli, clock, durable, exits, lock, place, process, record, request, signals, watcher
from mxqlib.reaper import Reaper
from mxqlib.spool import Spool
from mxqlib.wire import Listener, Teller

_PLAIN = ("HOME", "LOGNAME", "USER", "SHELL", "PATH")
_ON_ITS_WAY_S = 0.05
IDLE = "idle"           # told beside the lines of wire: the reaper waits for a job


class Member:
    """A reaper: its `pid`, what it `told`, the `entry` of the run it has, or None; of that run the memfd `report` and
    the name of its `lock`."""

    __slots__ = ("pid", "told", "link", "entry", "report", "lock")

    def let_go(self):
        """Close what belongs to the run."""
        if self.report is not None:
            os.close(self.report)
        self.entry = self.report = None
        self.told.forget(IDLE)


class Watch:
    """A run whose reaper died: its `entry`, the pid of its `main`, a child of ours, or None, what the watcher `told`,
    and the dead `member`."""

    __slots__ = ("entry", "main", "told", "member")


class Crew:
    """The reapers of this process; `front`: the process reference that their records name as front, or None."""

    def __init__(self, where, base, front):
        self.spool, self.base, self.front = where, base, front
        self.user = request.user_name()
        self.members = {}           # pid -> Member
        self.watched = {}           # pid of a watcher -> Watch
        self.errand = None          # pid of a command that was sent()
        gc.disable()                # a collection in a child would copy what is shared
        process.prepare_for_forks()

    @property
    def busy(self):
        """How many runs there are."""
        return len(self.watched) + sum(member.entry is not None for member in self.members.values())

    @property
    def starting(self):
        """True while a reaper has not told yet whether its run may begin."""
        return any(member.entry is not None and member.told.started_s is None for member in self.members.values())

    # ---- start ----

    def start(self, job, environment, held):
        """Hand claimed `job` (see jobqueue.jobs.claim) and the lock `held` to a reaper. Raises OSError."""
        entry = self._entry(job)
        blob, report = os.memfd_create("mxq-job"), None
        try:
            report = os.memfd_create("mxq-report")
            durable.write_all(blob, marshal.dumps((entry, job["argv"], _environ(environment), held.name)))
            member = self._send([blob, report, held.fd])
        except OSError:
            _close(report)
            raise
        finally:
            _close(blob)
        _close(held.fd)             # the reaper's copy holds it now
        member.entry, member.report, member.lock = entry, report, held.name
        member.told.forget()
        return member

    def _send(self, descriptors):
        """The Member that got a job; one that died while it waited is passed over."""
        while True:
            member = self._idle() or self._fork()
            try:
                socket.send_fds(member.link, [b"j"], descriptors)
                return member
            except BrokenPipeError:
                member.told.over = True

    def _idle(self):
        """A Member that waits for a job, or None. One on its way there is waited for: it costs less than a fork."""
        for member in self.members.values():
            if member.entry is None:
                end_s = clock.boot_s() + _ON_ITS_WAY_S
                while not (IDLE in member.told.facts or member.told.over) and clock.boot_s() < end_s:
                    select.select([member.told.fd], [], [], _ON_ITS_WAY_S)
                    member.told.listen()
                if IDLE in member.told.facts and not member.told.over:
                    return member
        return None

    def prepare(self, count):
        """Fork `count` reapers that wait for jobs. Before the database is imported, as they are smaller then: what a
        job costs is to a good part the copying of pages."""
        for _ in range(count):
            self._fork()

    def _fork(self):
        link, theirs = socket.socketpair()
        wire, told = os.pipe()
        pid = child.fork()
        if pid == 0:
            child.end_with(lambda: _work(theirs, told, self.spool.path, self.base))
        _close(theirs.detach())
        _close(told)
        member = Member()
        member.pid, member.told, member.link = pid, Listener(wire), link
        member.entry = member.report = None
        self.members[pid] = member
        return member

    def _entry(self, job):
        host = process.context()["host"]
        entry = {"format": 1, "state": "running", "run": job["run"], "job": job["job"], "attempt": job["attempt"],
                 "name": job["name"], "group": job["group"], "user": self.user, "uid": os.geteuid(),
                 "gid": os.getegid(), "host": host, "reaper": None, "front": self.front, "main": None,
                 "argv": job["argv"], "cwd": job["cwd"], "umask": job["umask"], "stdout": None, "stderr": None,
                 "threads": job["threads"], "memory": job["memory"], "cpus": job["cpus"], "runtime": job["runtime"],
                 "priority": job["priority"], "restart": job["restart"], "grace": request.GRACE_S, "linger": False,
                 "date_submit": job["date_submit"], "date_start": None,
                 "fallback": os.path.join(place.fallback(), job["run"] + ".json"),
                 "deliveries": job["deliveries"], "outer": None}
        entry["stdout"] = request.fill_in(job["stdout"], entry) or self.spool.output_path(job["run"])
        entry["stderr"] = request.fill_in(job["stderr"], entry) or entry["stdout"]
        return entry

    # ---- what they tell ----

    def listen(self):
        """The Members whose run is over, as they told; each is let_go() by the caller."""
        over = []
        for member in self.members.values():
            member.told.listen()
            if member.entry is not None and member.told.last is not None:
                over.append(member)
        return over

    def reap(self):
        """(entry, Member) of runs whose reaper died before it told the end, or whose watcher has ended since.

        To be called again until it returns none: each is dealt with before another child is reaped, which may
        be its MAIN.
        """
        ended = []
        while True:
            try:
                change = child.look()
            except ChildProcessError:
                return ended
            if change is None:
                return ended
            if change.pid in self._mains():
                # The MAIN of a dead reaper: its status is for the watcher that takes over. Until that is done MAIN
                # stays as it is, and hides who comes after it.
                break
            if change.status is not None:
                self._reap_one(change.pid, ended)
                if ended:
                    return ended
        for pid in list(self.members) + list(self.watched):
            if child.look_at(pid) is not None:
                self._reap_one(pid, ended)
                if ended:
                    break
        return ended

    def _mains(self):
        """Pids of what is, or may become, a MAIN that falls to us. Told before the gate opens, so heard in time."""
        for member in self.members.values():
            member.told.listen()
        return {member.told.main.pid for member in self.members.values() if member.told.main is not None} | {
            watch.main for watch in self.watched.values()}

    def _reap_one(self, pid, ended):
        child.reap(pid)
        if pid == self.errand:
            self.errand = None
        member, watch = self.members.pop(pid, None), self.watched.pop(pid, None)
        if member is not None:
            member.told.listen()
            member.link.close()
            os.close(member.told.fd)
            if member.entry is not None:
                ended.append((member.entry, member))
        if watch is not None:
            os.close(watch.told)
            ended.append((watch.entry, watch.member))   # MAIN is reaped next, unless a watcher is needed again

    def is_watched(self, member):
        """True while a watcher goes on in the place of a dead Member, which is not to be let go then."""
        return any(watch.member is member for watch in self.watched.values())

    def take_over(self, run, member):
        """Put a watcher in the place of the dead reaper (or watcher) of `run`, whose MAIN fell to us, unless the reaper
        had reaped it; what that told counts.

        False when there is no running record any more. Raises OSError.
        """
        try:
            entry = self.spool.load(run + ".json")
        except record.Damaged:
            return False            # mxq-collect says what it is
        if entry is None or entry["state"] != record.RUNNING:
            return False
        fd = process.hold(entry["main"])
        successor = watcher.Watcher(watcher.Orphan(entry, self.spool, self.base), fd)
        successor.inherit(member.told, member.report)
        successor.prepare()
        told, (pid,) = watcher.fork_all([successor])
        watch = Watch()
        watch.entry, watch.member, watch.told = entry, member, told
        watch.main = None if fd is None else entry["main"]["pid"]
        self.watched[pid] = watch
        return True

    def signal(self, number):
        """Send `number` to all reapers that have a run. They are our children and not reaped: the pids are theirs."""
        pids = [pid for pid, member in self.members.items() if member.entry is not None]
        for pid in pids + list(self.watched):
            found = process.look(pid)
            if found is not None:
                process.send(found, number)

    def send(self, argv):
        """Start a command of ours beside the reapers; `errand` is its pid until it has ended. Raises OSError."""
        pid = child.fork()
        if pid == 0:
            child.end_with(lambda: _execute(argv))
        self.errand = pid

    def dismiss(self):
        """Let the reapers go: those without a run end now, the others after theirs."""
        for member in self.members.values():
            member.link.close()
        while any(member.entry is None for member in self.members.values()):
            signals.wait((signals.CHLD, signals.IO), 1)
            self.listen()
            self.reap()


def _close(fd):
    """Close a descriptor that is not needed any more (or None). A reaper that has its job has it, whatever is said."""
    try:
        if fd is not None:
            os.close(fd)
    except OSError:
        pass                        # closed all the same (close(2))


def _execute(argv):
    signals.restore_job(())
    # `--record -` is the standard output of an mxq-collect that somebody reads, not ours, which may lead nowhere.
    os.close(1)
    failure = child.execute(argv, dict(os.environb))
    cli.warn("cannot run %s: %s; what is owed waits for the next mxq-collect" % (argv[0], cli.reason(failure)))
    return exits.UNAVAILABLE


# ---- the reaper's side ----

def _work(link, told, spool_path, base):
    """Serve one run after the other until the link closes or something is left that forbids to go on."""
    wire, spool, limits = Teller(told), Spool(spool_path), None
    child.new_session()
    child.let_go([link.fileno(), told], (0, 1, 2))
    while True:
        wire.tell(IDLE)
        attempt = _receive(link, spool, base)
        if attempt is None:
            return 0
        if limits is None:          # not before there is a run to which it can be told that this failed
            limits = steps.become_reaper(wire.tell)
            if limits is None:
                return exits.FAILURE
        attempt.launch.limits = limits
        reaper = Reaper(attempt, wire.tell)
        held = []
        status = steps.go_through(reaper, lambda kept: None, opened=lambda: held.append(_hold(attempt)))
        os.close(attempt.report)
        if status != 0 or reaper.survivors or held[0] is None or not _may_go_on(held[0]):
            return status


def _receive(link, spool, base):
    """The next Attempt, or None when nobody will send one any more."""
    word, fds, _, _ = socket.recv_fds(link, 1, 3)
    if not word:
        return None
    blob, report, lock_fd = fds
    entry, argv, environ, lock_name = marshal.loads(os.pread(blob, os.fstat(blob).st_size, 0))
    os.close(blob)
    for fd in (report, lock_fd):
        os.set_inheritable(fd, False)
    launch = child.Launch(argv, request.environ(environ, entry, base), entry["cwd"], entry["umask"])
    launch.cpus, launch.stdin, launch.own_group = entry["cpus"], os.devnull, True
    launch.stdout, launch.stderr = entry["stdout"], entry["stderr"]
    attempt = steps.Attempt(entry, launch, spool, report)
    cli.message_file = spool.output_path(entry["run"])
    attempt.detached, attempt.lock = True, lock.Lock(place.runners(base), lock_name, lock_fd)
    return attempt


def _hold(attempt):
    # The running record itself, before the outcome takes its name. The job runs: without it there is no next run.
    try:
        return os.open(attempt.spool.record_path(attempt.entry["run"]), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _may_go_on(held):
    """True when nobody is about to signal us for the run that is over; what was sent for it is dropped."""
    try:
        if not lock.try_exclusive(held):
            return False
        while signals.wait(signals.CATCHABLE, 0) is not None:
            pass
        return True
    finally:
        os.close(held)


def _environ(content):
    """The environment as bytes to bytes: `content` is NAME=VALUE, each ended by NUL; None: only what login gives."""
    if content is None:
        return {name.encode(): os.fsencode(os.environ[name]) for name in _PLAIN if name in os.environ}
    pairs = (field.partition(b"=") for field in content.split(b"\0") if field)
    return {name: value for name, _, value in pairs}
