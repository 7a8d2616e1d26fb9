"""What /proc tells about processes, for tests that watch them."""

import signal


def status(pid, field):
    """One field of /proc/PID/status as text; None when the process has gone."""
    try:
        with open("/proc/%s/status" % pid, encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name == field:
                    return value.strip()
    except OSError:
        return None
    return None


def stat(pid):
    """Fields of /proc/PID/stat from the state on (proc(5)); None when the process has gone."""
    try:
        with open("/proc/%d/stat" % pid, encoding="utf-8", errors="surrogateescape") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return None


def state(pid):
    """The letter of its state; None when it has gone."""
    fields = stat(pid)
    return fields and fields[0]


def is_alive(pid):
    """True while it is there and no zombie."""
    return state(pid) not in (None, "Z", "X")


def group(pid):
    """Its process group; None when it has gone."""
    fields = stat(pid)
    return fields and int(fields[2])


def comm(pid):
    """Its name; None when it has gone."""
    return status(pid, "Name")


def children(pid):
    """The pids of its living children, those of its first thread."""
    try:
        with open("/proc/%d/task/%d/children" % (pid, pid), encoding="ascii") as file:
            return [child for child in map(int, file.read().split()) if is_alive(child)]
    except OSError:
        return []


def ignored_mask(numbers):
    """The bits of those of `numbers` that this process ignores (SigIgn)."""
    wanted = sum(1 << number - 1 for number in numbers)
    return int(status("self", "SigIgn"), 16) & wanted


# The signals whose default is to end a process (signal(7)). What posix_spawn(3) of the GNU C library leaves ignored
# of its own two is left out: nobody dies of it.
ENDING = [number for number in range(1, signal.NSIG) if number not in (
    signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN,
    signal.SIGTTOU) and not (number in (32, 33) and ignored_mask((number,)))]
CORE = [signal.SIGQUIT, signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV,
        signal.SIGXCPU, signal.SIGXFSZ, signal.SIGSYS]
