"""The crew of one mxq-run: a forked reaper for each job it claimed, and what these tell.

A reaper is forked, never executed: that costs a third of the time and a fifth of the memory. It serves one run, as a
signal that is meant for a run must not meet the next one. All are detached: they outlive mxq-run.
"""

import gc
import os

from mxqlib import attempt as steps
from mxqlib import child, place, process, request
from mxqlib.wire import Listener

_PLAIN = ("HOME", "LOGNAME", "USER", "SHELL", "PATH")


class Member:
    """One claimed run: `entry` its record, `lock` its lock until the reaper lives, `reaper` its pid, `told` its
    Listener."""

    __slots__ = ("entry", "attempt", "reaper", "told")


class Crew:
    """The reapers of this process; `front`: the process reference that their records name as front, or None."""

    def __init__(self, where, base, front):
        self.spool, self.base, self.front = where, base, front
        self.members = {}           # pid of the reaper -> Member

    def start(self, job, environment, held):
        """Fork a reaper for claimed `job` (see jobqueue.jobs.claim), which inherits the lock `held`. Raises OSError."""
        member = Member()
        member.entry = self._entry(job)
        launch = child.Launch(job["argv"], request.environ(_environ(environment), member.entry, self.base),
                              job["cwd"], job["umask"])
        launch.cpus, launch.stdin, launch.own_group = member.entry["cpus"], os.devnull, True
        launch.stdout, launch.stderr = member.entry["stdout"], member.entry["stderr"]
        member.attempt = steps.Attempt(member.entry, launch, self.spool)
        member.attempt.detached, member.attempt.lock = True, held
        wire, told = os.pipe()
        gc.freeze()                 # a collection in the child would copy what is shared
        member.reaper = child.fork()
        if member.reaper == 0:
            os.close(wire)
            steps.serve(member.attempt, None, told, None)
        os.close(told)
        os.close(held.fd)           # the reaper's copy holds it
        member.told = Listener(wire)
        self.members[member.reaper] = member
        return member

    def _entry(self, job):
        context = process.context()
        entry = {"format": 1, "state": "running", "run": job["run"], "job": job["job"], "attempt": job["attempt"],
                 "name": job["name"], "group": job["group"], "user": request.user_name(), "uid": os.geteuid(),
                 "gid": os.getegid(), "host": context["host"], "reaper": None, "front": self.front, "main": None,
                 "argv": job["argv"], "cwd": job["cwd"], "umask": job["umask"],
                 "threads": job["threads"], "memory": job["memory"], "cpus": job["cpus"], "runtime": job["runtime"],
                 "priority": job["priority"], "restart": job["restart"], "date_submit": job["date_submit"],
                 "date_start": None, "fallback": os.path.join(place.fallback(), job["run"] + ".json"), "deliveries": job["deliveries"],
                 "outer": None}
        entry["stdout"] = request.fill_in(job["stdout"], entry) or self.spool.output_path(job["run"])
        entry["stderr"] = request.fill_in(job["stderr"], entry) or entry["stdout"]
        return entry

    def listen(self):
        """Take in what the reapers told since."""
        for member in self.members.values():
            member.told.listen()

    def reap(self):
        """The Members whose reapers have ended since, what they told taken in."""
        ended = []
        while True:
            try:
                change = child.look()
            except ChildProcessError:
                return ended
            if change is None:
                return ended
            if change.status is None:
                continue
            child.reap(change.pid)
            member = self.members.pop(change.pid, None)
            if member is not None:
                member.told.listen()
                os.close(member.told.fd)
                os.close(member.attempt.report)
                ended.append(member)

    def signal(self, number):
        """Send `number` to all reapers. They are our children and not reaped: their pids are theirs."""
        for pid in self.members:
            found = process.look(pid)
            if found is not None:
                process.send(found, number)


def _environ(content):
    """The environment as bytes to bytes: `content` is NAME=VALUE, each ended by NUL; None: only what login gives."""
    if content is None:
        return {name.encode(): os.fsencode(os.environ[name]) for name in _PLAIN if name in os.environ}
    pairs = (field.partition(b"=") for field in content.split(b"\0") if field)
    return {name: value for name, _, value in pairs}
