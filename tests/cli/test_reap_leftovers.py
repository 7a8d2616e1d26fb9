"""What a job leaves behind is gone when mxq-reap returns, or is named in the record."""

import os
import shutil
import signal
import time

import pytest

from tests.harness import processes
from tests.harness.reaping import ESCAPE, FORKS, IGNORE, ended, outcome, received, running, spawn_ready
from tests.harness.sandbox import wait_for
from tests.harness.users import as_ordinary_user


def gone(pids):
    """True when none of these processes is there."""
    return not any(map(processes.is_alive, pids))


def test_what_is_left_behind_gets_term_and_is_recorded(sandbox):
    done = sandbox.run("mxq-reap", "sh", "-c", "sleep 60 & sleep 61 & echo $!; exit 3")
    assert done.returncode == 3
    assert gone([int(done.stdout)])
    record = sandbox.record()
    assert outcome(record) == (3, None, None)
    assert (record["leftovers"], record["survivors"]) == (2, [])
    assert [child["status"] for child in record["children"]] == [3 << 8, signal.SIGTERM, signal.SIGTERM]


def test_a_job_that_leaves_nothing_has_no_leftovers(sandbox):
    sandbox.run("mxq-reap", "sh", "-c", "sleep 0.01 & wait; (exit 4) & wait; true", check=True)
    record = sandbox.record()
    assert (record["leftovers"], record["survivors"], len(record["children"])) == (0, [], 1)


def test_the_status_is_that_of_main_and_not_of_the_last_one_reaped(sandbox):
    done = sandbox.run("mxq-reap", "sh", "-c", """
        sh -c 'trap "exit 9" TERM; echo $$ >up; while :; do sleep 0.01; done' &
        while [ ! -s up ]; do :; done; exit 3""")
    assert done.returncode == 3
    record = sandbox.record()
    assert outcome(record) == (3, None, None)
    assert [child["status"] for child in record["children"] if child["comm"] == "sh"] == [3 << 8, 9 << 8]


@pytest.mark.parametrize("ignoring", [[], ["ignore"]])
def test_a_daemon_is_gone(sandbox, ignoring):
    done = sandbox.run("mxq-reap", "--grace", "0", ESCAPE, "daemon", *ignoring)
    assert (done.returncode, done.stderr) == (0, "")
    assert gone([int((sandbox.work / "daemon").read_text())])
    record = sandbox.record()
    assert record["leftovers"] == 1
    assert record["children"][-1]["status"] == (signal.SIGKILL if ignoring else signal.SIGTERM)


def test_who_needs_time_gets_the_grace(sandbox):
    # The write is done because there is a handler and time for it.
    sandbox.run("mxq-reap", "sh", "-c", """
        sh -c 'trap "sleep 0.3; echo done >result; exit" TERM; echo $$ >up; while :; do sleep 0.01; done' &
        while [ ! -s up ]; do :; done""", check=True)
    assert (sandbox.work / "result").read_text() == "done\n"


def test_kill_comes_after_the_grace_and_not_before(sandbox):
    before = time.monotonic()
    sandbox.run("mxq-reap", "--grace", "1s", "sh", "-c", "%s up >/dev/null & while [ ! -s up ]; do :; done" % IGNORE,
                check=True)
    assert 1.0 <= time.monotonic() - before < 8
    assert gone([int((sandbox.work / "up").read_text())])


def test_usr2_ends_the_grace(sandbox):
    reap = spawn_ready(sandbox, "mxq-reap", "--grace", "1h", "sh", "-c",
                       "%s up & while [ ! -s up ]; do :; done" % IGNORE)
    record = sandbox.record()
    wait_for(lambda: not processes.is_alive(record["main"]["pid"]))
    os.kill(record["reaper"]["pid"], signal.SIGUSR2)
    assert reap.wait(20) == 0
    record = sandbox.record()
    # MAIN had ended by itself: nobody killed the job.
    assert outcome(record) == (0, None, None)
    assert received(record) == ["reaper USR2"]


def test_a_stopped_leftover_is_woken_to_be_ended(sandbox):
    done = sandbox.run("mxq-reap", "sh", "-c", "sleep 60 & kill -STOP $!; echo $!")
    assert done.returncode == 0
    assert gone([int(done.stdout)])
    assert sandbox.record()["children"][-1]["status"] == signal.SIGTERM


@pytest.mark.parametrize("shape", ["line", "tree"])
@pytest.mark.parametrize("grace", ["0", "1s"])
def test_a_loop_of_forks_is_gone(sandbox, shape, grace):
    (sandbox.work / "lived").mkdir()
    before = time.monotonic()
    # In a session of its own: with other load in the job's session Linux 6.18 was seen to starve the reaper, which has
    # another one (sched(7), autogroup), for as long as the job forked.
    done = sandbox.run("mxq-reap", "--grace", grace, FORKS, shape, "lived", new_session=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - before < 15, "they end by themselves after 20 s"
    assert os.listdir(sandbox.work / "lived")
    wait_for(lambda: sandbox.pids() == [], 2, "no process left")
    record = sandbox.record()
    assert record["survivors"] == [] and record["leftovers"] > 0


def test_usr2_ends_a_loop_of_forks_that_main_is_part_of(sandbox):
    reap = spawn_ready(sandbox, "mxq-reap", "sh", "-c",
                       "trap '' TERM; echo ready; while :; do (setsid sleep 0.01 &); done")
    os.kill(running(sandbox)["reaper"]["pid"], signal.SIGUSR2)
    assert reap.wait(20) == -signal.SIGKILL
    wait_for(lambda: sandbox.pids() == [], 2, "no process left")


def test_thousands_of_children_are_counted_and_the_first_thousand_kept(sandbox):
    done = sandbox.run("mxq-reap", "/usr/bin/python3", "-IS", "-c", """if 1:
        import os
        for _ in range(1300):
            if os.fork() == 0:
                os.setsid()
                import time
                time.sleep(60)
        """)
    assert done.returncode == 0
    record = sandbox.record()
    assert (len(record["children"]), record["children_more"], record["leftovers"]) == (1000, 301, 1300)
    assert sandbox.pids() == []


# ---- linger ----

def test_with_linger_what_is_left_behind_is_waited_for(sandbox):
    done = sandbox.run("mxq-reap", "--linger", "sh", "-c", "(setsid sh -c 'sleep 0.3; echo done >result' &); exit 4")
    assert done.returncode == 4
    assert (sandbox.work / "result").read_text() == "done\n"
    record = sandbox.record()
    assert (outcome(record), record["leftovers"]) == ((4, None, None), 0)
    assert record["real"] < 0.3


@pytest.mark.parametrize("number, reason", [(signal.SIGUSR1, "kill"), (signal.SIGUSR2, "kill-now")])
def test_with_linger_a_kill_ends_what_is_left_and_the_run_is_killed(sandbox, number, reason):
    reap = sandbox.spawn("mxq-reap", "--linger", "sh", "-c", "sleep 60 & exit 4")
    record = wait_for(lambda: sandbox.records() and sandbox.record())
    wait_for(lambda: not processes.is_alive(record["main"]["pid"]))
    os.kill(record["reaper"]["pid"], number)
    assert reap.wait(20) == 4
    assert outcome(sandbox.record()) == (4, None, reason)


# ---- survivors ----

@pytest.mark.as_root
@pytest.mark.slow
def test_who_may_not_be_killed_is_a_survivor(sandbox):
    # A set-user-ID program that becomes root for good: an ordinary user may not signal it (kill(2)).
    changer = sandbox.work / "changer"
    user = as_ordinary_user(sandbox)
    shutil.copy("/usr/bin/setpriv", changer)
    os.chown(changer, 0, 0)
    changer.chmod(0o4755)
    before = time.monotonic()
    done = sandbox.run(*user, "mxq-reap", "--grace", "0", "sh", "-c", """
        ./changer --reuid=0 --clear-groups sleep 60 >/dev/null 2>&1 & echo $!
        while [ "$(cat /proc/$!/comm)" != sleep ]; do :; done; exit 3""")
    survivor = int(done.stdout)
    if processes.status(survivor, "Uid") is None or processes.status(survivor, "Uid").split()[0] != "0":
        pytest.skip("machine cannot: set-user-ID programs are not honoured here")
    assert done.returncode == 3
    assert 10 <= time.monotonic() - before < 15
    record = sandbox.record()
    assert record["survivors"] == [{"pid": survivor, "comm": "sleep", "state": "S"}]
    assert record["leftovers"] == 1
    assert processes.is_alive(survivor)
    sandbox.kill_all()


# ---- nested runs ----

def by_comm(sandbox):
    """The records of outer (`sh`) and inner (`sleep`, `ignore`) run."""
    found = {record["name"]: record for record in sandbox.records()}
    return found.pop("sh"), *found.values()


def test_an_inner_run_ends_with_a_record(sandbox):
    done = sandbox.run("mxq-reap", "sh", "-c", "mxq-reap sleep 60 & while ! pidof -q x; do "
                       "grep -lq '\"name\":\"sleep\"' $MXQ_DIR/spool/runs/*.json && break; done; exit 3")
    assert done.returncode == 3
    outer, inner = by_comm(sandbox)
    assert outcome(outer) == (3, None, None)
    assert inner["reason"] == "kill" and inner["state"] == "ended"
    assert received(inner) == ["reaper USR1"]
    assert outer["date_end"] < inner["date_done"] < outer["date_done"]
    assert outer["survivors"] == []
    assert sandbox.pids() == []


def start_nested(sandbox, *options):
    """An outer run whose MAIN waits for a byte in `go`, an inner one that ignores what it can; both records."""
    os.mkfifo(sandbox.work / "go")
    reap = spawn_ready(sandbox, "mxq-reap", *options, "sh", "-c", "mxq-reap %s up & read x <go; exit 3" % IGNORE)
    wait_for((sandbox.work / "up").exists)
    return (reap, *by_comm(sandbox))


def test_an_inner_run_that_ignores_term_is_told_to_kill_and_ends_with_a_record(sandbox):
    reap, _, inner = start_nested(sandbox, "--grace", "0")
    (sandbox.work / "go").write_text("\n")
    assert reap.wait(20) == 3
    outer, inner = by_comm(sandbox)
    assert outcome(outer) == (3, None, None)
    assert outcome(inner) == (None, signal.SIGKILL, "kill")
    assert received(inner) == ["reaper USR1", "reaper USR2"]


def test_an_inner_front_alone_ends_with_a_record(sandbox):
    reap, _, inner = start_nested(sandbox, "--grace", "0")
    os.kill(inner["reaper"]["pid"], signal.SIGKILL)
    wait_for(lambda: by_comm(sandbox)[1]["reaper"]["pid"] == inner["front"]["pid"])
    (sandbox.work / "go").write_text("\n")
    assert reap.wait(20) == 3
    outer, inner = by_comm(sandbox)
    assert outcome(outer) == (3, None, None) and outer["survivors"] == []
    assert outcome(inner) == (None, signal.SIGKILL, "kill")
    assert inner["adopted"] is True


def test_an_inner_reaper_alone_ends_with_a_record(sandbox):
    reap, _, inner = start_nested(sandbox, "--grace", "0")
    os.kill(inner["front"]["pid"], signal.SIGKILL)
    (sandbox.work / "go").write_text("\n")
    assert reap.wait(20) == 3
    outer, inner = by_comm(sandbox)
    assert outcome(outer) == (3, None, None) and outer["survivors"] == []
    # Without grace USR2 follows USR1 at once: which of them it is that ends MAIN is open.
    assert outcome(inner) in [(None, signal.SIGKILL, "kill"), (None, signal.SIGKILL, "kill-now")]
    assert inner["adopted"] is False


@pytest.mark.parametrize("number, seen", [(signal.SIGUSR1, "reaper USR1"), (signal.SIGUSR2, "reaper USR2")])
def test_a_kill_of_the_outer_run_is_one_of_the_inner(sandbox, number, seen):
    os.mkfifo(sandbox.work / "go")
    reap = sandbox.spawn("mxq-reap", "sh", "-c", "mxq-reap sleep 60; exit 3")
    wait_for(lambda: len(sandbox.records()) == 2 and processes.comm(by_comm(sandbox)[1]["main"]["pid"]) == "sleep")
    os.kill(by_comm(sandbox)[0]["reaper"]["pid"], number)
    reap.wait(20)
    outer, inner = by_comm(sandbox)
    assert outer["reason"] == inner["reason"] == ("kill" if number == signal.SIGUSR1 else "kill-now")
    assert set(received(inner)) == {seen}       # as part of the job, and again if it is still there after MAIN


def test_the_time_limit_of_the_outer_run_is_one_of_the_inner(sandbox):
    reap = sandbox.run("mxq-reap", "-t", "1s", "--grace", "0", "sh", "-c", "mxq-reap sleep 60; exit 3")
    assert reap.returncode == 124
    outer, inner = by_comm(sandbox)
    assert outer["reason"] == "time"
    assert inner["state"] == "ended" and inner["signal"] in (signal.SIGXCPU, signal.SIGTERM, signal.SIGKILL)


def test_a_detached_inner_run_is_left_behind_too(sandbox):
    done = sandbox.run("mxq-reap", "sh", "-c", "mxq-reap -b sleep 60; exit 3")
    assert done.returncode == 3
    outer, inner = by_comm(sandbox)
    assert done.stdout == inner["run"] + "\n"
    assert outcome(inner) == (None, signal.SIGTERM, "kill")
    assert outer["survivors"] == [] and ended
