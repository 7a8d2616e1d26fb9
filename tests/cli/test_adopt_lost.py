"""mxq-adopt: of a run that is gone the truth is told, and what follows from it is done."""

import fcntl
import json
import os
import sqlite3
import subprocess

import pytest

from mxqlib import durable, record
from tests.harness import processes
from tests.harness.adopting import (adopt, end, hidden, kill, on_gate, open_gate, orphan, parent_of_orphans, reap,
                                    rewrite, watcher_of)
from tests.harness.queueing import detach, read_record, states, submit
from tests.harness.records import BOOT, make_running, put
from tests.harness.sandbox import wait_for

LOST = "its reaper and MAIN are gone, and no outcome was left"


@pytest.fixture(autouse=True)
def parent():
    """We reap, as what lies around as a zombie tells how it ended."""
    with parent_of_orphans():
        yield


def lose(record):
    """Kill all of a run at once; nobody ever knows how it ended."""
    for name in ("reaper", "main"):
        kill(record[name]["pid"])
        reap(record[name]["pid"])


def lost(sandbox, *words):
    """The running record of a detached run that is lost."""
    before = read_record(sandbox, detach(sandbox, *words))
    lose(before)
    return before


def lost_job(sandbox, *words):
    """The running record of a job of the queue that was started by mxq-run and is lost."""
    number = submit(sandbox, *words, "sleep", "100")
    sandbox.run("mxq-run", check=True)
    before = read_record(sandbox, "%d.1" % number)
    lose(before)
    return before


def drain_file(sandbox):
    """Path of the file that keeps mxq-run from starting anything on this host."""
    return sandbox.spool / ("drain." + os.uname().nodename)


def test_lost(sandbox):
    before = lost(sandbox, "sleep", "100")
    assert adopt(sandbox) == ["%s: lost: %s" % (before["run"], LOST)]
    after = sandbox.record()
    assert (after["state"], after["status"], after["reason"], after["error"]) == ("ended", None, "lost", LOST)
    assert (after["date_end"], after["real"], after["adopted"]) == (None, None, True)
    assert after["date_start"] == before["date_start"]
    assert hidden(sandbox) == [] and not drain_file(sandbox).exists()
    assert adopt(sandbox) == []
    sandbox.run("mxq-collect", check=True)
    assert list(states(sandbox).values()) == ["lost"]
    assert adopt(sandbox) == []


def test_reboot(sandbox):
    before = lost(sandbox, "sleep", "100")
    rewrite(sandbox, before["run"], lambda text: text.replace(before["main"]["boot"], BOOT))
    assert adopt(sandbox) == ["%s: reboot: its host was booted since" % before["run"]]
    assert sandbox.record()["reason"] == "reboot"


@pytest.mark.parametrize("restart, state", [("never", "lost"), ("samehost", "queued"), ("always", "queued")])
@pytest.mark.parametrize("reboot", [False, True], ids=["lost", "reboot"])
def test_what_follows_for_a_job(sandbox, restart, state, reboot):
    before = lost_job(sandbox, "-r", restart)
    if reboot:
        rewrite(sandbox, "1.1", lambda text: text.replace(before["main"]["boot"], BOOT))
    line, = adopt(sandbox)
    assert line.startswith("1.1: %s: " % ("reboot" if reboot else "lost"))
    job, = sandbox.queue("SELECT state, host, attempt FROM job")
    assert tuple(job) == (state, os.uname().nodename if restart == "samehost" else "", 1)
    assert sandbox.queue("SELECT state FROM run")[0]["state"] == "lost"
    assert drain_file(sandbox).exists() != reboot
    if drain_file(sandbox).exists():
        assert "nothing is started on" in line
        text = drain_file(sandbox).read_text()
        assert "run 1.1 was lost" in text and "mxq-ctl resume" in text and text.count("\n") == 1
        sandbox.run("mxq-run", check=True)
        assert sandbox.queue("SELECT max(attempt) FROM run")[0][0] == 1, "drained"
        sandbox.run("mxq-ctl", "resume", check=True)
        assert not drain_file(sandbox).exists()
    sandbox.run("mxq-run", check=True)
    attempts = sandbox.queue("SELECT max(attempt) FROM run")[0][0]
    assert attempts == (1 if state == "lost" else 2)
    if attempts == 2:
        sandbox.run("mxq-ctl", "kill", "--now", "1", check=True)


def test_an_orphan_of_mxq_run_is_no_reason_to_drain(sandbox):
    submit(sandbox, *on_gate("exit 3"))
    sandbox.run("mxq-run", check=True)
    kill(read_record(sandbox, "1.1")["reaper"]["pid"])
    adopt(sandbox)
    open_gate(sandbox)
    assert end(sandbox, "1.1")["exit"] == 3
    assert not drain_file(sandbox).exists()


def test_a_job_that_left_something_behind_drains_too(sandbox):
    submit(sandbox, "sh", "-c", "setsid sleep 100 & echo $! >pid; sleep 100")
    sandbox.run("mxq-run", check=True)
    wait_for(lambda: (sandbox.work / "pid").exists() and (sandbox.work / "pid").read_text())
    lose(read_record(sandbox, "1.1"))
    adopt(sandbox)
    assert end(sandbox, "1.1")["reason"] == "lost"
    wait_for(lambda: sandbox.pids() == [])
    assert "run 1.1 was lost" in drain_file(sandbox).read_text()


def test_two_lost_runs_are_both_named(sandbox):
    for number in (1, 2):
        submit(sandbox, "sleep", "100")
    sandbox.run("mxq-run", "-j", "2", check=True)
    for run in ("1.1", "2.1"):
        lose(read_record(sandbox, run))
    assert len(adopt(sandbox)) == 2
    text = drain_file(sandbox).read_text()
    assert "run 1.1 was" in text and "run 2.1 was" in text


# ---- outcomes that are there after all ----

def make_outcome(before, status):
    """The record that the reaper would have written."""
    date = "2026-11-30T17:46:27.123456Z"
    entry = dict(before, state="ended", date_end=date, date_done=date, real=60.0, status=status, exit=status >> 8,
                 signal=None, core=None, reason=None, error=None, signals=[], rusage={}, maxrss_floor=None,
                 max_sumrss=None, children=[], children_more=0, leftovers=0, survivors=[], adopted=False)
    record.check(entry)
    return entry


def test_an_outcome_in_the_fallback_directory(sandbox):
    before = lost(sandbox, "sleep", "100")
    path = before["fallback"]
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    with open(path, "wb") as file:
        file.write(record.encode(make_outcome(before, 5 << 8)))
    assert adopt(sandbox) == ["%s: ended: its outcome was in %s" % (before["run"], path)]
    assert sandbox.record()["exit"] == 5
    assert not os.path.exists(path) and hidden(sandbox) == []


@pytest.mark.parametrize("rest", [b"", b"\0" * 1000])
def test_an_outcome_that_was_written_and_had_no_name_yet(sandbox, rest):
    before = lost(sandbox, "sleep", "100")
    (sandbox.runs / ("." + before["run"])).write_bytes(record.encode(make_outcome(before, 5 << 8)) + rest)
    line, = adopt(sandbox)
    assert line.startswith("%s: ended: " % before["run"])
    assert sandbox.record()["exit"] == 5 and hidden(sandbox) == []


def test_half_an_outcome_is_none(sandbox):
    before = lost(sandbox, "sleep", "100")
    data = record.encode(make_outcome(before, 5 << 8))
    (sandbox.runs / ("." + before["run"])).write_bytes(data[:len(data) // 2] + b"\0" * 1000)
    line, = adopt(sandbox)
    assert ": lost: " in line and sandbox.record()["status"] is None


def test_an_outcome_that_the_queue_has_already(sandbox):
    """mxq-collect was killed between the commit and the removal of the running record."""
    before = lost(sandbox, "sleep", "100")
    put(sandbox.runs, make_outcome(before, 5 << 8))
    sandbox.run("mxq-collect", check=True)
    put(sandbox.runs, before)
    assert adopt(sandbox) == []
    assert sandbox.records() == [] and list(states(sandbox).values()) == ["failed"]


def test_the_true_outcome_comes_late(sandbox):
    before = lost(sandbox, "sleep", "100")
    adopt(sandbox)
    sandbox.run("mxq-collect", check=True)
    put(sandbox.runs, make_outcome(before, 0))
    sandbox.run("mxq-collect", check=True)
    assert list(states(sandbox).values()) == ["finished"]


# ---- re-attached ----

@pytest.mark.parametrize("how", ["mxq-reap", "mxq-run"])
def test_living_runs_in_a_queue_that_is_new(sandbox, how):
    if how == "mxq-reap":
        run = detach(sandbox, "-j", "2", "-m", "40", "sleep", "100")
    else:
        submit(sandbox, "-j", "2", "-m", "40", "sleep", "100")
        sandbox.run("mxq-run", "-j", "2", check=True)
        run = "1.1"
    for file in sandbox.mxq_dir.glob("queue.db*"):
        file.unlink()
    sandbox.run("mxq-ls", check=True)
    assert adopt(sandbox) == []
    assert not sandbox.queue_file.exists(), "without a queue it works without one"
    submit(sandbox, "true")
    before = read_record(sandbox, run)
    assert adopt(sandbox) == ["%s: re-attached: its reaper %d lives" % (run, before["reaper"]["pid"])]
    row, = sandbox.queue("SELECT job.state, job.threads, job.memory, run.state FROM job JOIN run USING (job)")
    assert tuple(row) == ("running", 2, 40 << 20, "running")
    assert adopt(sandbox) == []
    sandbox.run("mxq-run", "-j", "2", check=True)
    assert sandbox.queue("SELECT count(*) FROM run")[0][0] == 1, "it is counted as occupied"
    sandbox.run("mxq-ctl", "kill", "--now", run, check=True)


def test_a_record_that_has_gone_while_the_queue_knows_the_run(sandbox):
    before = lost(sandbox, "sleep", "100")
    sandbox.run("mxq-collect", check=True)
    assert list(states(sandbox).values()) == ["running"]
    (sandbox.runs / (before["run"] + ".json")).unlink()
    (sandbox.runs / ("." + before["run"])).unlink()
    assert [line.split(": ")[1] for line in adopt(sandbox)] == ["restored", "lost"]
    assert list(states(sandbox).values()) == ["lost"]


def test_a_record_that_was_deleted_while_its_reaper_lives(sandbox):
    before = read_record(sandbox, detach(sandbox, *on_gate("exit 3")))
    sandbox.run("mxq-collect", check=True)
    (sandbox.runs / (before["run"] + ".json")).unlink()
    assert adopt(sandbox) == []
    assert hidden(sandbox) == ["." + before["run"]]
    open_gate(sandbox)
    assert end(sandbox, before["run"])["exit"] == 3


# ---- what is left in runs/ ----

def test_rooms_and_temporary_files_of_the_dead_are_removed(sandbox):
    run = detach(sandbox, "sleep", "100")
    names = [".17.1", ".20261130T174527.123456Z-alpha-4711", ".17.1.json.99", ".18.2.json.4711"]
    for name in names + [".notes"]:
        (sandbox.runs / name).write_bytes(b"x")
    with open(sandbox.runs / ".19.1", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert adopt(sandbox, "-n") == []
        assert len(hidden(sandbox)) == 7
        assert adopt(sandbox) == []
        assert hidden(sandbox) == [".19.1", "." + run, ".notes"]
    adopt(sandbox)
    assert hidden(sandbox) == ["." + run, ".notes"]
    sandbox.run("mxq-ctl", "kill", "--now", run, check=True)


def test_what_is_being_written_is_locked(tmp_path):
    room = durable.Reservation(str(tmp_path / ".17.1"), 1000)
    assert durable.is_in_use(room.path) and not durable.clear(room.path)
    pid = os.fork()
    if pid == 0:
        os._exit(os.path.exists(room.path) and durable.is_in_use(room.path))
    assert os.waitpid(pid, 0)[1] == 256
    os.close(room.fd)
    assert not durable.is_in_use(room.path) and durable.clear(room.path)
    assert not os.path.exists(room.path)


# ---- messages and statuses ----

def test_a_dry_run_changes_nothing(sandbox):
    gone = lost(sandbox, "sleep", "100")
    orphaned = orphan(sandbox, "sleep", "100")
    sandbox.run("mxq-collect", check=True)

    def look():
        return {path: path.read_bytes() for path in sorted(sandbox.mxq_dir.rglob("*")) if path.is_file()
                and "queue.db-" not in path.name}
    before = look()
    assert sorted(adopt(sandbox, "-n")) == sorted([
        "%s: would be lost: %s" % (gone["run"], LOST),
        "%s: would be adopted: MAIN %d runs on without a reaper" % (orphaned["run"], orphaned["main"]["pid"])])
    assert look() == before
    adopt(sandbox)
    os.kill(watcher_of(sandbox, orphaned["run"]), 12)
    end(sandbox, orphaned["run"])


def test_one_at_a_time(sandbox):
    before = lost(sandbox, "sleep", "100")
    adopt(sandbox, "-n")
    runners = sandbox.mxq_dir / "runners"
    runners.mkdir(mode=0o700, exist_ok=True)
    with open(runners / "mxq-adopt.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = sandbox.run("mxq-adopt")
        assert (done.returncode, done.stdout) == (75, "")
        assert done.stderr == "mxq-adopt: error: another mxq-adopt is at work here\n"
        assert sandbox.record() == before
    assert len(adopt(sandbox)) == 1
    assert os.listdir(runners) == []


def test_several_at_once_and_collectors_beside_them(sandbox):
    runs = []
    for n in range(4):
        runs.append(orphan(sandbox, *on_gate("exit %d" % n, "gate%d" % n))["run"])
        runs.append(lost(sandbox, "sleep", "100")["run"])
    spawned = [sandbox.spawn(name) for name in ("mxq-adopt", "mxq-collect") * 4]
    for process in spawned:
        process.communicate(timeout=60)
        assert process.returncode in (0, 75)
    adopt(sandbox)
    sandbox.run("mxq-collect", check=True)
    assert len({record["reaper"]["pid"] for record in sandbox.records()}) == 4
    for n in range(4):
        open_gate(sandbox, "gate%d" % n)
    for run in runs[::2]:
        end(sandbox, run)
    sandbox.run("mxq-collect", check=True)
    assert sorted(states(sandbox).values()) == ["failed"] * 3 + ["finished"] + ["lost"] * 4
    assert sandbox.records() == [] and os.listdir(sandbox.spool / "corrupt") == []


def test_damaged_files_are_put_aside(sandbox):
    before = lost(sandbox, "sleep", "100")
    (sandbox.runs / "17.1.json").write_bytes(b'{"format":1,"state":"running","run":"17.1"')
    (sandbox.runs / "18.1.json").write_bytes(b"")
    done = sandbox.run("mxq-adopt")
    assert done.returncode == 65
    assert done.stdout == "%s: lost: %s\n" % (before["run"], LOST)
    assert "runs/17.1.json: " in done.stderr and "runs/18.1.json: empty" in done.stderr
    assert sorted(os.listdir(sandbox.spool / "corrupt")) == [
        "17.1.json", "17.1.json.reason", "18.1.json", "18.1.json.reason"]


def test_a_queue_that_is_locked(sandbox):
    """Orphans are adopted all the same; nothing is lost before the queue was asked."""
    gone, run = lost(sandbox, "sleep", "100"), orphan(sandbox, "sleep", "100")["run"]
    sandbox.run("mxq-collect", check=True)
    sandbox.queue_file.chmod(0o666)
    done = sandbox.run("mxq-adopt")
    assert done.returncode == 77 and "; the rest is for the next call\n" in done.stderr
    assert [line.split(": ")[:2] for line in done.stdout.splitlines()] == [[run, "adopted"]]
    assert read_record(sandbox, gone["run"]) == gone
    sandbox.queue_file.chmod(0o600)
    assert sorted(line.split(": ")[:2] for line in adopt(sandbox)) == [[gone["run"], "lost"], [run, "re-attached"]]
    os.kill(watcher_of(sandbox, run), 12)
    end(sandbox, run)


@pytest.mark.needs("strace")
def test_a_disk_that_is_full(sandbox):
    """The watcher works although it cannot be named, and nobody adopts the run a second time."""
    run = orphan(sandbox, *on_gate("exit 3"))["run"]
    before = sandbox.record()
    traced = sandbox.spawn("strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=rename",
                           "-e", "inject=rename:error=ENOSPC:when=1", "mxq-adopt")     # the first one of each process
    assert "No space left on device; process" in traced.stderr.readline()
    wait_for(lambda: not os.listdir(sandbox.mxq_dir / "runners"), what="the end of mxq-adopt")
    assert sandbox.record() == before
    assert adopt(sandbox) == []
    open_gate(sandbox)
    after = end(sandbox, run)
    assert after["exit"] == 3 and after["reaper"] != before["reaper"]
    assert traced.wait(20) == 74


@pytest.mark.parametrize("words, text", [
    (["x"], "no operands are taken: x"), (["--frob"], "unknown option: --frob (try --help)"),
    (["--host"], "option needs a value: --host HOST")])
def test_wrong_usage(sandbox, words, text):
    done = sandbox.run("mxq-adopt", *words)
    assert (done.returncode, done.stdout, done.stderr) == (64, "", "mxq-adopt: error: %s\n" % text)


def test_a_spool_that_others_may_write_to(sandbox):
    detach(sandbox, "true")
    sandbox.spool.chmod(0o777)
    done = sandbox.run("mxq-adopt")
    assert done.returncode == 77 and done.stdout == ""


def test_another_database_is_not_touched(sandbox):
    gone = lost(sandbox, "sleep", "100")
    with sqlite3.connect(sandbox.queue_file) as db:
        db.execute("CREATE TABLE something (x)")
    sandbox.queue_file.chmod(0o600)
    done = sandbox.run("mxq-adopt")
    assert done.returncode == 69 and read_record(sandbox, gone["run"]) == gone


def test_a_made_up_record_without_main(sandbox):
    """main may be null; pids may be anything."""
    context = json.loads(subprocess.run(
        ["/usr/bin/python3", "-c", "import sys, json; sys.path.insert(0, '.');"
         "from mxqlib import process; print(json.dumps(process.context()))"], stdout=-1, check=True).stdout)
    detach(sandbox, "true")
    wait_for(lambda: all(entry["state"] == "ended" for entry in sandbox.records()))
    for n, pid in enumerate((0, 1 << 40, (1 << 63) - 1)):
        reference = dict(context, pid=pid, start=None)
        put(sandbox.runs, make_running("%d.1" % (n + 1), host=context["host"], reaper=reference, front=None, main=None))
    assert [line.split(": ")[1] for line in adopt(sandbox)] == ["lost"] * 3
    assert processes.is_alive(os.getpid())
