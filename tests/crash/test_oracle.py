"""The oracle sees each kind of damage, and nothing where there is none."""

import os
import sqlite3

import pytest

from tests.harness import oracle, records

pytestmark = pytest.mark.quick

ONE, TWO = (records.make_run_id(n) for n in (1, 2))
TRUTH = {ONE: 768, TWO: 0, "9.1": 9}


@pytest.fixture
def collected(sandbox):
    """An installation with three outcomes, one of which owes a line in a log."""
    runs = records.make_spool(sandbox.spool)
    records.put(runs, records.make_ended(ONE, status=768, deliveries=[
        {"sink": "log", "path": str(sandbox.path / "log")}, {"sink": "mail", "to": "a@b", "on": "never"}]))
    records.put(runs, records.make_ended(TWO))
    records.put(runs, records.make_ended("9.1", status=9, reason="kill"))
    sandbox.run("mxq-collect", check=True)
    return sandbox


def change(sandbox, sql, *parameters):
    """Damage the queue behind everybody's back."""
    with sqlite3.connect(sandbox.queue_file) as queue:
        assert queue.execute(sql, parameters).rowcount != 0
    queue.close()


def test_nothing_is_found_where_all_is_well(collected):
    oracle.check(collected, TRUTH)


def test_nothing_is_found_before_the_first_use(sandbox):
    oracle.check(sandbox, {})


@pytest.mark.parametrize("sql, says", [
    ("DELETE FROM run WHERE run = '9.1'", "run 9.1 is nowhere"),
    ("UPDATE run SET status = 0 WHERE run = '9.1'", "ended with 9, the queue says 0"),
    ("UPDATE run SET state = 'finished' WHERE run = '9.1'", "is finished, its record says killed"),
    ("UPDATE run SET reason = 'time' WHERE run = '9.1'", "status or reason is not that of its record"),
    ("UPDATE run SET state = 'lost' WHERE run = '9.1'", "run 9.1 is lost, but it need not be"),
    ("UPDATE run SET state = 'running' WHERE run = '9.1'", "is running, its record is not"),
    ("UPDATE run SET record = NULL WHERE run = '9.1'", "without a record"),
    ("UPDATE run SET record = substr(record, 1, 99) WHERE run = '9.1'", "its record: not JSON"),
    ("UPDATE run SET run = '9.2' WHERE run = '9.1'", "run 9.2 is killed, but that did not happen"),
    ("UPDATE job SET state = 'finished' WHERE job = 9", "job 9 is finished, none of its runs is"),
    ("UPDATE job SET state = 'queued', date_end = NULL, attempt = 0 WHERE job = 9", "is at attempt 0, but has run 1"),
    ("DELETE FROM event WHERE code = 0 AND job = 9", "job 9 has no event 000"),
    ("DELETE FROM event WHERE code = 1 AND job = 9", "run 9.1 has no event 001"),
    ("DELETE FROM event WHERE code = 5 AND job = 9", "run 9.1 is killed without an event that says so"),
    ("DELETE FROM delivery WHERE code = 5", "which is not in the outbox"),
    ("INSERT INTO event VALUES (99, 0, 0, 0, '', NULL)", "foreign_key_check"),
])
def test_damage_in_the_queue_is_found(collected, sql, says):
    change(collected, sql)
    assert any(says in text for text in oracle.findings(collected, TRUTH)), oracle.findings(collected, TRUTH)


def test_run_that_ran_twice_at_once_is_found(collected):
    change(collected, "INSERT INTO run (run, job, attempt, state, host) SELECT '9.' || n, 9, n, 'loaded', 'a'"
                      " FROM (SELECT 2 AS n UNION SELECT 3)")
    assert any("runs more than once" in text for text in oracle.findings(collected, TRUTH))


def test_damaged_database_is_found(collected):
    size = collected.queue_file.stat().st_size
    with open(collected.queue_file, "r+b") as file:
        file.seek(size - 4096 * 3)
        file.write(os.urandom(4096))
    try:
        found = oracle.findings(collected, TRUTH)
    except sqlite3.DatabaseError:
        return
    assert found


@pytest.mark.parametrize("name, entry, says", [
    ("7.1.json", records.make_ended("7.1"), "was not collected"),
    ("7.1.json", records.make_running("7.1"), "nobody of it lives"),
    (".7.1", records.make_running("7.1"), "belongs to nobody"),
    ("8.1.json", records.make_ended("7.1"), "is the record of another run"),
])
def test_litter_in_the_spool_is_found(collected, name, entry, says):
    records.put(collected.runs, entry, name)
    assert any(says in text for text in oracle.findings(collected, TRUTH))


def test_living_run_is_no_litter(collected):
    with open("/proc/self/stat", encoding="utf-8") as file:
        start = int(file.read().rpartition(")")[2].split()[19])
    reference = dict(records.make_reference(os.getpid()), start=start)
    records.put(collected.runs, records.make_running("7.1", main=reference))
    oracle.check(collected, TRUTH)
    records.put(collected.runs, records.make_running("7.1", main=dict(reference, start=start + 1)))
    assert oracle.findings(collected, TRUTH)


@pytest.mark.parametrize("name, says", [("x.json", "does not belong"), ("x.json.reason", "is alone")])
def test_file_in_corrupt_is_found(collected, name, says):
    (collected.spool / "corrupt" / name).write_text("")
    assert any(says in text for text in oracle.findings(collected, TRUTH))
    assert any("is missing" in text for text in oracle.findings(collected, TRUTH, corrupt=("y.json",)))


def test_half_a_record_is_found(collected):
    (collected.runs / "7.1.json").write_bytes(b'{"format":1')
    assert any("cut off" in text for text in oracle.findings(collected, TRUTH))


def test_snapshot_sees_each_change_and_no_other(collected):
    before = oracle.snapshot(collected)
    assert oracle.snapshot(collected) == before
    change(collected, "UPDATE job SET note = 'x' WHERE job = 9")
    assert oracle.snapshot(collected) != before
