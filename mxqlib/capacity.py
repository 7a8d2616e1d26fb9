"""What this host offers to jobs, what is occupied, and which waiting job is to be started next.

Occupied is what runs here, whoever started it: the running records of this host and boot, adopted and wrapper runs
included, and what was handed over and has no record yet.
"""

import os

from mxqlib import lock, process, record, spool, units


class Capacity:
    """What may be used at once: `threads`, `memory_b` (bytes), `jobs` (None: any number)."""

    def __init__(self, threads=None, memory_b=None, jobs=None):
        self.cpus = sorted(os.sched_getaffinity(0))
        self.threads = len(self.cpus) if threads is None else threads
        self.memory_b = physical_memory_b() if memory_b is None else memory_b
        self.jobs = jobs

    def can_ever_hold(self, threads, memory_b):
        """True when a job of this size fits once nothing else runs."""
        return threads <= self.threads and memory_b <= self.memory_b

    def lack(self, threads, memory_b):
        """In words: what a job that can never fit needs and what there is."""
        if threads > self.threads:
            return "needs %d threads, of %d here (-j)" % (threads, self.threads)
        return "needs %s of memory, of %s here (-m)" % (units.show_size(memory_b), units.show_size(self.memory_b))


def physical_memory_b():
    """Bytes of memory that this machine has."""
    return os.sysconf("SC_PHYS_PAGES") * process.PAGE_B


class Room:
    """What is left of a Capacity beside the runs that occupy it: (threads, memory in bytes, cpus or None, group)."""

    def __init__(self, capacity, occupants):
        self.capacity = capacity
        self.threads, self.memory_b, self.jobs = capacity.threads, capacity.memory_b, 0
        self.cpus = set(capacity.cpus)
        self.groups = {}            # group -> threads that run
        for occupant in occupants:
            self.occupy(*occupant)

    def occupy(self, threads, memory_b, cpus, group):
        """Take a run's share. More than there is, is fine: then nothing fits until some of it has ended."""
        self.threads -= threads
        self.memory_b -= memory_b
        self.jobs += 1
        self.cpus.difference_update(cpus or ())
        self.groups[group] = self.groups.get(group, 0) + threads

    def fits(self, threads, memory_b):
        """True when a job of this size can be started now."""
        return (threads <= self.threads and memory_b <= self.memory_b
                and (self.capacity.jobs is None or self.jobs < self.capacity.jobs))

    def pick_cpus(self, threads):
        """CPUs of its own for a job, the lowest free ones; None when there are not enough of them (-j above their
        number, or wrapper runs that use more than they said)."""
        return sorted(self.cpus)[:threads] if len(self.cpus) >= threads else None

    def choose(self, kinds):
        """The (job, threads, memory, group) to be started next of `kinds` (see jobqueue.jobs.kinds), or None.

        By priority, then the group with the fewest threads running, then age. A smaller job may pass one that does
        not fit.
        """
        if not self.fits(1, 0):
            return None             # nothing does: the queue need not be asked
        best = None
        for priority, group, threads, memory_b, job in kinds:
            if best is not None and priority < best[0]:
                break
            if not self.fits(threads, memory_b):
                continue
            rank = (self.groups.get(group, 0), job)
            if best is None or rank < best[1]:
                best = priority, rank, (job, threads, memory_b, group)
        return best and best[2]


class Occupied:
    """The runs that occupy this host, from the queue's active runs and the spool's running records.

    Records are read once per file: the spool of a busy host is looked at for each claim.
    """

    def __init__(self, where, runners):
        self.spool, self.runners = where, runners
        self._seen = {}             # file name -> (identity, share or None)

    def shares(self, active, over=()):
        """(threads, memory, cpus, group) of each run; `active` as jobqueue.jobs.active() gives it. `over`: names of
        records that are known to be ended, and not to be looked at.

        A loaded run whose lock is there and held by nobody was dropped on the way. Without a lock it has its record by
        now, so locks are asked before the spool is; and where that record was damaged or removed it may run still.
        """
        host, shares = process.context()["host"], {}
        here = [(run + ".json", (threads, memory_b, cpus, group))
                for run, _job, state, at, runner, cpus, threads, memory_b, group, _date in active
                if at == host and run + ".json" not in over
                and (state != "loaded" or not self._was_dropped(runner))]
        names = [name for name in self.spool.names() if name not in over]
        for name in names:
            share = self._look(name, host)
            if share is not None:
                shares[name] = share
        ended = {name for name in names if name in self._seen and name not in shares}
        for name, share in here:
            if name not in ended:
                shares.setdefault(name, share)
        self._seen = {name: seen for name, seen in self._seen.items() if name in shares or name in ended}
        return list(shares.values())

    def _was_dropped(self, runner):
        return os.path.exists(os.path.join(self.runners, runner)) and not lock.is_held(self.runners, runner)

    def _look(self, name, host):
        identity = spool.identity(os.path.join(self.spool.runs, name))
        known = self._seen.get(name)
        if known is not None and known[0] == identity:
            return known[1]
        try:
            entry = self.spool.load(name)
        except (record.Damaged, OSError):
            self._seen.pop(name, None)  # mxq-collect says so and puts it aside; what the queue knows of it counts
            return None
        share = None
        if entry is not None and entry["state"] == record.RUNNING and entry["host"] == host and _is_of_this_boot(entry):
            share = (entry["threads"], entry.get("memory") or 0, entry.get("cpus"), entry["group"])
        self._seen[name] = (identity, share)
        return share


def _is_of_this_boot(entry):
    # After a reboot nothing of it runs, though mxq-adopt may not have said so yet.
    return entry["reaper"].get("boot") in (None, process.context()["boot"])
