"""The tables of the queue and how they came about: one list of statements per version, never changed once released.

What every query needs has an index, and none gets slower with the number of ended jobs: the indexes that serve
claims, dependencies and the outbox are partial and hold live rows only. mxq-queue(5) describes the columns.
"""

import json

from mxqlib import outbox, record

APPLICATION_ID = 0x6d787171     # "mxqq" in the file's header, offset 68 (file(1), PRAGMA application_id)

# CHECK (state IN (...)) would build a set for each row and cost more than the row; a search in a text costs nothing.
_VERSION_1 = (
    """CREATE TABLE environment (
        id      INTEGER PRIMARY KEY,
        digest  BLOB NOT NULL UNIQUE,
        content BLOB NOT NULL)""",
    """CREATE TABLE job (
        job         INTEGER PRIMARY KEY AUTOINCREMENT,
        state       TEXT NOT NULL,
        attempt     INTEGER NOT NULL DEFAULT 0,
        priority    INTEGER NOT NULL DEFAULT 127,
        group_name  TEXT NOT NULL DEFAULT 'default',
        name        TEXT NOT NULL,
        threads     INTEGER NOT NULL DEFAULT 1,
        memory      INTEGER NOT NULL DEFAULT 0,
        runtime     INTEGER NOT NULL DEFAULT 0,
        host        TEXT NOT NULL DEFAULT '',
        waits       INTEGER NOT NULL DEFAULT 0,
        argv        TEXT NOT NULL,
        cwd         TEXT NOT NULL,
        umask       INTEGER NOT NULL,
        stdout      TEXT,
        stderr      TEXT,
        restart     TEXT NOT NULL DEFAULT 'never',
        retries     INTEGER NOT NULL DEFAULT 0,
        retried     INTEGER NOT NULL DEFAULT 0,
        environment INTEGER REFERENCES environment (id),
        deliveries  TEXT,
        date_submit TEXT,
        date_end    TEXT,
        note        TEXT,
        CHECK (instr(CASE WHEN date_end IS NULL THEN '|queued|held|loaded|running|'
                     ELSE '|finished|failed|killed|lost|cancelled|' END, '|' || state || '|')))""",
    # ls, wait, ctl --all: the live jobs of a state, or the ended ones by date.
    "CREATE INDEX job_state ON job (state, date_end)",
    "CREATE INDEX job_group ON job (group_name, state, date_end) WHERE group_name <> 'default'",
    "CREATE INDEX job_name ON job (name, state, date_end)",
    # Claims: jobs of one kind (the same first five columns) lie together, the oldest last, as it is read backwards.
    """CREATE INDEX job_waiting ON job (priority, group_name, threads, memory, host, job DESC)
        WHERE state = 'queued' AND waits = 0""",
    """CREATE TABLE run (
        number     INTEGER PRIMARY KEY,
        run        TEXT NOT NULL UNIQUE,
        job        INTEGER NOT NULL REFERENCES job (job),
        attempt    INTEGER NOT NULL,
        state      TEXT NOT NULL
                   CHECK (instr('|loaded|running|finished|failed|killed|lost|cancelled|', '|' || state || '|')),
        host       TEXT NOT NULL,
        runner     TEXT,
        cpus       TEXT,
        date_load  TEXT,
        date_start TEXT,
        date_end   TEXT,
        real       REAL,
        status     INTEGER,
        reason     TEXT,
        record     TEXT,
        UNIQUE (job, attempt))""",
    "CREATE INDEX run_active ON run (state) WHERE state IN ('loaded', 'running')",
    # Keyed by what the stable id of an event is made of: committed twice, it is the same row.
    """CREATE TABLE event (
        job     INTEGER NOT NULL REFERENCES job (job),
        attempt INTEGER NOT NULL,
        code    INTEGER NOT NULL,
        n       INTEGER NOT NULL DEFAULT 0,
        date    TEXT NOT NULL,
        note    TEXT,
        PRIMARY KEY (job, attempt, code, n)) WITHOUT ROWID""",
    """CREATE TABLE delivery (
        number    INTEGER PRIMARY KEY AUTOINCREMENT,
        job       INTEGER NOT NULL,
        attempt   INTEGER NOT NULL,
        code      INTEGER NOT NULL,
        n         INTEGER NOT NULL,
        sink      TEXT NOT NULL,
        target    TEXT NOT NULL,
        state     TEXT NOT NULL DEFAULT 'owed' CHECK (instr('|owed|parked|done|', '|' || state || '|')),
        tries     INTEGER NOT NULL DEFAULT 0,
        next_try  TEXT NOT NULL DEFAULT '',
        error     TEXT,
        date_done TEXT,
        UNIQUE (job, attempt, code, n, sink, target),
        FOREIGN KEY (job, attempt, code, n) REFERENCES event (job, attempt, code, n))""",
    # The deliverer: mail and hooks by date, files by target and in their order.
    "CREATE INDEX delivery_owed ON delivery (sink, next_try, number) WHERE state = 'owed'",
    "CREATE INDEX delivery_target ON delivery (sink, target, number) WHERE state = 'owed'",
    "CREATE INDEX delivery_parked ON delivery (number) WHERE state = 'parked'",
    """CREATE TABLE dependency (
        job   INTEGER NOT NULL REFERENCES job (job),
        after INTEGER NOT NULL REFERENCES job (job),
        PRIMARY KEY (job, after)) WITHOUT ROWID""",
    "CREATE INDEX dependency_after ON dependency (after)",
    "CREATE TABLE forgotten (run TEXT PRIMARY KEY) WITHOUT ROWID",
)

MIGRATIONS = (_VERSION_1,)      # MIGRATIONS[n] leads from version n to n + 1 (PRAGMA user_version)
VERSION = len(MIGRATIONS)


def versions(db):
    """(application id, version, whether there is anything in it) of an open database."""
    return (db.execute("PRAGMA application_id").fetchone()[0], db.execute("PRAGMA user_version").fetchone()[0],
            db.execute("SELECT count(*) FROM (SELECT 1 FROM sqlite_master LIMIT 1)").fetchone()[0] == 1)


def migrate(db, first_job=1):
    """Lead an open database, in the transaction that the caller began, from its version to the present one.

    A new one gives job numbers from `first_job` on.
    """
    version = versions(db)[1]
    for statements in MIGRATIONS[version:]:
        for statement in statements:
            db.execute(statement)
    if version == 0:
        db.execute("PRAGMA application_id = %d" % APPLICATION_ID)
        if first_job > 1:
            db.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('job', ?)", (first_job - 1,))
    db.execute("PRAGMA user_version = %d" % VERSION)


# ---- damage ----

_JSON = (("job", "argv"), ("job", "deliveries"), ("run", "cpus"), ("run", "record"))
_CLASSES = {"INTEGER": "'integer', 'null'", "REAL": "'real', 'integer', 'null'", "TEXT": "'text', 'blob', 'null'",
            "BLOB": "'blob', 'null'"}


def flaw(db):
    """In words, what in an open database was not written by us; None when nothing is found. All of it is read.

    SQLite has no checksums: a value that was damaged on the disk is seen when it makes no sense any more. Raises
    sqlite3.Error.
    """
    found = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if found != "ok":
        return found
    tables = db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'").fetchall()
    for table, in tables:
        for column, kind in db.execute("SELECT name, type FROM pragma_table_info(?)", (table,)).fetchall():
            if db.execute("SELECT 1 FROM %s WHERE typeof(%s) NOT IN (%s) LIMIT 1" % (table, column, _CLASSES[kind])
                          ).fetchone():
                return "a value of column %s in table %s is of a wrong type" % (column, table)
    codes = ", ".join(map(str, outbox.CODES))
    if db.execute("SELECT 1 FROM event WHERE code NOT IN (%s) LIMIT 1" % codes).fetchone():
        return "an event has a code that there is not"
    for table, column in _JSON:
        for text, in db.execute("SELECT %s FROM %s WHERE %s IS NOT NULL" % (column, table, column)):
            try:
                if column == "record":
                    record.decode(text.encode("utf-8") + b"\n")
                else:
                    json.loads(text)
            except (record.Damaged, ValueError, AttributeError):
                return "a value of column %s in table %s is damaged" % (column, table)
    return None
