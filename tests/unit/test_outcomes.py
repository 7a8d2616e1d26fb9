"""jobqueue.outcomes: what a record changes, early, late, twice, or against what is known."""

import itertools
import random

import pytest

from mxqlib import jobqueue, record
from mxqlib.jobqueue import changes, jobs, lookup, outcomes
from mxqlib.jobqueue.outcomes import CONTRADICTION, KNOWN, NEW
from tests.harness import records

FINISHED, FAILED, KILLED, LOST = 0, 256, "killed", None


@pytest.fixture
def queue(tmp_path):
    tmp_path.chmod(0o700)
    queue = jobqueue.open_queue(str(tmp_path / "queue.db"))
    yield queue
    queue.close()


def ended(run, status=0, **changes):
    if status == KILLED:
        return records.make_ended(run, 15, reason="kill", **changes)
    return records.make_ended(run, status, **changes)


def take(queue, *entries):
    """Commit records in one transaction and return what became of the last."""
    with queue.transaction():
        batch = outcomes.Batch(queue, [entry["run"] for entry in entries])
        return [batch.take(entry, record.to_json(entry)) for entry in entries][-1]


def submit(queue, **fields):
    state, after = fields.pop("state", "queued"), fields.pop("after", ())
    with queue.transaction():
        return jobs.submit(queue, dict({"name": "n", "cwd": "/"}, **fields), [["true"]], state, after)[0]


def claim(queue, number):
    with queue.transaction():
        return jobs.claim(queue, number, "node7", "lock", None)["run"]


def state(queue, number):
    return lookup.find_job(queue, number).state


def run_state(queue, run):
    found = lookup.find_run(queue, run)
    return found and found.state


def events(queue, number):
    return [tuple(row) for row in queue.db.execute(
        "SELECT attempt, code FROM event WHERE job = ? ORDER BY attempt, code", (number,))]


# ---- a run that no queue knew ----

@pytest.mark.parametrize("status, wanted", [(FINISHED, "finished"), (FAILED, "failed"), (KILLED, "killed"),
                                            (LOST, "lost")])
def test_a_run_of_a_wrapper_becomes_a_job(queue, status, wanted):
    entry = ended(None, status, name="\udcff", argv=["a", "\udc80"], memory=1 << 30)
    assert take(queue, entry) == NEW
    assert take(queue, entry) == KNOWN
    assert (state(queue, 1), run_state(queue, entry["run"])) == (wanted, wanted)
    with queue.reading():
        job = jobs.read_job(queue, 1)
    assert (job["name"], job["argv"], job["memory"], job["runtime"]) == ("\udcff", ["a", "\udc80"], 1 << 30, None)
    assert events(queue, 1) == [(0, 0), (1, 1), (1, 9 if status is LOST else 5)]


def test_running_first_and_its_outcome_later_are_one_run(queue):
    entry = records.make_running()
    assert [take(queue, entry), take(queue, entry)] == [NEW, KNOWN]
    assert state(queue, 1) == "running"
    assert take(queue, dict(entry, reaper=records.make_reference(99))) == NEW
    assert take(queue, ended(entry["run"])) == NEW
    assert (state(queue, 1), lookup.find_job(queue, 2)) == ("finished", None)
    assert take(queue, entry) == KNOWN
    assert state(queue, 1) == "finished"
    assert events(queue, 1) == [(0, 0), (1, 1), (1, 5)]


def test_numbers_are_given_in_order_and_never_again(queue):
    runs = [records.make_run_id(n) for n in range(5)]
    take(queue, *[ended(run) for run in runs[:3]])
    with queue.transaction():
        for table in ("event", "run", "job"):
            queue.db.execute("DELETE FROM %s WHERE job = 3" % table)
    take(queue, ended(runs[3]))
    assert [lookup.find_run(queue, run).job for run in runs[:2] + runs[3:4]] == [1, 2, 4]
    assert submit(queue) == 5


def test_a_run_of_a_lost_queue_keeps_its_number(queue):
    take(queue, ended("17.3"), ended(records.make_run_id(1)), ended(records.make_run_id(2)))
    assert lookup.find_run(queue, "17.3").job == 17
    assert lookup.find_job(queue, 17).attempt == 3
    assert [lookup.find_run(queue, records.make_run_id(n)).job for n in (1, 2)] == [18, 19]
    assert take(queue, ended("17.2", FAILED)) == NEW
    assert state(queue, 17) == "finished"


def test_a_number_that_was_given_to_another_job_is_not_taken_for_its_own(queue):
    number = submit(queue)
    other = ended("%d.1" % number, FAILED, date_submit="2020-01-01T00:00:00.000000Z")
    assert take(queue, other) == NEW
    assert state(queue, number) == "queued"
    assert lookup.find_run(queue, other["run"]).job == number + 1
    assert take(queue, other) == KNOWN


# ---- a job of the queue ----

def test_from_loaded_to_the_outcome(queue):
    number = submit(queue)
    run = claim(queue, number)
    assert (state(queue, number), run_state(queue, run)) == ("loaded", "loaded")
    take(queue, records.make_running(run))
    assert (state(queue, number), run_state(queue, run)) == ("running", "running")
    take(queue, ended(run, FAILED))
    assert (state(queue, number), run_state(queue, run)) == ("failed", "failed")
    assert events(queue, number) == [(0, 0), (1, 1), (1, 5)]


@pytest.mark.parametrize("first, second", list(itertools.product([FINISHED, FAILED, KILLED, LOST], repeat=2)))
def test_two_outcomes_of_one_run(queue, first, second):
    """The first true one stays; `lost` gives way to a true one; what says something else is told."""
    run = claim(queue, submit(queue))
    take(queue, ended(run, first))
    result = take(queue, ended(run, second))
    if first is LOST:
        assert result == (KNOWN if second is LOST else NEW)
        wanted = second
    else:
        assert result == (KNOWN if first == second else CONTRADICTION)
        wanted = first
    names = {FINISHED: "finished", FAILED: "failed", KILLED: "killed", LOST: "lost"}
    assert (state(queue, 1), run_state(queue, run)) == (names[wanted],) * 2


def test_same_status_for_another_reason_is_a_contradiction(queue):
    take(queue, ended("1.1", 15))
    assert take(queue, records.make_ended("1.1", 15, reason="time")) == CONTRADICTION


def test_what_the_queue_does_not_give_back_is_told(queue):
    told = [ended("%d.1" % n, status) for n, status in enumerate((FINISHED, FAILED, KILLED, LOST), 1)]
    take(queue, *told)
    with queue.reading():
        assert outcomes.missing(queue, told) == set()
        # A run is lost for the reason that was told first.
        assert outcomes.missing(queue, [ended("4.1", LOST, reason="reboot")]) == set()
        wrong = [ended("1.1", FAILED), ended("2.1", LOST), ended("4.1", FINISHED), ended("5.1", FINISHED)]
        assert outcomes.missing(queue, wrong) == {"1.1", "2.1", "4.1", "5.1"}


def test_retries_are_used_up_one_by_one(queue):
    number = submit(queue, retries=2)
    for attempt, wanted in ((1, "queued"), (2, "queued"), (3, "failed")):
        assert claim(queue, number) == "%d.%d" % (number, attempt)
        take(queue, ended("%d.%d" % (number, attempt), FAILED))
        assert state(queue, number) == wanted
    assert events(queue, number) == [(0, 0), (1, 1), (1, 4), (2, 1), (2, 4), (3, 1), (3, 5)]
    with queue.transaction():
        assert jobs.retry(queue, number)
    take(queue, ended(claim(queue, number), FAILED))
    assert state(queue, number) == "queued"


@pytest.mark.parametrize("status", [KILLED, LOST])
def test_retries_are_for_failures_only(queue, status):
    number = submit(queue, retries=2)
    take(queue, ended(claim(queue, number), status))
    assert state(queue, number) == ("killed" if status == KILLED else "lost")


@pytest.mark.parametrize("restart, wanted", [("never", "lost"), ("always", "queued"), ("samehost", "queued")])
def test_restart_of_a_lost_run(queue, restart, wanted):
    number = submit(queue, restart=restart)
    take(queue, ended(claim(queue, number), LOST, host="node9"))
    assert state(queue, number) == wanted
    with queue.reading():
        offers = {host: [kind[4] for kind in jobs.kinds(queue, host)] for host in ("node9", "node7")}
    here = [number] if wanted == "queued" else []
    assert offers == {"node9": here, "node7": here if restart == "always" else []}
    if here:
        assert claim(queue, number) == "%d.2" % number


def test_a_lost_wrapper_run_is_restarted_as_a_job(queue):
    entry = ended(None, LOST, restart="always")
    take(queue, entry)
    assert state(queue, 1) == "queued"
    assert claim(queue, 1) == "1.2"


@pytest.mark.parametrize("status, wanted", [(FINISHED, "finished"), (FAILED, "queued"), (KILLED, "queued")])
@pytest.mark.parametrize("held", [False, True])
def test_a_late_outcome_while_the_next_attempt_only_waits(queue, status, wanted, held):
    number = submit(queue, restart="always")
    run = claim(queue, number)
    take(queue, ended(run, LOST))
    if held:
        with queue.transaction():
            jobs.hold(queue, number)
    assert take(queue, ended(run, status)) == NEW
    assert state(queue, number) == ("held" if held and wanted == "queued" else wanted)
    assert run_state(queue, run) != "lost"
    with queue.reading():
        offered = [kind[4] for kind in jobs.kinds(queue, "node7")]
    assert offered == ([number] if state(queue, number) == "queued" else [])


@pytest.mark.parametrize("status", [FINISHED, FAILED, KILLED])
def test_a_late_outcome_while_the_next_attempt_runs_or_is_over(queue, status):
    number = submit(queue, restart="always")
    first = claim(queue, number)
    take(queue, ended(first, LOST))
    second = claim(queue, number)
    take(queue, records.make_running(second))
    take(queue, ended(first, status))
    assert (state(queue, number), run_state(queue, first) != "lost") == ("running", True)
    take(queue, ended(second, 512))
    assert state(queue, number) == "failed"
    assert [code for attempt, code in events(queue, number) if attempt == 2] == [1, 5]


def test_a_run_that_was_given_back_and_ran_after_all(queue):
    number = submit(queue)
    run = claim(queue, number)
    with queue.transaction():
        assert jobs.give_back(queue, run) and not jobs.give_back(queue, run)
    assert (state(queue, number), run_state(queue, run)) == ("queued", "cancelled")
    take(queue, ended(run))
    assert (state(queue, number), run_state(queue, run)) == ("finished", "finished")


def test_a_cancelled_job_whose_run_finished_after_all(queue):
    number = submit(queue, restart="always")
    run = claim(queue, number)
    take(queue, ended(run, LOST))
    with queue.transaction():
        assert jobs.cancel(queue, number)
    take(queue, ended(run))
    assert state(queue, number) == "finished"


# ---- those that wait ----

def test_a_job_starts_when_all_it_waits_for_have_finished(queue):
    first, second = submit(queue), submit(queue)
    third = submit(queue, after=(first, second, first))
    with queue.reading():
        assert third not in [kind[4] for kind in jobs.kinds(queue, "")]
    take(queue, ended(claim(queue, first)))
    with queue.transaction():
        assert jobs.claim(queue, third, "node7", "lock", None) is None
    take(queue, ended(claim(queue, second)))
    assert claim(queue, third) == "%d.1" % third


@pytest.mark.parametrize("status, retries, wanted", [(FAILED, 0, "cancelled"), (FAILED, 1, "queued"),
                                                     (KILLED, 1, "cancelled"),
                                                     (LOST, 0, "cancelled")])
def test_a_job_is_cancelled_when_one_that_it_waits_for_does_not_finish(queue, status, retries, wanted):
    first = submit(queue, retries=retries)
    second = submit(queue, after=(first,), deliveries=[{"sink": "mail", "to": "x", "on": "failure"}])
    third = submit(queue, after=(second,), state="held")
    take(queue, ended(claim(queue, first), status))
    assert (state(queue, second), state(queue, third)) == (wanted, "cancelled" if wanted == "cancelled" else "held")
    owed = [row[0] for row in queue.db.execute("SELECT job FROM delivery WHERE sink = 'mail'")]
    assert owed == ([second] if wanted == "cancelled" else [])
    assert ((0, 9) in events(queue, second)) == (wanted == "cancelled")


def test_after_what_has_ended_already(queue):
    finished, failed = submit(queue), submit(queue)
    take(queue, ended(claim(queue, finished)))
    take(queue, ended(claim(queue, failed), FAILED))
    assert state(queue, submit(queue, after=(finished,))) == "queued"
    assert state(queue, submit(queue, after=(finished, failed))) == "cancelled"
    with pytest.raises(KeyError):
        submit(queue, after=(99,))


# ---- what is owed ----

ALL = [{"sink": "hook", "command": "h"}, {"sink": "mail", "to": "a@b", "on": "always"}, {"sink": "log", "path": "/l"},
       {"sink": "record", "path": "-"}, {"sink": "pigeon", "to": "x"}, {"sink": "mail", "to": "c@d"},
       {"sink": "mail", "to": "e@f", "on": "never"}]


def owed(queue):
    return [tuple(row) for row in queue.db.execute("SELECT attempt, code, sink, target FROM delivery ORDER BY number")]


def test_each_sink_is_owed_what_it_is_told_in_the_order_of_the_exit(queue):
    take(queue, ended(None, FAILED, deliveries=ALL))
    assert owed(queue) == [(0, 0, "log", "/l"), (1, 1, "log", "/l"), (1, 5, "log", "/l"), (1, 5, "record", "-"),
                           (1, 5, "mail", "a@b"), (1, 5, "mail", "c@d"), (1, 5, "hook", "h")]


def test_success_is_no_failure(queue):
    take(queue, ended(None, FINISHED, deliveries=ALL))
    assert [target for _, _, sink, target in owed(queue) if sink == "mail"] == ["a@b"]


def test_nothing_is_owed_twice(queue):
    entry = ended("7.1", LOST, deliveries=ALL)
    for _ in range(3):
        take(queue, entry)
    before = owed(queue)
    take(queue, ended("7.1", FAILED, deliveries=ALL))
    after = owed(queue)
    assert len(set(after)) == len(after)
    assert {row for row in after if row not in before} == {(1, 5, sink, target) for _, _, sink, target in after if
                                                           sink != "log"} | {(1, 5, "log", "/l")}


def test_an_attempt_that_is_followed_by_another_is_no_end(queue):
    number = submit(queue, retries=1, deliveries=ALL)
    take(queue, ended(claim(queue, number), FAILED, deliveries=ALL))
    assert {(code, sink) for _, code, sink, _ in owed(queue)} == {(0, "log"), (1, "log"), (4, "log"), (4, "record"),
                                                                  (4, "hook")}
    take(queue, ended(claim(queue, number), FINISHED, deliveries=ALL))
    assert [(code, target) for _, code, sink, target in owed(queue) if sink == "mail"] == [(5, "a@b")]


# ---- any order ----

def test_whatever_comes_in_whatever_order_ends_in_one_truth():
    """Records of one job, shuffled, doubled: no order breaks anything, and the true outcomes are there in the end."""
    import tempfile
    seed = 20261130
    chance = random.Random(seed)
    for round_ in range(30):
        with tempfile.TemporaryDirectory() as folder:
            queue = jobqueue.open_queue(folder + "/queue.db")
            submit(queue, retries=chance.randrange(2), restart=chance.choice(["never", "always"]))
            runs = ["1.%d" % attempt for attempt in (1, 2, 3)]
            truth = {run: chance.choice([0, 256, 9]) for run in runs}
            said = [records.make_running(run) for run in runs] + [ended(run, LOST) for run in runs]
            said += [ended(run, status) for run, status in truth.items()]
            same = queue.db.execute("SELECT date_submit FROM job").fetchone()[0]
            for entry in [dict(entry, date_submit=same) for entry in chance.sample(said * 2, len(said) * 2)]:
                take(queue, entry)
            found = {row[0]: row[1] for row in queue.db.execute("SELECT run, status FROM run")}
            for run, status in truth.items():
                assert found[run] == status, (seed, round_, run)
            job = lookup.find_job(queue, 1)
            assert job.attempt == 3 and job.state in changes.OVER + ("queued",), (seed, round_)
            assert queue.db.execute("PRAGMA foreign_key_check").fetchall() == []
            queue.close()
