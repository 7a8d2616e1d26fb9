"""What every command does alike: options, help, messages, and how a command ends.

argparse costs 5 ms of start and abbreviates long options; getopt imports gettext. Options here end at
the first operand, `--` ends them too, long options are written out, and one table per command makes
the parsing and the help, and is held against the manual page by a test.
"""

import errno
import os
import sys

from mxqlib import __version__, exits, signals

program = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "mxq"
quiet = False       # -q: warnings are not shown
verbose = False     # -v: steps are shown
message_file = None     # where a detached process says what it has to say
clear_line = None   # takes away a line of progress before a message is written over it
unreported = False  # standard output took no report
were_closed = []    # which of the descriptors 0, 1, 2 were: what is written there now is lost
suspects = []       # functions that look whether damaged data explains what nobody foresaw: text, or None


class Failure(Exception):
    """The command cannot go on: `text` is shown as an error, `status` (see exits) is how it ends."""

    def __init__(self, status, text):
        Exception.__init__(self, text)
        self.status = status


class Option:
    """One option: `short` letter or None, `long` name or None, `arg` placeholder (None: takes no value),
    `help` text, `parse` a function text -> value that raises ValueError, `many` to collect a list."""

    __slots__ = ("short", "long", "arg", "help", "parse", "many")

    def __init__(self, short, long, arg, help, parse=None, many=False):
        self.short, self.long, self.arg, self.help, self.parse, self.many = short, long, arg, help, parse, many

    @property
    def key(self):
        """The name of its value: the long name with `_` for `-`, else the letter."""
        return (self.long or self.short).replace("-", "_")

    def spelled(self):
        """How the option is written: `-j N`, `--grace TIME`."""
        names = (["-" + self.short] if self.short else []) + (["--" + self.long] if self.long else [])
        return ", ".join(names) + (" " + self.arg if self.arg else "")


BASE = (Option("d", None, "DIR", "base directory (default: $MXQ_DIR)"),)
COMMON = (
    Option("q", None, None, "no warnings"),
    Option("v", None, None, "tell the steps taken"),
    Option("h", "help", None, "show this help and exit"),
    Option("V", "version", None, "show the version and exit"),
)


class Values:
    """The values of options by key; None where an option was not given."""

    def __init__(self, options):
        for option in options:
            setattr(self, option.key, [] if option.many else None)


def parse(options, argv, usage, text):
    """Read the options off argv (without the program's name).

    Returns (Values, operands). Shows help or version and exits 0 where asked. Raises Failure(USAGE).
    """
    options = tuple(options) + COMMON
    values = Values(options)
    names = {}
    for option in options:
        if option.short:
            names["-" + option.short] = option
        if option.long:
            names["--" + option.long] = option
    rest = list(argv)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        for name, value in _split(word, names):
            option = names.get(name)
            if option is None:
                raise Failure(exits.USAGE, "unknown option: %s (try --help)" % name)
            if option.arg and value is None:
                if not rest:
                    raise Failure(exits.USAGE, "option needs a value: %s %s" % (name, option.arg))
                value = rest.pop(0)
            _take(values, option, name, value)
            if option.key in ("help", "version"):
                _show_and_leave(option.key, options, usage, text)
    global quiet, verbose
    quiet, verbose = bool(values.q), bool(values.v)
    return values, rest


def _split(word, names):
    """The (name, value or None) pairs in one word: `--a=b`, `-abc`, `-j2`."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        option = names.get(name)
        if equals and option is not None and not option.arg:
            raise Failure(exits.USAGE, "option takes no value: %s" % name)
        return [(name, value if equals else None)]
    pairs = []
    for at, letter in enumerate(word[1:], 2):
        option = names.get("-" + letter)
        if option is not None and option.arg:
            return pairs + [("-" + letter, word[at:] or None)]
        pairs.append(("-" + letter, None))
    return pairs


def _take(values, option, name, value):
    if not option.arg:
        value = True
    elif option.parse:
        try:
            value = option.parse(value)
        except ValueError as error:
            raise Failure(exits.USAGE, "option %s: %s" % (name, error)) from None
    if option.many:
        getattr(values, option.key).append(value)
    else:
        setattr(values, option.key, value)


def _show_and_leave(what, options, usage, text):
    if what == "version":
        shown = "%s (MXQ) %s\n" % (program, __version__)
    else:
        width = max(len(option.spelled()) for option in options) + 2
        lines = ["  %-*s%s" % (width, option.spelled(), option.help) for option in options]
        shown = "usage: %s %s\n%s\n\n%s\n\nSee %s(1).\n" % (program, usage, text, "\n".join(lines), program)
    output(shown.encode("utf-8", "surrogateescape"))
    raise SystemExit(exits.OK)


def output(data):
    """Bytes to standard output. Raises OSError, also where it was closed or its reader has left: a command that has
    done something dies of neither, and says so. Not through sys.stdout, which would try again at the end."""
    if 1 in were_closed:
        raise OSError(errno.EBADF, "standard output is closed")
    signals.ignore(signals.PIPE)
    while data:
        data = data[os.write(1, data):]


def report(text):
    """One line on standard output: what was done. Returns OK; IOERR when it cannot be written, which is said once."""
    global unreported
    try:
        output((printable(text) + "\n").encode("utf-8", "backslashreplace"))
    except OSError as failure:
        if not unreported:
            error("cannot tell on standard output what is done, and go on: %s" % reason(failure))
        unreported = True
    return exits.IOERR if unreported else exits.OK


def printable(text):
    """`text` on one line: control characters and bytes that are not UTF-8 as escapes, all else as it is."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii")
                   for c in text)


def say(severity, text):
    """One line on standard error, in one write, so that lines of several processes do not mix."""
    if clear_line is not None:
        clear_line()
    write(("%s: %s: %s\n" % (program, severity, printable(text))).encode("utf-8", "backslashreplace"))


def write(data):
    """Bytes to standard error, or to the message file of a detached process.

    What cannot be written is dropped: there is nobody left to tell.
    """
    try:
        if message_file is None:
            os.write(2, data)
            return
        fd = os.open(message_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)
    except OSError:
        pass


def error(text):
    """Say that something asked for was not done."""
    say("error", text)


def warn(text):
    """Say that something is odd and what happens next; not with -q."""
    if not quiet:
        say("warning", text)


def step(text):
    """Say what is being done; only with -v."""
    if verbose:
        say("info", text)


def reason(failure):
    """What an OSError says in words, without Python's number and repr."""
    return failure.strerror or str(failure) or failure.__class__.__name__


def repair_standard_fds():
    """Open /dev/null on each of 0, 1, 2 that is closed: the next file opened would become it, and get our messages."""
    try:
        fd = os.open(os.devnull, os.O_RDWR)
    except OSError:
        return          # no descriptor is to be had; whoever needs one next says so
    while fd < 3:
        were_closed.append(fd)
        os.set_inheritable(fd, True)
        fd = os.open(os.devnull, os.O_RDWR)
    os.close(fd)
    if sys.stdout is None:          # it was closed when Python started
        sys.stdout = open(1, "w", closefd=False)


def _start_over_in_utf8():
    # In a locale such as de_DE.ISO-8859-1 bytes would be read as its characters, and records of the same job differ
    # from one caller to the next. The C locale is UTF-8 already (PEP 540).
    if sys.executable:
        os.execv(sys.executable, [sys.executable, "-IS", "-X", "utf8"] + sys.argv)


def show_bug():
    """The traceback of the exception being handled, where messages go; only for what is our own bug."""
    import traceback
    write(traceback.format_exc().encode("utf-8", "backslashreplace"))


def run(main):
    """Call main(sys.argv[1:]) and end the process with what it returns; the one catcher of all commands.

    INT and PIPE end a command as they end one that knows nothing of them; who must outlive them says so.
    The end is os._exit: tearing the interpreter down costs as much as importing half of a command.
    """
    repair_standard_fds()
    if sys.getfilesystemencoding() != "utf-8" and not sys.flags.utf8_mode:
        _start_over_in_utf8()
    signals.restore_default(signals.PIPE)
    signals.restore_default(signals.CHLD)       # ignored, it would lose the statuses of children (wait(2))
    if not signals.is_ignored(signals.INT):
        signals.restore_default(signals.INT)
    try:
        status = main(sys.argv[1:])
        sys.stdout.flush()
    except SystemExit as leave:
        status = leave.code
    except Failure as failure:
        error(str(failure))
        status = failure.status
    except OSError as failure:
        where = " %s" % failure.filename if failure.filename else ""
        error("input or output failed%s: %s" % (where, reason(failure)))
        status = exits.IOERR
    except ImportError as failure:
        error("a part of this program, or of Python, cannot be loaded: %s" % failure)
        status = exits.UNAVAILABLE
    except BaseException:
        why = next(filter(None, (look() for look in suspects)), None)
        if why is not None:
            error(why)
            status = exits.UNAVAILABLE
        else:
            show_bug()
            status = exits.BUG
    os._exit(status)
