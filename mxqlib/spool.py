"""The spool: one file per run, always replaced by renaming over itself; what cannot be read goes to corrupt/.

Files are claims, not facts: load() believes a file only when it is regular, ours, of sane size, complete, of
a known format, and named as its content says.
"""

import errno
import os
import stat

from mxqlib import durable, place, record
from mxqlib.cli import reason

EXTRA_B = 128 << 10         # what an ended record adds to a running one, at most (children, signals, rusage)


class Spool:
    """The spool directory at `path`; nothing is made or checked before open()."""

    def __init__(self, path):
        self.path = path
        self.runs = os.path.join(path, "runs")
        self.output = os.path.join(path, "output")
        self.corrupt = os.path.join(path, "corrupt")

    def open(self):
        """Make what is missing; refuse what others could write to. Raises Failure."""
        place.make_private(self.path)
        for folder in (self.runs, self.output, self.corrupt):
            place.make_private(folder)
        return self

    def exists(self):
        """True when there is a spool, checked as open() does; nothing is made. Raises Failure."""
        return place.check_private(self.path) and place.check_private(self.runs)

    def record_path(self, run):
        """Where the record of `run` is."""
        return os.path.join(self.runs, run + ".json")

    def embryo_path(self, run):
        """Where the room for the final record of `run` is."""
        return os.path.join(self.runs, "." + run)

    def output_path(self, run):
        """Where the output of a detached run goes that named no file."""
        return os.path.join(self.output, run + ".log")

    def drain_path(self, host=None):
        """The file that keeps jobs from being started, on `host` only or everywhere; it says why."""
        return os.path.join(self.path, "drain" if host is None else "drain." + host)

    def drain_reason(self, path):
        """What a drain file says, on one line; None when there is none."""
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                return " ".join(file.read(1000).split()) or "drained"
        except FileNotFoundError:
            return None

    def reserve(self, run, running_b):
        """Allocate room for the final record of `run`, whose running record has `running_b` bytes. Raises OSError."""
        return durable.Reservation(self.embryo_path(run), running_b + EXTRA_B)

    def reserve_first(self, run, running_b):
        """As reserve(), for a run that is to be started; FileExistsError when there is a record of it.

        Two queues that share a spool number alike, and the outcome of the one would replace that of the other.
        """
        room = self.reserve(run, running_b)
        if os.path.lexists(self.record_path(run)):
            room.drop()
            raise FileExistsError(errno.EEXIST, "runs/%s.json is there already; do two queues share this spool?" % run)
        return room

    def finished_embryo(self, run):
        """The outcome in the room of `run`, when its reaper had written it and died before it had a name; else None."""
        try:
            found = _read_file(self.embryo_path(run))
            entry = found and record.decode(found[0].rstrip(b"\0"), run)
        except (record.Damaged, OSError):
            return None
        return entry if entry and entry["state"] == record.ENDED else None

    def put(self, entry):
        """Write record `entry` (a dict) under its name, atomically and durably. Raises OSError."""
        durable.replace(self.record_path(entry["run"]), record.encode(entry))

    @staticmethod
    def owner_of_hidden(name):
        """(run, whether it is a temporary file) that a hidden file of runs/ belongs to; (None, None): none of ours."""
        run, temporary, pid = name[1:].rpartition(".json.")
        fits = record.valid_run(run or pid) and name[1:2].isdigit() and (not temporary or pid.isdigit())
        return (run or pid, bool(temporary)) if fits else (None, None)

    def names(self):
        """File names in runs/ that are not hidden, in no order: records, and what is none."""
        try:
            return [name for name in os.listdir(self.runs) if not name.startswith(".")]
        except FileNotFoundError:
            return []

    def next_job(self):
        """A job number above those of all records and outputs here, for a queue that is made anew beside them."""
        try:
            outputs = os.listdir(self.output)
        except FileNotFoundError:
            outputs = []
        runs = [name.rpartition(".")[0] for name in self.names() + outputs if name.endswith((".json", ".log"))]
        return 1 + max((known[0] for known in map(record.job_and_attempt, runs) if known), default=0)

    def load(self, name):
        """The record in file `name` of runs/; None when it has gone. Raises record.Damaged, OSError."""
        return load(os.path.join(self.runs, name))

    def quarantine(self, name, why):
        """Move file `name` of runs/ to corrupt/, the reason beside it; say so on standard error is the caller's.

        Returns the new name, or None when the file has gone meanwhile. Raises OSError.
        """
        place.make_private(self.corrupt)
        # "NAME.1000.reason" must be a name too, and names end at 255 bytes.
        start, n = os.fsdecode(os.fsencode(name)[:200]), 0
        kept = start
        # A reason alone is what a crash left of such a move: nobody believes it, and it is written again.
        while os.path.lexists(os.path.join(self.corrupt, kept)):
            n += 1
            kept = "%s.%d" % (start, n)
        beside = os.path.join(self.corrupt, kept + ".reason")
        fd = durable.create(beside)
        try:
            durable.write_all(fd, (why + "\n").encode("utf-8", "backslashreplace"))
            durable.sync(fd)
        finally:
            os.close(fd)
        try:
            durable.move(os.path.join(self.runs, name), os.path.join(self.corrupt, kept))
        except FileNotFoundError:
            durable.discard(beside)
            return None
        return kept


def load(path):
    """The record in the file at `path`, whose name must be RUN.json; None when it is not there.

    Raises record.Damaged for what is no record, OSError when the disk fails.
    """
    found = read(path)
    return found and found[0]


def read(path):
    """(record, its text, identity of the file) as load(); None when it is not there."""
    found = read_data(path)
    return found and decode(path, *found)


def decode(path, data, identity_):
    """What read() gives, of what read_data() gave. Raises record.Damaged."""
    return record.decode_line(data, path[path.rfind("/") + 1:-len(".json")]) + (identity_,)


def read_data(path):
    """(bytes, identity of the file) of the record at `path`, not looked into; None when it is not there. Raises as
    load()."""
    if path[-5:] != ".json" or not record.valid_run(path[path.rfind("/") + 1:-5]):
        raise record.Damaged("not named like a record")
    return _read_file(path)


def _read_file(path):
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except FileNotFoundError:
        return None
    except OSError as failure:
        if failure.errno in (errno.ELOOP, errno.ENXIO):
            raise record.Damaged("not a regular file") from None
        if failure.errno == errno.EACCES:
            raise record.Damaged("cannot be opened: %s" % reason(failure)) from None
        raise
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise record.Damaged("not a regular file")
        if found.st_uid != os.geteuid():
            raise record.Damaged("belongs to user %d" % found.st_uid)
        if found.st_size > record.LIMIT_B:
            raise record.Damaged("%d bytes are too many" % found.st_size)
        return _read(fd, found.st_size), _identity(found)
    finally:
        os.close(fd)


def identity(path):
    """What tells the file at `path` from one that replaced it, to be compared with that of read(); None: not there."""
    try:
        return _identity(os.lstat(path))
    except FileNotFoundError:
        return None


def _identity(found):
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def _read(fd, size_b):
    data = os.read(fd, size_b + 1)
    if len(data) == size_b:         # one call for all but the odd short read
        return data
    parts = [data]
    while data:
        data = os.read(fd, 1 << 20)
        parts.append(data)
        if sum(map(len, parts)) > record.LIMIT_B:
            raise record.Damaged("grows while it is read")
    return b"".join(parts)
