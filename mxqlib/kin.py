"""The processes of a run whose reaper died: no longer below anybody of ours, so they are known by what they have.

A process belongs to the run when it is MAIN; when MXQ_RUN and MXQ_DIR in its environment name it; when it descends
from one that belongs; or when it is in a session that one of the run made. A session counts only while it cannot
be a stranger's who has got the number by now: its leader lives and is of the run, or it has gone and somebody
surely of the run, or writing to the run's own output file, is in the session.
"""

import os

from mxqlib import census, process
from mxqlib.tree import Tree, below_us


def sessions_of(entry):
    """The numbers of the sessions that the reaper and MAIN of a running record may have made."""
    return {each["pid"] for each in (entry["reaper"], entry["main"]) if each}


def find(seen, entry, sessions):
    """The living Processes in a census.Census that belong to the run of running record `entry`, MAIN included."""
    known = {pid: seen.processes[pid] for pid in seen.runs.get(entry["run"], ())}
    main = _alive(seen, entry["main"])
    if main is not None:
        known[main.pid] = main
    known.pop(os.getpid(), None)
    below = {}
    for each in seen.processes.values():
        below.setdefault(each.ppid, []).append(each)
    size = -1
    while size < len(known):        # until nobody is found any more
        size = len(known)
        _add_descendants(known, below)
        _add_sessions(known, seen, entry, sessions)
    return list(known.values())


def _alive(seen, reference):
    """The Process of a reference of this boot and namespace in a Census, or None."""
    found = reference and seen.processes.get(reference["pid"])
    return found if found and found.start == reference.get("start") else None


def _add_descendants(known, below):
    queue = list(known.values())
    while queue:
        parent = queue.pop()
        if not below_us(parent):
            continue
        for each in below.get(parent.pid, ()):
            # Older than its parent: the parent's pid was reused, and it is another's child.
            if each.pid not in known and each.pid != os.getpid() and each.start >= parent.start:
                known[each.pid] = each
                queue.append(each)


def _add_sessions(known, seen, entry, sessions):
    since = (entry["main"] or {}).get("start") or 0
    inhabited = {each.session for each in known.values()}
    for each in list(seen.processes.values()):
        if each.pid in known or each.pid == os.getpid() or each.start < since or each.session == each.pid:
            continue
        if seen.run_of.get(each.pid, entry["run"]) != entry["run"] or not below_us(each):
            continue                # of an inner run, or a reaper whose run is its own business
        leader = seen.processes.get(each.session)
        if leader is not None:
            ours = leader.pid in known
        else:
            ours = each.session in sessions and (
                each.session in inhabited or _writes_for(each.pid, entry))
        if ours:
            known[each.pid] = each


def _writes_for(pid, entry):
    files = {entry.get("stdout"), entry.get("stderr")} - {None, os.devnull}
    return bool(files & census.outputs(pid))


class Kin(Tree):
    """As Tree, for the run of running record `entry`, of base directory `base`, whose reaper died and whose MAIN is no
    child of ours."""

    def __init__(self, entry, base):
        Tree.__init__(self, os.getpid())
        self.entry, self.base = entry, base
        self.sessions = sessions_of(entry)      # the record will name another reaper
        self._known = {}            # see census.Census
        self.seen = {}              # pid -> Process of those that were found last and lived then

    def members(self):
        """The living Processes of the job now; one pass over /proc."""
        since = (self.entry["main"] or {}).get("start") or 0
        found = find(census.Census(self.base, since, self._known), self.entry, self.sessions)
        self.seen = {each.pid: each for each in found}
        return found

    def near(self):
        """The members found last that still live, and what descends from them; cheap."""
        found, queue = {}, [(pid, None) for pid in self.seen]
        while queue:
            pid, parent = queue.pop()
            seen = None if pid in found else process.look(pid)
            if seen is None or seen.has_ended:
                continue
            if not seen.same(self.seen.get(pid)) and seen.ppid != parent:
                continue            # the pid was reused
            found[pid] = seen
            if below_us(seen):
                queue += [(below, pid) for below in process.children(pid)]
        self.seen = found
        return list(found.values())
