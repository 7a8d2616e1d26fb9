"""jobqueue: how it is opened, what it refuses, what a transaction promises, and that every question has an index."""

import os
import re
import sqlite3
import subprocess
import sys

import pytest

from mxqlib import durable, exits, jobqueue, outbox, record, schema
from mxqlib.cli import Failure
from mxqlib.jobqueue import changes, jobs, lookup, outcomes, roster
from tests.harness import records
from tests.harness.sandbox import TREE


@pytest.fixture
def path(tmp_path):
    tmp_path.chmod(0o700)
    return str(tmp_path / "queue.db")


@pytest.fixture
def queue(path):
    queue = jobqueue.open_queue(path)
    yield queue
    queue.close()


def refuse(status, path, **kw):
    with pytest.raises(Failure) as failure:
        jobqueue.open_queue(path, **kw)
    assert failure.value.status == status
    assert path in str(failure.value)
    return str(failure.value)


# ---- opening ----

def test_it_is_made_private_and_durable(path):
    before = os.umask(0)
    try:
        queue = jobqueue.open_queue(path)
    finally:
        os.umask(before)
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert os.stat(path + "-wal").st_mode & 0o777 == 0o600
    ask = {name: queue.db.execute("PRAGMA " + name).fetchone()[0] for name in (
        "application_id", "user_version", "foreign_keys", "journal_mode", "synchronous")}
    assert ask == {"application_id": schema.APPLICATION_ID, "user_version": schema.VERSION, "foreign_keys": 1,
                   "journal_mode": "wal", "synchronous": 2}
    queue.close()
    assert os.listdir(os.path.dirname(path)) == ["queue.db"]
    jobqueue.open_queue(path).close()


def test_on_a_network_file_system_the_removal_of_the_journal_is_durable(path, monkeypatch):
    jobqueue.open_queue(path).close()       # made where WAL works, and moved
    monkeypatch.setattr(durable, "filesystem_type", lambda path: "nfs4")
    queue = jobqueue.open_queue(path)
    assert queue.db.execute("PRAGMA journal_mode").fetchone()[0] == "delete"
    assert queue.db.execute("PRAGMA synchronous").fetchone()[0] == 3
    assert queue.readers_delay_writers()
    queue.close()


def test_an_empty_file_is_a_queue_that_was_not_finished(path):
    open(path, "wb").close()
    assert jobqueue.read_queue(path) is None
    jobqueue.open_queue(path).close()
    jobqueue.read_queue(path).close()


def test_job_numbers_start_where_those_of_the_spool_end(path):
    queue = jobqueue.open_queue(path, lambda: 18)
    with queue.transaction():
        assert jobs.submit(queue, {"name": "x", "cwd": "/"}, [["true"]] * 2) == (18, 2)
    queue.close()
    queue = jobqueue.open_queue(path, lambda: 500)
    with queue.transaction():
        assert jobs.submit(queue, {"name": "x", "cwd": "/"}, [["true"]]) == (20, 1)
    queue.close()


def test_many_that_make_it_at_once_make_one(path):
    code = "import sys; sys.path.insert(0, %r); from mxqlib import jobqueue; jobqueue.open_queue(sys.argv[1]).close()"
    processes = [subprocess.Popen([sys.executable, "-IS", "-c", code % str(TREE), path]) for _ in range(6)]
    assert [process.wait(60) for process in processes] == [0] * 6
    queue = jobqueue.read_queue(path)
    assert queue.db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    queue.close()


def test_what_is_no_queue_is_refused_and_left_as_it_is(path):
    for data in (b"x" * 5000, b"SQLite format 3\0" + b"\xff" * 5000):
        with open(path, "wb") as file:
            file.write(data)
        refuse(exits.UNAVAILABLE, path)
        with open(path, "rb") as file:
            assert file.read() == data
        os.unlink(path)
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE job (x)")
    other.close()
    assert "not a queue of MXQ" in refuse(exits.UNAVAILABLE, path)


def test_one_of_a_later_version_is_refused(path):
    jobqueue.open_queue(path).close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = %d" % (schema.VERSION + 1))
    db.close()
    assert "newer" in refuse(exits.UNAVAILABLE, path)
    with pytest.raises(Failure):
        jobqueue.read_queue(path)


def test_places_that_are_not_safe_or_not_there(path, tmp_path):
    refuse(exits.CANTCREAT, str(tmp_path / "missing" / "queue.db"))
    os.mkdir(path)
    refuse(exits.UNAVAILABLE, path)
    os.rmdir(path)
    jobqueue.open_queue(path).close()
    os.chmod(path, 0o620)
    refuse(exits.NOPERM, path)
    os.chmod(path, 0o600)
    os.rename(path, path + "2")
    os.symlink(path + "2", path)
    refuse(exits.UNAVAILABLE, path)
    tmp_path.chmod(0o770)
    with pytest.raises(Failure) as failure:
        jobqueue.open_queue(path + "2")
    assert failure.value.status == exits.NOPERM


def test_a_damaged_one_is_unavailable(path, queue):
    with queue.transaction():
        jobs.submit(queue, {"name": "x", "cwd": "/"}, (["true", "x" * 100] for _ in range(1000)))
    queue.close()
    with open(path, "r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 100000)
    with pytest.raises(Failure) as failure:
        damaged = jobqueue.open_queue(path)
        with damaged.transaction():
            jobs.submit(damaged, {"name": "x", "cwd": "/"}, [["true"]])
    assert failure.value.status == exits.UNAVAILABLE


def test_a_locked_one_is_busy(path, queue):
    other = jobqueue.open_queue(path, busy_s=0.05)
    with queue.transaction():
        with pytest.raises(Failure) as failure:
            with other.transaction():
                raise AssertionError("two writers at once")
        assert failure.value.status == exits.TEMPFAIL
        with other.reading():
            assert lookup.find_job(other, 1) is None
    with other.transaction():
        pass
    other.close()


@pytest.mark.as_user
def test_one_that_cannot_be_written_is_no_permission(path):
    jobqueue.open_queue(path).close()
    os.chmod(path, 0o400)
    queue = jobqueue.open_queue(path)
    with pytest.raises(Failure) as failure:
        with queue.transaction():
            jobs.submit(queue, {"name": "x", "cwd": "/"}, [["true"]])
    assert failure.value.status == exits.NOPERM
    queue.close()


def test_it_can_be_read_where_nothing_can_be_written(path, queue):
    with queue.transaction():
        jobs.submit(queue, {"name": "x", "cwd": "/"}, [["true"]])
    queue.close()
    os.chmod(os.path.dirname(path), 0o500)
    try:
        reader = jobqueue.read_queue(path)
        with reader.reading():
            assert lookup.find_job(reader, 1).state == "queued"
        reader.close()
    finally:
        os.chmod(os.path.dirname(path), 0o700)


# ---- transactions ----

def test_an_exception_leaves_nothing_behind(queue):
    with pytest.raises(ZeroDivisionError):
        with queue.transaction():
            jobs.submit(queue, {"name": "x", "cwd": "/", "deliveries": [{"sink": "log", "path": "/x"}]}, [["true"]])
            raise ZeroDivisionError
    with queue.transaction():
        assert lookup.find_job(queue, 1) is None
    assert not outbox.may_owe(queue.path)


def test_our_own_bugs_are_not_explained_away(queue):
    with pytest.raises(sqlite3.IntegrityError):
        with queue.transaction():
            queue.db.execute("INSERT INTO run (run, job, attempt, state, host) VALUES ('x', 99, 1, 'running', '')")


@pytest.mark.parametrize("state, date_end", [("queued", "x"), ("finished", None), ("done", "x"), ("", None),
                                             ("running", "x")])
def test_a_state_and_its_date_belong_together(queue, state, date_end):
    with pytest.raises(sqlite3.IntegrityError):
        with queue.transaction():
            queue.db.execute("INSERT INTO job (state, name, argv, cwd, umask, date_end) VALUES (?, '', '[]', '', 0, ?)",
                             (state, date_end))


@pytest.mark.parametrize("text", [None, "", "plain", "über 日本", "\udcff", "a\udc80b\n\t", "\U0001f4a9", "'\"\\"])
def test_texts_come_back_as_they_were(queue, text):
    column = jobqueue.to_column(text)
    got = queue.db.execute("SELECT ?, typeof(?)", (column, column)).fetchone()
    assert jobqueue.from_column(got[0]) == text
    assert got[1] == ("null" if text is None else "blob" if "\udcff" in text or "\udc80" in text else "text")


def test_what_is_owed_is_marked_before_it_is_committed(queue):
    owing = {"name": "x", "cwd": "/", "deliveries": [{"sink": "log", "path": "/x"}]}
    with queue.transaction():
        jobs.submit(queue, {"name": "x", "cwd": "/"}, [["true"]])
    assert not outbox.may_owe(queue.path)
    with queue.transaction():
        jobs.submit(queue, owing, [["true"]])
        assert not outbox.may_owe(queue.path)
    assert outbox.may_owe(queue.path)
    with queue.transaction():
        outbox.unmark(queue.path)
        outbox.unmark(queue.path)
    assert not outbox.may_owe(queue.path)


# ---- questions ----

def ask_everything(queue):
    """Call every function that asks or changes something, on a small queue with jobs in all states."""
    with queue.transaction():
        fields = {"name": "n", "cwd": "/", "group": "g", "deliveries": [{"sink": "log", "path": "/x"}], "retries": 1,
                  "restart": "samehost"}
        jobs.submit(queue, dict(fields, environment=jobs.keep_environment(queue, b"A=1\0")), [["true"]] * 4)
        jobs.submit(queue, dict(fields, environment=jobs.keep_environment(queue, b"A=1\0")), [["true"]], "held", [1, 2])
        jobs.environment(queue, 1)
        for kind in list(jobs.kinds(queue, "node7")):
            jobs.claim(queue, kind[4], "node7", "lock", [0])
        jobs.claim(queue, 2, "node7", "lock", None)
        jobs.active(queue)
        jobs.give_back(queue, "2.1")
        jobs.hold(queue, 3), jobs.release(queue, 3), jobs.cancel(queue, 3), jobs.retry(queue, 3), jobs.cancel(queue, 4)
    entries = [records.make_running("1.1"), records.make_ended("2.1", status=256),
               records.make_ended("2.1", status=None),
               records.make_ended("8.1", None), records.make_ended(records.make_run_id(1)),
               records.make_running(records.make_run_id(2)), records.make_ended("1.1", deliveries=[])]
    for entry in entries:
        line = record.to_json(entry)
        with queue.transaction():
            outcomes.Batch(queue, [entry["run"]]).take(entry, line)
            outcomes.known_state(queue, entry["run"], line)
    with queue.reading():
        for state in changes.LIVE:
            list(roster.live(queue, state)), list(roster.live(queue, state, "g")),
            list(roster.live(queue, state, "default"))
            list(roster.live(queue, state, None, "n")), list(roster.live(queue, state, "g", "n"))
        for choice in ((), ("g",), ("default",), (None, "n"), ("g", "n")):
            list(roster.over(queue, changes.OVER, *choice))
        list(roster.owed(queue))
        for number in (1, 5):
            roster.job(queue, number), roster.after(queue, number)
            list(roster.runs(queue, number)), list(roster.events(queue, number)), list(roster.deliveries(queue, number))
        lookup.find_job(queue, 1), lookup.find_run(queue, "1.1"), lookup.runs_of(queue, 1)
    list(lookup.live_jobs(queue)), list(lookup.live_jobs(queue, "g")), list(lookup.live_jobs(queue, "default"))


def test_every_question_has_an_index_and_no_list_is_sorted(path):
    queue = jobqueue.open_queue(path)
    asked = set()
    queue.db.set_trace_callback(asked.add)
    ask_everything(queue)
    queue.db.set_trace_callback(None)
    slow = []
    for statement in sorted(asked):
        if not re.match(r"SELECT|INSERT|UPDATE|DELETE", statement) or "sqlite_" in statement:
            continue
        plan = [row[3] for row in queue.db.execute("EXPLAIN QUERY PLAN " + statement)]
        # One job's runs, events and deliveries are few, and so is what runs or is owed: these may be sorted.
        few = re.search(r"FROM event AS e|FROM delivery AS d", statement)
        for step in plan:
            scan = re.match(r"SCAN (?!d USING INDEX delivery_|\d+ CONSTANT|job USING .*job_waiting"
                            r"|run USING .*run_active)", step)
            if scan or ("TEMP B-TREE" in step and not few):
                slow.append("%s\n    %s" % (step, statement[:300]))
    queue.close()
    assert len(asked) > 40
    assert not slow, "\n".join(slow)


def test_an_old_queue_is_led_to_the_present_version(path):
    """Each version's statements are run on a queue of the version before, whatever is in it by then."""
    db = sqlite3.connect(path, isolation_level=None)
    for version in range(schema.VERSION):
        for statement in schema.MIGRATIONS[version]:
            db.execute(statement)
        db.execute("PRAGMA application_id = %d" % schema.APPLICATION_ID)
        db.execute("PRAGMA user_version = %d" % (version + 1))
    made = db.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall()
    db.close()
    os.chmod(path, 0o600)
    jobqueue.open_queue(path).close()
    other = path + "2"
    jobqueue.open_queue(other).close()
    db = sqlite3.connect(other)
    assert db.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall() == made
    db.close()
