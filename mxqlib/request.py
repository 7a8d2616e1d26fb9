"""What a submitter asks for: the job options of mxq-sub and mxq-reap, and the fields of a record they make."""

import os

from mxqlib import exits, units
from mxqlib.cli import Failure, Option, reason

GRACE_S = 10        # from TERM to KILL
RESTARTS = ("never", "samehost", "always")
MAIL_ON = ("always", "failure", "never")


def _when(text):
    if text not in MAIL_ON:
        raise ValueError("not one of %s: %s" % (" ".join(MAIL_ON), text))
    return text


def _address(text):
    if not text or text.startswith("-") or any(ord(c) < 33 or ord(c) == 127 for c in text):
        raise ValueError("not a mail address: %r" % text)
    return text


def _filled(text):
    if not text:
        raise ValueError("empty")
    return text


def _restart(text):
    if text not in RESTARTS:
        raise ValueError("not one of %s: %s" % (" ".join(RESTARTS), text))
    return text


OPTIONS = (
    Option("w", "workdir", "DIR", "working directory of the job"),
    Option("o", "stdout", "FILE", "append standard output to FILE (%j %r %a %h %u %n)"),
    Option("e", "stderr", "FILE", "append standard error to FILE"),
    Option("u", "umask", "MASK", "umask of the job", units.mask),
    Option("p", "priority", "N", "priority, higher first (127)", lambda text: units.number(text, 0, 65535)),
    Option("j", "threads", "N", "threads the job uses (1)", lambda text: units.number(text, 1, 65535)),
    Option("m", "memory", "SIZE", "memory limit; K M G T, MiB without suffix", units.size),
    Option("t", "runtime", "TIME", "time limit; y w d h m s, minutes without suffix", units.duration),
    Option("N", "name", "NAME", "name of the job", units.label),
    Option("g", "group", "GROUP", "group of the job (default)", units.label),
    Option("r", "restart", "WHEN", "restart a lost run: never, samehost, always", _restart),
)

DELIVERY_OPTIONS = (
    Option(None, "mail", "ADDR", "mail ADDR when the job ends ($MXQ_MAIL)", _address),
    Option(None, "mail-on", "WHEN", "always, failure or never (failure; $MXQ_MAIL_ON)", _when),
    Option(None, "log", "FILE", "append events to FILE in HTCondor's format ($MXQ_LOG)", _filled),
    Option(None, "record", "FILE", "append the record to FILE; - is mxq-collect's output", _filled),
    Option(None, "hook", "CMD", "run CMD with the record on its standard input", _filled),
)


def fields(values, argv, umask):
    """The fields of a record that options and surroundings give: `umask` is the caller's. Raises Failure.

    stdout and stderr are still patterns: output() fills them in when the run has its numbers.
    """
    return {"name": values.name or _name(argv), "group": values.group or "default",
            "user": user_name(), "uid": os.geteuid(), "gid": os.getegid(),
            "argv": argv, "cwd": _directory(values.workdir), "umask": umask if values.umask is None else values.umask,
            "stdout": values.stdout, "stderr": values.stderr,
            "threads": values.threads or 1, "memory": values.memory, "runtime": values.runtime,
            "priority": 127 if values.priority is None else values.priority, "restart": values.restart or "never",
            "deliveries": asked_for(values)}


def _name(argv):
    # Bytes that are no text stay out of names: they go into tables and mail subjects.
    return "".join(c if c.isprintable() else "?" for c in os.path.basename(argv[0]))[:100] or "job"


def _directory(path):
    path = os.path.abspath(path) if path is not None else _caller_directory()
    if not os.path.isdir(path):
        raise Failure(exits.USAGE, "no such directory: %s" % path)
    return path


def _caller_directory():
    try:
        return os.getcwd()
    except OSError as failure:
        raise Failure(exits.USAGE, "the current directory is gone (use -w): %s" % reason(failure)) from None


def user_name():
    """The name of the effective user, or the number where the password database has none."""
    import pwd
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def fill_in(pattern, entry):
    """The path of an output file, absolute (relative to the job's directory), with %j %r %a %h %u %n %% filled in from
    the running record `entry`; None for None. Raises Failure for another letter."""
    if pattern is None:
        return None
    names = {"j": entry["job"] or entry["run"], "r": entry["run"], "a": entry["attempt"], "h": entry["host"],
             "u": entry["user"], "n": entry["name"].replace("/", "-"), "%": "%"}
    filled, rest = "", pattern
    while rest:
        before, percent, rest = rest.partition("%")
        filled += before
        if percent:
            if rest[:1] not in names or not rest:
                raise Failure(exits.USAGE, "unknown %%%s in %s (known: %%j %%r %%a %%h %%u %%n %%%%)"
                              % (rest[:1], pattern))
            filled += str(names[rest[0]])
            rest = rest[1:]
    return os.path.join(entry["cwd"], filled)


def output(pattern, entry):
    """The path of an output file, absolute (relative to the job's directory), with %j %r %a %h %u %n %% filled in from
    the running record `entry`; None for None. Raises Failure."""
    if pattern is None:
        return None
    path = fill_in(pattern, entry)
    _check_path(path)
    return path


def check_output(pattern, entry):
    """Refuse an output file that could not be opened when the job starts, as far as that can be told before it has
    its numbers; `entry` as made by fields(). Raises Failure."""
    if pattern is None:
        return
    path = fill_in(pattern, dict(entry, job=0, run="0.0", attempt=0, host=""))
    if "%" not in os.path.dirname(pattern):
        _check_path(path if "%" not in pattern else os.path.dirname(path) + "/%")


def _check_path(path):
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise Failure(exits.USAGE, "no such directory: %s" % folder)
    if os.path.isdir(path):
        raise Failure(exits.USAGE, "is a directory: %s" % path)


def environ(inherited, entry, base):
    """The environment of the job (bytes to bytes): `inherited` with the names of this run; those of an outer one go."""
    ours = {"MXQ_RUN": entry["run"], "MXQ_JOBID": entry["job"], "MXQ_THREADS": entry["threads"],
            "MXQ_MEMORY": entry["memory"] and -(-entry["memory"] // units.MIB),
            "MXQ_TIME": entry["runtime"] and -(-entry["runtime"] // 60), "MXQ_DIR": base}
    for name, value in ours.items():
        if value is None:
            inherited.pop(name.encode("ascii"), None)
        else:
            inherited[name.encode("ascii")] = os.fsencode(str(value))
    return inherited


def asked_for(values):
    """The list `deliveries` of a record, in the order of the exit: log, record, mail, hook. Raises Failure."""
    found = []
    log = values.log or os.environ.get("MXQ_LOG")
    if log:
        found.append({"sink": "log", "path": os.path.abspath(log)})
    if values.record:
        found.append({"sink": "record", "path": "-" if values.record == "-" else os.path.abspath(values.record)})
    mail = values.mail or _setting("MXQ_MAIL", _address)
    if mail:
        when = values.mail_on or _setting("MXQ_MAIL_ON", _when) or "failure"
        found.append({"sink": "mail", "to": mail, "on": when})
    if values.hook:
        found.append({"sink": "hook", "command": values.hook})
    return found


def _setting(name, parse):
    text = os.environ.get(name)
    if not text:
        return None
    try:
        return parse(text)
    except ValueError as failure:
        raise Failure(exits.CONFIG, "%s: %s" % (name, failure)) from None
