"""mxq-ctl: each job is reported, what cannot be done is said, and nobody else is hit."""

import fcntl
import json
import os
import signal
import sqlite3
import subprocess
import time

import pytest

from tests.harness import records
from tests.harness.processes import comm, is_alive, state
from tests.harness.queueing import (detach, read_record, states, submit, wait_until_ended, wait_until_running,
                                    write_record)
from tests.harness.reaping import CATCH, IGNORE, running, spawn_ready
from tests.harness.sandbox import wait_for
from tests.harness.snippet import spawn_snippet

HOST = os.uname().nodename


def ctl(sandbox, *words, **kw):
    """(status, lines on standard output, lines on standard error) of mxq-ctl."""
    done = sandbox.run("mxq-ctl", *words, **kw)
    assert all(line.startswith("mxq-ctl: ") for line in done.stderr.splitlines()), done.stderr
    errors = [line[len("mxq-ctl: error: "):] for line in done.stderr.splitlines()]
    return done.returncode, done.stdout.splitlines(), errors


def outcome(entry):
    return entry["exit"], entry["signal"], entry["reason"]


def ignoring(sandbox):
    """The id of a run that ignores TERM, once it does."""
    run = detach(sandbox, "-o", "ready", IGNORE)
    sandbox.wait_for(lambda: "ready" in (sandbox.work / "ready").read_text())
    return run


# ---- drain and resume ----

def test_drain_says_why_and_nothing_is_started_until_resume(sandbox):
    number = submit(sandbox, "true")
    status, said, errors = ctl(sandbox, "drain", "-r", "new\ndisks")
    assert (status, errors) == (0, []) and said == ["drained: nothing is started until mxq-ctl resume"]
    text = (sandbox.spool / "drain").read_text()
    assert text.startswith("new\\ndisks; 20") and text.endswith(" on %s\n" % HOST) and text.count("\n") == 1
    assert (sandbox.spool / "drain").stat().st_mode & 0o777 == 0o600
    sandbox.run("mxq-run", check=True)
    assert states(sandbox) == {number: "queued"}
    status, said, errors = ctl(sandbox, "resume")
    assert (status, errors) == (0, [])
    assert said[0].startswith("resumed: drain removed (new\\ndisks; 20") and "mxq-run starts jobs again" in said[0]
    assert not (sandbox.spool / "drain").exists()
    sandbox.run("mxq-run", "--wait", check=True)
    assert states(sandbox) == {number: "finished"}


def test_resume_lifts_the_drain_of_this_host_and_of_no_other(sandbox):
    assert ctl(sandbox, "resume") == (0, ["resumed: nothing was drained"], [])
    ctl(sandbox, "drain")
    (sandbox.spool / "drain").unlink()
    for host in (HOST, "elsewhere"):
        (sandbox.spool / ("drain." + host)).write_text("run 17.1 vanished\n")
    assert ctl(sandbox, "resume")[:2] == (0, [
        "resumed: drain.%s removed (run 17.1 vanished); mxq-run starts jobs again at its next call" % HOST])
    assert (sandbox.spool / "drain.elsewhere").exists()


def test_drain_has_a_waiting_mxq_run_end_after_its_runs(sandbox):
    submit(sandbox, "-o", "ready", "--", "sh", "-c", "echo ready; read line <gate")
    submit(sandbox, "true")
    os.mkfifo(sandbox.work / "gate")
    runner = sandbox.spawn("mxq-run", "--wait", "-j", "1")
    sandbox.wait_for(lambda: (sandbox.work / "ready").exists())
    status, said, errors = ctl(sandbox, "drain")
    assert (status, errors) == (0, [])
    assert said[1:] == ["mxq-run %d: sent TERM; it ends when its runs have ended" % runner.pid]
    assert runner.poll() is None
    (sandbox.work / "gate").write_text("go\n")
    assert runner.wait(20) == 0
    assert states(sandbox) == {1: "finished", 2: "queued"}


def test_locks_of_the_dead_and_of_reused_pids_are_nobodys(sandbox):
    stranger = sandbox.spawn("sleep", "1000")
    runners = sandbox.mxq_dir / "runners"
    ctl(sandbox, "drain")
    runners.mkdir(mode=0o700)
    here = json.loads(sandbox.run("mxq-reap", "sh", "-c", 'cat "$MXQ_DIR/spool/runs/$MXQ_RUN.json"').stdout)["reaper"]
    wrong = dict(here, pid=stranger.pid, wait=True)
    for name, reference in (("mxq-run.1.lock", wrong), ("mxq-run.2.lock", dict(wrong, start=wrong["start"] - 1)),
                            ("mxq-run.3.lock", dict(wrong, host="elsewhere", boot=records.BOOT))):
        (runners / name).write_text(json.dumps(reference) + "\n")
    with open(runners / "mxq-run.2.lock", "rb") as held, open(runners / "mxq-run.3.lock", "rb") as other:
        fcntl.flock(held, fcntl.LOCK_EX)
        fcntl.flock(other, fcntl.LOCK_EX)
        status, said, errors = ctl(sandbox, "drain")
    assert status == 69 and len(said) == 1
    assert errors == ["mxq-run %d: it runs on host elsewhere: run mxq-ctl there" % stranger.pid]
    assert stranger.poll() is None


# ---- kill ----

def test_a_run_of_mxq_reap_is_killed_with_term(sandbox):
    run = detach(sandbox, "sleep", "1000")
    assert ctl(sandbox, "kill", run) == (
        0, ["%s: sent TERM: killed (signal TERM); mxq-collect commits it" % run], [])
    entry = read_record(sandbox, run)
    assert entry["state"] == "ended" and outcome(entry) == (None, signal.SIGTERM, "kill")
    assert sandbox.leaks() == []
    assert not sandbox.queue_file.exists()


def test_kill_follows_after_the_grace(sandbox):
    run = ignoring(sandbox)
    before = time.monotonic()
    status, said, errors = ctl(sandbox, "kill", "--grace", "1s", run)
    assert 1 <= time.monotonic() - before < 8
    assert (status, errors) == (0, [])
    assert said == ["%s: sent TERM, KILL after 1s: killed (signal KILL); mxq-collect commits it" % run]
    assert outcome(read_record(sandbox, run)) == (None, signal.SIGKILL, "kill")
    assert [each["signal"] for each in read_record(sandbox, run)["signals"]] == ["USR1", "USR2"]


def test_without_grace_the_runs_own_counts(sandbox):
    run = detach(sandbox, "--grace", "0s", "-o", "ready", IGNORE)
    sandbox.wait_for(lambda: "ready" in (sandbox.work / "ready").read_text())
    assert ctl(sandbox, "kill", run)[1] == [
        "%s: sent TERM, KILL after 0s: killed (signal KILL); mxq-collect commits it" % run]


def test_kill_now(sandbox):
    run = ignoring(sandbox)
    assert ctl(sandbox, "kill", "--now", run) == (
        0, ["%s: sent KILL: killed (signal KILL); mxq-collect commits it" % run], [])
    assert outcome(read_record(sandbox, run)) == (None, signal.SIGKILL, "kill-now")


def test_a_front_ends_as_its_job_did(sandbox):
    front = sandbox.spawn("mxq-reap", "sleep", "1000")
    run = running(sandbox)["run"]
    assert ctl(sandbox, "kill", run)[1] == ["%s: sent TERM: killed (signal TERM); mxq-collect commits it" % run]
    assert front.wait(20) == -signal.SIGTERM


@pytest.mark.parametrize("words", [["1"], ["-g", "default"], ["--all"]])
def test_a_job_that_will_be_tried_again_is_cancelled(sandbox, words):
    """Its failed attempt is in the spool only: the next mxq-collect would have queued it again."""
    submit(sandbox, "--retries", "2", "false")
    sandbox.run("mxq-run", check=True)
    wait_until_ended(sandbox, "1.1")
    assert ctl(sandbox, "kill", *words) == (0, ["1: cancelled; it will not be started"], [])
    sandbox.run("mxq-collect", check=True)
    assert states(sandbox) == {1: "cancelled"}


def test_a_stopped_run_can_be_killed(sandbox):
    run = detach(sandbox, "sleep", "1000")
    main = read_record(sandbox, run)["main"]["pid"]
    ctl(sandbox, "stop", run)
    wait_for(lambda: state(main) == "T")
    assert ctl(sandbox, "kill", run)[0] == 0
    assert outcome(read_record(sandbox, run)) == (None, signal.SIGTERM, "kill")


def test_by_number_a_job_is_killed_that_the_queue_has_learnt_of(sandbox):
    run = detach(sandbox, "sleep", "1000")
    sandbox.run("mxq-collect", check=True)
    assert ctl(sandbox, "kill", "1") == (
        0, ["1 (%s): sent TERM: killed (signal TERM); mxq-collect commits it" % run], [])


def test_what_waits_is_cancelled_with_those_that_wait_for_it(sandbox):
    for words in (["true"], ["--hold", "true"], ["--after", "1", "true"], ["true"]):
        submit(sandbox, *words)
    status, said, errors = ctl(sandbox, "kill", "1", "2", "3", "2")
    assert (status, errors) == (0, [])
    assert said == ["%d: cancelled; it will not be started" % number for number in (1, 2, 3)]
    assert states(sandbox) == {1: "cancelled", 2: "cancelled", 3: "cancelled", 4: "queued"}


def test_kill_of_a_group_and_of_all(sandbox):
    submit(sandbox, "-g", "a", "sleep", "1000")
    submit(sandbox, "-g", "b", "sleep", "1000")
    sandbox.run("mxq-run", "-j", "2", check=True)
    for words in (["-g", "a", "true"], ["-g", "b", "--hold", "true"], ["true"]):
        submit(sandbox, *words)
    a, b = detach(sandbox, "-g", "a", "sleep", "1000"), detach(sandbox, "-g", "b", "sleep", "1000")
    status, said, errors = ctl(sandbox, "kill", "-g", "a")
    assert (status, errors) == (0, [])
    assert sorted(line.split(":")[0] for line in said) == sorted(["1.1", "3", a])
    assert read_record(sandbox, "2.1")["state"] == "running" and read_record(sandbox, b)["state"] == "running"
    status, said, errors = ctl(sandbox, "kill", "--all")
    assert (status, errors) == (0, [])
    assert sorted(line.split(":")[0] for line in said) == sorted(["2.1", "4", "5", b])
    assert ctl(sandbox, "kill", "--all") == (0, [], [])
    sandbox.run("mxq-collect", check=True)
    assert sorted(states(sandbox).values()) == ["cancelled"] * 3 + ["killed"] * 4


def test_many_are_killed_at_once(sandbox):
    for _ in range(12):
        detach(sandbox, "sh", "-c", "trap '' TERM; while :; do sleep 0.05; done")
    before = time.monotonic()
    status, said, errors = ctl(sandbox, "kill", "--grace", "1s", "--all")
    assert time.monotonic() - before < 1 + 3
    assert (status, errors) == (0, []) and len(said) == 12


LOADING = """
    from mxqlib import crew, run
    start = crew.Crew.start
    def start_later(self, *arguments):
        print("claimed", flush=True)
        sys.stdin.readline()
        return start(self, *arguments)
    crew.Crew.start = start_later
    os._exit(run.main(["--wait"]))
    """


def test_a_loaded_job_is_killed_once_it_runs(sandbox):
    submit(sandbox, "sleep", "1000")
    runner = spawn_snippet(sandbox, LOADING, stdin=subprocess.PIPE)
    assert runner.stdout.readline() == "claimed\n" and states(sandbox) == {1: "loaded"}
    killer = sandbox.spawn("mxq-ctl", "kill", "1")
    with pytest.raises(subprocess.TimeoutExpired):
        killer.wait(0.5)
    runner.stdin.write("go\n")
    runner.stdin.close()
    assert killer.stdout.readline().startswith("1.1: sent TERM: killed")
    assert killer.wait(20) == 0 and runner.wait(20) == 0
    assert states(sandbox) == {1: "killed"}


def test_a_loaded_job_that_is_given_back_is_cancelled(sandbox):
    submit(sandbox, "sleep", "1000")
    runner = spawn_snippet(sandbox, LOADING, stdin=subprocess.PIPE)
    assert runner.stdout.readline() == "claimed\n"
    killer = sandbox.spawn("mxq-ctl", "kill", "1")
    with pytest.raises(subprocess.TimeoutExpired):
        killer.wait(0.3)
    runner.kill()
    runner.wait()
    spawn_snippet(sandbox, """
        from mxqlib import jobqueue
        from mxqlib.jobqueue import jobs
        queue = jobqueue.open_queue(sys.argv[1])
        with queue.transaction():
            assert jobs.give_back(queue, "1.1")
        """, str(sandbox.queue_file)).wait()
    assert killer.stdout.readline() == "1: cancelled; it will not be started\n"
    assert killer.wait(20) == 0 and states(sandbox) == {1: "cancelled"}


def test_a_run_whose_front_took_over_is_killed(sandbox):
    front = spawn_ready(sandbox, "mxq-reap", IGNORE)
    entry = sandbox.record()
    os.kill(entry["reaper"]["pid"], signal.SIGKILL)
    wait_for(lambda: sandbox.record()["reaper"]["pid"] == front.pid)
    status, said, _ = ctl(sandbox, "kill", "--grace", "0s", entry["run"])
    assert status == 0 and said[0].startswith("%s: sent TERM, KILL after 0s: killed" % entry["run"])
    assert outcome(sandbox.record()) == (None, signal.SIGKILL, "kill")


def test_a_reaper_that_dies_meanwhile_is_followed_by_its_front(sandbox):
    sandbox.spawn("mxq-reap", "sh", "-c", "trap 'touch told' TERM; touch ready; while :; do sleep 0.05; done")
    wait_for((sandbox.work / "ready").exists)
    entry = sandbox.record()
    killer = sandbox.spawn("mxq-ctl", "kill", "--grace", "1s", entry["run"])
    wait_for((sandbox.work / "told").exists)
    os.kill(entry["reaper"]["pid"], signal.SIGKILL)
    assert killer.wait(20) == 0, killer.stderr.read()
    assert outcome(sandbox.record()) == (None, signal.SIGKILL, "kill")


def status_field(pid, name):
    """A field of /proc/PID/status."""
    with open("/proc/%d/status" % pid, encoding="ascii", errors="replace") as file:
        return next(line.split()[1] for line in file if line.startswith(name + ":"))


def test_an_orphan_is_left_to_mxq_adopt(sandbox):
    run = detach(sandbox, "sleep", "1000")
    entry = read_record(sandbox, run)
    os.kill(entry["reaper"]["pid"], signal.SIGKILL)
    wait_for(lambda: not is_alive(entry["reaper"]["pid"]))
    status, said, errors = ctl(sandbox, "kill", run)
    assert (status, said) == (69, []) and errors[0].startswith("%s: its reaper has died; mxq-adopt takes over" % run)
    assert is_alive(entry["main"]["pid"])
    os.kill(entry["main"]["pid"], signal.SIGKILL)


def test_a_run_that_mxq_adopt_took_over_is_killed(sandbox):
    run = ignoring(sandbox)
    entry = read_record(sandbox, run)
    os.kill(entry["reaper"]["pid"], signal.SIGKILL)
    wait_for(lambda: not is_alive(entry["reaper"]["pid"]))
    sandbox.run("mxq-adopt", check=True)
    assert ctl(sandbox, "stop", run)[0] == 0
    wait_for(lambda: state(entry["main"]["pid"]) == "T")
    status, said, errors = ctl(sandbox, "kill", "--grace", "0s", run)
    assert (status, errors) == (0, []) and said[0].startswith("%s: sent TERM, KILL after 0s: killed" % run)
    assert not is_alive(entry["main"]["pid"]) and read_record(sandbox, run)["reason"] == "kill"


def test_a_run_whose_reaper_died_below_mxq_run_is_killed(sandbox):
    submit(sandbox, "-o", "ready", IGNORE)
    runner = sandbox.spawn("mxq-run", "--wait")
    entry = wait_until_running(sandbox, "1.1")
    sandbox.wait_for(lambda: (sandbox.work / "ready").exists() and "ready" in (sandbox.work / "ready").read_text())
    os.kill(entry["reaper"]["pid"], signal.SIGKILL)
    wait_for(lambda: read_record(sandbox, "1.1")["reaper"] != entry["reaper"], what="another reaper")
    status, said, errors = ctl(sandbox, "kill", "--grace", "0s", "1")
    assert (status, errors) == (0, []) and said[0].startswith("1.1: sent TERM, KILL after 0s: killed")
    assert runner.wait(20) == 0 and states(sandbox) == {1: "killed"}


@pytest.mark.needs("strace")
def test_when_only_the_record_is_missing_no_kill_is_sent(sandbox):
    # Each fsync of the reaper takes its time: MAIN has ended long before its record says so.
    sandbox.spawn("strace", "-f", "-o", "/dev/null", "-e", "trace=fsync", "-e", "inject=fsync:delay_enter=400000",
                  "mxq-reap", "sleep", "1000")
    entry = wait_for(lambda: sandbox.records() and sandbox.record())
    wait_for(lambda: comm(entry["main"]["pid"]) == "sleep")
    os.kill(entry["main"]["pid"], signal.SIGKILL)
    sandbox.run("strace", "-o", "sent", "-e", "trace=pidfd_send_signal",
                "mxq-ctl", "kill", "--grace", "0s", entry["run"], check=True)
    sent = (sandbox.work / "sent").read_text()
    assert "SIGUSR1" in sent and "SIGUSR2" not in sent
    assert wait_until_ended(sandbox, entry["run"])["signal"] == signal.SIGKILL


def test_an_interrupted_kill_says_what_is_left(sandbox):
    run = ignoring(sandbox)
    killer = sandbox.spawn("mxq-ctl", "kill", run)
    wait_for(lambda: "USR1" in (sandbox.work / "ready").read_text() or int(
        status_field(killer.pid, "SigBlk"), 16) & 1 << signal.SIGTERM - 1, what="the signals to be blocked")
    killer.send_signal(signal.SIGTERM)
    assert killer.wait(20) == -signal.SIGTERM
    errors = killer.stderr.read()
    assert errors.startswith("mxq-ctl: error: %s: sent " % run) and "mxq-ctl kill --now %s" % run in errors
    assert read_record(sandbox, run)["state"] == "running"
    assert ctl(sandbox, "kill", "--now", run)[0] == 0


def test_a_reader_that_leaves_keeps_no_kill_from_coming(sandbox):
    runs = [detach(sandbox, "sh", "-c", "trap '' TERM; while :; do sleep 0.05; done") for _ in range(3)]
    sandbox.run("sh", "-c", "mxq-ctl kill --grace 1s --all | true", check=True)
    assert {outcome(read_record(sandbox, run))[1] for run in runs} == {signal.SIGKILL}


def test_a_locked_queue_keeps_no_run_alive(sandbox):
    run = detach(sandbox, "sleep", "1000")
    submit(sandbox, "true")
    connection = sqlite3.connect(sandbox.queue_file, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        before = time.monotonic()
        assert ctl(sandbox, "kill", run)[0] == 0
        assert time.monotonic() - before < 8
    finally:
        connection.execute("ROLLBACK")
    assert read_record(sandbox, run)["state"] == "ended"


def test_a_signal_is_heard_while_the_queue_is_locked(sandbox):
    submit(sandbox, "true")
    connection = sqlite3.connect(sandbox.queue_file, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        killer = sandbox.spawn("mxq-ctl", "kill", "--all")
        wait_for(lambda: int(status_field(killer.pid, "SigBlk"), 16) & 1 << signal.SIGINT - 1)
        killer.send_signal(signal.SIGINT)
        assert killer.wait(5) == -signal.SIGINT
    finally:
        connection.execute("ROLLBACK")
    assert states(sandbox) == {1: "queued"}


def test_without_a_usable_queue_runs_are_killed_all_the_same(sandbox):
    run = detach(sandbox, "sleep", "1000")
    sandbox.queue_file.write_bytes(b"no database" * 1000)
    sandbox.queue_file.chmod(0o600)
    status, said, errors = ctl(sandbox, "kill", run, "1")
    assert status == 69 and len(said) == 1 and read_record(sandbox, run)["state"] == "ended"
    assert "not a database" in errors[0] and errors[1] == "1: not in the spool, and the queue cannot be asked"


# ---- who is not hit ----

def test_runs_elsewhere_are_refused_with_the_place_and_the_rest_is_done(sandbox):
    stranger = sandbox.spawn("sleep", "1000")
    run = detach(sandbox, "sleep", "1000")
    here = read_record(sandbox, run)["reaper"]
    elsewhere = {"host": "elsewhere", "boot": records.BOOT}
    for n, changes in enumerate((elsewhere, {"boot": records.BOOT}, {"pidns": 1}, {"start": 1}), 1):
        reference = dict(here, pid=stranger.pid, **changes)
        write_record(sandbox, records.make_running("%d.1" % n, host=reference["host"], reaper=reference,
                                                   front=reference))
    status, said, errors = ctl(sandbox, "kill", "1", "2.1", "3", "4", run)
    assert status == 69 and len(said) == 1 and said[0].startswith(run)
    assert sorted(errors) == [
        "1.1: it runs on host elsewhere: run mxq-ctl there",
        "2.1: it was started before the last boot of this host: mxq-adopt declares it lost",
        "3.1: it runs in another container (namespace) of this host: run mxq-ctl there",
        "4.1: its reaper has died; mxq-adopt takes over or declares it lost, then kill it again"]
    for verb in ("stop", "cont", "detach"):
        status, said, errors = ctl(sandbox, verb, "1", "2", "3")
        assert status == 69 and said == [] and len(errors) == 3 and "on host elsewhere" in errors[0]
    assert ctl(sandbox, "kill", "--all")[0] == 69
    assert stranger.poll() is None and state(stranger.pid) == "S"


def test_a_reaper_that_serves_another_run_by_now_is_not_hit(sandbox):
    run = detach(sandbox, "sleep", "1000")
    entry = read_record(sandbox, run)
    write_record(sandbox, dict(entry, run="17.1", job=17))
    path = sandbox.runs / "17.1.json"
    path.rename(sandbox.work / "old")
    assert ctl(sandbox, "kill", "17.1")[0] == 69 and is_alive(entry["main"]["pid"])
    assert ctl(sandbox, "kill", run)[0] == 0


@pytest.mark.parametrize("verb", ["kill", "stop", "cont", "detach", "hold", "release", "retry"])
def test_what_names_no_job_is_said_and_the_rest_is_done(sandbox, verb):
    submit(sandbox, *(["--hold"] if verb == "release" else []), "true")
    run = None
    if verb in ("stop", "cont", "detach"):
        run = detach(sandbox, "sleep", "1000")
    elif verb == "retry":
        ctl(sandbox, "kill", "1")
    words = ["99", "99.1", "20261130T174527.123456Z-x-1", "0", "-7", "9" * 30, str(1 << 63), "x", "1.", "../../x", ""]
    status, said, errors = ctl(sandbox, verb, "--", *words, run or "1")
    assert status == 69 and len(said) == 1 and said[0].startswith(run or "1"), (said, errors)
    assert errors[:3] == ["99: no such job", "99.1: no such run", "20261130T174527.123456Z-x-1: no such run"]
    assert len(errors) == len(words)
    assert ctl(sandbox, verb, "--", "-7")[0] == 64
    if run:
        ctl(sandbox, "kill", "--now", run)


def test_what_has_ended_is_said(sandbox):
    submit(sandbox, "sh", "-c", "exit 3")
    sandbox.run("mxq-run", "--wait", check=True)
    run = detach(sandbox, "true")
    wait_until_ended(sandbox, run)
    for verb in ("kill", "stop", "cont", "detach"):
        assert ctl(sandbox, verb, "1", "1.1", run) == (69, [], [
            "1: has ended already: failed (exit 3)", "1.1: has ended already: failed (exit 3)",
            "%s: has ended already: finished (exit 0); mxq-collect commits it" % run])


# ---- detach ----

def test_detach_has_the_front_leave_and_the_run_go_on(sandbox):
    front = spawn_ready(sandbox, "mxq-reap", CATCH)
    entry = sandbox.record()
    assert ctl(sandbox, "detach", entry["run"]) == (
        0, ["%s: sent RTMIN, its front left with status 75; the run goes on" % entry["run"]], [])
    assert front.wait(20) == 75
    assert is_alive(entry["main"]["pid"]) and sandbox.record()["state"] == "running"
    assert ctl(sandbox, "detach", entry["run"])[:2] == (0, ["%s: is detached already; it goes on" % entry["run"]])
    ctl(sandbox, "kill", "--now", entry["run"])


def test_detach_all_has_fronts_and_mxq_runs_leave(sandbox):
    submit(sandbox, "sleep", "1000")
    runner = sandbox.spawn("mxq-run", "--wait")
    wait_until_running(sandbox, "1.1")
    front = spawn_ready(sandbox, "mxq-reap", CATCH)
    detach(sandbox, "sleep", "1000")
    status, said, errors = ctl(sandbox, "detach", "--all")
    assert (status, errors) == (0, []) and len(said) == 2
    assert said[0] == "mxq-run %d: sent QUIT; it leaves, and its runs go on" % runner.pid
    assert front.wait(20) == 75 and runner.wait(20) == 75
    assert [each["state"] for each in sandbox.records()] == ["running"] * 3
    ctl(sandbox, "kill", "--now", "--all")


def test_detach_of_a_job_has_its_mxq_run_leave(sandbox):
    submit(sandbox, "sleep", "1000")
    runner = sandbox.spawn("mxq-run", "--wait")
    wait_until_running(sandbox, "1.1")
    assert ctl(sandbox, "detach", "1") == (
        0, ["mxq-run %d: sent QUIT for 1.1; it leaves, and all its runs go on" % runner.pid], [])
    assert runner.wait(20) == 75
    ctl(sandbox, "kill", "--now", "1")


def test_a_front_that_is_the_reaper_has_to_stay(sandbox):
    front = spawn_ready(sandbox, "mxq-reap", CATCH)
    entry = sandbox.record()
    os.kill(entry["reaper"]["pid"], signal.SIGKILL)
    wait_for(lambda: sandbox.record()["reaper"]["pid"] == front.pid)
    status, said, errors = ctl(sandbox, "detach", entry["run"])
    assert (status, said) == (69, []) and "has become its reaper" in errors[0]
    assert front.poll() is None
    ctl(sandbox, "kill", "--now", entry["run"])


# ---- stop, cont ----

@pytest.mark.parametrize("now", [[], ["--now"]])
def test_a_reaper_that_somebody_stopped_hears_of_a_kill(sandbox, now):
    run = detach(sandbox, "sleep", "1000")
    os.kill(read_record(sandbox, run)["reaper"]["pid"], signal.SIGSTOP)
    assert ctl(sandbox, "kill", *now, run)[0] == 0
    assert read_record(sandbox, run)["state"] == "ended"


def test_a_reaper_that_somebody_stopped_stops_its_job(sandbox):
    run = detach(sandbox, "sleep", "1000")
    record = read_record(sandbox, run)
    os.kill(record["reaper"]["pid"], signal.SIGSTOP)
    wait_for(lambda: state(record["reaper"]["pid"]) == "T")
    ctl(sandbox, "stop", run)
    wait_for(lambda: state(record["main"]["pid"]) == "T")
    ctl(sandbox, "kill", run)


def test_stop_and_cont(sandbox):
    run = detach(sandbox, "sh", "-c", "sleep 1000 & sleep 1000")
    main = read_record(sandbox, run)["main"]["pid"]
    assert ctl(sandbox, "stop", run)[:2] == (
        0, ["%s: sent TSTP, its processes are stopped; mxq-ctl cont %s lets them go on" % (run, run)])
    wait_for(lambda: state(main) == "T")
    assert ctl(sandbox, "cont", "--all")[:2] == (0, ["%s: sent CONT, its processes go on" % run])
    wait_for(lambda: state(main) == "S")
    ctl(sandbox, "kill", run)


def test_only_what_runs_can_be_stopped(sandbox):
    submit(sandbox, "true")
    submit(sandbox, "--hold", "true")
    for verb in ("stop", "cont", "detach"):
        assert ctl(sandbox, verb, "1", "2") == (
            69, [], ["1: is queued, it does not run yet", "2: is held, it does not run yet"])


# ---- hold, release, retry ----

def test_held_jobs_are_not_started_until_they_are_released(sandbox):
    for group in ("a", "a", "b"):
        submit(sandbox, "-g", group, "true")
    assert ctl(sandbox, "hold", "1", "3") == (
        0, ["%d: held; mxq-ctl release %d lets it start" % (n, n) for n in (1, 3)], [])
    sandbox.run("mxq-run", "--wait", check=True)
    assert states(sandbox) == {1: "held", 2: "finished", 3: "held"}
    assert ctl(sandbox, "release", "-g", "a") == (0, ["1: released; mxq-run starts it when it fits"], [])
    assert ctl(sandbox, "hold", "--all")[1] == ["1: held; mxq-ctl release 1 lets it start"]
    assert len(ctl(sandbox, "release", "--all")[1]) == 2
    sandbox.run("mxq-run", "--wait", check=True)
    assert set(states(sandbox).values()) == {"finished"}


def test_states_that_do_not_allow_it(sandbox):
    submit(sandbox, "true")
    submit(sandbox, "--hold", "true")
    assert ctl(sandbox, "hold", "2")[2] == [
        "2: is held; only a queued job can be held; mxq-ctl stop suspends one that runs"]
    assert ctl(sandbox, "release", "1") == (69, [], ["1: is queued; only a held job can be released"])
    assert ctl(sandbox, "retry", "1") == (69, [], ["1: is queued; only a job that is over can be tried again"])
    run = detach(sandbox, "true")
    for verb in ("hold", "release"):
        status, said, errors = ctl(sandbox, verb, run)
        assert (status, said) == (69, []) and errors[0].startswith("%s: is not in the queue" % run)


def test_retry_is_the_next_attempt_and_history_stays(sandbox):
    submit(sandbox, "--retries", "1", "--", "sh", "-c", 'test "$MXQ_RUN" = 1.3')
    sandbox.run("mxq-run", "--wait", check=True)
    assert states(sandbox) == {1: "failed"}
    assert ctl(sandbox, "retry", "1.2") == (0, ["1.2: queued again as run 1.3; mxq-run starts it when it fits"], [])
    sandbox.run("mxq-run", "--wait", check=True)
    assert states(sandbox) == {1: "finished"}
    assert [tuple(row) for row in sandbox.queue("SELECT run, state FROM run ORDER BY attempt")] == [
        ("1.1", "failed"), ("1.2", "failed"), ("1.3", "finished")]


def test_retry_takes_in_an_outcome_that_nobody_collected(sandbox):
    submit(sandbox, "false")
    sandbox.run("mxq-run", check=True)
    wait_until_ended(sandbox, "1.1")
    assert ctl(sandbox, "retry", "1") == (0, ["1: queued again as run 1.2; mxq-run starts it when it fits"], [])
    assert sandbox.records() == []


def test_retry_names_what_the_job_still_waits_for(sandbox):
    submit(sandbox, "false")
    submit(sandbox, "--after", "1", "true")
    sandbox.run("mxq-run", "--wait", check=True)
    assert states(sandbox) == {1: "failed", 2: "cancelled"}
    assert ctl(sandbox, "retry", "2") == (69, [], ["2: waits for job 1, which is failed: mxq-ctl retry 1 2"])
    assert ctl(sandbox, "retry", "1", "2") == (0, [
        "1: queued again as run 1.2; mxq-run starts it when it fits",
        "2: queued again as run 2.1, it waits for job 1 (queued); mxq-run starts it when it fits"], [])


# ---- usage ----

@pytest.mark.parametrize("words", [
    [], ["explode"], ["kill"], ["kill", "1", "--all"], ["kill", "-g", "x", "1"], ["kill", "-g", "x", "--all"],
    ["kill", "1", "--now"], ["kill", "--now", "--grace", "1s", "1"], ["kill", "--grace", "soon", "1"], ["kill", "-5"],
    ["kill", "-r", "x", "1"], ["drain", "1"], ["drain", "--all"], ["resume", "1"], ["resume", "-r", "x"],
    ["stop", "--now", "1"], ["stop"], ["retry", "--all"], ["retry"], ["retry", "-g", "x"],
    ["hold", "--grace", "1s", "1"],
    ["kill", "-g", "", "1"], ["-x"], ["kill", "--unknown", "1"],
], ids=" ".join)
def test_wrong_usage_changes_nothing(sandbox, words):
    submit(sandbox, "true")
    status, said, errors = ctl(sandbox, *words)
    assert status == 64 and said == [] and len(errors) == 1
    assert states(sandbox) == {1: "queued"} and not (sandbox.spool / "drain").exists()


def test_options_may_come_before_the_verb_too(sandbox):
    submit(sandbox, "-g", "x", "true")
    base = str(sandbox.mxq_dir)
    done = sandbox.run("mxq-ctl", "-d", base, "-g", "x", "hold", env={"MXQ_DIR": "/nonexistent"})
    assert (done.returncode, done.stdout) == (0, "1: held; mxq-ctl release 1 lets it start\n")
    done = sandbox.run("mxq-ctl", "release", "-d", base, "--", "1", env={"MXQ_DIR": "/nonexistent"})
    assert (done.returncode, done.stdout) == (0, "1: released; mxq-run starts it when it fits\n")


def test_someone_elses_or_no_place(sandbox):
    assert ctl(sandbox, "kill", "1") == (69, [], ["1: no such job"])
    assert not sandbox.mxq_dir.exists()
    ctl(sandbox, "drain")
    sandbox.spool.chmod(0o777)
    for words in (["resume"], ["drain"], ["kill", "--all"]):
        status, said, errors = ctl(sandbox, *words)
        assert (status, said) == (77, []) and "can be written by others" in errors[0]
    sandbox.spool.chmod(0o700)
