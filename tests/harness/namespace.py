"""A host within the host: process ids, mounts, network and name of its own, and no network interface but lo.

A real batch system runs in it on ports, files and users that nobody else has, and when it goes, every process in it
goes, whatever became of the test: its process 1 ends with our end of a pipe, and the kernel kills the rest
(pid_namespaces(7)).
"""

import subprocess

import pytest

from tests.harness import processes
from tests.harness.sandbox import SYSTEM_PATH, TREE

# "$@" is process 1: reaps orphans, waits for the end of the pipe. For AI_ADDRCONFIG of getaddrinfo(3) the address of a
# loopback interface is none; the second one is for documentation only (RFC 5737), so nobody's.
_START = "ip link set lo up && ip address add 192.0.2.1/32 dev lo && hostname %s && %s && echo ready && exec \"$@\""


class Namespace:
    """A running namespace. `mounts` says what is seen at a path (a str) instead of what is there (a path).

    A machine that does not let us make one has the test skipped.
    """

    def __init__(self, hostname="localhost", mounts=None):
        binds = ["mount --bind '%s' '%s'" % (source, target) for target, source in (mounts or {}).items()]
        self._outer = subprocess.Popen(
            ["unshare", "--net", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "--",
             "sh", "-c", _START % (hostname, " && ".join(binds) or ":"), "sh",
             "/usr/bin/env", "python3", "-IS", str(TREE / "tools" / "as-init.py"), "cat"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
            env={"PATH": SYSTEM_PATH}, cwd="/", start_new_session=True)
        if self._outer.stdout.readline() != "ready\n":
            self.close()
            pytest.skip("machine cannot: make namespaces: %s" % self._outer.stderr.read().strip())
        self._init = processes.children(self._outer.pid)[0]

    def command(self, *argv, cwd="/"):
        """The command line that runs `argv` in it, in the folder `cwd`, with the environment of the caller."""
        return ["nsenter", "--target=%d" % self._init, "--net", "--mount", "--uts", "--pid", "--",
                "env", "-C", str(cwd), *map(str, argv)]

    def run(self, *argv, env=None, input=None):
        """Run a command with nothing but PATH and `env` in its environment; a CompletedProcess, both outputs in one.

        What stays behind as a daemon must not keep the output open.
        """
        return subprocess.run(self.command(*argv), env=dict(env or {}, PATH=SYSTEM_PATH), input=input or "",
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", timeout=60,
                              check=False)

    def close(self):
        """End all of its processes."""
        self._outer.stdin.close()
        self._outer.wait(20)
        self._outer.stdout.close()
