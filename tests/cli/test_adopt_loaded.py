"""mxq-adopt: what was handed over goes back exactly when it cannot have run. Races: tests/crash/test_adopt.py."""

import fcntl
import json
import os
import sqlite3
import subprocess

import pytest

from mxqlib import process
from tests.harness import processes
from tests.harness.adopting import adopt, hidden
from tests.harness.queueing import read_record, states, submit
from tests.harness.records import make_running, put
from tests.harness.sandbox import wait_for

LOCK = "4711.815.1.lock"
GIVEN = ["1.1: given back: it was handed over, and not started"]


@pytest.fixture
def loaded(sandbox):
    """Job 1 is handed over to an mxq-run of this host that has died; its lock is free."""
    submit(sandbox, "sh", "-c", "echo ran >>ran")
    claim(sandbox, os.uname().nodename)
    for name in ("runs", "output", "corrupt"):
        (sandbox.spool / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    for folder in (sandbox.mxq_dir, sandbox.spool):
        folder.chmod(0o700)
    (sandbox.mxq_dir / "runners").mkdir(mode=0o700, exist_ok=True)
    lock = sandbox.mxq_dir / "runners" / LOCK
    lock.touch()
    return lock


def claim(sandbox, host, state="loaded", record=None):
    """What mxq-run commits; and mxq-collect, when there is a record."""
    with sqlite3.connect(sandbox.queue_file) as db:
        db.execute("UPDATE job SET state = ?, attempt = 1", (state,))
        db.execute("INSERT INTO run (run, job, attempt, state, host, runner, record) VALUES ('1.1', 1, 1, ?, ?, ?, ?)"
                   " ON CONFLICT (run) DO UPDATE SET state = excluded.state, record = excluded.record",
                   (state, host, LOCK, record))
    db.close()


def dead_record():
    """A running record of this boot whose processes have gone."""
    reference = dict(process.reference(os.getpid()), start=1)
    return make_running("1.1", host=reference["host"], reaper=reference, front=None, main=reference)


def is_given_back(sandbox, loaded):
    """The job waits, and runs once, as its next attempt."""
    assert states(sandbox) == {1: "queued"}
    assert sandbox.queue("SELECT state FROM run")[0]["state"] == "cancelled"
    assert read_record(sandbox, "1.1") is None and hidden(sandbox) == []
    assert adopt(sandbox) == [] and not loaded.exists()
    sandbox.run("mxq-run", "--wait", check=True)
    assert states(sandbox) == {1: "finished"}
    assert [row["run"] for row in sandbox.queue("SELECT run FROM run ORDER BY attempt")] == ["1.1", "1.2"]
    assert (sandbox.work / "ran").read_text() == "ran\n"


def is_left(sandbox):
    """Nothing is said and nothing done."""
    assert adopt(sandbox) == []
    assert states(sandbox) == {1: "loaded"}


def test_a_free_lock(sandbox, loaded):
    assert adopt(sandbox, "-n") == ["1.1: would be given back: it was handed over, and not started"]
    assert states(sandbox) == {1: "loaded"}
    assert adopt(sandbox) == GIVEN
    is_given_back(sandbox, loaded)


def test_no_lock_at_all(sandbox, loaded):
    """Its reaper had let go, and MAIN took the record back; or a power loss took the file."""
    loaded.unlink()
    assert adopt(sandbox) == GIVEN
    is_given_back(sandbox, loaded)


def test_a_lock_that_is_held(sandbox, loaded):
    with open(loaded) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        is_left(sandbox)
    assert adopt(sandbox) == GIVEN


def test_a_room_that_is_held(sandbox, loaded):
    """The record was deleted by hand; its reaper lives."""
    loaded.unlink()
    with open(sandbox.runs / ".1.1", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        is_left(sandbox)
    assert adopt(sandbox) == GIVEN


def test_a_process_of_the_run(sandbox, loaded):
    """The record was deleted by hand, and the reaper has died."""
    loaded.unlink()
    child = subprocess.Popen(["/bin/sleep", "100"], env={"MXQ_RUN": "1.1", "MXQ_DIR": str(sandbox.mxq_dir)})
    wait_for(lambda: processes.comm(child.pid) == "sleep")
    is_left(sandbox)
    child.kill()
    child.wait()
    assert adopt(sandbox) == GIVEN


def test_another_host(sandbox, loaded):
    with sqlite3.connect(sandbox.queue_file) as db:
        db.execute("UPDATE run SET host = 'alpha'")
    db.close()
    is_left(sandbox)
    assert adopt(sandbox, "--host", "beta") == []
    assert adopt(sandbox, "--host", "alpha") == GIVEN


@pytest.mark.parametrize("state", ["loaded", "running"])
@pytest.mark.parametrize("record", [True, False], ids=["with its record", "the record was taken back"])
def test_a_reaper_that_died_before_it_let_go_of_the_lock(sandbox, loaded, state, record):
    """Record and all, it had not opened the gate; also when mxq-collect has seen the record."""
    entry = dead_record()
    if state == "running":
        claim(sandbox, entry["host"], "running", json.dumps(entry))
    if record:
        put(sandbox.runs, entry)
        (sandbox.runs / ".1.1").touch()
    assert adopt(sandbox) == GIVEN
    is_given_back(sandbox, loaded)


def test_a_reaper_that_had_let_go_may_have_opened_the_gate(sandbox, loaded):
    loaded.unlink()
    put(sandbox.runs, dead_record())
    line, = adopt(sandbox)
    assert line.startswith("1.1: lost: ") and states(sandbox) == {1: "lost"}
    assert not (sandbox.work / "ran").exists()


def test_after_a_power_loss_a_lock_file_proves_nothing(sandbox, loaded):
    entry = dead_record()
    for name in ("reaper", "main"):
        entry[name] = dict(entry[name], boot="5b8a3e2c-7d41-4f0a-9c66-0123456789ab")
    put(sandbox.runs, entry)
    line, = adopt(sandbox)
    assert line.startswith("1.1: reboot: ") and states(sandbox) == {1: "lost"}


def test_locks_of_nobody_are_removed(sandbox, loaded):
    runners = sandbox.mxq_dir / "runners"
    for name in ("1.2.3.lock", "mxq-run.7.lock", "9.9.9.lock", "notes"):
        (runners / name).touch()
    with open(runners / "9.9.9.lock") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert adopt(sandbox) == GIVEN
        assert sorted(os.listdir(runners)) == [LOCK, "9.9.9.lock", "notes"]
    adopt(sandbox)
    assert os.listdir(runners) == ["notes"]
