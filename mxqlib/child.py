"""Children: fork, the gate, what a job's process does before it becomes the command, wait.

The one home of fork, exec and wait. A job's process (MAIN) waits at a gate, a pipe, until its record is durable; a
gate that closes unopened lets nothing run. What goes wrong before the exec is written to a memfd shared with front
and reaper, not into a pipe: whoever is left can read it, more than once, and reading never blocks.
"""

import os
import resource     # os.wait4 would import it after the kernel has reaped: too late to fail

from mxqlib import cli, exits, process, signals

_ENOEXEC, _ENOENT, _ENOTDIR, _EACCES = 8, 2, 20, 13     # errno(3) on Linux; the module is one more import
_SHELL = "/bin/sh"
_ABOUT = b"X"           # at the start of a report: all is ready for the exec
# A set: NOFILE and OFILE are one limit, and its soft value is gone when it is read a second time.
LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})


def fork():
    """fork(2); 0 in the child."""
    return os.fork()


# ---- limits ----

def raise_limits():
    """Raise all soft limits to the hard ones, FSIZE to no limit where we may; return what those were that changed.

    The reaper must be able to write a record of any size when the job's own files are limited.
    """
    before = {}
    for what in LIMITS:
        soft, hard = resource.getrlimit(what)
        if what == resource.RLIMIT_FSIZE and soft != resource.RLIM_INFINITY:
            try:
                resource.setrlimit(what, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                before[what] = soft, hard
                continue
            except (OSError, ValueError):
                pass
        if soft != hard:
            resource.setrlimit(what, (hard, hard))
            before[what] = soft, hard
    return before


def restore_limits(before):
    """Set the limits that raise_limits() changed back."""
    for what, limit in before.items():
        resource.setrlimit(what, limit)


# ---- usage ----

# The fields of a struct rusage without their prefix, in its order: seconds, KiB, counts (getrusage(2)).
USAGE = ("utime stime maxrss ixrss idrss isrss minflt majflt nswap "
         "inblock oublock msgsnd msgrcv nsignals nvcsw nivcsw").split()


def add_usage(total, used):
    """Add the struct rusage of a reaped child to `total`, a dict by field; of maxrss the largest counts.

    RUSAGE_CHILDREN would be less work, but a reaper that serves several runs has the children of them all there.
    """
    for name, value in zip(USAGE, used):
        total[name] = max(total[name], value) if name == "maxrss" else total[name] + value


def maxrss_floor_kib():
    """What ru_maxrss of any child is at least, in KiB: it is forked from this process and counts what that has used
    so far, and touches some more before the exec."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + 1024


# ---- wait ----

class Change:
    """What waitid(2) shows: pid, `status` (raw, as wait(2) gives it) when it has ended, else None and `stopped`."""

    __slots__ = ("pid", "status", "stopped")


def look():
    """A child that has ended, stopped or gone on, without reaping it; None when there is none now.

    Raises ChildProcessError when there are no children at all.
    """
    while True:
        info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WSTOPPED | os.WCONTINUED | os.WNOHANG | os.WNOWAIT)
        if info is None:
            return None
        change = Change()
        change.pid, change.status = info.si_pid, _raw(info)
        if change.status is None:
            info = _take_change(info.si_pid)
            if info is None:
                continue            # it has gone on or ended since
        change.stopped = info.si_code in (os.CLD_STOPPED, os.CLD_TRAPPED)
        return change


def _take_change(pid):
    # What is taken counts, not what was seen: a child that was stopped when looked at may be going on by now.
    try:
        return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WCONTINUED | os.WNOHANG)
    except ChildProcessError:
        return None


def look_at(pid):
    """The raw wait status of child `pid` when it has ended, without reaping it; None while it lives."""
    info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return None if info is None else _raw(info)


def _raw(info):
    if info.si_code == os.CLD_EXITED:
        return (info.si_status & 0xff) << 8
    if info.si_code in (os.CLD_KILLED, os.CLD_DUMPED):
        return info.si_status | (0x80 if info.si_code == os.CLD_DUMPED else 0)
    return None


def reap(pid):
    """Reap a child that has ended; return its struct rusage."""
    return os.wait4(pid, 0)[2]


def wait_for(pid):
    """Wait for the end of a child and reap it; return its raw wait status."""
    return os.waitpid(pid, 0)[1]


# ---- the job's process ----

class Launch:
    """What MAIN is to become: argv (str), environ (bytes to bytes), cwd, umask, stdin (path or None for the
    caller's), stdout, stderr (path, fd, or None), cpus, ignored (signals), limits, own_group; `refused()` is called in
    MAIN when the gate closes unopened."""

    stdin = stdout = stderr = cpus = limits = None
    ignored = ()
    own_group = False
    refused = None

    def __init__(self, argv, environ, cwd, umask):
        self.argv, self.environ, self.cwd, self.umask = argv, environ, cwd, umask


def become(launch, gate, report, first=lambda: None):
    """In the child: call `first()`, wait at the gate, then be the command. Never returns, so that nothing which fails
    here is taken for a failure of the parent's.

    `report` (a memfd) gets `STATUS text` when there is no command to be, `G` when the gate closed.
    """
    status = exits.FAILURE
    try:
        first()
        if launch.own_group:
            os.setpgid(0, 0)
        signals.restore_job(launch.ignored)
        if os.read(gate, 1):
            status = _prepare_and_exec(launch, report)
        else:
            os.write(report, b"G")
            if launch.refused is not None:
                launch.refused()
    except BaseException as failure:
        _tell(report, exits.FAILURE, "cannot start the command: %s" % failure)
    finally:
        os._exit(status)


def _prepare_and_exec(launch, report):
    what = "set the umask"
    try:
        os.umask(launch.umask)
        what = "change to directory %s" % launch.cwd
        os.chdir(launch.cwd)
        if launch.stdin is not None:
            what = "open %s" % launch.stdin
            _redirect(os.open(launch.stdin, os.O_RDONLY), 0)
        if launch.stdout is not None:
            what = "open %s" % launch.stdout
            _redirect(_open_output(launch.stdout), 1)
        if launch.stderr is not None:
            what = "open %s" % launch.stderr
            _redirect(1 if launch.stderr == launch.stdout else _open_output(launch.stderr), 2)
        if launch.cpus:
            what = "run on CPUs %s" % ",".join(map(str, launch.cpus))
            os.sched_setaffinity(0, launch.cpus)
        what = "restore limits"
        os.write(report, _ABOUT)        # before the job's limits, which may forbid it
        restore_limits(launch.limits or {})
    except (OSError, ValueError) as failure:
        return _tell(report, exits.FAILURE, "cannot %s: %s" % (what, getattr(failure, "strerror", None) or failure))
    failure = execute(launch.argv, launch.environ)
    raise_limits()                  # the job's own may forbid the report: XFSZ would be seen in the place of 127
    status = exits.NOTFOUND if failure.errno == _ENOENT else exits.NOEXEC
    return _tell(report, status, "cannot execute %s: %s" % (launch.argv[0], failure.strerror))


def _open_output(path):
    if path.__class__ is int:
        return path
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY, 0o666)


def _redirect(fd, to):
    if fd != to:
        os.dup2(fd, to)
    else:
        os.set_inheritable(to, True)


def _tell(report, status, text):
    os.write(report, ("%d %s" % (status, text)).encode("utf-8", "surrogateescape"))
    return status


def was_about_to(report):
    """True when MAIN came to the exec: one that died of a signal before is told from one that was executed."""
    return os.pread(report, 1, 0) == _ABOUT


def read_report(report):
    """(status, text) of what kept MAIN from the exec; (None, None) when nothing did; ("G", None): gate closed."""
    data = os.pread(report, os.fstat(report).st_size, 0)
    data = data[data.startswith(_ABOUT):].decode("utf-8", "surrogateescape")
    if data in ("", "G"):
        return data or None, None
    status, _, text = data.partition(" ")
    return int(status), text


def execute(argv, environ):
    """execvp(3): search PATH, hand a script without `#!` to the shell. Returns the OSError when nothing could be run.

    Of the directories tried, a permission problem is reported rather than the last "not found".
    """
    command = argv[0]
    if "/" in command:
        return _execute(command, argv, environ)
    search = environ.get(b"PATH", b"/bin:/usr/bin").decode("utf-8", "surrogateescape")
    failure = FileNotFoundError(_ENOENT, "No such file or directory")
    for folder in search.split(":") if command else ():
        error = _execute(os.path.join(folder or ".", command), argv, environ)
        if error.errno not in (_ENOENT, _ENOTDIR):
            failure = error
            if error.errno != _EACCES:
                break
    return failure


def _execute(path, argv, environ):
    try:
        os.execve(path, argv, environ)
    except OSError as failure:
        if failure.errno != _ENOEXEC:
            return failure
    try:
        os.execve(_SHELL, [_SHELL, path] + argv[1:], environ)
    except OSError as failure:
        return failure


# ---- sessions and groups ----

def new_session():
    """setsid(2); the caller is fresh from a fork, so it leads no group yet."""
    os.setsid()


def leads_session():
    """True when this process leads its session, and so its group too."""
    return os.getsid(0) == os.getpid()


def new_group():
    """Become the leader of a process group of our own."""
    os.setpgid(0, 0)


def leave_group(other=None):
    """Leave the process group we are in, for that of process `other` or one of our own. False when we cannot.

    A session leader cannot leave (setpgid(2)). A group leader cannot make a group of its own pid again: a
    short-lived child lends its pid for the new one.
    """
    if leads_session():
        return False
    if other is None and os.getpgrp() == os.getpid():
        return _borrow_group()
    try:
        os.setpgid(0, other or 0)
    except PermissionError:
        return leave_group()        # the group of `other` has gone meanwhile
    return True


def _borrow_group():
    held, ours = os.pipe()
    other = fork()
    if other == 0:
        os.close(ours)
        os.read(held, 1)            # returns when the parent has moved, or has died
        os._exit(0)
    try:
        os.setpgid(other, other)
        os.setpgid(0, other)
    finally:
        os.close(ours)
        os.close(held)
        os.waitpid(other, 0)
    return True


# ---- the end ----

def end_with(work):
    """Call work() in a forked child and end with the status it returns; a bug of ours shows its traceback. Never
    returns, whatever happens: two processes must not go on with the caller's work."""
    status = exits.BUG
    try:
        status = work()
    except BaseException:
        cli.show_bug()
    finally:
        os._exit(status)


def end_like(kind, number):
    """End this process as MAIN ended: ("exit", status) or ("signal", number), without a second core."""
    if kind == "signal":
        process.forbid_core()
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        signals.die(number)
        number += exits.SIGNALLED
    os._exit(number)


# ---- descriptors ----

def highest_fd():
    """The highest descriptor that is open."""
    return max(map(int, os.listdir("/proc/self/fd")))


def gaps(keep, highest):
    """The ranges for os.closerange() that leave 0-2 and `keep` of the descriptors up to `highest`."""
    kept = sorted(set(keep) | {0, 1, 2}) + [highest + 1]
    return [(low + 1, high) for low, high in zip(kept, kept[1:]) if high > low + 1]


def let_go(keep, standard=(0, 1)):
    """Close all descriptors but 0-2 and `keep`, have /dev/null on those of `standard`, and be in the root directory.

    So a pipe, a lock or a mount of the caller's is held by the job alone. It never fails, as nothing may that comes
    after a fork for which somebody waits: what cannot be closed for lack of descriptors is kept.
    """
    kept = sorted(set(keep) | {0, 1, 2})
    for low, high in zip(kept, kept[1:]):
        os.closerange(low + 1, high)
    try:
        # The last gap has no end that the limit would tell (it may have been lowered): ask which are open.
        for name in os.listdir("/proc/self/fd"):
            if int(name) > kept[-1]:
                os.closerange(int(name), int(name) + 1)     # the one that listdir had open is closed already
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for fd in standard:
            os.dup2(null, fd)
        os.close(null)
        os.chdir("/")
    except OSError:
        pass
