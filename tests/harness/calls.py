"""System calls as strace wrote them down: text in, Call objects out.

Reads logs made with `-y -xx -s 65536 -ttt`, with or without the pid column of
-f. With -xx every string and every path behind a descriptor is hexadecimal, so
that no byte of a file name can look like syntax (strace(1)).
"""

import os
import re

STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')
DESCRIPTOR = re.compile(r"^(-?\d+|AT_FDCWD)(?:<(.*)>)?$")
LINE = re.compile(r"^(?:(\d+) +)?(\d+\.\d+) (.*)$")
RESUMED = re.compile(r"^<\.\.\. (\w+) resumed>(.*)$")
RESULT = re.compile(r"^(.*)\) += (-?\d+|0x[0-9a-f]+|\?)(.*)$")

# where the paths of a call are: (descriptor argument or None, path argument)
AT = {(0, 1): "openat unlinkat mkdirat newfstatat faccessat faccessat2 fchmodat fchmodat2 "
              "readlinkat mknodat utimensat statx openat2 fchownat execveat name_to_handle_at",
      (None, 0): "open stat lstat unlink mkdir rmdir chmod truncate access readlink chdir execve "
                 "statfs creat mknod chown lchown utime utimes"}
ONE = {name: where for where, names in AT.items() for name in names.split()}
TWO = {"rename": ((None, 0), (None, 1)), "link": ((None, 0), (None, 1)),
       "renameat": ((0, 1), (2, 3)), "renameat2": ((0, 1), (2, 3)), "linkat": ((0, 1), (2, 3)),
       "symlink": ((None, 1),), "symlinkat": ((1, 2),)}
FORKS = ("clone", "clone3", "fork", "vfork")


class Call:
    """One system call.

    pid, name, args (texts), ret (int, None when it never returned), error
    ("ENOENT" or None), began and ended (positions in the log: one call
    happened before another when its `ended` is below the other's `began`),
    paths (absolute, resolved; empty when there are none), fd (int or None).
    """

    def __init__(self, pid, name, began):
        self.pid, self.name, self.began = pid, name, began
        self.args, self.ret, self.error = [], None, None
        self.ended, self.paths, self.fd = None, (), None
        self.injected = False
        self.role = None

    def __repr__(self):
        text = ", ".join(self.paths) or ", ".join(self.args)[:80]
        return "%s:%s(%s) = %s%s" % (self.role or self.pid, self.name, text, self.ret,
                                     " " + self.error if self.error else "")

    def data(self):
        """The bytes this call wrote, or None when it is no write."""
        if self.name in ("write", "pwrite64", "sendto"):
            return unquote(self.args[1])[:self.ret]
        if self.name in ("writev", "pwritev", "pwritev2", "sendmsg"):
            parts = re.findall(r"iov_base=(\"[^\"]*\")", self.args[1])
            return b"".join(map(unquote, parts))[:self.ret]
        return None

    def flags(self):
        """Open flags of an open call as a set of names."""
        if self.name == "creat":
            return {"O_CREAT", "O_TRUNC", "O_WRONLY"}
        number = {"open": 1, "openat": 2}.get(self.name)
        if number is None:
            return set()
        return set(self.args[number].split("|"))


def unquote(text):
    """Bytes of a quoted hexadecimal string; ValueError when strace cut it."""
    match = STRING.match(text)
    if match is None or match.group(2):
        raise ValueError("no whole string: %.60s" % text)
    return bytes.fromhex(match.group(1).replace("\\x", ""))


def plain(text):
    """A hexadecimal path as text; what is not hexadecimal stays."""
    return os.fsdecode(re.sub(rb"\\x([0-9a-f]{2})", lambda found: bytes.fromhex(
        found.group(1).decode()), text.encode()))


def split(text):
    """Arguments of a call: cut at commas outside of strings and brackets."""
    parts, depth, start, quoted = [], 0, 0, False
    for at, char in enumerate(text):
        if char == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    parts.append(text[start:].strip())
    return [part for part in parts if part]


class Log:
    """Turns the lines of one log into calls; keeps what else was said.

    calls: in the order in which they began; ends: {pid: text of the +++ line};
    stops: pids that strace saw stopped by SIGSTOP.
    """

    def __init__(self, text, pid=None, cwd=None):
        self.calls, self.ends, self.stops = [], {}, []
        self.open, self.cwds, self.pid, self.cwd = {}, {}, pid, cwd
        for at, line in enumerate(text.splitlines()):
            self.add(at, line)
        self.resolve()

    def add(self, number, line):
        """One line of the log; an incomplete last line is left out."""
        match = LINE.match(line)
        if match is None:
            return
        pid = int(match.group(1) or self.pid or 0)
        text = match.group(3)
        if text.startswith("+++"):
            self.ends[pid] = text.strip("+ ")
        elif text.startswith("---"):
            if "stopped by SIGSTOP" in text:
                self.stops.append(pid)
        elif RESUMED.match(text):
            call, begun = self.open.pop(pid, (None, None))
            if call is not None:
                self.finish(call, number, begun + RESUMED.match(text).group(2))
        elif "(" in text:
            name, rest = text.split("(", 1)
            call = Call(pid, name, number)
            self.calls.append(call)
            if rest.endswith("<unfinished ...>"):
                self.open[pid] = (call, rest[:-len("<unfinished ...>")])
            else:
                self.finish(call, number, rest)

    def finish(self, call, number, rest):
        """A call has returned, or never will (killed, exited, detached)."""
        match = RESULT.match(rest)
        call.ended = number
        if match is None:
            call.args = split(rest.replace("<detached ...>", "").replace("<unfinished ...>", ""))
            return
        call.args = split(match.group(1))
        if match.group(2) != "?":
            number = match.group(2)
            call.ret = int(number, 8 if re.match("0[0-7]", number) else 0)      # umask(2) is written in octal
        tail = match.group(3)
        call.injected = "(INJECTED" in tail
        if call.ret == -1:
            call.error = tail.split()[0] if tail.split() else None

    def resolve(self):
        """Fill in fd and paths; follows chdir, and forks for the folder."""
        parents = {call.ret: call.pid for call in self.calls if call.name in FORKS and call.ret}
        for call in self.calls:
            if call.pid not in self.cwds:
                parent = parents.get(call.pid)
                self.cwds[call.pid] = self.cwds.get(parent, self.cwd)
            try:
                self.locate(call)
            except (IndexError, ValueError):
                pass        # a call that was cut short: it has no result either
            if call.name in ("chdir", "fchdir") and call.ret == 0 and call.paths:
                self.cwds[call.pid] = call.paths[0]

    def locate(self, call):
        """Paths and descriptor of one call, from its arguments."""
        places = TWO.get(call.name) or ((ONE[call.name],) if call.name in ONE else ())
        call.paths = tuple(self.path(call, *place) for place in places)
        if places:
            return
        match = DESCRIPTOR.match(call.args[0]) if call.args else None
        if match and match.group(1) != "AT_FDCWD":
            call.fd = int(match.group(1))
            if match.group(2):
                call.paths = (plain(match.group(2)),)

    def path(self, call, folder, number):
        """Absolute path of an argument pair (descriptor of a folder, name)."""
        name = os.fsdecode(unquote(call.args[number]))
        base = self.cwds[call.pid]
        if folder is not None:
            match = DESCRIPTOR.match(call.args[folder])
            base = plain(match.group(2)) if match and match.group(2) else base
        return os.path.normpath(os.path.join(base or "/", name)) if name else base
