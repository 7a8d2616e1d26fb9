"""targets, lookup, runners, wait.ending: what operands name, what is found, and how it is said."""

import fcntl
import json

import pytest

from mxqlib import exits, jobqueue, process, runners, targets, wait
from mxqlib.cli import Failure
from mxqlib.jobqueue import jobs, lookup
from mxqlib.spool import Spool
from tests.harness import records


# ---- operands ----

@pytest.mark.parametrize("text, number, run", [
    ("1", 1, None), ("007", 7, None), (str((1 << 63) - 1), (1 << 63) - 1, None), ("17.2", 17, "17.2"),
    ("20261130T174527.123456Z-host-1", None, "20261130T174527.123456Z-host-1"), ("0.1", None, "0.1"),
])
def test_operands_that_name_something(text, number, run):
    target = targets.parse(text)
    assert (target.shown, target.number, target.run) == (text, number, run) and not target.is_known


@pytest.mark.parametrize("text", [
    "", "0", "-1", "-1.1", str(1 << 63), "9" * 40, "x", "x1", "1/1", "../1", ".1", "1 ", "\u0663", "1\0", "1\n",
    "1.1.json/",
    "1" * 201 + ".1",
])
def test_operands_that_name_nothing(text):
    with pytest.raises(ValueError):
        targets.parse(text)


def test_options_that_come_too_late():
    targets.check_order(["1", "-5", "x", ""])
    for word in ("--now", "-q", "-"):
        with pytest.raises(Failure) as failure:
            targets.check_order(["1", word])
        assert failure.value.status == exits.USAGE and word in str(failure.value)


def test_a_run_is_called_by_its_job_too_where_its_id_does_not_tell():
    assert targets.parse("17").name({"run": "17.1"}) == "17.1"
    assert targets.parse("17").name({"run": records.make_run_id()}) == "17 (%s)" % records.make_run_id()
    assert targets.parse(records.make_run_id()).name({"run": records.make_run_id()}) == records.make_run_id()


# ---- where ----

@pytest.mark.parametrize("changes, words", [
    ({}, None), ({"pid": 1, "start": None}, None), ({"host": "elsewhere"}, None),
    ({"host": "elsewhere", "boot": records.BOOT}, "on host elsewhere"),
    ({"boot": records.BOOT}, "before the last boot"), ({"boot": None}, "before the last boot"),
    ({"pidns": 1}, "another container"), ({"timens": 1}, "another container"),
])
def test_elsewhere(changes, words):
    said = targets.elsewhere({**process.context(), "pid": 2, "start": 3, **changes})
    assert said is None if words is None else words in said


# ---- how ----

@pytest.mark.parametrize("state, status, words", [
    ("finished", 0, "finished (exit 0)"), ("failed", 3 << 8, "failed (exit 3)"),
    ("killed", 15, "killed (signal TERM)"),
    ("failed", 11 | 128, "failed (signal SEGV)"), ("lost", None, "lost"), ("cancelled", None, "cancelled"),
])
def test_how_ended(state, status, words):
    assert targets.how_ended(state, status) == words
    if state != "cancelled":
        reason = {"killed": "kill"}.get(state)
        changes = {"reason": reason} if reason else {}
        assert targets.how(records.make_ended(status=status, **changes)) == words


@pytest.mark.parametrize("state, status, reason, ending", [
    ("finished", 0, None, ("exit", 0)), ("failed", 7 << 8, None, ("exit", 7)), ("failed", 6, None, ("signal", 6)),
    ("killed", 15, "kill", ("signal", 15)), ("killed", 0, "kill", ("exit", 0)), ("killed", 24, "time", ("exit", 124)),
    ("killed", 9, "time", ("exit", 137)), ("killed", 9, "kill-now", ("signal", 9)),
    ("failed", 127 << 8, "exec", ("exit", 127)),
    ("lost", None, "lost", ("exit", 4)), ("lost", 0, "reboot", ("exit", 4)), ("cancelled", None, None, ("exit", 3)),
])
def test_how_mxq_wait_ends(state, status, reason, ending):
    run, job = targets.parse("17.1"), targets.parse("17")
    run.known = job.known = lookup.Run(("17.1", 17, 1, state, "node7", status, reason))
    job.job = lookup.Job((17, state, 1, "default"))
    assert wait.ending(run) == ending == wait.ending(job)


# ---- the queue ----

@pytest.fixture
def queue(tmp_path):
    """A new queue."""
    tmp_path.chmod(0o700)
    opened = jobqueue.open_queue(str(tmp_path / "queue.db"))
    yield opened
    opened.close()


def add(queue, count, group="default", state="queued", after=()):
    """Submit jobs; returns their numbers."""
    with queue.transaction():
        fields = {"name": "x", "cwd": "/", "group": group}
        first, made = jobs.submit(queue, fields, ([str(n)] for n in range(count)), state, after)
    return list(range(first, first + made))


def live(queue, *arguments):
    return [job.number for job in lookup.live_jobs(queue, *arguments)]


def test_live_jobs_come_in_pages_and_may_be_changed_meanwhile(queue):
    numbers = add(queue, 2500) + add(queue, 10, "a") + add(queue, 10, "a", "held") + add(queue, 1, "\udcff")
    assert live(queue) == numbers[:2510] + numbers[2520:] + numbers[2510:2520]
    assert live(queue, "a") == numbers[2500:2520] and live(queue, "a", ("held",)) == numbers[2510:2520]
    assert live(queue, "default") == numbers[:2500] and live(queue, "b") == []
    assert live(queue, "\udcff") == numbers[2520:]
    met = []
    for job in lookup.live_jobs(queue, "default"):
        met.append(job.number)
        if job.number % 100 == 0:
            with queue.transaction():
                for number in range(job.number - 99, job.number + 1):
                    assert jobs.cancel(queue, number)
    assert met == numbers[:2500] and live(queue, "default") == []


def test_live_jobs_use_an_index(queue):
    plans = []
    queue.db.set_trace_callback(lambda sql: plans.append(sql) if sql.startswith("SELECT job") else None)
    live(queue, "a"), live(queue)
    queue.db.set_trace_callback(None)
    for sql in plans:
        plan = " ".join(row[3] for row in queue.db.execute("EXPLAIN QUERY PLAN " + sql))
        assert "USING INDEX job_group" in plan or "USING INDEX job_state" in plan, plan
        assert "SCAN" not in plan and "TEMP B-TREE" not in plan, plan


def test_unfinished_dependencies(queue):
    first = add(queue, 3)
    number, = add(queue, 1, after=first)
    with queue.transaction():
        jobs.cancel(queue, first[1])
    assert lookup.unfinished(queue, number) == [(first[0], "queued"), (first[1], "cancelled"), (first[2], "queued")]


def test_a_finder_lays_the_spool_over_the_queue(queue, tmp_path):
    spool = Spool(str(tmp_path / "spool")).open()
    complaints = []
    finder = targets.Finder(spool, queue, lambda status, text: complaints.append((status, text)))
    number, = add(queue, 1)
    run = "%d.1" % number
    target = finder.look(targets.parse(str(number)))
    assert target.is_known and target.job.state == "queued" and target.running == [] and target.known is None
    assert targets.idle(target) == "is queued, it does not run yet"
    with queue.transaction():
        jobs.claim(queue, number, "elsewhere", "lock", None)
    target = finder.look(targets.parse(str(number)))
    assert target.known.run == run and targets.idle(target) == "it is loaded on host elsewhere: run mxq-ctl there"
    spool.put(records.make_running(run))
    assert [entry["run"] for entry in finder.look(targets.parse(str(number))).running] == [run]
    assert [entry["run"] for entry in finder.look(targets.parse(run)).running] == [run]
    spool.put(records.make_ended(run, status=256))
    target = finder.look(targets.parse(run))
    assert target.running == [] and targets.idle(target) == "has ended already: failed (exit 1); mxq-collect commits it"
    with open(spool.record_path(run), "wb") as file:
        file.write(b"{")
    finder.look(targets.parse(run))
    assert complaints == [(exits.DATA, "runs/%s.json: cut off: no newline at the end; mxq-collect puts it aside" % run)]


def test_without_a_queue_records_are_found_by_number(tmp_path):
    tmp_path.chmod(0o700)
    spool = Spool(str(tmp_path / "spool")).open()
    for run in ("7.1", "7.2", "77.1", records.make_run_id()):
        spool.put(records.make_running(run))
    finder = targets.Finder(spool, None, None)
    assert [entry["run"] for entry in finder.look(targets.parse("7")).running] == ["7.1", "7.2"]
    assert not finder.look(targets.parse("8")).is_known
    assert sorted(target.run for target in finder.all_running()) == [records.make_run_id(), "7.1", "7.2", "77.1"]
    assert list(finder.all_running("nobody")) == [] and list(finder.all_live()) == []


# ---- runners ----

def test_only_held_locks_name_an_mxq_run(tmp_path):
    folder, complaints = tmp_path / "runners", []
    assert runners.living(str(tmp_path), complaints.append) == []
    folder.mkdir()
    reference = dict(process.reference(1), wait=True)
    for name in ("mxq-run.1.lock", "mxq-run.2.lock", "12.3.1.lock", "mxq-run.x"):
        (folder / name).write_text(json.dumps(reference) + "\n")
    with open(folder / "mxq-run.1.lock", "rb") as held, open(folder / "12.3.1.lock", "rb") as other:
        fcntl.flock(held, fcntl.LOCK_EX)
        fcntl.flock(other, fcntl.LOCK_EX)
        assert runners.living(str(tmp_path), complaints.append) == [reference]
    assert complaints == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "1", "host": "x"}', '{"host": "x"}', "\0"])
def test_a_lock_that_says_nothing_is_told(tmp_path, monkeypatch, text):
    monkeypatch.setattr(runners, "_WRITE_S", 0.02)
    (tmp_path / "runners").mkdir()
    (tmp_path / "runners" / "mxq-run.1.lock").write_text(text)
    complaints = []
    with open(tmp_path / "runners" / "mxq-run.1.lock", "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert runners.living(str(tmp_path), lambda status, said: complaints.append(status)) == []
    assert complaints == [exits.DATA]
