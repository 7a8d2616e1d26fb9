"""jobqueue.due, delivery.deliverer: what is due when, in which order, and what a failure changes."""

import sqlite3
import time

import pytest

from mxqlib import cli, jobqueue, lock, outbox
from mxqlib.delivery import deliverer
from mxqlib.jobqueue import due, jobs, outcomes
from tests.harness import records

NOW_S = 1796000000.0


@pytest.fixture
def queue(tmp_path):
    """An empty queue, of which a lock is waited for a moment only."""
    tmp_path.chmod(0o700)
    opened = jobqueue.open_queue(str(tmp_path / "queue.db"), busy_s=0.1)
    yield opened
    opened.close()


def owe(queue, *deliveries, n=1, state="queued"):
    """Submit n jobs that owe these to each event; commit."""
    with queue.transaction():
        return jobs.submit(queue, {"name": "x", "cwd": "/", "deliveries": list(deliveries)}, [["true"]] * n, state)[0]


def end(queue, run, *deliveries):
    """Commit the outcome of a run that failed."""
    entry = records.make_ended(run, 256, deliveries=list(deliveries), date_submit=None)
    with queue.transaction():
        outcomes.Batch(queue, [run]).take(entry, records.record.encode(entry).decode()[:-1])


def log(name):
    return {"sink": "log", "path": name}


def ask(queue, question, *args, **kw):
    with queue.reading():
        found = question(queue, *args, **kw)
        return list(found) if hasattr(found, "__next__") else found


def change(queue, what, *args, **kw):
    with queue.transaction():
        return what(queue, *args, **kw)


def test_pauses_grow_from_ten_seconds_to_six_hours_and_last_two_days():
    pauses = [due.pause_s(n) for n in range(1, 20)]
    assert pauses[0] == 10 and pauses == sorted(pauses) and pauses[-1] == 6 * 3600
    assert 2 * 86400 < sum(pauses) < 4 * 86400


def test_a_target_waits_with_its_first_delivery_and_others_do_not(queue):
    owe(queue, log("/a"), n=3)
    owe(queue, log("/b"))
    assert ask(queue, due.targets, "log", NOW_S) == ["/a", "/b"]
    first = ask(queue, due.batch, "log", "/a", 2, 1 << 20)
    assert [each.job for each in first] == [1, 2]
    assert change(queue, due.put_off, first, "why") == 10
    owe(queue, log("/a"))               # due itself, and behind one that is not
    now_s = time.time()
    assert ask(queue, due.targets, "log", now_s) == ["/b"]
    assert ask(queue, due.targets, "log", now_s + 11) == ["/a", "/b"]
    assert [(each.job, each.tries) for each in ask(queue, due.batch, "log", "/a", 9, 1 << 20)] == [
        (1, 1), (2, 1), (3, 0), (5, 0)]


def test_a_date_from_a_wrong_clock_is_due(queue):
    owe(queue, log("/a"))
    queue.db.execute("UPDATE delivery SET next_try = '2099-01-01T00:00:00.000000Z'")
    assert ask(queue, due.targets, "log", NOW_S) == ["/a"]
    queue.db.execute("UPDATE delivery SET sink = 'mail'")
    assert ask(queue, due.next_command, "mail", NOW_S).job == 1


def test_a_batch_is_bounded_by_bytes(queue):
    for job in (1, 2, 3):
        owe(queue)
        end(queue, "%d.1" % job, log("/a"))
    assert len(ask(queue, due.batch, "log", "/a", 100, 1 << 20)) == 6
    assert len(ask(queue, due.batch, "log", "/a", 100, 1000)) == 1


def test_commands_are_served_by_how_long_they_waited(queue):
    for job in (1, 2, 3):
        owe(queue)
        end(queue, "%d.1" % job, {"sink": "hook", "command": "h%d" % job})
    first = ask(queue, due.next_command, "hook", NOW_S)
    assert change(queue, due.claim, first)
    assert change(queue, due.put_off, [first], "why", claimed=True) == 10
    now_s, order, after = time.time() + 11, [], ("", 0)
    while True:
        found = ask(queue, due.next_command, "hook", now_s, after)
        if found is None:
            break
        order.append((found.target, found.tries))
        after = found.next_try, found.number
    assert order == [("h2", 0), ("h3", 0), ("h1", 1)]
    assert ask(queue, due.next_command, "mail", now_s) is None
    change(queue, due.done, [1, 2, 3])
    assert not change(queue, due.claim, first)


def test_parked_after_twenty_tries_until_it_is_asked_for(queue):
    owe(queue, log("/a"))
    for tries in range(1, 21):
        wait_s = change(queue, due.put_off, ask(queue, due.batch, "log", "/a", 9, 9), "why")
        assert (wait_s is None) == (tries == 20)
    assert ask(queue, due.batch, "log", "/a", 9, 9) == []
    change(queue, due.settle)
    assert not outbox.may_owe(queue.path)
    assert change(queue, due.retry) == 1
    assert outbox.may_owe(queue.path) and ask(queue, due.batch, "log", "/a", 9, 9)[0].tries == 0
    assert ask(queue, due.targets, "log", NOW_S) == ["/a"]


def test_the_marker_goes_when_nothing_is_owed_and_no_sooner(queue):
    owe(queue, log("/a"), log("/b"))
    change(queue, due.done, [1])
    change(queue, due.settle)
    assert outbox.may_owe(queue.path)
    change(queue, due.done, [2])
    change(queue, due.settle)
    assert not outbox.may_owe(queue.path)


def test_what_was_never_tried(queue):
    owe(queue, log("/a"))
    owe(queue, {"sink": "record", "path": "-"})
    end(queue, "2.1", {"sink": "record", "path": "-"}, {"sink": "hook", "command": "true"})
    assert ask(queue, due.is_untried, 1) and not ask(queue, due.is_untried, 2)
    change(queue, due.put_off, ask(queue, due.batch, "log", "/a", 9, 9), "why")
    assert not ask(queue, due.is_untried, 1)


def test_no_question_reads_what_is_not_owed(queue):
    """Each is answered through an index, whatever the number of deliveries that were made."""
    asked = []
    owe(queue, log("/a"))
    queue.db.set_trace_callback(asked.append)
    for sink in due.FILES + due.COMMANDS:
        ask(queue, due.targets, sink, NOW_S)
        ask(queue, due.next_command, sink, NOW_S)
        ask(queue, due.batch, sink, "/a", 9, 9)
    ask(queue, due.is_untried, 1)
    change(queue, due.settle)
    change(queue, due.retry)
    queue.db.set_trace_callback(None)
    for statement in {text for text in asked if text.startswith(("SELECT", "UPDATE"))}:
        plan = [row[3] for row in queue.db.execute("EXPLAIN QUERY PLAN " + statement)]
        assert not any(line.startswith("SCAN") and "INDEX delivery_" not in line for line in plan), (statement, plan)


# ---- the deliverer ----

def test_logs_get_all_events_of_a_job_in_their_order(queue, tmp_path):
    first = owe(queue, log(str(tmp_path / "log")), state="held")
    change(queue, jobs.release, first)
    change(queue, jobs.hold, first, "not now")
    change(queue, jobs.cancel, first)
    assert deliverer.Deliverer(queue).run()
    heads = [line[:17] for line in (tmp_path / "log").read_text().split("\n") if line[:1] == "0"]
    assert heads == ["%03d (001.000.000)" % code for code in (0, 12, 13, 12, 9)]


def test_it_leaves_what_another_one_is_delivering(queue, tmp_path):
    owe(queue, log(str(tmp_path / "log")))
    held = lock.take(str(tmp_path), "queue.db-deliverer")
    assert not deliverer.Deliverer(queue).run()
    held.let_go()
    assert deliverer.Deliverer(queue).run() and (tmp_path / "log").exists()


def test_files_only(queue, tmp_path):
    owe(queue)
    end(queue, "1.1", log(str(tmp_path / "log")), {"sink": "hook", "command": "touch %s" % (tmp_path / "hooked")})
    assert deliverer.Deliverer(queue, files_only=True).run()
    assert (tmp_path / "log").exists() and not (tmp_path / "hooked").exists()
    assert deliverer.Deliverer(queue).run() and (tmp_path / "hooked").exists()


def test_a_locked_queue_runs_no_mailer(queue, tmp_path, monkeypatch):
    """The try could not be counted, nor could it be written down that the mail went out."""
    owe(queue)
    end(queue, "1.1", {"sink": "mail", "to": "joe", "on": "always"})
    monkeypatch.setenv("MXQ_SENDMAIL", "touch %s" % (tmp_path / "sent"))
    other = sqlite3.connect(queue.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(cli.Failure, match="database is locked"):
        deliverer.Deliverer(queue).run()
    other.close()
    assert not (tmp_path / "sent").exists()
    assert deliverer.Deliverer(queue).run() and (tmp_path / "sent").exists()


def test_standard_output_that_is_not_ours_is_left_to_mxq_collect(queue):
    owe(queue)
    end(queue, "1.1", {"sink": "record", "path": "-"})
    assert deliverer.Deliverer(queue, stdout=None).run()
    assert ask(queue, due.batch, "record", "-", 9, 9)[0].tries == 0 and outbox.may_owe(queue.path)
