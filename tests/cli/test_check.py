"""mxq-ls --check: each kind of trouble is told with what mends it, none where there is none, and nothing changes."""

import json
import os
import sqlite3
import time

import pytest

from mxqlib import process
from tests.harness import oracle, owing, records
from tests.harness.adopting import orphan
from tests.harness.queueing import detach, submit
from tests.harness.sandbox import wait_for

HERE = os.uname().nodename
ME = process.reference(os.getpid())
DEAD = dict(ME, start=1)


def check(sandbox, *argv, **kw):
    """The findings, as dicts; the exit status says whether there are any."""
    done = sandbox.run("mxq-ls", "--check", "--json", *argv, **kw)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (3 if found else 0, ""), done.stderr
    return found


def only(sandbox, **kw):
    found = check(sandbox, **kw)
    assert len(found) == 1, found
    return found[0]


def change(sandbox, statement, *values):
    with sqlite3.connect(sandbox.queue_file) as db:
        db.execute(statement, values)
    db.close()


def running_here(run, **changes):
    return records.make_running(run, **dict(dict(host=HERE, reaper=DEAD, front=None, main=DEAD), **changes))


def age(path, seconds=3600):
    os.utime(path, (time.time() - seconds,) * 2)


def test_nothing_is_nothing(sandbox):
    assert check(sandbox) == [] and not sandbox.mxq_dir.exists()
    assert sandbox.run("mxq-ls", "--check", check=True).stdout == ""
    submit(sandbox, "true")
    assert check(sandbox) == []


@pytest.mark.leaves_processes
def test_what_is_in_order_is_not_told(sandbox):
    """A run that runs, outcomes that are fresh, records of other hosts, one that waits and one that is held."""
    detach(sandbox, "sleep", "1000")
    submit(sandbox, "--hold", "true")
    submit(sandbox, "true")
    sandbox.run("mxq-reap", "false")
    owing.fill(sandbox, records.make_running("7.1"), records.make_ended("8.1"))
    assert check(sandbox) == []
    sandbox.run("mxq-collect", check=True)
    assert check(sandbox) == []
    done = sandbox.run("mxq-ls", "--check", "-v", check=True)
    assert "2 runs of other hosts" in done.stderr and done.stdout == ""     # in the spool, and in the queue


def test_a_finding_is_one_line_with_what_it_means_and_what_mends_it(sandbox):
    sandbox.run("mxq-ctl", "drain", "-r", "disk\nfull", check=True)
    done = sandbox.run("mxq-ls", "--check")
    assert done.returncode == 3 and done.stdout.count("\n") == 1
    assert done.stdout.startswith("drain is there (disk") and done.stdout.endswith(
        ": nothing is started from the queue; mend: mxq-ctl resume\n")


# ---- each kind, mended by what it says ----

@pytest.mark.leaves_processes
def test_an_orphan(sandbox):
    entry = orphan(sandbox, "sleep", "1000")
    found = only(sandbox)
    assert found["what"] == "%s: its reaper is dead, MAIN %d is not" % (entry["run"], entry["main"]["pid"])
    assert "mxq-adopt" in found["mend"]
    sandbox.run("mxq-adopt", check=True)
    assert check(sandbox) == []


def test_a_run_whose_processes_are_gone(sandbox):
    owing.fill(sandbox, running_here(records.make_run_id()), running_here(records.make_run_id(2), reaper=dict(
        DEAD, boot=records.BOOT), main=dict(DEAD, boot=records.BOOT)))
    assert sorted(found["means"] for found in check(sandbox)) == ["its host was booted since", "its processes are gone"]
    sandbox.run("mxq-adopt", check=True)
    sandbox.run("mxq-collect", check=True)
    assert check(sandbox) == []


def test_outcomes_that_nobody_collects(sandbox):
    owing.fill(sandbox, records.make_ended("1.1"), records.make_ended("2.1"))
    assert check(sandbox) == []
    age(sandbox.runs / "1.1.json")
    assert only(sandbox)["what"].startswith("2 outcomes in runs/, the oldest since ")
    sandbox.run("mxq-collect", check=True)
    assert check(sandbox) == []


@pytest.mark.parametrize("data", [b"", b"{", b'{"format":1,"state":"ended","host":"x"}\n'])
def test_a_file_that_is_no_record_and_one_that_was_put_aside(sandbox, data):
    owing.fill(sandbox)
    (sandbox.runs / "5.1.json").write_bytes(data)
    found = only(sandbox)
    assert found["what"].startswith("runs/5.1.json is no record (") and "mxq-collect" in found["mend"]
    sandbox.run("mxq-collect")
    assert only(sandbox)["what"].startswith("corrupt/5.1.json was put aside (")
    for path in (sandbox.spool / "corrupt").iterdir():
        path.unlink()
    assert check(sandbox) == []


def test_an_outcome_in_the_fallback_directory(sandbox):
    path = sandbox.path / "fallback" / "1.1.json"
    path.parent.mkdir(mode=0o700)
    owing.fill(sandbox, running_here("1.1", fallback=str(path)))
    sandbox.run("mxq-collect", check=True)
    records.put(path.parent, records.make_ended("1.1", host=HERE, fallback=str(path)))
    assert only(sandbox)["what"] == "1.1: its outcome is in %s" % path
    record = (sandbox.runs / "1.1.json").read_bytes()
    (sandbox.runs / "1.1.json").unlink()
    assert only(sandbox)["what"] == "1.1: running, says the queue, but its outcome is in %s" % path
    (sandbox.runs / "1.1.json").write_bytes(record)
    sandbox.run("mxq-collect", check=True)
    assert check(sandbox) == []


def test_a_record_that_has_gone(sandbox):
    owing.fill(sandbox, running_here("1.1", reaper=ME))
    sandbox.run("mxq-collect", check=True)
    assert check(sandbox) == []
    (sandbox.runs / "1.1.json").unlink()
    assert only(sandbox)["what"] == "1.1: running, says the queue, but its record has gone from the spool"


def test_what_a_dead_process_left_in_runs(sandbox):
    owing.fill(sandbox, running_here("1.1", reaper=ME))
    for name in (".1.1", ".2.1", ".3.1.json.4711", ".other-program"):
        (sandbox.runs / name).write_text("")
    assert sorted(found["what"] for found in check(sandbox)) == [
        "runs/.2.1 is nobody's", "runs/.3.1.json.4711 is nobody's"]
    sandbox.run("mxq-adopt", check=True)
    assert check(sandbox) == []


def test_what_others_have_in_their_environment_is_no_trouble(sandbox):
    submit(sandbox, "true")
    for nonsense in (b"\xff", b"1.1", b"x of y"):
        sandbox.spawn("sleep", "60", env={b"MXQ_RUN": nonsense, b"MXQ_DIR": b"/\xfe"})
    assert check(sandbox) == []


def test_a_job_that_a_dead_mxq_run_claimed(sandbox):
    job = submit(sandbox, "true")
    sandbox.run("mxq-collect", check=True)
    change(sandbox, "UPDATE job SET state = 'loaded', attempt = 1 WHERE job = ?", job)
    found = only(sandbox)
    assert found["what"] == "job %d: loaded, but no run of it is" % job
    change(sandbox, "INSERT INTO run (run, job, attempt, state, host, runner, date_load) VALUES"
                    " ('%d.1', %d, 1, 'loaded', '%s', '1.2.3.lock', '2026-11-30T17:45:27.000000Z')" % (job, job, HERE))
    found = only(sandbox)
    assert found["what"] == "%d.1: handed over by an mxq-run that is dead" % job and "mxq-adopt" in found["mend"]
    sandbox.run("mxq-adopt", check=True)
    assert check(sandbox) == []


@pytest.mark.leaves_processes
def test_processes_of_a_run_that_has_ended(sandbox):
    left = sandbox.spawn("sleep", "1000", env={"MXQ_RUN": "1.1"})
    owing.fill(sandbox, records.make_ended("1.1"))
    sandbox.run("mxq-collect", check=True)
    assert only(sandbox)["what"] == "1.1: has ended, but of its processes %d lives" % left.pid
    left.kill()
    left.wait()
    assert check(sandbox) == []


def owing_mail(sandbox):
    owing.fill(sandbox, owing.owing(sandbox, mail="a@b"))
    (sandbox.mail / "fail").write_text("1")
    assert sandbox.run("mxq-collect").returncode == 75


def test_what_is_parked(sandbox):
    owing_mail(sandbox)
    assert check(sandbox) == []         # it failed once and is tried again
    change(sandbox, "UPDATE delivery SET state = 'parked'")
    found = only(sandbox)
    assert found["what"].startswith("1 owed to mail a@b: parked (") and "mxq-collect --retry" in found["mend"]
    (sandbox.mail / "fail").unlink()
    sandbox.run("mxq-collect", "--retry", check=True)
    assert check(sandbox) == []


def test_what_nobody_delivers(sandbox):
    owing_mail(sandbox)
    owing.make_due(sandbox)
    assert check(sandbox) == []
    age(sandbox.mxq_dir / "queue.db-owed")
    assert only(sandbox)["what"].endswith("/005: not delivered to mail a@b")
    (sandbox.mxq_dir / "queue.db-owed").unlink()
    assert "queue.db-owed has gone" in only(sandbox)["what"]


def test_places_that_are_refused(sandbox):
    owing.fill(sandbox, records.make_ended("1.1"))
    sandbox.run("mxq-collect", check=True)
    for path in (sandbox.mxq_dir, sandbox.spool, sandbox.runs, sandbox.spool / "output", sandbox.spool / "corrupt"):
        path.chmod(0o770)
        assert any("%s can be written by others: chmod go-w it" % path == found["what"] for found in check(sandbox))
        path.chmod(0o700)
    sandbox.queue_file.chmod(0o666)
    assert "can be written by others" in only(sandbox)["what"]
    sandbox.queue_file.chmod(0o600)
    assert check(sandbox) == []


@pytest.mark.as_root
def test_a_file_of_another_user_beside_the_queue(sandbox):
    sandbox.run("mxq-collect", check=True)
    (sandbox.mxq_dir / "queue.db-journal").write_text("")
    os.chown(sandbox.mxq_dir / "queue.db-journal", 65534, 65534)
    assert "belongs to user 65534" in only(sandbox)["what"]


def test_a_queue_of_a_later_version(sandbox):
    sandbox.run("mxq-collect", check=True)
    change(sandbox, "PRAGMA user_version = 99")
    assert only(sandbox)["mend"] == "install the later version"


@pytest.mark.parametrize("page", [0, 3, 20])
def test_a_damaged_database(sandbox, page):
    owing.fill(sandbox, *(records.make_ended("%d.1" % n) for n in range(1, 60)))
    sandbox.run("mxq-collect", check=True)
    assert check(sandbox) == []
    with open(sandbox.queue_file, "r+b") as file:
        file.seek(page * 4096)
        file.write(b"nonsense" * 512)
    found = check(sandbox)
    assert found and all("sqlite3" in each["mend"] for each in found), found


# ---- beside others ----

@pytest.mark.leaves_processes
def test_it_changes_nothing(sandbox):
    orphan(sandbox, "sleep", "1000")
    owing.fill(sandbox, records.make_ended("1.1"), running_here("2.1"))
    (sandbox.runs / ".3.1").write_text("")
    sandbox.run("mxq-sub", "true", check=True)
    before = oracle.snapshot(sandbox), sorted(path for path in sandbox.mxq_dir.glob("**/*"))
    assert len(check(sandbox)) == 3
    assert (oracle.snapshot(sandbox), sorted(path for path in sandbox.mxq_dir.glob("**/*"))) == before


@pytest.mark.needs("unshare")
def test_it_works_where_nothing_can_be_written(sandbox):
    owing.fill(sandbox, running_here("1.1"), records.make_ended("2.1"))
    sandbox.run("mxq-collect", check=True)
    (sandbox.runs / ".3.1").write_text("")
    job = submit(sandbox, "true")
    change(sandbox, "UPDATE job SET state = 'loaded', attempt = 1 WHERE job = ?", job)
    change(sandbox, "INSERT INTO run (run, job, attempt, state, host, runner) VALUES"
                    " ('%d.1', %d, 1, 'loaded', '%s', 'x')" % (job, job, HERE))
    wanted = check(sandbox)
    done = sandbox.run("unshare", "-rm", "sh", "-c", "mount --bind '%s' '%s' && mount -o remount,ro,bind '%s' && "
                       "! touch '%s/x' 2>/dev/null && mxq-ls --check --json" % ((sandbox.mxq_dir,) * 4))
    if "mount" in done.stderr or "unshare" in done.stderr:
        pytest.skip("machine cannot: %s" % done.stderr.splitlines()[0])
    assert (done.returncode, done.stderr) == (3, "")
    assert [json.loads(line) for line in done.stdout.splitlines()] == wanted and len(wanted) == 3


@pytest.mark.slow
@pytest.mark.timeout_s(300)
def test_no_false_alarm_while_jobs_run_start_and_end(sandbox):
    submit(sandbox, "true")
    sandbox.run("mxq-sub", "-f", "-", input="true\nfalse\nsleep 0.02\n" * 200, check=True)
    run = sandbox.spawn("mxq-run", "--wait", "-j", "4")
    looks = 0
    while run.poll() is None:
        assert check(sandbox) == []
        looks += 1
        sandbox.run("mxq-reap", "-b", "true", check=True)
        if looks % 3 == 0:
            sandbox.run("mxq-collect", check=True)
    assert run.returncode in (0, 3) and looks > 3
    wait_for(lambda: all(entry["state"] == "ended" for entry in sandbox.records()))
    assert check(sandbox) == []


@pytest.mark.parametrize("argv, words", [(["-l", "1"], "contradict"), (["--owed"], "contradict"),
                                         (["-s", "failed"], "contradict")])
def test_bad_usage(sandbox, argv, words):
    done = sandbox.run("mxq-ls", "--check", *argv)
    assert (done.returncode, done.stdout) == (64, "") and words in done.stderr
