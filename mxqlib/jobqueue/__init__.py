"""The queue: one SQLite database; how it is opened, and what a transaction on it promises.

When transaction() is left without an exception its changes are on the disk; with one, nothing is changed. A
database that is locked, gone, full, damaged or not ours raises cli.Failure with the status that
mxq-queue(5) names, never a traceback. This package and schema are the home of all SQL; what can happen to
jobs is in `outcomes` and `jobs`, reading in `roster`.

WAL with synchronous=FULL: every commit is an fsync of the log (https://sqlite.org/wal.html). On network file
systems, where WAL cannot work, a rollback journal with synchronous=EXTRA, as with FULL the removal of
the journal, which is the commit, would not be durable (https://sqlite.org/pragma.html#pragma_synchronous).
"""

import os
import sqlite3
import stat
import time

from mxqlib import cli, durable, exits, outbox, place, schema
from mxqlib.cli import Failure, reason

BUSY_S = 30.0
_PRAGMAS = ("PRAGMA foreign_keys = ON", "PRAGMA cache_size = -16384", "PRAGMA wal_autocheckpoint = 4000",
            "PRAGMA journal_size_limit = 67108864")
# What SQLite says (sqlite3ErrStr) -> how the command ends. sqlite_errorcode came with Python 3.11.
_STATUSES = (
    ("is locked", exits.TEMPFAIL), ("locking protocol", exits.TEMPFAIL),
    ("readonly database", exits.NOPERM), ("access permission denied", exits.NOPERM),
    ("unable to open", None),
    ("disk I/O error", exits.IOERR), ("disk is full", exits.IOERR),
    ("malformed", exits.UNAVAILABLE), ("not a database", exits.UNAVAILABLE),
    ("no such table", exits.UNAVAILABLE), ("no such column", exits.UNAVAILABLE),
    ("decode to UTF-8", exits.UNAVAILABLE),
)


# Rows that a transaction adds by the thousand, in the order in which they refer to each other.
NEW_JOB = ("INSERT INTO job (job, state, attempt, priority, group_name, name, threads, memory, runtime, argv, cwd,"
           " umask, stdout, stderr, restart, deliveries, date_submit, date_end)"
           " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")
NEW_RUN = ("INSERT INTO run (run, job, attempt, state, host, cpus, date_start, date_end, real, status, reason, record)"
           " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")
NEW_EVENT = ("INSERT INTO event (job, attempt, code, n, date, note) VALUES (?, ?, ?, ?, ?, ?)"
             " ON CONFLICT DO NOTHING")
NEW_DELIVERY = ("INSERT INTO delivery (job, attempt, code, n, sink, target) VALUES (?, ?, ?, ?, ?, ?)"
                " ON CONFLICT DO NOTHING")


def to_column(text):
    """A text as it is stored: TEXT, or a BLOB of its bytes when these are not UTF-8. None stays None."""
    if text is None or text.isascii():
        return text
    try:
        text.encode("utf-8")
        return text
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape")


def from_column(value):
    """The text that to_column() stored, bytes that are not UTF-8 as lone surrogates (PEP 383)."""
    return value.decode("utf-8", "surrogateescape") if value.__class__ is bytes else value


def _explain(path, failure):
    text = str(failure)
    for words, status in _STATUSES:
        if words in text:
            if status is None:
                allowed = os.access(path, os.R_OK) and os.access(os.path.dirname(path), os.W_OK)
                status = exits.IOERR if allowed else exits.NOPERM
            return Failure(status, "cannot use the queue %s: %s" % (path, text))
    return None


class _Transaction:
    """BEGIN on entering, COMMIT on leaving, ROLLBACK when an exception leaves."""

    def __init__(self, queue, begin):
        self.queue, self.begin = queue, begin

    def __enter__(self):
        self.queue.start_over()
        try:
            self.queue.db.execute(self.begin)
        except sqlite3.Error as failure:
            raise _explain(self.queue.path, failure) or failure from None
        return self.queue

    def __exit__(self, kind, failure, _trace):
        try:
            if failure is None:
                self.queue.flush()
                if self.queue.owes:
                    outbox.mark(self.queue.path)
                self.queue.db.execute("COMMIT")
        except (sqlite3.Error, OSError) as trouble:
            failure = trouble
        if failure is None:
            return
        self._roll_back()
        if isinstance(failure, sqlite3.Error):
            raise _explain(self.queue.path, failure) or failure from None
        if isinstance(failure, OSError) and kind is None:
            raise Failure(exits.IOERR, "cannot write beside the queue %s: %s" % (self.queue.path, reason(failure)))

    def _roll_back(self):
        try:
            if self.queue.db.in_transaction:    # after some errors SQLite has done it already
                self.queue.db.execute("ROLLBACK")
        except sqlite3.Error:
            pass                # the error that is on its way says more; closing rolls back as well


class Queue:
    """An open queue. `db` is its connection, for this package only. `owes` and `pending`, the rows by statement that
    flush() writes, belong to the transaction that is open."""

    def __init__(self, path, db):
        self.path, self.db = path, db
        self.start_over()
        # A queue is a claim, too: where its values make no sense, that is no bug of ours.
        cli.suspects[:] = [lambda: _find_flaw(path)]

    def start_over(self):
        """Forget what a transaction that is over has left."""
        self.owes = False
        self.pending = {NEW_JOB: [], NEW_RUN: [], NEW_EVENT: [], NEW_DELIVERY: []}

    def transaction(self):
        """A context for changes: nobody else writes meanwhile. Raises Failure."""
        return _Transaction(self, "BEGIN IMMEDIATE")

    def reading(self):
        """A context in which all questions are answered from one state of the queue. Raises Failure."""
        return _Transaction(self, "BEGIN")

    def add_event(self, job, attempt, code, date, note, state, deliveries):
        """Note an event, and owe what `deliveries` asks for; one that is there already stays as it is.

        `attempt` 0: of the job itself, which may be held more than once, so this is the next one of its kind.
        `state` is that of the job or run after it.
        """
        n = 0
        if not attempt and code != outbox.SUBMIT:
            self.flush()
            n = self.db.execute("SELECT count(*) FROM event WHERE job = ? AND attempt = 0 AND code = ?",
                                (job, code)).fetchone()[0]
        self.pending[NEW_EVENT].append((job, attempt, code, n, date, to_column(note)))
        if deliveries:
            self.pending[NEW_DELIVERY] += [(job, attempt, code, n, sink, to_column(target))
                                           for sink, target in outbox.owed(deliveries, code, state)]

    def flush(self):
        """Write the rows that are pending: thousands at once cost half of what each alone costs."""
        for statement, rows in self.pending.items():
            if rows:
                self.owes = self.owes or statement == NEW_DELIVERY
                self.db.executemany(statement, rows)
                rows.clear()

    def vacuum(self, prepare):
        """Give back the space of what was removed, after `prepare(queue)` in a transaction without foreign keys. Others
        wait meanwhile; needs as much room again as the database takes. Raises Failure."""
        try:
            self.db.execute("PRAGMA foreign_keys = OFF")
            with self.transaction():
                prepare(self)
            self.db.execute("VACUUM")
            # Else the file gets shorter when nobody uses it any more. Who reads just now keeps it as it is.
            self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self.db.execute("PRAGMA foreign_keys = ON")
        except sqlite3.Error as failure:
            raise _explain(self.path, failure) or failure from None

    def readers_delay_writers(self):
        """True when reading() keeps others from writing: with a rollback journal, on a network file system."""
        return self.db.execute("PRAGMA journal_mode").fetchone()[0] != "wal"

    def close(self):
        """Close; the last one to do so folds the log into the database file. Raises Failure."""
        try:
            self.db.close()
        except sqlite3.Error as failure:
            raise _explain(self.path, failure) or failure from None


def open_queue(path, first_job=None, busy_s=BUSY_S):
    """The queue at `path`, made when it is missing and brought to the present version. Raises Failure.

    `first_job()` is asked when it is new: its job numbers start there, so that they do not meet the ones
    that records of a lost queue still have. `busy_s`: how long a lock is waited for.
    """
    if not _check(path):
        _create(path)
    db = None
    try:
        db = sqlite3.connect(path, timeout=busy_s, isolation_level=None)
        _set_up(db, path, busy_s)
        queue = Queue(path, db)
        if _needs_migration(db, path):
            with queue.transaction():
                if _needs_migration(db, path):      # nobody else did it while we waited for the lock
                    schema.migrate(db, first_job() if first_job else 1)
        return queue
    except (sqlite3.Error, Failure) as failure:
        if db is not None:
            db.close()
        raise (_explain(path, failure) or failure) from None


def read_queue(path, busy_s=BUSY_S):
    """The queue at `path` for reading, or None when there is none yet. Nothing is made or migrated. Raises Failure."""
    if not _check(path) or not os.path.getsize(path):
        return None
    uri = _uri(path)
    while True:
        db = None
        try:
            db = sqlite3.connect(uri, uri=True, timeout=busy_s, isolation_level=None)
            db.execute("PRAGMA query_only = ON")
            if _needs_migration(db, path):
                db.close()
                return None
            return Queue(path, db)
        except (sqlite3.Error, Failure) as failure:
            if db is not None:
                db.close()
            # On a full disk the files to read through cannot be made; then nobody writes either.
            if "disk I/O error" in str(failure) and "immutable" not in uri and not _has_log(path):
                uri = _immutable_uri(path)
                continue
            raise (_explain(path, failure) or failure) from None


def _find_flaw(path):
    """A text that says what is damaged in the queue at `path`, or None."""
    db = None
    try:
        db = sqlite3.connect(_uri(path), uri=True, isolation_level=None)
        found = schema.flaw(db)
    except sqlite3.Error as failure:
        known = _explain(path, failure)
        found = str(failure) if known is not None and known.status == exits.UNAVAILABLE else None
    finally:
        if db is not None:
            db.close()
    return found and "cannot use the queue %s: it is damaged: %s" % (path, found)


def _uri(path):
    """How SQLite is to open `path` for reading (https://sqlite.org/uri.html).

    A database in WAL mode is read through files that must be made; where nothing can be written, nobody else
    writes either, and without a log of its own the file is all there is.
    """
    if os.access(os.path.dirname(path), os.W_OK) and os.access(path, os.W_OK):
        return "file:%s?mode=rw" % _quoted(path)
    if _has_log(path):
        return "file:%s?mode=ro" % _quoted(path)
    return _immutable_uri(path)


def _has_log(path):
    try:
        return os.path.getsize(path + "-wal") > 0
    except FileNotFoundError:
        return False


def _immutable_uri(path):
    return "file:%s?mode=ro&immutable=1" % _quoted(path)


def _quoted(path):
    return "".join("%%%02x" % byte for byte in os.fsencode(path))


def _check(path):
    """False when there is no file at `path`; Failure unless it is a regular file of ours that only we can write."""
    if not place.check_private(os.path.dirname(path)):
        return False
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    except OSError as failure:
        raise Failure(exits.NOPERM, "cannot look at %s: %s" % (path, reason(failure))) from None
    if not stat.S_ISREG(found.st_mode):
        raise Failure(exits.UNAVAILABLE, "the queue %s is not a regular file" % path)
    place.check_owner(found, "the queue " + path)
    return True


def _create(path):
    """Make the empty file, private whatever the umask: SQLite gives its own files the mode of this one."""
    if not os.path.isdir(os.path.dirname(path)):
        raise Failure(exits.CANTCREAT, "cannot create the queue %s: no such directory" % path)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(fd, 0o600)
        finally:
            os.close(fd)
        durable.sync_directory(os.path.dirname(path))
    except OSError as failure:
        raise Failure(exits.NOPERM if isinstance(failure, PermissionError) else exits.CANTCREAT,
                      "cannot create the queue %s: %s" % (path, reason(failure))) from None


def _set_up(db, path, busy_s):
    for pragma in _PRAGMAS:
        db.execute(pragma)
    wanted = "delete" if durable.is_on_network(path) else "wal"
    if db.execute("PRAGMA journal_mode").fetchone()[0] != wanted:
        _set_journal(db, wanted, busy_s)
    level = "OFF" if durable.is_lazy() else "FULL" if wanted == "wal" else "EXTRA"
    db.execute("PRAGMA synchronous = %s" % level)


def _set_journal(db, wanted, busy_s):
    # To change the mode a lock is needed for which SQLite does not wait when others hold theirs.
    until = time.monotonic() + busy_s
    while True:
        try:
            mode = db.execute("PRAGMA journal_mode = %s" % wanted).fetchone()[0]
            if mode == wanted:
                return
        except sqlite3.OperationalError as failure:
            if "is locked" not in str(failure) or time.monotonic() > until:
                raise
        if time.monotonic() > until:
            raise sqlite3.OperationalError("database is locked")
        time.sleep(0.01)


def _needs_migration(db, path):
    if db.in_transaction:
        application, version, used = schema.versions(db)
    else:
        db.execute("BEGIN")         # one look: somebody may be making it between one answer and the next
        application, version, used = schema.versions(db)
        db.execute("COMMIT")
    if application != schema.APPLICATION_ID and (application or version or used):
        raise Failure(exits.UNAVAILABLE, "%s is a database, but not a queue of MXQ" % path)
    if version > schema.VERSION:
        raise Failure(exits.UNAVAILABLE, "the queue %s is of version %d, newer than this program knows (%d)"
                      % (path, version, schema.VERSION))
    return version < schema.VERSION
