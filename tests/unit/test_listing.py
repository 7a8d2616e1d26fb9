"""listing: the queue with the spool laid over it."""

import pytest

from mxqlib import jobqueue, listing, record, spool
from mxqlib.jobqueue import changes, jobs, outcomes
from tests.harness import records


class Installation:
    """A queue and a spool, and what mxq-ls would list of them."""

    def __init__(self, folder):
        folder.chmod(0o700)
        self.queue = jobqueue.open_queue(str(folder / "queue.db"))
        self.spool = spool.Spool(str(folder / "spool")).open()

    def submit(self, **fields):
        state = fields.pop("state", "queued")
        with self.queue.transaction():
            return jobs.submit(self.queue, dict({"name": "n", "cwd": "/"}, **fields), [["true"]], state)[0]

    def claim(self, number):
        with self.queue.transaction():
            return jobs.claim(self.queue, number, "node7", "lock", None)["run"]

    def commit(self, entry):
        with self.queue.transaction():
            outcomes.Batch(self.queue, [entry["run"]]).take(entry, record.to_json(entry))

    def rows(self, queue=True, **choice):
        records_ = listing.read_spool(self.spool)
        choice = listing.Choice(**choice)
        if not queue:
            return list(listing.rows(None, records_, choice))
        with self.queue.reading():
            return list(listing.rows(self.queue, records_, choice))

    def states(self, **choice):
        return [(row["job"], row["state"]) for row in self.rows(**choice)]


@pytest.fixture
def here(tmp_path):
    here = Installation(tmp_path)
    yield here
    here.queue.close()


def at(second):
    return "2026-11-30T18:00:%02d.000000Z" % second


def test_nothing_is_no_rows(here):
    assert here.rows() == [] and here.rows(queue=False) == []


def test_those_that_run_then_those_that_wait_then_the_last_that_ended(here):
    for n in range(4):
        here.commit(records.make_ended("%d.1" % (n + 1), 0, date_end=at(n)))
    for state in ("queued", "held", "queued", "queued"):
        here.submit(state=state)
    here.claim(7)
    here.commit(records.make_running(here.claim(8)))
    assert here.states() == [(8, "running"), (7, "loaded"), (5, "queued"), (6, "held"), (4, "finished"),
                             (3, "finished"),
                             (2, "finished"), (1, "finished")]
    assert here.states(most=3) == here.states()[:3]
    assert here.states(most_over=2) == here.states()[:6]
    assert here.states(most=5, most_over=2) == here.states()[:5]


def test_each_state_group_and_name_can_be_chosen(here):
    here.submit(name="a", group="g")
    here.submit(name="b", group="g", state="held")
    here.commit(records.make_ended("3.1", 256, name="a", group="h"))
    here.spool.put(records.make_running(name="a", group="g"))
    assert here.states(name="a") == [(None, "running"), (1, "queued"), (3, "failed")]
    assert here.states(group="g") == [(None, "running"), (1, "queued"), (2, "held")]
    assert here.states(group="g", name="b") == [(2, "held")]
    assert here.states(states=("failed", "held")) == [(2, "held"), (3, "failed")]
    assert here.states(group="default") == [] and here.states(name="x") == []


def test_what_nobody_collected_yet_is_seen_as_it_is(here):
    number = here.submit()
    run = here.claim(number)
    here.spool.put(records.make_running(run))
    assert here.states() == [(number, "running")]
    here.spool.put(records.make_ended(run, 768))
    row = here.rows()[0]
    assert (row["job"], row["state"], row["exit"], row["run"]) == (number, "failed", 3, run)
    here.spool.put(records.make_ended(None, 9, name="other"))
    row = [row for row in here.rows() if row["job"] is None][0]
    assert (row["state"], row["signal"], row["name"]) == ("failed", 9, "other")
    assert sorted(row["name"] for row in here.rows(queue=False)) == ["other", "true"]
    assert all(set(row) == set(here.rows()[0]) for row in here.rows(queue=False))


def test_it_is_the_same_before_and_after_it_was_collected(here):
    """Row by row: what the spool shows is what the queue shows once it is committed, but for the job number."""
    entries = [records.make_running("1.1", cpus=[1]), records.make_ended("2.1", 0, memory=1 << 30, runtime=60),
               records.make_ended("3.1", 15, reason="time"), records.make_ended(None, None)]
    for entry in entries:
        here.spool.put(entry)
    before = here.rows()
    for entry in entries:
        here.commit(entry)
    after = here.rows()
    assert len(before) == len(after) == 4
    for row in before + after:
        row.pop("job"), row.pop("date_submit")

    def ordered(rows):
        return sorted(rows, key=lambda row: row["run"])

    assert ordered(before) == ordered(after)


def test_a_job_is_seen_once_while_it_is_collected(here):
    entry = records.make_ended("5.1", 256)
    here.spool.put(entry)
    here.commit(entry)
    assert here.states() == [(5, "failed")]


@pytest.mark.parametrize("late, shown", [(0, "finished"), (256, "queued")])
def test_a_late_outcome_beside_a_restart(here, late, shown):
    number = here.submit(restart="always")
    run = here.claim(number)
    here.commit(records.make_ended(run, None))
    assert here.states() == [(number, "queued")]
    here.spool.put(records.make_ended(run, late))
    assert here.states() == [(number, shown)]


def test_an_earlier_attempt_does_not_hide_the_last(here):
    number = here.submit(retries=1)
    here.commit(records.make_ended(here.claim(number), 256))
    run = here.claim(number)
    here.spool.put(records.make_running(run))
    here.spool.put(records.make_ended("%d.1" % number, 256))
    assert [(row["state"], row["run"]) for row in here.rows()] == [("running", run)]


def test_damaged_files_are_left_out_with_a_warning(here, capfd):
    here.spool.put(records.make_running())
    with open(here.spool.record_path("2.1"), "wb") as file:
        file.write(b"{}")
    assert [row["state"] for row in here.rows()] == ["running"]
    assert "runs/2.1.json" in capfd.readouterr().err


def test_lists_are_not_held_in_memory(here):
    """Rows come one by one: the first of many is there long before the last."""
    with here.queue.transaction():
        jobs.submit(here.queue, {"name": "n", "cwd": "/"}, ([str(n)] for n in range(20000)))
    fetched = []
    here.queue.db.set_progress_handler(lambda: fetched.append(1), 1000)
    with here.queue.reading():
        found = listing.rows(here.queue, [], listing.Choice())
        assert [next(found)["job"] for _ in range(3)] == [1, 2, 3]
        assert len(fetched) < 20
        found.close()
    here.queue.db.set_progress_handler(None, 0)


def test_all_states_are_listed():
    assert set(listing.ORDER) == set(changes.STATES)
