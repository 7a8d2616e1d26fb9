"""Machines that a test can cut the power of: Linux in a process (user-mode Linux), with its own disk, network, clock.

    machine = Machine(sandbox, "node1", disk=make_disk(sandbox, "node1.img"))
    machine.boot()                      # 3 s
    done = machine.run("mxq-sub", "true", check=True)
    machine.cut_power()                 # SIGKILL to the kernel: what was not on its disk is gone
    machine.boot()

The root file system is that of this machine, read-only (hostfs): nothing is installed or copied, and mxq-* are those
of the sandbox. The disk is an image of ext4, mounted on /mnt/disk; the folder of the sandbox is on /mnt/host, in both
directions. A program in the machine that writes a line to /dev/ttyS1 says it to us: it is in `words` whatever becomes
of the machine later. The first process in there is guest.sh, and agent.py runs what run() and spawn() ask for.

What a power cut loses: everything in the guest's page cache. What a kernel has given to its disk is kept, in the order
given, so a disk that forgets its own cache is not what is tested. /mnt/disk is mounted so that little is saved by luck:
no early allocation at a rename, and five minutes between commits that nobody asked for. But any fsync commits the names
of all files: a directory that was not synced is for powerloss.py to find.

Wires: `wire()` makes the two ends of a cable, each for one machine's `wires`; inside they are vec0, vec1, ...
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import zlib

from tests.harness.sandbox import SYSTEM_PATH, TREE

KERNEL = "linux.uml"
PROGRAMS = (KERNEL, "mkfs.ext4", "ip", "stty")
DISK, HOST = "/mnt/disk", "/mnt/host"
BOOT_S = 90


class PowerCut(Exception):
    """The machine lost its power, or fell over, before the command had ended."""


def make_disk(sandbox, name, size_mib=96):
    """The path of an empty image of ext4 in the sandbox."""
    path = sandbox.path / name
    with open(path, "wb") as image:
        image.truncate(size_mib << 20)
    subprocess.run(["mkfs.ext4", "-q", "-E", "lazy_itable_init=0", path], check=True, env={"PATH": SYSTEM_PATH})
    return path


def wire():
    """Two ends of an Ethernet cable: sockets that keep frames apart. Close them when the machines have ended."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)


class Machine:
    """One machine: `host` is its name, `disk` an image from make_disk or None, `wires` ends from wire().

    `modules` are loaded at boot. `env` is the environment of what runs in it. `words` are the lines that programs in
    there have written to /dev/ttyS1, of all boots.
    """

    def __init__(self, sandbox, host, disk=None, wires=(), modules=(), memory_mib=192):
        self.sandbox, self.host, self.disk, self.wires = sandbox, host, disk, tuple(wires)
        self.modules, self.memory_mib = tuple(modules), memory_mib
        self.env = dict(sandbox.env, MXQ_DIR=DISK + "/mxq", MXQ_FALLBACK=DISK + "/fallback", HOME="/root")
        self.words, self.boots = [], 0
        self._kernel, self._line, self._threads = None, None, []
        self._commands, self._changed = {}, threading.Condition()
        self._is_on = self._is_ready = False

    # ---- power ----

    def boot(self):
        """Switch it on, and wait until it runs commands."""
        assert not self._is_on, "%s is on" % self.host
        ends, guests = zip(*(socket.socketpair() for _ in range(2)))
        words = ["mem=%dM" % self.memory_mib, "rootfstype=hostfs", "rootflags=/", "ro", "quiet",
                 "init=%s" % (TREE / "tests/harness/guest.sh"), "con=null", "con0=null,fd:2"]
        words += ["ssl%d=fd:%d" % (number, guest.fileno()) for number, guest in enumerate(guests)]
        words += ["vec%d:transport=fd,fd=%d,vec=0,depth=32,mac=%s" % (number, end.fileno(), self._address(number))
                  for number, end in enumerate(self.wires)]
        words += ["ubd0=%s" % self.disk] if self.disk else []
        # The rest is the environment of guest.sh.
        words += ["GUEST_HOST=%s" % self.host, "GUEST_FOLDER=%s" % self.sandbox.path,
                  "GUEST_PYTHON=%s" % sys.executable, "GUEST_MODULES=%s" % ",".join(self.modules)]
        self.boots += 1
        self._is_on, self._is_ready, self._commands = True, False, {}
        with open(self.sandbox.path / ("%s.console" % self.host), "ab") as console:
            self._kernel = self.sandbox.spawn(
                KERNEL, *words, text=False, new_session=True, stdout=subprocess.DEVNULL, stderr=console,
                pass_fds=[end.fileno() for end in guests + self.wires])
        for guest in guests:
            guest.close()
        self._line = ends[0]
        self._threads = [threading.Thread(target=self._listen, args=(end, hear), daemon=True)
                         for end, hear in zip(ends, (self._hear_agent, self._hear_word))]
        for thread in self._threads:
            thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._is_ready or not self._is_on, BOOT_S)
        assert self._is_ready, "%s does not boot, see %s.console" % (self.host, self.sandbox.path / self.host)

    def _address(self, number):
        # The same at each boot: neighbours would not know a new one for a while.
        name = zlib.crc32(self.host.encode()).to_bytes(4, "big")
        return ":".join("%02x" % byte for byte in (2, number, *name))

    def cut_power(self):
        """SIGKILL to its kernel, and wait until nothing of it is left; what it had said until then is in `words`."""
        # Its leader is our child and not reaped: the number means this group and no other.
        try:
            os.killpg(self._kernel.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._end()

    def shut_down(self):
        """Sync, switch off, and wait for it."""
        self._send({"off": True})
        self._end()

    def _end(self):
        self._kernel.wait(60)
        # The lines end when the last process that has the other end has gone.
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "something of %s runs on" % self.host

    # ---- commands ----

    def run(self, *argv, check=False, timeout_s=60, **kw):
        """Run a command in it: a CompletedProcess. Raises PowerCut when the machine ends before the command."""
        done = self.spawn(*argv, **kw).wait(timeout_s)
        if check:
            assert done.returncode == 0, "%s: %r: status %s\nstdout: %s\nstderr: %s" % (
                self.host, argv, done.returncode, done.stdout, done.stderr)
        return done

    def spawn(self, *argv, input="", env=None, cwd="/"):
        """Start a command in it: a Command. `env` holds changes; None removes."""
        environment = dict(self.env, **(env or {}))
        with self._changed:
            if not self._is_on:
                raise PowerCut(self.host)
            command = Command(self, [os.fspath(word) for word in argv], len(self._commands))
            self._commands[command.number] = command
        self._send({"number": command.number, "argv": command.argv, "input": input, "cwd": cwd,
                    "env": {name: os.fspath(value) for name, value in environment.items() if value is not None}})
        return command

    def _send(self, order):
        try:
            self._line.sendall(json.dumps(order).encode("ascii") + b"\n")
        except OSError:
            raise PowerCut(self.host) from None

    # ---- what it says ----

    def _listen(self, end, hear):
        rest = b""
        with end:
            while True:
                try:
                    data = end.recv(65536)
                except OSError:
                    data = b""
                if not data:
                    break
                *lines, rest = (rest + data).split(b"\n")
                with self._changed:
                    for line in lines:
                        hear(line)
                    self._changed.notify_all()
        with self._changed:
            self._is_on = False
            self._changed.notify_all()

    def _hear_agent(self, line):
        said = json.loads(line)
        if "ready" in said:
            self._is_ready = True
        else:
            self._commands[said["number"]].done = said

    def _hear_word(self, line):
        self.words.append(line.decode("utf-8", "replace").rstrip("\r"))

    def wait_for(self, predicate, timeout_s=60, what=None):
        """Wait until `predicate` is true; it is asked again whenever the machine has said something."""
        with self._changed:
            assert self._changed.wait_for(predicate, timeout_s), "%s: %s: not so within %s s" % (
                self.host, what or "the condition", timeout_s)


class Command:
    """What was started in a machine; `done` is what the agent said of its end, or None."""

    def __init__(self, machine, argv, number):
        self.machine, self.argv, self.number, self.done = machine, argv, number, None

    def wait(self, timeout_s=60):
        """A CompletedProcess, as soon as the command has ended; raises PowerCut when the machine ends first."""
        if self._is_over(timeout_s):
            done = self.done
            return subprocess.CompletedProcess(self.argv, done["status"], done["stdout"], done["stderr"])
        look = self.machine.spawn("ps", "-eo", "pid,ppid,stat,wchan:24,args")
        there = look.done["stdout"] if look._is_over(20) else "(no answer)"
        raise AssertionError("%s: %r did not end in %s s; processes:\n%s" % (
            self.machine.host, self.argv, timeout_s, there))

    def _is_over(self, timeout_s):
        with self.machine._changed:
            self.machine._changed.wait_for(lambda: self.done is not None or not self.machine._is_on, timeout_s)
            if self.done is None and not self.machine._is_on:
                raise PowerCut(self.machine.host)
            return self.done is not None
