"""as-init.py PROGRAM [ARGUMENT]...: run a program and reap whatever its descendants leave behind, then end as it did.

Tests make orphans by the thousand. They fall to process 1, and in a container that is often a program that
reaps late or never: zombies pile up, each pass over /proc slows down, and pids run out. This process
is a child subreaper (prctl(2)), so they fall to it. Signals of the terminal are left to the program.
"""

import ctypes
import os
import signal
import sys

PR_SET_CHILD_SUBREAPER = 36


def main(argv):
    """Run the program and return its status, 128 + n for signal n."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        print("as-init.py: warning: no child subreaper: %s" % os.strerror(ctypes.get_errno()), file=sys.stderr)
    program = os.posix_spawnp(argv[0], argv, os.environ)
    for signum in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(signum, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda signum, _frame: os.kill(program, signum))
    while True:
        pid, status = os.wait()
        if pid == program:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
