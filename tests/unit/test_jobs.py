"""jobqueue.jobs: submitted, claimed, given back, held, released, cancelled, tried again."""

import pytest

from mxqlib import jobqueue
from mxqlib.jobqueue import changes, jobs, lookup


@pytest.fixture
def queue(tmp_path):
    tmp_path.chmod(0o700)
    queue = jobqueue.open_queue(str(tmp_path / "queue.db"))
    yield queue
    queue.close()


def submit(queue, commands=1, state="queued", after=(), **fields):
    with queue.transaction():
        return jobs.submit(queue, dict({"name": "n", "cwd": "/"}, **fields), ([str(n)] for n in range(commands)),
                           state, after)


def kinds(queue, host="here"):
    with queue.reading():
        return list(jobs.kinds(queue, host))


def change(queue, function, *argv):
    with queue.transaction():
        return function(queue, *argv)


def state(queue, number):
    return lookup.find_job(queue, number).state


def test_what_is_submitted_is_claimed_byte_for_byte(queue):
    fields = {"name": "\udcff\n", "cwd": "/a\udc80", "umask": 0o27, "group": "gr\xfcppe", "priority": 5, "threads": 3,
              "memory": 1 << 40, "runtime": 60, "stdout": "%j\t", "stderr": None, "restart": "always", "retries": 2,
              "deliveries": [{"sink": "hook", "command": "a\udcff"}]}
    number = submit(queue, **fields)[0]
    job = change(queue, jobs.claim, number, "here", "lock", [0, 3])
    assert {name: job[name] for name in fields} == fields
    assert (job["run"], job["attempt"], job["argv"]) == ("1.1", 1, ["0"])
    with queue.reading():
        assert jobs.active(queue)[0][:8] == ("1.1", 1, "loaded", "here", "lock", [0, 3], 3, 1 << 40)


def test_many_commands_get_numbers_that_follow_each_other(queue):
    assert submit(queue, 3) == (1, 3)
    assert submit(queue, 0) == (4, 0)
    assert submit(queue, 1000) == (4, 1000)
    assert queue.db.execute("SELECT argv FROM job WHERE job = 1003").fetchone()[0] == '["999"]'
    assert queue.db.execute("SELECT count(*) FROM event WHERE code = 0").fetchone()[0] == 1003


def test_each_distinct_environment_is_kept_once(queue):
    numbers = [change(queue, jobs.keep_environment, content) for content in (b"A=1\0", b"A=2\0", b"A=1\0", b"")]
    assert numbers[0] == numbers[2] and len(set(numbers)) == 3
    with queue.reading():
        assert jobs.environment(queue, numbers[1]) == b"A=2\0"


def test_kinds_are_few_however_many_jobs_there_are(queue):
    submit(queue, 5000)
    submit(queue, 1, priority=200)
    submit(queue, 10, group="b", threads=2)
    submit(queue, 10, memory=1 << 30)
    submit(queue, 10, "held", priority=500)
    steps = []
    queue.db.set_progress_handler(lambda: steps.append(1), 1000)
    found = kinds(queue)
    queue.db.set_progress_handler(None, 0)
    assert found == [(200, "default", 1, 0, 5001), (127, "default", 1, 1 << 30, 5012), (127, "default", 1, 0, 1),
                     (127, "b", 2, 0, 5002)]
    assert len(steps) < 10      # thousands of SQLite's steps: a walk along all jobs would take forty


def test_a_job_is_claimed_once(queue):
    submit(queue)
    assert change(queue, jobs.claim, 1, "here", "lock", None)["run"] == "1.1"
    assert change(queue, jobs.claim, 1, "here", "lock", None) is None
    assert kinds(queue) == []
    assert change(queue, jobs.claim, 99, "here", "lock", None) is None


def test_what_is_given_back_is_claimed_as_the_next_attempt(queue):
    submit(queue)
    change(queue, jobs.claim, 1, "here", "lock", None)
    assert change(queue, jobs.give_back, "1.1") is True
    assert change(queue, jobs.give_back, "1.1") is False
    assert change(queue, jobs.give_back, "9.9") is False
    assert change(queue, jobs.claim, 1, "here", "lock", None)["run"] == "1.2"


# What may be done in which state, and the state after it.
TABLE = {
    jobs.hold: {"queued": "held"},
    jobs.release: {"held": "queued"},
    jobs.cancel: {"queued": "cancelled", "held": "cancelled"},
    jobs.retry: {state: "queued" for state in changes.OVER},
}


@pytest.mark.parametrize("function", TABLE, ids=lambda function: function.__name__)
@pytest.mark.parametrize("before", changes.STATES)
def test_what_may_be_done_in_which_state(queue, function, before):
    submit(queue)
    with queue.transaction():
        queue.db.execute("UPDATE job SET state = ?, date_end = ? WHERE job = 1",
                         (before, "2026-11-30T00:00:00.000000Z" if before in changes.OVER else None))
    done = change(queue, function, 1, "because")
    assert done is (before in TABLE[function])
    assert state(queue, 1) == TABLE[function].get(before, before)
    note, end = queue.db.execute("SELECT note, date_end FROM job WHERE job = 1").fetchone()
    assert note == ("because" if done else None)
    assert (end is not None) == (state(queue, 1) in changes.OVER)


@pytest.mark.parametrize("function", TABLE, ids=lambda function: function.__name__)
def test_a_job_that_does_not_exist(queue, function):
    assert change(queue, function, 1) is False


def test_held_twice_is_two_events(queue):
    submit(queue, deliveries=[{"sink": "log", "path": "/l"}])
    for function in (jobs.hold, jobs.release, jobs.hold, jobs.release, jobs.cancel):
        assert change(queue, function, 1)
    assert [tuple(row) for row in queue.db.execute("SELECT code, n FROM event ORDER BY code, n")] == [
        (0, 0), (9, 0), (12, 0), (12, 1), (13, 0), (13, 1)]
    assert [row[0] for row in queue.db.execute("SELECT code FROM delivery ORDER BY number")] == [0, 12, 13, 12, 13, 9]


def test_submitted_held_says_so(queue):
    submit(queue, 2, "held", deliveries=[{"sink": "log", "path": "/l"}])
    rows = [tuple(row) for row in queue.db.execute("SELECT job, code FROM delivery ORDER BY number")]
    assert rows == [(1, 0), (1, 12), (2, 0), (2, 12)]
    assert kinds(queue) == []


def test_cancelled_with_all_that_waits_for_it(queue):
    submit(queue)
    submit(queue, after=(1,))
    submit(queue, after=(2,))
    submit(queue)
    assert change(queue, jobs.cancel, 1)
    assert [state(queue, number) for number in (1, 2, 3, 4)] == ["cancelled"] * 3 + ["queued"]
    assert not change(queue, jobs.retry, 3), "it would wait for job 2, which is over, for ever"
    assert [change(queue, jobs.retry, number) for number in (1, 2, 3)] == [True] * 3
    assert [job[4] for job in kinds(queue)] == [1]          # the others wait again, or share its kind
