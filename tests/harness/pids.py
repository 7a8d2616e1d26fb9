"""A process with a pid of one's choice: makes the reuse of a pid happen, instead of waiting for it.

The kernel gives the number after /proc/sys/kernel/ns_last_pid to the next
process of the pid namespace (proc(5), pid_namespaces(7)); writing it needs
CAP_CHECKPOINT_RESTORE there. Others fork too, so it is tried until it worked.
"""

import os
import subprocess

import pytest

LAST_PID = "/proc/sys/kernel/ns_last_pid"


def require():
    """Skip the test, before it has started anything, where nobody can choose a pid."""
    if not os.access(LAST_PID, os.W_OK):
        pytest.skip("machine cannot: %s is not to be written" % LAST_PID)


def need():
    """Skip the test where nobody can choose a pid; to be called before anything is started."""
    try:
        with open(LAST_PID, "r+", encoding="ascii") as file:
            value = file.read()
            file.seek(0)
            file.write(value)
    except OSError:
        pytest.skip("machine cannot: %s is not to be written" % LAST_PID)


def take(pid, argv, tries=200, **spawn):
    """Start `argv` as process `pid`, which must be free, and return its Popen; skip the test where nobody can."""
    for _ in range(tries):
        try:
            with open(LAST_PID, "w", encoding="ascii") as file:
                file.write(str(pid - 1))
        except OSError:
            pytest.skip("machine cannot: %s is not to be written" % LAST_PID)
        process = subprocess.Popen(argv, **spawn)
        if process.pid == pid:
            return process
        process.kill()
        process.wait()
    raise AssertionError("pid %d was never free" % pid)


def start_ticks(pid):
    """Start time of a process since boot, in ticks, as text (field 22 of /proc/PID/stat)."""
    with open("/proc/%d/stat" % pid, encoding="utf-8", errors="surrogateescape") as file:
        return file.read().rpartition(")")[2].split()[19]
