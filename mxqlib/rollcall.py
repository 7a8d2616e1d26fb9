"""The roll call: what each running record of this host is, by the processes that it names.

A record that changes while its processes are looked at is looked at again: a reaper that was finishing meanwhile has
the last word. Records of other hosts are skimmed, and left alone.
"""

import os
import time

from mxqlib import census, durable, exits, process, record, spool
from mxqlib.cli import reason

ATTACHED = "attached"       # its reaper, or the front that takes over, lives
ORPHAN = "orphan"           # MAIN lives, or was not reaped yet, and nobody else
GONE = "gone"
REBOOTED = "rebooted"       # all that ran then has ended with it
FORSAKEN = "forsaken"       # of a host that is dead, says the operator
UNCLEAR = "unclear"         # cannot be judged by these references alone

_PATIENCE_S = 1.0           # in one roll call: for what changes by itself in a moment
_STALE_S = 86400            # nobody writes one file that long


class Found:
    """A running record: its file `name`, `path`, `entry`, text `line`, `identity` of the file, `word` (above)."""

    __slots__ = ("name", "path", "entry", "line", "identity", "word")

    @property
    def run(self):
        """The id of the run."""
        return self.entry["run"]

    def is_same(self):
        """True when the record is still the one that was judged."""
        return spool.identity(self.path) == self.identity


class RollCall:
    """The running records in spool `where` of this host and of `hosts`, which the operator says are dead.

    `found` has them, `damaged` the names of files that are no records, `hidden` those of hidden files. What
    cannot be read is told to `complain(status, text)`.
    """

    def __init__(self, where, hosts, complain):
        self.spool, self.hosts, self._complain = where, hosts, complain
        self.found, self.damaged, self.hidden = [], [], []
        self._patience_s = _PATIENCE_S
        wanted = hosts | {process.context()["host"]}
        for name in os.listdir(self.spool.runs):
            if name.startswith("."):
                self.hidden.append(name)
                continue
            self._call(name, wanted)

    def iter_left(self):
        """Paths of the hidden files that belong to no record; whoever writes one now has locked it (see durable).

        On a network file system locks of others may not reach us: there a file must be old, too.
        """
        shared = durable.is_on_network(self.spool.runs) if self.hidden else False
        for name in self.hidden:
            run, is_temporary = self.spool.owner_of_hidden(name)
            path = os.path.join(self.spool.runs, name)
            if run is None or (not is_temporary and os.path.lexists(self.spool.record_path(run))):
                continue            # none of ours, or the room for the outcome of a run
            if not shared or _is_stale(path):
                yield path

    def call(self, name):
        """The Founds (one or none) of a file that came late."""
        count = len(self.found)
        self._call(name, {process.context()["host"]})
        return self.found[count:]

    def _call(self, name, wanted):
        found = self._read(name, wanted)
        if found is not None:
            self._judge(found)

    def _read(self, name, wanted):
        """The _Found of a running record of a host in `wanted`, or None."""
        path = os.path.join(self.spool.runs, name)
        try:
            raw = spool.read_data(path)
            if raw is None:
                return None
            form = record.skim(raw[0])
            if form is not None and (form[0] != record.RUNNING or form[1] not in wanted):
                self.pass_by(name, raw, form[0])
                return None
            entry, line, identity = spool.decode(path, *raw)
        except record.Damaged:
            self.damaged.append(name)
            return None
        except OSError as failure:
            self._complain(exits.IOERR, "cannot read runs/%s: %s" % (name, reason(failure)))
            return None
        if entry["state"] != record.RUNNING or entry["host"] not in wanted:
            self.pass_by(name, raw, entry["state"])
            return None
        found = Found()
        found.name, found.path, found.entry, found.line, found.identity = name, path, entry, line, identity
        return found

    def pass_by(self, name, raw, state):
        """What is done about the record of another host, or an ended one, whose file is `raw` (see spool.read_data)."""

    def _judge(self, found):
        """Find out what a running record is; what changes while it is looked at is looked at again."""
        for _ in range(5):
            found.word = _judge(found.entry, self.hosts)
            if found.word in (ORPHAN, GONE, REBOOTED, FORSAKEN) and self._is_in_use(found):
                found.word = ATTACHED if found.word != FORSAKEN else UNCLEAR
            if found.word == ORPHAN:
                self._wait_for_exec(found)
            if found.word == ATTACHED or found.is_same():
                self.found.append(found)
                return
            found = self._read(found.name, {found.entry["host"]})
            if found is None:
                return              # its reaper, or MAIN at its gate, had the last word

    def _is_in_use(self, found):
        """True when a living process, whom the record does not name, holds the room for the outcome."""
        path = self.spool.embryo_path(found.run)
        while durable.is_in_use(path):
            if not self._wait_a_little():       # a MAIN that is just being forked holds it for an instant
                return True
        return False

    def _wait_for_exec(self, found):
        """MAIN may be at its gate, which is closed: then it leaves by itself and takes the record back."""
        main = found.entry["main"]
        while True:
            seen = process.find(main)
            if seen is None or seen.has_ended or seen.comm != process.MAIN or not self._wait_a_little():
                break
        if seen is None:
            found.word = GONE

    def _wait_a_little(self):
        if self._patience_s <= 0:
            return False
        self._patience_s -= 0.01
        time.sleep(0.01)
        return True


def _judge(entry, hosts):
    """What the running record `entry` is by its process references."""
    words = [census.judge(each) for each in (entry["reaper"], entry.get("front")) if each]
    main = census.judge(entry["main"]) if entry["main"] else census.GONE
    if census.ELSEWHERE in words and entry["host"] in hosts:
        return FORSAKEN
    if census.LIVING in words:
        return ATTACHED
    if census.HIDDEN in words + [main] or census.ELSEWHERE in words + [main]:
        return UNCLEAR
    if main in (census.LIVING, census.ENDED):
        return UNCLEAR if census.EARLIER in words else ORPHAN
    return REBOOTED if census.EARLIER in words + [main] else GONE


def _is_stale(path):
    try:
        return time.time() - os.stat(path).st_mtime > _STALE_S
    except OSError:
        return False
