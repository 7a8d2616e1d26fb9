"""mxq-sub: put jobs into the queue.

Guarantees: all jobs of one call come in one transaction, or none does; when a number is printed its job is durable;
nobody waits for the queue while this waits for its input.
"""

import io
import os
import stat

from mxqlib import cli, exits, jobqueue, place, process, record, request, units
from mxqlib.cli import Failure, Option, reason
from mxqlib.jobqueue import jobs, lookup, oblivion
from mxqlib.spool import Spool

USAGE = "[OPTION]... [--] COMMAND [ARGUMENT]...\n       mxq-sub [OPTION]... -f FILE"
TEXT = "Put COMMAND into the queue, or each line of FILE as a command of the shell, and print the job numbers."
OPTIONS = cli.BASE + request.OPTIONS + (
    Option("f", "file", "FILE", "a job for each line of FILE, run by sh -c; - is standard input"),
    Option("0", "null", None, "the commands in FILE end with NUL instead of a newline"),
    Option(None, "after", "JOB[,JOB]", "start when these jobs have finished", lambda text: _numbers(text), many=True),
    Option(None, "retries", "N", "run a failed job again, up to N times (0)",
           lambda text: units.number(text, 0, 65535)),
    Option(None, "hold", None, "do not start before mxq-ctl release"),
    Option(None, "clean-env", None, "only HOME LOGNAME USER SHELL PATH in the job's environment"),
) + request.DELIVERY_OPTIONS
EXITS = (exits.OK, exits.USAGE, exits.DATA, exits.UNAVAILABLE, exits.BUG, exits.CANTCREAT, exits.IOERR,
         exits.TEMPFAIL, exits.NOPERM, exits.CONFIG)

CLEAN = ("HOME", "LOGNAME", "USER", "SHELL", "PATH")
# What describes the submitter's terminal, shell or run, and nothing that a later job is in. at(1) leaves out the same
# but for PWD, OLDPWD and SHLVL, which every shell sets again: with them each directory would be an environment of its
# own.
LEFT_OUT = frozenset(name.encode("ascii") for name in (
    "TERM TERMCAP DISPLAY _ SHELLOPTS BASH_VERSINFO EUID GROUPS PPID UID PWD OLDPWD SHLVL "
    "MXQ_RUN MXQ_JOBID MXQ_THREADS MXQ_MEMORY MXQ_TIME MXQ_EVENT").split())
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
_LONGEST_B = 131071             # one argument with its NUL: MAX_ARG_STRLEN, 32 pages of 4 KiB (execve(2))
_BLOCK_B = 1 << 20
_NUMBERS_AT_ONCE = 20000


def main(argv):
    """Submit what the command line asks for, and print the numbers."""
    umask = os.umask(0o077)
    values, operands = cli.parse(OPTIONS, argv, USAGE, TEXT)
    _check_usage(values, operands)
    base = place.base(values.d)
    fields = request.fields(values, operands or ["sh"], umask)
    for pattern in (values.stdout, values.stderr):
        request.check_output(pattern, fields)
    fields["retries"] = values.retries or 0
    environment = _environment(values.clean_env)
    place.make_private(base)
    commands, encode = iter([operands]), record.to_json
    if values.file:
        commands, encode = _read_commands(values.file, b"\0" if values.null else b"\n", base), _shell_argv
    after = list(dict.fromkeys(number for numbers in values.after for number in numbers))
    return _submit(base, fields, environment, commands, encode, "held" if values.hold else "queued", after)


def _check_usage(values, operands):
    if values.file is None and not operands:
        raise Failure(exits.USAGE, "no command (try --help)")
    if values.file is not None and operands:
        raise Failure(exits.USAGE, "a command and -f at once: %s" % operands[0])
    if values.null and values.file is None:
        raise Failure(exits.USAGE, "option -0 needs -f")
    if values.file == "":
        raise Failure(exits.USAGE, "option -f: empty")


def _numbers(text):
    return [units.number(part, 1) for part in text.split(",")]


# ---- what is stored ----

def _environment(clean):
    """The job's environment: NAME=VALUE, each ended by NUL, in one order, so that equal ones are stored once."""
    if clean:
        given = process.own_environ()
        found = {os.fsencode(name): os.fsencode(value) for name, value in _account().items()}
        found.update((name, given[name]) for name in map(os.fsencode, CLEAN) if name in given)
    else:
        found = {name: value for name, value in process.own_environ().items() if name not in LEFT_OUT}
    return b"".join(name + b"=" + found[name] + b"\0" for name in sorted(found))


def _account():
    """What login(1) would set, for a caller without a proper environment (cron)."""
    import pwd
    try:
        entry = pwd.getpwuid(os.geteuid())
    except KeyError:
        return {"PATH": _DEFAULT_PATH}
    return {"HOME": entry.pw_dir, "LOGNAME": entry.pw_name, "USER": entry.pw_name,
            "SHELL": entry.pw_shell or "/bin/sh", "PATH": _DEFAULT_PATH}


# ---- many commands ----

def _read_commands(path, end, base):
    """The text of each command in `path`, one after the other. Raises Failure, also while it is being read."""
    shown = "standard input" if path == "-" else path
    try:
        source = os.fdopen(os.dup(0) if path == "-" else os.open(path, os.O_RDONLY | os.O_CLOEXEC), "rb", 0)
        if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
            source = _take_in(source, base, shown)
    except OSError as failure:
        raise _unreadable(shown, failure) from None
    return _split(source, end, shown)


def _unreadable(shown, failure):
    status = exits.IOERR
    if isinstance(failure, (FileNotFoundError, NotADirectoryError, IsADirectoryError)):
        status = exits.USAGE
    elif isinstance(failure, PermissionError):
        status = exits.NOPERM
    return Failure(status, "cannot read %s: %s" % (shown, reason(failure)))


def _take_in(source, base, shown):
    """All of a pipe or terminal, as a file: whoever writes into it may be slow, and the queue would be locked
    meanwhile. More than a block goes into a file without a name."""
    data = _read_block(source)
    if len(data) < _BLOCK_B:
        return io.BytesIO(data)
    try:
        kept = os.fdopen(os.open(base, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600), "r+b", 0)
        while data:
            view = memoryview(data)
            while view:
                view = view[kept.write(view):]
            data = _read_block(source)
        kept.seek(0)
    except OSError as failure:
        raise Failure(exits.IOERR, "cannot keep %s in %s: %s" % (shown, base, reason(failure))) from None
    return kept


def _read_block(source):
    parts, left = [], _BLOCK_B
    while left:
        part = source.read(left)
        if not part:
            break
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _split(source, end, shown):
    """The texts of the commands in `source`, those that are empty left out; memory does not grow with their number."""
    rest, before, separator = b"", 0, end.decode("ascii")
    while True:
        try:
            block = source.read(_BLOCK_B)
        except OSError as failure:
            raise _unreadable(shown, failure) from None
        data = rest + block
        whole, found, rest = data.rpartition(end) if block else (data, True, b"")
        if not found:
            if len(rest) > _LONGEST_B:
                raise _refusal(shown, before + 1, "more than %d bytes cannot be one argument" % _LONGEST_B)
            continue
        if end != b"\0" and b"\0" in whole:
            raise _refusal(shown, before + whole[:whole.index(b"\0")].count(end) + 1, "a NUL byte (use -0?)")
        lines = whole.decode("utf-8", "surrogateescape").split(separator)
        for line in lines:
            if len(line) * 4 > _LONGEST_B and len(line.encode("utf-8", "surrogateescape")) > _LONGEST_B:
                raise _refusal(shown, before + lines.index(line) + 1,
                               "more than %d bytes cannot be one argument" % _LONGEST_B)
            if line and (line[0] not in " \t\n" or line.strip(" \t\n")):
                yield line
        before += len(lines)
        if not block:
            return


def _shell_argv(line):
    """As JSON, how a line is executed: a million of them are worth not making a list first."""
    return '["sh","-c",%s]' % record.to_json(line)


def _refusal(shown, number, why):
    return Failure(exits.DATA, "%s: command %d: %s; nothing is submitted" % (shown, number, why))


# ---- into the queue ----

def _submit(base, fields, environment, commands, encode, state, after):
    queue = jobqueue.open_queue(place.queue(base), Spool(place.spool(base)).next_job)
    try:
        with queue.transaction():
            fields["environment"] = jobs.keep_environment(queue, environment)
            try:
                first, count = jobs.submit(queue, fields, commands, state, after, encode)
            except KeyError as unknown:
                number = unknown.args[0]
                why = ", it was forgotten" if oblivion.is_forgotten(queue, number) else ""
                raise Failure(exits.UNAVAILABLE, "option --after: no such job: %d%s" % (number, why)) from None
            if not count:
                raise Failure(exits.DATA, "no commands: nothing is submitted")
            cli.step("%d %s, with %d bytes of environment" % (count, state, len(environment)))
            hopeless = lookup.find_job(queue, first).is_over
    finally:
        queue.close()
    if hopeless:
        cli.warn("cancelled at once, as a job of --after did not finish; after mxq-ctl retry of that one, retry these")
    return _print_numbers(first, first + count)


def _print_numbers(first, beyond):
    try:
        for start in range(first, beyond, _NUMBERS_AT_ONCE):
            numbers = range(start, min(beyond, start + _NUMBERS_AT_ONCE))
            cli.output(("%s\n" % "\n".join(map(str, numbers))).encode("ascii"))
    except OSError as failure:
        shown = "job %d is" % first if beyond == first + 1 else "jobs %d to %d are" % (first, beyond - 1)
        cli.error("%s submitted, but that cannot be written: %s" % (shown, reason(failure)))
        return exits.IOERR
    return exits.OK
