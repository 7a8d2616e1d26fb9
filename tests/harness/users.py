"""An ordinary user's view of a sandbox, for tests that run as root.

    done = sandbox.run(*as_ordinary_user(sandbox), "mxq-reap", "true")
"""

import os

import pytest

from tests.harness.sandbox import BIN

# Nobody's on any machine, and another one in each process of the tests: RLIMIT_NPROC counts the user's processes.
UID = 54000 + os.getpid() % 10000


def hand_over(sandbox):
    """Give an ordinary user the sandbox and all that is in it."""
    for folder, folders, files in os.walk(sandbox.path):
        for name in [folder] + [os.path.join(folder, name) for name in folders + files]:
            os.chown(name, UID, UID, follow_symlinks=False)


def as_ordinary_user(sandbox):
    """The start of a command line that makes the rest run as one; the sandbox is handed over to it."""
    if os.geteuid() != 0:
        return []
    hand_over(sandbox)
    command = ["setpriv", "--reuid=%d" % UID, "--regid=%d" % UID, "--clear-groups"]
    if sandbox.run(*command, BIN / "mxq-reap", "--version").returncode:
        pytest.skip("machine cannot: ordinary users may not read this tree, or not its Python")
    return command
