"""mxq-collect --forget: jobs that were over long ago go with their output; nothing that counts still does."""

import os
import sqlite3
import time

import pytest

from tests.harness import oracle, owing, records
from tests.harness.queueing import detach, states, submit, wait_until_ended

DAY_S = 86400


def ended(run, days=40, **changes):
    """An ended record whose job was over that many days ago."""
    date = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime(time.time() - days * DAY_S))
    return records.make_ended(run, changes.pop("status", 0), date_submit=date, date_start=date, date_end=date,
                              date_done=date, **changes)


def commit(sandbox, *entries):
    owing.fill(sandbox, *entries)
    sandbox.run("mxq-collect", "--no-deliver", check=True)


def forget(sandbox, age="30d", status=0):
    done = sandbox.run("mxq-collect", "--forget", age)
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    return done.stderr


def write_output(sandbox, run, days=40):
    path = sandbox.spool / "output" / (run + ".log")
    path.write_text("said\n")
    os.utime(path, (time.time() - days * DAY_S,) * 2)
    return path


def test_what_is_old_goes_and_what_is_young_stays(sandbox):
    commit(sandbox, ended("1.1", 40), ended("2.1", 40, status=256), ended("3.1", 40, status=None), ended("4.1", 20),
           records.make_running("5.1"))
    old, young = write_output(sandbox, "1.1"), write_output(sandbox, "4.1")
    assert forget(sandbox) == ""
    assert states(sandbox) == {4: "finished", 5: "running"}
    assert not old.exists() and young.exists()
    for table in ("run", "event"):
        assert {row[0] for row in sandbox.queue("SELECT job FROM %s" % table)} == {4, 5}
    oracle.check(sandbox, {"4.1": 0}, running=("5.1",))
    before = oracle.snapshot(sandbox)
    assert forget(sandbox) == "" and oracle.snapshot(sandbox) == before
    assert submit(sandbox, "true") == 6         # numbers are never used again


def test_steps_are_told(sandbox):
    commit(sandbox, ended("1.1"), ended("2.1"))
    write_output(sandbox, "2.1", days=0)
    assert "1 forgotten, 1 kept" in sandbox.run("mxq-collect", "-v", "--forget", "30d", check=True).stderr


def test_0s_means_all_that_ended(sandbox):
    run = detach(sandbox, "sh", "-c", "echo said")
    wait_until_ended(sandbox, run)
    forget(sandbox, "0s")
    assert states(sandbox) == {} and list((sandbox.spool / "output").iterdir()) == []


def test_a_file_that_the_user_named_is_the_users(sandbox):
    job = submit(sandbox, "-o", "mine", "--", "echo", "said")
    sandbox.run("mxq-run", check=True)
    sandbox.run("mxq-wait", str(job), check=True)
    forget(sandbox, "0s")
    assert states(sandbox) == {} and (sandbox.work / "mine").read_text() == "said\n"


def test_a_job_that_owes_something_stays_also_when_it_is_parked(sandbox):
    mail = [{"sink": "mail", "to": "a@b", "on": "always"}]
    commit(sandbox, ended("1.1", deliveries=mail))
    (sandbox.mail / "fail").write_text("1")
    forget(sandbox, status=75)
    assert states(sandbox) == {1: "finished"}
    with sqlite3.connect(sandbox.queue_file) as db:
        db.execute("UPDATE delivery SET state = 'parked'")
    db.close()
    forget(sandbox)
    assert states(sandbox) == {1: "finished"}
    (sandbox.mail / "fail").unlink()
    sandbox.run("mxq-collect", "--retry", "--forget", "30d", check=True)
    assert states(sandbox) == {} and len(sandbox.mails()) == 1


def test_a_job_stays_while_one_that_was_to_run_after_it_does(sandbox):
    first = submit(sandbox, "true")
    second = submit(sandbox, "--hold", "--after", str(first), "--", "true")
    third = submit(sandbox, "--hold", "--after", str(second), "--", "true")
    sandbox.run("mxq-run", check=True)
    sandbox.run("mxq-wait", str(first), check=True)
    forget(sandbox, "0s")
    assert set(states(sandbox)) == {first, second, third}
    sandbox.run("mxq-ctl", "kill", str(second), check=True)         # cancels the third too
    forget(sandbox, "0s")
    assert states(sandbox) == {}                                    # all three in one pass


@pytest.mark.parametrize("name", ["{}.json", ".{}"])
def test_a_job_stays_while_a_file_of_its_run_is_in_the_spool(sandbox, name):
    commit(sandbox, ended("1.1"))
    left = sandbox.runs / name.format("1.1")
    left.write_text("nobody reads this")
    sandbox.run("mxq-collect", "--deliver", "--forget", "30d", check=True)
    assert states(sandbox) == {1: "finished"}
    left.unlink()
    forget(sandbox)
    assert states(sandbox) == {}


def test_output_that_cannot_be_removed_keeps_its_job_and_no_other(sandbox):
    commit(sandbox, ended("1.1"), ended("2.1"))
    folder = sandbox.spool / "output" / "1.1.log"
    folder.mkdir()
    os.utime(folder, (0, 0))
    said = forget(sandbox, status=74)
    assert said.startswith("mxq-collect: error: cannot remove ") and said.endswith("; its job is kept\n")
    assert states(sandbox) == {1: "finished"}


# ---- who comes too late ----

WRAPPER = records.make_run_id()


@pytest.mark.parametrize("run, status", [("1.1", 0), ("1.1", None), (WRAPPER, 0), (WRAPPER, None)])
def test_a_late_record_of_a_forgotten_job_makes_no_new_one(sandbox, run, status):
    commit(sandbox, ended(run, status=status))
    forget(sandbox)
    assert states(sandbox) == {}
    late = ended(run, status=256, deliveries=[{"sink": "mail", "to": "a@b", "on": "always"}])
    owing.fill(sandbox, late, ended("7.1"))
    done = sandbox.run("mxq-collect")
    assert done.returncode == 65 and "comes too late: the job of run %s was forgotten" % run in done.stderr
    assert states(sandbox) == {7: "finished"} and sandbox.mails() == []
    assert (sandbox.spool / "corrupt" / (run + ".json")).exists() and list(sandbox.runs.iterdir()) == []
    assert sandbox.run("mxq-collect", check=True).stderr == ""


def test_a_running_record_of_a_forgotten_job_is_left_to_its_reaper(sandbox):
    commit(sandbox, ended("1.1", status=None))
    forget(sandbox)
    owing.fill(sandbox, records.make_running("1.1"))
    assert sandbox.run("mxq-collect", check=True).stderr == ""
    assert states(sandbox) == {} and (sandbox.runs / "1.1.json").exists()


@pytest.mark.parametrize("argv, status", [
    (("mxq-wait", "1"), 4), (("mxq-wait", "1.1"), 4), (("mxq-wait", WRAPPER), 4), (("mxq-ls", "-l", "1"), 69),
    (("mxq-ls", "-l", WRAPPER), 69), (("mxq-ctl", "retry", "1"), 69), (("mxq-sub", "--after", "1", "true"), 69),
])
def test_who_asks_for_a_forgotten_job_is_told_so(sandbox, argv, status):
    commit(sandbox, ended("1.1"), ended(WRAPPER))
    forget(sandbox)
    done = sandbox.run(*argv)
    assert done.returncode == status and "forgotten" in done.stderr and done.stderr.count("\n") == 1
    unknown = sandbox.run(*(word.replace("1", "99") if word in ("1", "1.1") else word for word in argv))
    assert "forgotten" not in unknown.stderr or WRAPPER in argv


# ---- vacuum ----

def test_vacuum_makes_the_database_smaller_and_keeps_all_that_counts(sandbox):
    sandbox.run("mxq-sub", "--hold", "true", check=True, env={"KEPT": "x"})
    sandbox.run("mxq-sub", "true", check=True, env={"GONE": "x"})
    sandbox.run("mxq-run", check=True)
    sandbox.run("mxq-wait", "2", check=True)
    commit(sandbox, *(ended("%d.1" % n, name="x" * 2000) for n in range(10, 500)))
    size_b = sandbox.queue_file.stat().st_size
    sandbox.run("mxq-collect", "--forget", "0s", check=True)
    assert len(sandbox.queue("SELECT 1 FROM environment")) == 2
    before = oracle.snapshot(sandbox)
    sandbox.run("mxq-collect", "--vacuum", check=True)
    assert sandbox.queue_file.stat().st_size < size_b / 4
    assert oracle.snapshot(sandbox) == before and states(sandbox) == {1: "held"}
    assert [b"KEPT=x" in row[0] for row in sandbox.queue("SELECT content FROM environment")] == [True]
    oracle.check(sandbox)


def test_a_lock_is_waited_for(sandbox):
    commit(sandbox, ended("1.1"))
    db = sqlite3.connect(sandbox.queue_file, isolation_level=None)
    db.execute("BEGIN IMMEDIATE")
    forgetter = sandbox.spawn("mxq-collect", "--forget", "30d")
    assert states(sandbox) == {1: "finished"}
    db.execute("COMMIT")
    db.close()
    assert forgetter.wait(30) == 0
    assert states(sandbox) == {}


@pytest.mark.parametrize("argv, words", [(["--forget"], "needs a value"), (["--forget", "soon"], "not a time")])
def test_bad_usage(sandbox, argv, words):
    done = sandbox.run("mxq-collect", *argv)
    assert done.returncode == 64 and words in done.stderr


@pytest.mark.parametrize("words", [["retry"], ["hold"], ["release"], ["kill"]], ids=lambda words: words[0])
def test_jobs_that_are_forgotten_while_mxq_ctl_looks_are_said(sandbox, words):
    """Between the look at the operands and the change another process forgets them; the rest is still done."""
    sandbox.run("mxq-sub", "-f", "-", input="false\n" * 40, check=True)
    sandbox.run("mxq-run", "--wait", check=True)
    forgetting = sandbox.spawn("mxq-collect", "--forget", "0s")
    done = sandbox.run("mxq-ctl", *words, *map(str, range(1, 41)))
    assert forgetting.wait(20) in (0, 75)
    assert done.returncode in (0, 69) and "Traceback" not in done.stderr
    assert len(done.stdout.splitlines()) + len(done.stderr.splitlines()) == 40
