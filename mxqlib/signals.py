"""Signals: masks, dispositions, the one wait, and ending by a signal.

The public module `signal` costs 5 to 10 ms of start because it makes enums; its C core has all that is
needed. Elsewhere numbers are plain ints and come from here.
"""

import os
import time

try:
    import _signal
except ImportError:             # another Python than CPython: slower, and right
    import signal as _signal

HUP, INT, QUIT, USR1, USR2, PIPE, ALRM, TERM, CHLD, CONT, STOP, TSTP, TTIN, TTOU, KILL, ABRT = (
    int(getattr(_signal, "SIG" + name)) for name in
    "HUP INT QUIT USR1 USR2 PIPE ALRM TERM CHLD CONT STOP TSTP TTIN TTOU KILL ABRT".split())
URG, XCPU, XFSZ, VTALRM, PROF, WINCH, IO, PWR = (
    int(getattr(_signal, "SIG" + name)) for name in "URG XCPU XFSZ VTALRM PROF WINCH IO PWR".split())
RTMIN, RTMAX = int(_signal.SIGRTMIN), int(_signal.SIGRTMAX)
_LAST = int(_signal.NSIG) - 1
_SI_KERNEL = 0x80               # siginfo: sent by the kernel (sigaction(2))
_LIBC_OWN = (32, 33)            # the C library neither blocks nor catches them for anybody (nptl(7))
_FAULTS = tuple(int(getattr(_signal, "SIG" + name)) for name in "SEGV BUS FPE ILL TRAP SYS".split())
# All that can be blocked and waited for. Faults are not: blocked, they would kill without a trace of where.
_before = None                  # what wait() returned last
CATCHABLE = [n for n in range(1, _LAST + 1) if n not in (KILL, STOP) + _LIBC_OWN + _FAULTS]


def name(number):
    """`TERM` for 15, `RTMIN+3` for real-time signals, the number itself for what has no name."""
    for key in dir(_signal):
        if key.startswith("SIG") and key[3:4] != "_" and getattr(_signal, key) == number \
                and key not in ("SIGIOT", "SIGCLD", "SIGPOLL", "SIGRTMIN", "SIGRTMAX"):
            return key[3:]
    if RTMIN <= number <= RTMAX:
        return "RTMIN+%d" % (number - RTMIN) if number > RTMIN else "RTMIN"
    return str(number)


def block(numbers):
    """Add `numbers` to this thread's mask; they stay pending until wait() takes them."""
    _signal.pthread_sigmask(_signal.SIG_BLOCK, numbers)


def unblock(numbers):
    """Take `numbers` out of this thread's mask."""
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, numbers)


def unblock_all():
    """Empty this thread's mask: exec passes the mask on (execve(2))."""
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())


def wait(numbers, timeout_s=None):
    """Take one pending signal of `numbers`, which must be blocked, or wait for one.

    Returns a siginfo (si_signo, si_pid, si_uid, si_code), or None when `timeout_s` seconds went by. None too for a
    signal of our own doing: a write of ours to a pipe that nobody reads raises PIPE, one beyond the file size limit
    XFSZ, and neither is anybody's message to the job. Without a limit it is asked again every day: the C call has
    no "for ever".
    """
    global _before
    limit_s = 86400 if timeout_s is None else max(0, min(timeout_s, 86400))
    until_s = time.monotonic() + limit_s
    info = _signal.sigtimedwait(numbers, limit_s)
    if info is None or info.si_pid == os.getpid():
        return None
    # Stopped while it waited, and continued when the time had gone by, Python (signalmodule.c, seen in 3.11) gives what
    # happens to be on the stack: no signal at all, or the one before once more.
    if info.si_signo not in numbers or (info == _before and limit_s and time.monotonic() >= until_s):
        return None
    _before = info
    return info


def is_from_terminal(info):
    """True for a signal that the terminal gave to its whole foreground group, not somebody to one process."""
    return info.si_code == _SI_KERNEL and info.si_signo in (INT, QUIT, TSTP, WINCH)


def ignore(number):
    """Set the disposition to "ignore"."""
    _signal.signal(number, _signal.SIG_IGN)


def restore_default(number):
    """Set the disposition to "default"."""
    _signal.signal(number, _signal.SIG_DFL)


def is_ignored(number):
    """True when the disposition is "ignore": the caller wanted it so (nohup, a background job of sh)."""
    return _signal.getsignal(number) is _signal.SIG_IGN


def inherited_ignores():
    """The signals that the caller ignores; PIPE and XFSZ not counted, as Python itself ignores these."""
    return [n for n in range(1, _LAST + 1)
            if n not in (PIPE, XFSZ, CHLD, KILL, STOP) and is_ignored(n)]


def restore_job(ignored):
    """The dispositions and the mask a job starts with: all default but `ignored`, and nothing blocked.

    CHLD, PIPE and XFSZ are default whatever the caller had: a job that inherits an ignored CHLD
    loses the statuses of its children (wait(2)).
    """
    for number in range(1, _LAST + 1):
        if number in (KILL, STOP) or number in ignored or not _changed(number):
            continue
        _signal.signal(number, _signal.SIG_DFL)
    unblock_all()


def _changed(number):
    return _signal.getsignal(number) not in (_signal.SIG_DFL, None)


def die(number):
    """End this process by signal `number`; return only where the signal cannot kill us (pid 1, KILL masked).

    The caller sees to it that no core is dumped.
    """
    try:
        _signal.signal(number, _signal.SIG_DFL)
    except OSError:
        pass                    # KILL and STOP have no disposition to set
    if number not in _LIBC_OWN:
        unblock([number])
    os.kill(os.getpid(), number)


def stop_self():
    """Stop this process until it gets CONT."""
    os.kill(os.getpid(), STOP)


def send_pidfd(fd, number):
    """pidfd_send_signal(2): raises ProcessLookupError, PermissionError."""
    _signal.pidfd_send_signal(fd, number)
