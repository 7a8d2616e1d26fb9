"""The mail about the end of a job: subject, the record for people to read, the last lines of its output.

The same event makes the same message, Message-ID included, however often it is sent: a mail system that knows the id
drops doubles. Whatever bytes a command line, a name or an output holds, the headers are in order: control
characters are shown as escapes, the rest is encoded (RFC 2047, MIME), and all lines are short and 7 bits.
"""

import os
import shlex
import stat
import zlib

from mxqlib import cli, clock, record, units
from mxqlib.delivery import Undelivered

_SUBJECT_MAX = 150
_TAIL_B, _TAIL_LINES = 16384, 30
_SHOWN_ARGV = 2000
_WORDS = {"time": "time limit", "memory": "memory limit", "kill": "on request", "kill-now": "on request",
          "exec": "not executed", "lost": "", "reboot": "the host was rebooted"}


def printable(text):
    """`text` on one line, with bytes that are not UTF-8 as `\\xff`."""
    return cli.printable(text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"))


def message(due, user):
    """The whole message, as bytes with newlines as sendmail takes it. `user` is the name that sends it.

    Raises Undelivered when the target is no mail address.
    """
    from email import policy            # 30 ms, and only who sends mail needs it
    from email.headerregistry import Address
    from email.message import EmailMessage
    kind = policy.default.clone(cte_type="7bit", utf8=not due.target.isascii())
    mail = EmailMessage(policy=kind)
    try:
        due.target.encode("utf-8")      # not even SMTPUTF8 has other bytes
        mail["To"] = due.target
        # A name without a domain, which is a defect to the module, is the usual way to mail somebody on this machine.
        if not mail["To"].addresses or not all(each.username for each in mail["To"].addresses):
            raise ValueError("not a mail address")
        mail["From"] = Address(display_name="MXQ", username=user)
        mail["Subject"] = subject(due)
        mail["Date"] = _date(due.date)
        mail["Message-ID"] = message_id(due)
        mail["Auto-Submitted"] = "auto-generated"
        mail["X-MXQ-Event"] = due.event
        mail["X-MXQ-State"] = _state(due)
        mail.set_content(body(due), charset="utf-8")
        # Some readers look for an id on the line of its name only, where the module would break a long one.
        return mail.as_bytes(policy=kind).replace(b"\nMessage-ID:\n ", b"\nMessage-ID: ", 1)
    except (ValueError, IndexError, UnicodeError) as failure:
        raise Undelivered("cannot make a mail to %s: %s" % (printable(due.target), failure)) from None


def message_id(due):
    """From the event's id, its date and our user: the same for the same event, and for no other one of any queue."""
    date = "".join(c for c in due.date if c.isdigit())
    to = zlib.crc32(due.target.encode("utf-8", "surrogateescape"))
    host = "".join(c if c.isalnum() and c.isascii() or c in "-." else "-" for c in os.uname().nodename)
    return "<mxq.%s.%s.%d.%08x@%s>" % (due.event.replace("/", "."), date, os.geteuid(), to, host.strip("-.") or "mxq")


def _date(date):
    try:
        when_s = clock.epoch_s(date)
    except ValueError:
        when_s = 0.0
    from email.utils import formatdate
    return formatdate(when_s)


def _state(due):
    return record.state_of(due.entry) if due.entry.get("state") == record.ENDED else "cancelled"


def outcome(due):
    """`failed (exit 3)`, `killed (time limit, signal 15)`, `lost`: how it ended, in a few words."""
    entry, words = due.entry, []
    if entry.get("reason"):
        words.append(_WORDS.get(entry["reason"], ""))
    if entry.get("signal") is not None:
        words.append("signal %d%s" % (entry["signal"], ", core dumped" if entry.get("core") else ""))
    elif entry.get("exit"):
        words.append("exit %d" % entry["exit"])
    words = ", ".join(filter(None, words))
    return _state(due) + (" (%s)" % words if words else "")


def subject(due):
    """`[mxq] 17 failed (exit 3): make -j4`, on one line and not too long."""
    text = printable("[mxq] %d %s: %s" % (due.job, outcome(due), command_line(due.argv)))
    return text if len(text) <= _SUBJECT_MAX else text[:_SUBJECT_MAX - 3] + "..."


def command_line(argv):
    """A command as it could be typed, long ones cut."""
    shown, size = [], 0
    for word in argv:
        shown.append(shlex.quote(word[:_SHOWN_ARGV]))
        size += len(shown[-1]) + 1
        if size > _SHOWN_ARGV:
            return " ".join(shown)[:_SHOWN_ARGV] + " ..."
    return " ".join(shown)


# ---- the body ----

def body(due):
    """The record as lines of `Name: value`, then the last lines of what the job wrote, where that is a file."""
    lines = ["Job %d %s." % (due.job, outcome(due)), ""]
    lines += ["%-12s %s" % (name + ":", printable(str(value))) for name, value in _facts(due)
              if value not in (None, "")]
    files = [due.entry.get("stdout")]
    if due.entry.get("stderr") != files[0]:
        files.append(due.entry.get("stderr"))
    for path in filter(None, files):
        lines += _shown_tail(path)
    return "\n".join(lines + ["", "-- ", "MXQ event %s" % due.event, ""])


def _facts(due):
    entry = due.entry
    return [("Command", command_line(due.argv)), ("Name", due.name), ("Group", due.group), ("Run", due.run),
            ("Host", entry.get("host")), ("Directory", due.cwd),
            ("Submitted", _shown_date(due.date_submit)), ("Started", _shown_date(entry.get("date_start"))),
            ("Ended", _shown_date(entry.get("date_end") or due.date)), ("Ran for", _shown_s(entry.get("real"))),
            ("CPU time", _shown_cpu(entry.get("rusage") or {})), ("Memory", _shown_memory(entry)),
            ("Threads", entry.get("threads")),
            ("Time limit", entry.get("runtime") and units.show_duration(entry["runtime"])),
            ("Note", due.note), ("Error", entry.get("error")), ("Left behind", _shown_leftovers(entry)),
            ("Output", entry.get("stdout")), ("Errors", entry.get("stderr"))]


def _shown_date(date):
    return date and "%s %s UTC" % (date[:10], date[11:19])


def _shown_s(seconds):
    return "" if not isinstance(seconds, (int, float)) else "%.2f s" % seconds if seconds < 60 else \
        units.show_duration(seconds)


def _shown_cpu(rusage):
    both = [rusage.get(name) for name in ("utime", "stime")]
    return "%.2f s user, %.2f s system" % tuple(both) if all(isinstance(n, (int, float)) for n in both) else ""


def _shown_memory(entry):
    peak, limit = entry.get("max_sumrss"), entry.get("memory")
    shown = "%.0f MiB at most" % (peak / units.MIB) if peak else ""
    return shown + (", " if shown and limit else "") + ("limit %s" % units.show_size(limit) if limit else "")


def _shown_leftovers(entry):
    count, survivors = entry.get("leftovers") or 0, len(entry.get("survivors") or ())
    return "" if not count else "%d processes, ended%s" % (count, ", %d of them still alive" % survivors
                                                           if survivors else "")


def _shown_tail(path):
    found = last_lines(path)
    if found is None:
        return []
    lines, is_cut = found
    head = ("The last lines of %s:" if is_cut else "%s:" if lines else "%s is empty.") % printable(path)
    return ["", head] + ["| " + line for line in lines]


def last_lines(path):
    """(the last lines, whether there were more) of the regular file at `path`, printable; None for anything else."""
    found = tail(path)
    if found is None:
        return None
    data, is_cut = found
    lines = data.decode("utf-8", "backslashreplace").split("\n")
    if lines and not lines[-1]:
        lines.pop()
    return list(map(_one_line, lines[-_TAIL_LINES:])), is_cut or len(lines) > _TAIL_LINES


def _one_line(line):
    return printable(line.expandtabs().rstrip("\r"))[:500]


def tail(path):
    """(last bytes, whether there were more) of the regular file at `path`; None for anything else. Never waits."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            return None
        start_b = max(0, found.st_size - _TAIL_B)
        data = os.pread(fd, _TAIL_B, start_b)
        return data.partition(b"\n")[2] if start_b and b"\n" in data else data, start_b > 0
    except OSError:
        return None
    finally:
        os.close(fd)
