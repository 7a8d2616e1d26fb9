"""Processes that are not our children: do they live, how did they end, and who belongs to which run.

What cannot be known is never guessed: a process of another host, of a pid or time namespace that cannot be seen
from here, or one that /proc hides, is neither alive nor dead.

On Linux >= 6.15 a pidfd tells how its process ended, whoever was its parent, once that one has reaped it
(PIDFD_GET_INFO, include/uapi/linux/pidfd.h); before that, on any kernel, /proc/PID/stat does (proc(5), field 52).
"""

import fcntl
import os
import select

from mxqlib import clock, process

# What judge() says of a process reference.
LIVING = "living"
ENDED = "ended"             # not reaped yet by its parent
GONE = "gone"
EARLIER = "earlier"         # of an earlier boot of this host
ELSEWHERE = "elsewhere"     # of another host
HIDDEN = "hidden"           # cannot be told from here

_INITIAL_PIDNS = 0xEFFFFFFC     # PROC_PID_INIT_INO: whoever is in it sees the processes of all namespaces
_GET_INFO, _INFO_B = 0xC040FF0B, 64         # _IOWR(0xFF, 11, struct pidfd_info), first version of the struct
_INFO_EXIT = 1 << 3                         # PIDFD_INFO_EXIT, in its first 8 bytes; the status is in the last 4


# ---- one ----

def judge(reference):
    """Does the process of a reference live? One of the words above; HIDDEN may become certain by a Census."""
    here, pid = process.context(), reference["pid"]
    if reference.get("boot").__class__ is not str:
        return HIDDEN if reference["host"] == here["host"] else ELSEWHERE
    if reference["boot"] != here["boot"]:
        return EARLIER if reference["host"] == here["host"] else ELSEWHERE
    # The same boot is the same machine, whatever its name was then.
    if reference.get("pidns") != here["pidns"]:
        return HIDDEN
    if not 0 < pid < 1 << 31:
        return GONE
    found = process.look(pid)
    if found is None:
        return HIDDEN if _exists(pid) else GONE     # /proc mounted with hidepid, and another user's
    if reference.get("timens") != here["timens"]:
        return HIDDEN           # its start was measured by another clock
    if found.start != reference.get("start"):
        return GONE
    return ENDED if found.has_ended else LIVING


def _exists(pid):
    try:
        fd = process.open_pidfd(pid)
    except OSError:
        return True
    if fd is not None:
        os.close(fd)
    return fd is not None


def has_ended(fd):
    """True when the process of a pidfd has ended, reaped or not."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def reaped_status(fd):
    """The raw wait status of the process of a pidfd that was open when its parent reaped it; None before that, and
    where the kernel does not tell."""
    info = bytearray(_INFO_B)
    info[:8] = _INFO_EXIT.to_bytes(8, _ORDER)
    try:
        fcntl.ioctl(fd, _GET_INFO, info, True)
    except OSError:
        return None             # ENOTTY before Linux 6.13, ESRCH before 6.15
    if not int.from_bytes(info[:8], _ORDER) & _INFO_EXIT:
        return None
    return int.from_bytes(info[-4:], _ORDER) & 0xffff


_ORDER = "little" if memoryview(b"\1\0").cast("H")[0] == 1 else "big"


def zombie_status(pid, start):
    """The raw wait status of a process that has ended and was not reaped yet; None when it was, or may not be seen."""
    try:
        # The field is 0 for those who may not trace the process: this link has the same condition (ptrace(2)).
        os.readlink("/proc/%d/ns/pid" % pid)
        fields = process.slurp("/proc/%d/stat" % pid).rpartition(b")")[2].split()
    except OSError:
        return None
    if fields[0] not in b"ZX" or int(fields[17]) > 1 or int(fields[19]) != start:
        return None
    return int(fields[49]) & 0xffff


def peak_kib(pid):
    """Largest resident size so far of a living process in KiB (VmHWM); None when it cannot be told."""
    value = _status_line(pid, b"VmHWM:")
    return int(value[0]) if value else None


def _status_line(pid, name):
    try:
        for line in process.slurp("/proc/%d/status" % pid).split(b"\n"):
            if line.startswith(name):
                return line.split()[1:]
    except OSError:
        pass
    return None


def outputs(pid):
    """The paths of the files that are standard output and error of a process, as far as they can be seen."""
    found = set()
    for fd in (1, 2):
        try:
            found.add(os.readlink("/proc/%d/fd/%d" % (pid, fd)))
        except OSError:
            pass
    return found


def marks_in_environ(pid):
    """(MXQ_RUN, MXQ_DIR) of the environment that a process was started with; None for what is not there, or not ours
    to see."""
    try:
        data = b"\0" + process.environ_data(pid)
    except OSError:
        return None, None
    return _value(data, b"\0MXQ_RUN="), _value(data, b"\0MXQ_DIR=")


def _value(data, name):
    at = data.find(name)
    return None if at < 0 else data[at + len(name):].partition(b"\0")[0].decode("utf-8", "surrogateescape")


# ---- all ----

class Census:
    """One pass over /proc: `processes` maps pids to the living Processes, `runs` ids of runs to the pids of those that
    have them in their environment, `run_of` the other way round.

    Ids like `17.1` are of one queue, and every base directory may have one: `base` is ours. A process of the run `17.1`
    of another is listed under a name that no run of ours has.

    `since`: environments of processes that started before (ticks) are not looked at. `known`: a dict that keeps what
    was read for the next pass. `nested`: look into the pid namespaces below ours too. What is forked meanwhile may be
    missed: callers ask again.
    """

    def __init__(self, base, since=0, known=None, nested=False):
        self._base, self._known = os.path.realpath(base), {} if known is None else known
        self._settled = (clock.boot_s() - 1) * process.TICKS
        self.processes, self.runs, self.run_of = {}, {}, {}
        self._namespaces = set() if nested else None    # those below ours that somebody lives in
        self._inner, self._dark = set(), set()
        for name in os.listdir("/proc"):
            if name.isdigit():
                self._meet(int(name), since)

    def _meet(self, pid, since):
        # First who it is, then whose: should the pid be reused in between, the one named has gone.
        seen = process.read(pid)
        if seen is None or seen.has_ended:
            return
        self.processes[pid] = seen
        if seen.start >= since:
            who = pid, seen.start
            run = self._known[who] if who in self._known else self._name(*marks_in_environ(pid))
            if run is not None or seen.start < self._settled:
                self._known[who] = run      # one that is just being executed may show nothing yet
            if run is not None:
                self.run_of[pid] = run
                self.runs.setdefault(run, []).append(pid)
        if self._namespaces is not None:
            self._look_inside(seen)

    def _name(self, run, folder):
        if run is None or "-" in run:
            return run              # with date, host and pid in it, it is nobody else's
        return run if folder and os.path.realpath(folder) == self._base else "%s of %s" % (run, folder)

    def _look_inside(self, seen):
        numbers = _status_line(seen.pid, b"NSpid:") or ()
        if len(numbers) < 2:
            return
        inner = int(numbers[-1])
        try:
            where = os.readlink("/proc/%d/ns/pid" % seen.pid)
        except OSError:
            self._dark.add((inner, seen.start))         # somebody else's
            return
        where = int(where.partition("[")[2].rstrip("]"))
        self._namespaces.add(where)
        self._inner.add((where, inner, seen.start))

    def judge(self, reference):
        """As judge(), where that said HIDDEN: a namespace below ours can be seen from here, and its end too."""
        here, pid, start = process.context(), reference["pid"], reference.get("start")
        if self._namespaces is None or reference.get("boot") != here["boot"] \
                or reference.get("timens") != here["timens"] or reference.get("pidns") == here["pidns"]:
            return HIDDEN
        if (reference.get("pidns"), pid, start) in self._inner:
            return LIVING
        if (pid, start) in self._dark:
            return HIDDEN
        if reference.get("pidns") in self._namespaces:
            return GONE
        # Nobody lives there. Below the initial namespace it would be seen if somebody did, unless /proc hides others.
        return GONE if here["pidns"] == _INITIAL_PIDNS and process.look(1) is not None else HIDDEN

    def has_namespace(self, reference):
        """True when somebody lives in the pid namespace of a reference."""
        return reference.get("pidns") in (self._namespaces or ())
