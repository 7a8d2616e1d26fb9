"""A terminal (pty) with something in it, as a person at a keyboard would have it.

    shell = Terminal(sandbox, "bash", "--norc", "--noprofile", "--noediting", "-i")
    shell.type("mxq-reap cat\n")
    shell.press("C-c")
    shell.expect("$ ")
"""

import fcntl
import os
import select
import struct
import termios
import time

KEYS = {"C-c": b"\x03", "C-z": b"\x1a", "C-\\": b"\x1c", "C-d": b"\x04"}


class Terminal:
    """A command that leads a session with this pty for its controlling terminal. `seen` is all it has printed."""

    def __init__(self, sandbox, *argv, rows=24, columns=80, echo=True, flags=0, **kw):
        """Start `argv` in the sandbox; `flags` are set in c_lflag (termios.TOSTOP), `echo` False unsets ECHO."""
        self.master, slave = os.openpty()
        os.set_inheritable(self.master, False)
        self.name = os.ttyname(slave)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        attributes = termios.tcgetattr(slave)
        attributes[3] |= flags
        if not echo:
            attributes[3] &= ~termios.ECHO
        termios.tcsetattr(slave, termios.TCSANOW, attributes)
        self.seen = b""
        self._from = 0

        def take():
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        kw.setdefault("stdout", slave)
        kw.setdefault("stderr", slave)
        kw["env"] = dict({"TERM": "xterm", "PS1": "ready> ", "PS2": "", "HISTFILE": None}, **kw.get("env", {}))
        self.process = sandbox.spawn(*argv, stdin=slave, text=False, new_session=True, preexec_fn=take, **kw)
        os.close(slave)

    def type(self, text):
        """Type text (str); a newline is the Enter key."""
        data = text.encode("utf-8", "surrogateescape")
        while data:
            data = data[os.write(self.master, data):]

    def press(self, key):
        """Press one of KEYS."""
        os.write(self.master, KEYS[key])

    def resize(self, rows, columns):
        """Change the size of the window, which the kernel tells by WINCH."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def expect(self, text, timeout_s=20):
        """Read until `text` was printed after what was expected last; return what came up to and with it."""
        wanted = text.encode("utf-8", "surrogateescape")
        deadline = time.monotonic() + timeout_s
        while True:
            at = self.seen.find(wanted, self._from)
            if at >= 0:
                came, self._from = self.seen[self._from:at + len(wanted)], at + len(wanted)
                return came.decode("utf-8", "surrogateescape")
            assert time.monotonic() < deadline, "%r did not come, only %r" % (wanted, self.seen[self._from:])
            assert self.pump(0.2), "%r did not come before the end, only %r" % (wanted, self.seen[self._from:])

    def pump(self, timeout_s=0.0):
        """Take in what was printed; False at the end."""
        if select.select([self.master], [], [], timeout_s)[0]:
            try:
                data = os.read(self.master, 65536)
            except OSError:                 # EIO: nobody has it open any more
                return False
            self.seen += data
            return bool(data)
        return True

    def foreground(self):
        """The foreground process group."""
        return struct.unpack("i", fcntl.ioctl(self.master, termios.TIOCGPGRP, struct.pack("i", 0)))[0]

    def hang_up(self):
        """Take the terminal away, as sshd does when the connection breaks."""
        os.close(self.master)
        self.master = None

    def finish(self, timeout_s=20):
        """Read to the end and return the exit status, as subprocess gives it."""
        deadline = time.monotonic() + timeout_s
        while self.pump(0.1):
            assert time.monotonic() < deadline, "it did not end, only %r" % self.seen[self._from:]
        status = self.process.wait(timeout_s)
        self.close()
        return status

    def close(self):
        """Close our end."""
        if self.master is not None:
            self.hang_up()
