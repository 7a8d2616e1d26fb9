"""The front: what the caller started. It forks the reaper, waits for it, and ends as MAIN did.

It passes on to MAIN what the caller sends, once each. It is a subreaper, so that MAIN falls to it when the reaper dies:
it has heard MAIN's pid, or already its status, and writes the record itself. So no single SIGKILL loses an outcome.
"""

import os

from mxqlib import attempt as steps
from mxqlib import child, clock, durable, exits, outcome, process, signals
from mxqlib.cli import error, reason, warn
from mxqlib.reaper import Reaper
from mxqlib.wire import Listener, wake_by_signal

DETACH = signals.RTMIN
_OURS = (signals.CHLD, signals.IO)


class Front:
    """The front of one attempt.Attempt; start() once, then wait()."""

    def __init__(self, attempt):
        self.attempt = attempt
        self.reaper = None          # pid
        self.told = None            # the Listener to the reaper
        self._reaper_seen = None    # the reaper as /proc shows it
        self._early = []            # signals that came before MAIN was known
        self._reaped = None         # raw wait status of the reaper

    # ---- start ----

    def start(self):
        """Fork the reaper. Afterwards nothing of the caller's is held here but standard error."""
        signals.block(signals.CATCHABLE)
        process.set_name(process.FRONT)
        process.become_subreaper()
        self.strangers = set(process.children(os.getpid()))     # what exec left us is none of the job's
        self.attempt.entry["front"] = process.reference(os.getpid())
        self.group = os.getpgrp()
        wire, told = os.pipe()
        heard, self._extra = os.pipe()
        self._executed, executing = os.pipe() if self.attempt.detached else (None, None)
        self.told = Listener(wire)
        me = os.getpid()
        self.reaper = child.fork()
        if self.reaper == 0:
            for fd in (wire, self._extra, self._executed):
                if fd is not None:
                    os.close(fd)
            steps.serve(self.attempt, me, told, heard)
        os.set_blocking(self._extra, False)
        self._reaper_seen = process.look(self.reaper)
        if self.attempt.detached:
            os.close(executing)
            os.close(told)
            os.close(heard)
            wake_by_signal(self._executed)
        else:
            child.let_go([wire, self._extra, self.attempt.report])

    # ---- wait ----

    def wait(self):
        """Wait for the end of the run. Returns how to end: ("exit", status) or ("signal", number)."""
        while self._reaped is None:
            info = signals.wait(signals.CATCHABLE)
            if info is None:
                continue
            if info.si_signo in _OURS:
                self._notice()
            elif info.si_signo == DETACH:
                if self._may_detach():
                    return "exit", exits.TEMPFAIL
            else:
                self._receive(info)
        return self._finish()

    def wait_for_start(self):
        """Wait until a detached job was executed, or could not be. Returns how to end."""
        while self._reaped is None:
            info = signals.wait(signals.CATCHABLE)
            if info is None:
                continue
            if info.si_signo not in _OURS:
                self._receive(info)
                continue
            self._notice()
            if self.told.started_s is not None and _ended(self._executed):
                status, text = child.read_report(self.attempt.report)
                if status == "G" or status is None and not child.was_about_to(self.attempt.report):
                    continue            # the reaper died before it could open the gate; or MAIN of a signal
                if text is not None:
                    error(text)
                return "exit", status or exits.OK
        return self._finish()

    def _notice(self):
        """Look for the reaper's end; reap what else fell to us (strangers, orphans when we are pid 1)."""
        while True:
            try:
                change = child.look()
            except ChildProcessError:
                return self._listen()
            # The reaper is asked after: when it lives, the child seen cannot have been below it. While somebody traces
            # the reaper its death shows late (ptrace(2)), but its end of the wire closed before we got its children.
            self._listen()
            self._reaped = child.look_at(self.reaper)
            if change is None or self._reaped is not None or self.told.over:
                return              # not reaped yet: MAIN may be among the children now, and its status counts
            if change.status is not None:
                child.reap(change.pid)

    def _listen(self):
        """Take in what the reaper told since."""
        known = self.told.main
        self.told.listen()
        if known is None and self.told.main is not None:
            self._meet_main()

    def _meet_main(self):
        self.attempt.entry["date_start"] = self.told.date_start
        self.attempt.entry["main"] = self.told.main_reference()
        if not self.attempt.detached:
            try:
                child.leave_group(self.reaper if self.attempt.terminal else None)
            except OSError:
                pass            # no process, no descriptor to be had: then we die with the group, not the reaper
        for number in self._early:
            process.send(self.told.main, number)

    # ---- signals ----

    def _receive(self, info):
        if info.si_signo == signals.CONT and info.si_pid == self.reaper:
            return                  # it only woke us along with MAIN
        if signals.is_from_terminal(info) and not self.attempt.detached:
            return                  # we are in MAIN's group (still, or as its session's leader): it got its own
        try:
            os.write(self._extra, b"%d %d %d %s\n" % (info.si_signo, info.si_pid, info.si_uid,
                                                     clock.iso().encode("ascii")))
        except OSError:
            pass
        self._pass_on(info.si_signo)

    def _pass_on(self, number):
        if self.told.main is None:
            self._early.append(number)
        elif "ended" in self.told.facts and self._reaped is None:
            # MAIN has gone; what is left to be ended, or a record that cannot be written, is the reaper's.
            process.send(self._reaper_seen, number)
        else:
            process.send(self.told.main, number)

    def _may_detach(self):
        if self.attempt.terminal and os.getsid(0) == os.getpid():
            warn("%s: not detached: this process leads the session, its end would hang up the job's terminal"
                 % self.attempt.entry["run"])
            return False
        return True

    # ---- the end ----

    def _finish(self):
        used = child.reap(self.reaper)
        self._listen()
        if "failed" in self.told.facts:
            return "exit", exits.FAILURE
        if "nothing" in self.told.facts:
            number = int(self.told.facts["nothing"])
            return ("signal", number) if number else ("exit", exits.FAILURE)
        if "kept" in self.told.facts:
            return "exit", exits.IOERR
        if "recorded" in self.told.facts or self._reaped == 0:
            return outcome.ending(self._recorded_status(), self.told.facts.get("reason"),
                                  "time-killed" in self.told.facts)
        return self._take_over(used)

    def _recorded_status(self):
        if "ended" in self.told.facts:
            return int(self.told.facts["ended"].split()[0])
        # The one line did not get through; what counts is safe already.
        return self.attempt.spool.load(self.attempt.entry["run"] + ".json")["status"]

    def _take_over(self, used):
        """The reaper died without a record: MAIN and what it left behind are our children now. `used` is what it, and
        those it had reaped, have used."""
        entry = self.attempt.entry
        child.raise_limits()            # a record is to be written here now
        process.set_name(process.REAPER)        # an outer run sends us USR1 and USR2 now
        reservation = durable.Reservation.taken_over(self.attempt.spool.embryo_path(entry["run"]))
        reaper = Reaper(self.attempt, relay=self._stop_along, pass_on=self._pass_on)
        reaper.to, reaper.adopted = "front", True
        child.add_usage(reaper.used, used)
        reaper.strangers.update(self.strangers)
        if self.told.started_s is None:
            # The gate was not opened, so it is closed now, and MAIN leaves without having been the command.
            reaper.status = 0
            reaper.supervise()
            return self._nothing_started()
        warn("%s: the reaper died (%s); going on in its place" % (entry["run"], _how(self._reaped)))
        self._resume(reaper)
        reaper.supervise()
        if reaper.unstarted:
            return self._nothing_started()
        path = reaper.record(reservation)
        durable.discard(os.path.join(self.attempt.spool.runs, ".%s.json.%d" % (entry["run"], self.reaper)))
        if path is not None:
            return "exit", exits.IOERR
        return outcome.ending(reaper.status, reaper.reason, reaper.time_killed)

    def _resume(self, reaper):
        entry = self.attempt.entry
        entry["reaper"] = entry["front"]
        reaper.main, reaper.started_s = self.told.main.pid, self.told.started_s
        reaper.reason, reaper.time_killed = self.told.facts.get("reason"), "time-killed" in self.told.facts
        reaper.maxrss_floor_kib = child.maxrss_floor_kib()
        if "ended" in self.told.facts:
            status, reaper.date_end, real_s = self.told.facts["ended"].split()
            reaper.status, reaper.real_s = int(status), float(real_s)
            reaper.error = child.read_report(self.attempt.report)[1]
            reaper.after_main()
            return
        reaper.begin()
        try:
            self.attempt.spool.put(entry)       # so that mxq-ctl and mxq-adopt find who answers now
        except OSError as failure:
            warn("%s: cannot rewrite the running record: %s; the job goes on" % (entry["run"], reason(failure)))

    def _nothing_started(self):
        steps.withdraw(self.attempt.spool, self.attempt.entry["run"], self.reaper)
        error("the reaper died (%s) before the job was started" % _how(self._reaped))
        return "exit", exits.FAILURE

    def _stop_along(self, number):
        # The shell's CONT goes to MAIN's group: be in it while stopped, or nobody would wake us.
        if number == signals.STOP and self.attempt.terminal:
            try:
                os.setpgid(0, self.group)
            except OSError:
                return
            signals.stop_self()
            child.leave_group()


def _ended(fd):
    try:
        return not os.read(fd, 1)
    except BlockingIOError:
        return False


def _how(status):
    return "signal %s" % signals.name(status & 0x7f) if status & 0x7f else "exit status %d" % (status >> 8)
