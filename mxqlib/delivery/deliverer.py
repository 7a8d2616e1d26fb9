"""The deliverer: one process at a time makes the deliveries that are due, and goes on until none is.

Logs and record files first, in batches and in their order; then mails and hooks, one after the other, and after each
the files again, so that a slow mailer does not hold up a log. The lock goes with the process (flock). Who does not
get it can leave: the holder looks once more after it let go, and finds what was committed meanwhile.
"""

import os

from mxqlib import clock, lock, process, signals
from mxqlib.cli import printable, step, warn
from mxqlib.delivery import LIMIT_S, Stopped, Undelivered, file, log, never, recordline, stream
from mxqlib.jobqueue import due
from mxqlib.units import show_duration

BATCH, BATCH_B = 1000, 4 << 20
MAILER = "sendmail -t -i"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_FILES_EVERY_S = 1.0


class Deliverer:
    """Makes the deliveries of one queue.

    `stdout`: the descriptor that `--record -` means, None where it is not ours to write to; `limit_s`: the longest time
    for one; `stop()`: asked several times a second, true ends it; `files_only`: no mail, no hooks. `failed`,
    `delivered` count deliveries.
    """

    def __init__(self, queue, stdout=None, limit_s=LIMIT_S, stop=never, files_only=False):
        self.queue, self.stdout, self.limit_s, self.stop = queue, stdout, limit_s, stop
        self.mailer = os.environ.get("MXQ_SENDMAIL") or MAILER
        self.commands = () if files_only else due.COMMANDS
        self.failed = self.delivered = 0
        self._hung = set()              # commands that took all their time: not again in this process
        self._dead_stdout = False
        self._files_at_s = 0.0

    def run(self):
        """Deliver until nothing is due. False when another process is doing so. Raises Failure, Stopped."""
        # A closed pipe is a failed delivery.
        signals.ignore(signals.PIPE)
        while True:
            held = lock.take(os.path.dirname(self.queue.path), os.path.basename(self.queue.path) + "-deliverer")
            if held is None:
                return False
            try:
                self._deliver_all()
            finally:
                held.let_go()
            if not self._is_any_due():
                return True

    def _is_any_due(self):
        with self.queue.reading():
            now_s = _now_s()
            return any(True for sink in due.FILES for _ in self._open_targets(sink, now_s)) or any(
                self._next_command(sink, now_s) for sink in self.commands)

    def _deliver_all(self):
        self._files_at_s = -_FILES_EVERY_S
        while True:
            self._deliver_files()
            if not self._deliver_command():
                break
        with self.queue.transaction():
            due.settle(self.queue)

    # ---- files ----

    def _deliver_files(self):
        if clock.boot_s() - self._files_at_s < _FILES_EVERY_S:
            return
        for sink in due.FILES:
            while True:
                with self.queue.reading():
                    found = list(self._open_targets(sink, _now_s()))
                if not found:
                    break
                for target in found:
                    self._deliver_target(sink, target)
        self._files_at_s = clock.boot_s()

    def _open_targets(self, sink, now_s):
        for target in due.targets(self.queue, sink, now_s):
            if sink != "record" or target != "-" or (self.stdout is not None and not self._dead_stdout):
                yield target

    def _deliver_target(self, sink, target):
        """One batch to one file; all of it is done, or put off, in one transaction."""
        if self.stop():
            raise Stopped()
        with self.queue.reading():
            dues = due.batch(self.queue, sink, target, BATCH, BATCH_B)
        if not dues:
            return
        texts = list(map(log.text if sink == "log" else recordline.text, dues))
        done, failure = len(dues), None
        try:
            if target == "-" and sink == "record":
                stream.write(self.stdout, texts, self.limit_s, self.stop)
            else:
                umask = dues[0].umask if isinstance(dues[0].umask, int) else 0o077
                file.append(target, texts, umask, self.limit_s, self.stop)
        except Undelivered as trouble:
            done, failure = trouble.done, trouble
            self._dead_stdout = self._dead_stdout or target == "-"
        with self.queue.transaction():
            due.done(self.queue, [each.number for each in dues[:done]])
            wait_s = failure and due.put_off(self.queue, dues[done:], printable(str(failure)))
        self.delivered += done
        if done:
            step("%d delivered to %s %s" % (done, sink, target))
        if failure:
            self._tell(sink, target, dues[done:], failure, wait_s)

    # ---- mail and hooks ----

    def _next_command(self, sink, now_s):
        found, after = None, ("", 0)
        while True:
            found = due.next_command(self.queue, sink, now_s, after)
            if found is None or self._line_of(found) not in self._hung:
                return found
            after = found.next_try, found.number

    def _line_of(self, found):
        return found.target if found.sink == "hook" else self.mailer

    def _deliver_command(self):
        """The mail or hook that waited longest; False when none is due."""
        now_s = _now_s()
        with self.queue.reading():
            found = next(filter(None, (self._next_command(sink, now_s) for sink in self.commands)), None)
        if found is None:
            return False
        if self.stop():
            raise Stopped()
        with self.queue.transaction():
            if not due.claim(self.queue, found):
                return True
        started_s = clock.boot_s()
        try:
            self._run(found)
        except Undelivered as failure:
            if clock.boot_s() - started_s >= self.limit_s:
                self._hung.add(self._line_of(found))
            with self.queue.transaction():
                wait_s = due.put_off(self.queue, [found], printable(str(failure)), claimed=True)
            self._tell(found.sink, found.target, [found], failure, wait_s)
            return True
        with self.queue.transaction():
            due.done(self.queue, [found.number])
        self.delivered += 1
        step("%s: delivered to %s %s" % (found.event, found.sink, found.target))
        return True

    def _run(self, found):
        from mxqlib.delivery import command, mail       # subprocess and email cost more than the rest together
        process.check_proc()
        environ = dict(os.environ, MXQ_EVENT=found.event, MXQ_JOBID=str(found.job))
        environ["PATH"] = _search_path(environ.get("PATH"))
        if found.sink == "mail":
            data = mail.message(found, _user_name())
            try:
                command.Command(self.mailer, environ, must_read=True).run(data, self.limit_s, self.stop)
            except Undelivered as failure:
                if str(failure).startswith("exit 127"):
                    raise Undelivered("%s (install a mailer, or name one in MXQ_SENDMAIL)" % failure) from None
                raise
            return
        if found.run:
            environ["MXQ_RUN"] = found.run
        command.Command(found.target, environ, _directory(found.cwd), found.umask).run(
            recordline.text(found), self.limit_s, self.stop)

    # ---- messages ----

    def _tell(self, sink, target, dues, failure, wait_s):
        self.failed += len(dues)
        more = "" if len(dues) == 1 else " and %d more" % (len(dues) - 1)
        then = "tried again in %s" % show_duration(wait_s) if wait_s is not None else \
            "parked after %d tries (mxq-collect --retry tries again)" % due.TRIES
        what = {"log": "append %s%s to the log %s", "record": "append the record of %s%s to %s",
                "mail": "mail %s%s to %s", "hook": "run the hook of %s%s, %s"}[sink]
        where = "standard output" if (sink, target) == ("record", "-") else target
        warn("cannot %s: %s; %s" % (what % (dues[0].event, more, where), failure, then))


def _search_path(path):
    """PATH of mailers and hooks: the caller's, and the place of sendmail, which users and cron do not have in it."""
    return path if path and "/usr/sbin" in path.split(":") else (path + ":" if path else "") + _PATH


def _directory(path):
    """Where a hook runs: in the directory of the job; in / when that is gone for good, as those of tests often are."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return "/"
    except OSError:
        pass                    # told when it is entered, and tried again
    return path


def _user_name():
    import pwd
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return "uid-%d" % os.geteuid()


def _now_s():
    return clock.epoch_s(clock.iso())
