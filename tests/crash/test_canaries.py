"""The harness catches known-bad programs, and lets the same programs pass when they do it right.

A detector that has never fired proves nothing. The programs are in canaries/;
each takes the name of the mistake it is to make, or `none`.
"""

import json
import os
import signal
import sqlite3
import subprocess
import threading
from pathlib import Path

import pytest

from tests.harness import order, pids, powerloss, strace

CANARIES = Path(__file__).parent / "canaries"
ENDED = '{"state":"ended","status":%d}\n'
FRONT = {"front": "-"}

quick = pytest.mark.quick
pytestmark = pytest.mark.needs("strace")


def make_spool(sandbox, records=()):
    sandbox.runs.mkdir(parents=True)
    for run, text in records:
        (sandbox.runs / run).write_text(text)
    return sandbox.spool


def read_record(folder):
    """What is in the spool: the record as it is, None when there is none."""
    file = Path(folder) / "runs/1.1.json"
    return json.loads(file.read_text()) if file.exists() else None


# --- publish: power loss, order, errors, kill ------------------------------------

def publishing(flaw):
    return lambda sandbox: [CANARIES / "publish", make_spool(sandbox), flaw]


def tells(call):
    """The promise of `publish`: its line on standard output."""
    return "safe" if call.name == "write" and call.fd == 1 else None


def power_losses(flaw, tmp_path, strict=False, faults=()):
    """(number of states, what is wrong with them)."""
    trace = powerloss.record(publishing(flaw), lambda sandbox: sandbox.spool, tells, roles=FRONT, faults=faults)
    wrong = []
    for number, state in enumerate(powerloss.states(trace, strict), 1):
        state.materialise(tmp_path / "disk")
        try:
            record = read_record(tmp_path / "disk")
        except ValueError:
            wrong.append("half-there: %s" % state)
            continue
        if record is None and state.promises:
            wrong.append("promised, but missing: %s" % state)
    return number, wrong


@quick
@pytest.mark.parametrize("strict", [False, True])
def test_power_loss_harms_nothing_that_is_done_right(tmp_path, strict):
    states, wrong = power_losses("none", tmp_path, strict)
    assert states >= 5
    assert not wrong


@quick
@pytest.mark.parametrize("flaw, says", [
    ("file-unsynced", "half-there"), ("synced-after-rename", "half-there"), ("no-rename", "half-there"),
    ("folder-unsynced", "promised, but missing"), ("promise-first", "promised, but missing")])
def test_power_loss_finds(flaw, says, tmp_path):
    _states, wrong = power_losses(flaw, tmp_path)
    assert any(text.startswith(says) for text in wrong), wrong


@quick
@pytest.mark.parametrize("flaw", ["none", "synced-again"])
def test_power_loss_finds_a_second_fsync_that_lies(flaw, tmp_path):
    _states, wrong = power_losses(flaw, tmp_path, faults=[strace.fail("fsync", 1, "EIO")])
    assert bool(wrong) == (flaw == "synced-again")


@quick
@pytest.mark.parametrize("flaw, rule", [
    ("none", None), ("file-unsynced", "rename"), ("synced-after-rename", "rename"),
    ("folder-unsynced", "promise"), ("promise-first", "promise")])
def test_order_lint_finds(flaw, rule, tmp_path):
    calls = strace.record(publishing(flaw), roles=FRONT, again=False)
    root = next(call.paths[0] for call in calls if call.name == "fsync" or "O_CREAT" in call.flags())
    spool = root[:root.index("/spool") + len("/spool")]
    assert bool(order.unsynced_renames(calls, spool)) == (rule == "rename")
    assert bool(order.early_promises(calls, spool, tells)) == (rule == "promise" or flaw == "file-unsynced")


def kill_points(flaw):
    """Number of points, and what a kill at each left that is wrong."""
    points, wrong = 0, []
    for point in strace.crashpoints(publishing(flaw), strace.kill_before, roles=FRONT):
        with point.strike() as traced:
            traced.end()
            try:
                record = read_record(traced.sandbox.spool)
            except ValueError:
                wrong.append("half-there: %s" % point)
                continue
            if record is None and b"safe" in traced.stdout():
                wrong.append("promised, but missing: %s" % point)
        points += any(point.fired)
        assert traced.returncode == (-signal.SIGKILL if point.fired == [True] else 0)
    return points, wrong


@quick
@pytest.mark.parametrize("flaw, says", [("none", None), ("no-rename", "half-there"),
                                        ("promise-first", "promised, but missing")])
def test_kill_at_each_call_finds(flaw, says):
    points, wrong = kill_points(flaw)
    assert points >= 9
    assert bool(wrong) == bool(says)
    assert all(text.startswith(says) for text in wrong)


@quick
@pytest.mark.parametrize("flaw, sticky", [("none", False), ("none", True), ("error-ignored", False)])
def test_error_at_each_write_finds_false_success(flaw, sticky):
    def make(call, n, role):
        return strace.fail(call, n, "ENOSPC", sticky, role)

    wrong = points = 0
    for point in strace.crashpoints(publishing(flaw), make, names=["write", "fsync", "rename"], roles=FRONT):
        with point.strike() as traced:
            traced.end()
            try:
                record = read_record(traced.sandbox.spool)
            except ValueError:
                record = None
            wrong += record is None and b"safe" in traced.stdout()
        points += point.fired == [True]
    assert points >= 4
    assert bool(wrong) == (flaw == "error-ignored")


# --- collect: recovery, order, rivals --------------------------------------------

def collecting(flaw, records=(("1.1.json", ENDED % 256), ("2.1.json", ENDED % 0))):
    return lambda sandbox: [CANARIES / "collect", make_spool(sandbox, records), sandbox.queue_file, flaw]


def outcomes(sandbox):
    with sqlite3.connect(sandbox.queue_file) as queue:
        rows = queue.execute("SELECT run, status FROM run ORDER BY run").fetchall()
    queue.close()
    return rows


def collected_wrongly(traced, wanted):
    """Run the command once more, unharmed, and compare what is in the database."""
    again = traced.sandbox.run(*traced.argv)
    assert again.returncode == 0, again.stderr
    return outcomes(traced.sandbox) != wanted or bool(os.listdir(traced.sandbox.runs))


@pytest.mark.parametrize("flaw", ["none", "removed-first", "doubles"])
def test_kill_and_recovery_find_what_is_lost_or_doubled(flaw):
    wrong = points = 0
    for point in strace.crashpoints(collecting(flaw), strace.kill_before, roles=FRONT,
                                    names=["pwrite64", "fdatasync", "unlink"]):
        with point.strike() as traced:
            traced.end()
            wrong += collected_wrongly(traced, [("1.1", 256), ("2.1", 0)])
        points += point.fired == [True]
    assert points >= 10
    assert bool(wrong) == (flaw != "none")


@quick
@pytest.mark.parametrize("flaw", ["none", "unsynced"])
def test_order_lint_finds_files_removed_before_the_commit_is_durable(flaw):
    calls = strace.record(collecting(flaw), roles=FRONT, again=False)
    runs = next(os.path.dirname(call.paths[0]) for call in calls if call.name == "unlink" and "/runs/" in call.paths[0])
    database = os.path.join(os.path.dirname(os.path.dirname(runs)), "queue.db")
    assert bool(order.early_unlinks(calls, runs, database)) == (flaw != "none")


@quick
@pytest.mark.parametrize("flaw", ["none", "half-accepted"])
def test_truncation_at_each_byte_finds_a_reader_that_takes_half(flaw, sandbox):
    make_spool(sandbox)
    text = ENDED % 10752
    for length in range(len(text)):
        (sandbox.runs / ("%d.json" % length)).write_text(text[:length])
    sandbox.run(CANARIES / "collect", sandbox.spool, sandbox.queue_file, flaw, check=True)
    assert bool(outcomes(sandbox)) == (flaw == "half-accepted")


@quick
@pytest.mark.parametrize("flaw", ["none", "surprised"])
def test_freeze_and_rival_find_a_race(flaw):
    wrong = points = 0
    for point in strace.crashpoints(collecting(flaw), strace.freeze_after, roles=FRONT,
                                    names=["getdents64", "unlink"]):
        with point.strike() as traced:
            traced.wait_for(lambda: traced.frozen("front") or traced.ended())
            if not traced.ended():
                traced.sandbox.run(*traced.argv)
                traced.thaw("front")
            traced.end()
            wrong += traced.returncode != 0 or outcomes(traced.sandbox) != [("1.1", 256), ("2.1", 0)]
        points += point.fired == [True]
    assert points >= 3
    assert bool(wrong) == (flaw == "surprised")


# --- reap: which process is struck ------------------------------------------------

def reaping(flaw, job="echo ran >job; sleep 0.05; exit 3"):
    return lambda sandbox: [CANARIES / "reap", make_spool(sandbox), flaw, "sh", "-c", job]


def untruths(flaw, role, names=("openat", "write", "rename", "exit_group", "wait4", "clone")):
    """(points, what the spool says wrongly about the job) after a kill of one process at each call."""
    points, wrong = 0, []
    for point in strace.crashpoints(reaping(flaw), strace.kill_before, role=role, names=names):
        with point.strike() as traced:
            traced.end()
            ran = (traced.sandbox.work / "job").exists()
            record = read_record(traced.sandbox.spool)
            if ran and record is None:
                wrong.append("ran, but nothing is known: %s" % point)
            if record and record["state"] == "ended" and record["status"] not in ((768,) if ran else (125 << 8, 9)):
                wrong.append("invented %s: %s" % (record, point))
        if point.fired == [True]:
            points += 1
            assert traced.returncode == (-signal.SIGKILL if role == "front" else 0)
    return points, wrong


@pytest.mark.parametrize("role", ["front", "reaper", "main"])
def test_kill_of_each_process_harms_nothing_that_is_done_right(role):
    points, wrong = untruths("none", role)
    assert points >= {"front": 3, "reaper": 8, "main": 1}[role]
    assert not wrong


@pytest.mark.parametrize("flaw, says", [("invents", "invented"), ("gate-first", "ran, but nothing is known"),
                                        ("gate-ignored", "ran, but nothing is known")])
def test_kill_of_the_reaper_finds(flaw, says):
    _points, wrong = untruths(flaw, "reaper")
    assert any(text.startswith(says) for text in wrong), wrong


@quick
@pytest.mark.parametrize("flaw", ["none", "last-child"])
def test_status_of_another_child_is_found(flaw):
    """The other child lives for 50 ms: MAIN ends once before and once after it."""
    wrong = 0
    for job in ("exit 3", "sleep 0.1; exit 3"):
        with strace.Point(reaping(flaw, job), (), {}).strike() as traced:
            traced.end()
            wrong += read_record(traced.sandbox.spool)["status"] != 768
    assert bool(wrong) == (flaw == "last-child")


# --- pids, and the harness itself -----------------------------------------------

@quick
@pytest.mark.parametrize("flaw", ["none", "pid-only"])
def test_reused_pid_finds_a_signal_to_a_stranger(flaw):
    first = subprocess.Popen(["sleep", "60"])
    start = pids.start_ticks(first.pid)
    threading.Event().wait(0.02)        # a tick is 10 ms: the stranger's must be another one
    first.kill()
    first.wait()
    stranger = pids.take(first.pid, ["sleep", "60"])
    try:
        subprocess.run([CANARIES / "watch", str(first.pid), start, flaw], check=True)
        if flaw == "none":
            assert stranger.poll() is None
        else:
            assert stranger.wait(10) == -signal.SIGUSR1
    finally:
        stranger.kill()
        stranger.wait()


@quick
def test_nondeterministic_sequence_is_refused():
    turn = iter(range(10))

    def workload(sandbox):
        records = [("%d.1.json" % number, ENDED % 0) for number in range(next(turn) + 1)]
        return collecting("none", records)(sandbox)

    with pytest.raises(strace.Nondeterministic, match="front"):
        strace.record(workload, roles=FRONT)


@quick
def test_equal_recordings_are_accepted():
    calls = strace.record(publishing("none"), roles=FRONT)
    names = [call.name for call in calls if any("/runs" in path for path in call.paths)]
    assert names == ["openat", "write", "fsync", "rename", "close", "openat", "newfstatat", "fsync", "close"] \
        or names == ["openat", "write", "fsync", "rename", "close", "openat", "fsync", "close"]


@quick
def test_point_that_was_not_tried_is_an_error():
    points = strace.crashpoints(publishing("none"), strace.kill_before, roles=FRONT, names=["rename"])
    next(points)
    with pytest.raises(AssertionError, match="not tried"):
        next(points)
