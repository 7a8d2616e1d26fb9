"""Processes seen from outside: references, the tree below a process, signals that never hit a stranger.

A bare pid names nobody, as pids are reused. A reference is host, boot id, pid and time namespace, pid and start
time in ticks (proc(5), /proc/PID/stat, field 22); a signal goes through a pidfd after the start time was
compared while the pidfd was open: from then on the pid cannot come to mean another process.

This is the home of /proc and of prctl(2). `_ctypes` is used where `ctypes` would cost 5 ms of start.
"""

import errno
import os

from mxqlib import signals

# Names (comm) by which nested runs are known; MAIN has its own until it is the command, or it would be taken for one.
REAPER, FRONT, MAIN = "mxq-reaper", "mxq-front", "mxq-main"
PAGE_B = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")
_PR_GET_DUMPABLE, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 3, 4, 36


def slurp(path):
    """All bytes of a file of /proc. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = more = os.read(fd, 65536)
        while len(more) > 4000:         # a list of children comes a page at a time
            more = os.read(fd, 65536)
            data += more
        return data
    finally:
        os.close(fd)


def _call(name, *arguments):
    try:
        from _ctypes import call_function, dlopen, dlsym
        return call_function(dlsym(dlopen(None, 0), name), arguments)
    except ImportError:
        from ctypes import CDLL
        return getattr(CDLL(None), name)(*arguments)


def _prctl(option, value):
    return _call("prctl", option, value, 0, 0, 0)


def prepare_for_forks():
    """Load now what become_subreaper() needs: each forked process would load it into memory of its own."""
    _prctl(_PR_GET_DUMPABLE, 0)


def become_subreaper():
    """Have orphaned descendants fall to this process (prctl(2), PR_SET_CHILD_SUBREAPER). Raises OSError."""
    if _prctl(_PR_SET_CHILD_SUBREAPER, 1) != 0:
        raise OSError("cannot become a child subreaper")


def forbid_core():
    """Let this process end by a signal without a core, whatever core_pattern says (core(5))."""
    _prctl(_PR_SET_DUMPABLE, 0)


def set_name(name):
    """Name this process in ps, top and /proc/PID/comm; no harm where that fails."""
    try:
        fd = os.open("/proc/self/comm", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.write(fd, name.encode("ascii"))
    except OSError:
        pass
    finally:
        os.close(fd)


# ---- who ----

class Process:
    """A process as /proc shows it at one instant: pid, ppid, pgrp, session, terminal (device number, 0: none),
    state (letter), comm, utime and stime (ticks; cutime and cstime of the children it waited for), threads, start
    (ticks since boot), rss (pages)."""

    __slots__ = ("pid", "ppid", "pgrp", "session", "terminal", "state", "comm", "utime", "stime", "cutime", "cstime",
                 "threads", "start", "rss")

    @property
    def has_ended(self):
        """True for a zombie; not where only the first thread has ended and others go on."""
        return self.state in "ZX" and self.threads < 2

    def same(self, other):
        """True when `other` is the same process, not only the same pid."""
        return other is not None and self.pid == other.pid and self.start == other.start


_outer = None       # in a pid namespace that /proc does not belong to: our pid -> the pid that /proc knows


def has_own_proc():
    """True when /proc shows the processes of our own pid namespace. Raises OSError when there is no /proc at all."""
    return os.readlink("/proc/self") == str(os.getpid())


def _entry(pid):
    if pid == os.getpid():
        return "/proc/self"
    if _outer is None:
        return "/proc/%d" % pid
    if pid not in _outer:
        _meet_descendants()
    return "/proc/%d" % _outer.get(pid, 0)


def check_proc():
    """Find out whose pids /proc shows. Raises OSError when there is no /proc at all.

    `unshare --pid` without --mount-proc leaves the outer /proc: pids there are translated by their
    NSpid line (proc(5), /proc/PID/status).
    """
    global _outer
    _outer = None if has_own_proc() else {}


def _inner(outer):
    try:
        lines = slurp("/proc/%d/status" % outer).split(b"\n")
    except OSError:
        return None
    for line in lines:
        if line.startswith(b"NSpid:"):
            pid = int(line.split()[-1])
            _outer[pid] = outer
            return pid
    return None


def _meet_descendants():
    queue = ["/proc/self"]
    while queue:
        for outer in _listed(queue.pop()):
            if _inner(outer) is not None:
                queue.append("/proc/%d" % outer)


def look(pid):
    """The Process with this pid, zombies included; None when there is none, or where it cannot be told just now.

    For those who can go on without knowing. Who takes None for an end asks read().
    """
    try:
        return read(pid)
    except OSError:
        return None


def read(pid):
    """The Process with this pid, zombies included; None when there is none, or only others may see it (proc(5)).

    Raises OSError where it cannot be told just now, for want of a descriptor or of memory: a process is not to be
    taken for gone, nor to get a reference that will name nobody, because of that.
    """
    try:
        data = slurp(_entry(pid) + "/stat")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # comm may hold anything, parentheses and blanks too: it ends at the last ")".
    head, _, tail = data.rpartition(b")")
    fields = tail.split()
    if len(fields) < 22:
        return None
    found = Process()
    found.pid = pid
    found.comm = head.partition(b"(")[2].decode("utf-8", "surrogateescape")
    found.state = fields[0].decode("ascii")
    found.ppid, found.pgrp, found.session, found.terminal = (int(field) for field in fields[1:5])
    found.utime, found.stime, found.cutime, found.cstime = map(int, fields[11:15])
    found.threads, found.start, found.rss = int(fields[17]), int(fields[19]), int(fields[21])
    if _outer is not None:
        found.ppid = None       # numbers of another namespace: not to be compared with ours
    return found


def environ_data(pid):
    """The environment that a process was started with, each variable ended by NUL. Raises OSError."""
    return slurp("/proc/%d/environ" % pid)


def own_environ():
    """The environment this program was started with, bytes to bytes.

    os.environb is not that: in the C locale (cron) Python adds LC_CTYPE=C.UTF-8 to it (PEP 538), and the job
    would get it. What execve(2) of Python refuses, a variable without a name, is left out.
    """
    try:
        data = slurp("/proc/self/environ")
    except OSError:
        return dict(os.environb)
    found = {}
    for entry in data.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if name and equals:
            found.setdefault(name, value)       # getenv(3) finds the first
    return found


def boot_id():
    """The kernel's random id of this boot."""
    return slurp("/proc/sys/kernel/random/boot_id").decode("ascii").strip()


def _namespace(kind):
    try:
        return int(os.readlink("/proc/self/ns/" + kind).partition("[")[2].rstrip("]"))
    except (OSError, ValueError):
        return None             # time namespaces came with Linux 5.6


_context = None


def context():
    """What all references made here share: host, boot, pidns, timens."""
    global _context
    if _context is None:
        _context = {"host": os.uname().nodename, "boot": boot_id(),
                    "pidns": _namespace("pid"), "timens": _namespace("time")}
    return _context


def reference(pid):
    """The reference of process `pid`; `start` is null when it has gone already. Raises OSError."""
    found = read(pid)
    return dict(context(), pid=pid, start=found.start if found else None)


def find(wanted):
    """The Process that a reference of this boot and these namespaces names; None when it has gone. Raises OSError."""
    found = read(wanted["pid"])
    return found if found is not None and found.start == wanted.get("start") else None


def hold(wanted):
    """A pidfd of the process that find() finds, checked while it was open; None when it has gone. Raises OSError."""
    fd = open_pidfd(wanted["pid"])
    if fd is not None and find(wanted) is None:
        os.close(fd)
        return None
    return fd


# ---- the tree ----

def children(pid):
    """Pids of the living and dead children of `pid`, by /proc/PID/task/*/children (CONFIG_PROC_CHILDREN)."""
    found = _listed(_entry(pid))
    if _outer is not None:
        found = [pid for pid in map(_inner, found) if pid is not None]
    return found


def _listed(entry):
    """The children of the process at /proc/PID, as /proc numbers them."""
    found = []
    try:
        threads = os.listdir(entry + "/task")
    except OSError:
        return found
    for thread in threads:
        try:
            found += [int(word) for word in slurp("%s/task/%s/children" % (entry, thread)).split()]
        except OSError:
            continue
    return found


def descendants(root, into=lambda process: True):
    """The living (not zombie) Processes below pid `root`; those below a process are left out where
    `into(process)` is false.

    A pid that was reused between listing and looking is not below us: its parent is neither the one it was listed
    under nor the subreaper, and it is skipped. What is forked meanwhile may be missed: callers ask again.
    """
    found, queue, me = [], [root], os.getpid()
    while queue:
        parent = queue.pop()
        for pid in children(parent):
            seen = look(pid)
            if seen is None or seen.has_ended:
                continue
            if seen.ppid is not None and seen.ppid not in (parent, root, me):
                continue
            found.append(seen)
            if into(seen):
                queue.append(pid)
    return found


def resident_b(processes):
    """Sum of the resident sizes of `processes` in bytes; shared pages count in each."""
    return sum(process.rss for process in processes) * PAGE_B


# ---- signals ----

def signal_fd(numbers):
    """A descriptor to poll(2) beside others: ready while one of `numbers`, which must be blocked, is pending
    (signalfd(2)); signals.wait() takes it. Raises OSError."""
    mask = bytearray(128)           # sigset_t of glibc; musl reads as much
    for number in numbers:
        mask[(number - 1) // 8] |= 1 << (number - 1) % 8
    fd = _call("signalfd", -1, bytes(mask), os.O_CLOEXEC | os.O_NONBLOCK)
    if fd < 0:
        raise OSError("cannot wait for signals by a descriptor")
    return fd


def open_pidfd(pid):
    """A pidfd (pidfd_open(2)) or None when there is no such process."""
    try:
        return os.pidfd_open(pid)
    except OSError as failure:
        # EINVAL, since Linux 6.16 ENOENT: the number is that of a thread. EINVAL before that as well for a process
        # that has gone and whose session or group lives on, as that of a reaper whose job runs on does.
        if failure.errno in (errno.ESRCH, errno.EINVAL, errno.ENOENT):
            return None
        raise


def send(target, number):
    """Send signal `number` to the process that `target` (a Process) was, never to one that has its pid by now.

    True when sent, False when it has gone or may not be signalled.
    """
    fd = None
    try:
        fd = open_pidfd(target.pid)
        if fd is None or not target.same(look(target.pid)):
            return False
        return send_pidfd(fd, number)
    except OSError:
        return False            # EMFILE: asked again in the next round
    finally:
        if fd is not None:
            os.close(fd)


def rouse(fd, pid, number):
    """As send_pidfd() to process `pid`; one that somebody stopped is continued first, as it would hear nothing."""
    found = look(pid)
    if found is not None and found.state == "T":
        send_pidfd(fd, signals.CONT)
    return send_pidfd(fd, number)


def send_pidfd(fd, number):
    """Send through a pidfd; False when the process has gone or may not be signalled."""
    try:
        signals.send_pidfd(fd, number)
        return True
    except (ProcessLookupError, PermissionError):
        return False
