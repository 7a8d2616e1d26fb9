"""Where things are: base directory, queue, spool, runners, fallback; and that nobody else can write there."""

import os
import stat

from mxqlib import durable, exits
from mxqlib.cli import Failure, reason, step

_ELSEWHERE = "MXQ_DIR, MXQ_SPOOL and MXQ_QUEUE name other places"


def base(option=None):
    """The base directory: -d, $MXQ_DIR, for root /var/lib/mxq, else $XDG_STATE_HOME/mxq or ~/.local/state/mxq.

    cron and batch systems may leave HOME unset: then it is the home in the password database.
    """
    path = _base(option or os.environ.get("MXQ_DIR"))
    step("the base directory is %s" % path)
    return path


def _base(chosen):
    if chosen:
        return os.path.abspath(chosen)
    if os.geteuid() == 0:
        return "/var/lib/mxq"
    state = os.environ.get("XDG_STATE_HOME") or ""
    if not state.startswith("/"):           # relative ones are to be ignored (XDG Base Directory Specification)
        state = os.path.join(_home(), ".local", "state")
    return os.path.join(state, "mxq")


def _home():
    home = os.environ.get("HOME")
    if home and home.startswith("/"):
        return home
    import pwd
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        raise Failure(exits.CONFIG, "no home directory: set MXQ_DIR or HOME") from None


def queue(base_path):
    """The database file: $MXQ_QUEUE, else queue.db in the base directory."""
    return os.path.abspath(os.environ.get("MXQ_QUEUE") or os.path.join(base_path, "queue.db"))


def spool(base_path):
    """The spool directory: $MXQ_SPOOL, else spool/ in the base directory."""
    return os.path.abspath(os.environ.get("MXQ_SPOOL") or os.path.join(base_path, "spool"))


def runners(base_path):
    """The directory of locks; local to the host."""
    return os.path.join(base_path, "runners")


def fallback():
    """The directory for records that the spool cannot take: $MXQ_FALLBACK, else /var/tmp/mxq-UID."""
    return os.path.abspath(os.environ.get("MXQ_FALLBACK") or "/var/tmp/mxq-%d" % os.geteuid())


def check_private(path):
    """Refuse a directory that is a link, someone else's, or writable by group or others.

    Returns False when there is nothing at `path`, else True. Raises Failure.
    """
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    except OSError as failure:
        raise Failure(exits.NOPERM, "cannot look at %s: %s (%s)" % (path, reason(failure), _ELSEWHERE)) from None
    if stat.S_ISLNK(found.st_mode):
        raise Failure(exits.NOPERM, "%s is a symbolic link: name the directory itself" % path)
    if not stat.S_ISDIR(found.st_mode):
        raise Failure(exits.CANTCREAT, "%s is not a directory" % path)
    check_owner(found, path)
    return True


def check_owner(found, what):
    """Refuse `what`, a name for messages, whose os.stat_result `found` is someone else's, or writable by group or
    others. Raises Failure."""
    if found.st_uid != os.geteuid():
        raise Failure(exits.NOPERM, "%s belongs to user %d, not to you" % (what, found.st_uid))
    if found.st_mode & 0o022:
        raise Failure(exits.NOPERM, "%s can be written by others: chmod go-w it" % what)


def make_private(path):
    """Make directory `path` (mode 0700) when it is missing, and check that it is private."""
    if check_private(path):
        return
    try:
        durable.make_directory(path)
    except OSError as failure:
        raise Failure(exits.CANTCREAT, "cannot create %s: %s (%s)" % (path, reason(failure), _ELSEWHERE)) from None
    check_private(path)
