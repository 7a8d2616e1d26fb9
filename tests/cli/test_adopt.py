"""mxq-adopt: a run that lost its reaper gets another, which does all that a reaper does."""

import contextlib
import os
import signal
import time

import pytest

from tests.harness import processes
from tests.harness.adopting import (adopt, end, hidden, kill, on_gate, open_gate, orphan, parent_of_orphans, reap,
                                    watcher_of)
from tests.harness.queueing import detach, read_record
from tests.harness.reaping import EAT, FORKS, IGNORE
from tests.harness.sandbox import read_until, wait_for


def test_nothing_to_do(sandbox):
    assert adopt(sandbox) == []
    assert not sandbox.mxq_dir.exists()
    sandbox.run("mxq-reap", "--", "true", check=True)
    assert adopt(sandbox) == []
    assert not sandbox.queue_file.exists()


def test_the_spool_is_elsewhere_and_there_is_no_base_directory(sandbox):
    """A host that only writes to a shared spool: mxq-reap needs no base directory there, or a reboot took it along."""
    sandbox.spool, sandbox.runs = sandbox.path / "spool", sandbox.path / "spool" / "runs"
    sandbox.env["MXQ_SPOOL"] = str(sandbox.spool)
    run = orphan(sandbox, *on_gate("exit 7"))["run"]
    assert not sandbox.mxq_dir.exists()
    line, = adopt(sandbox, "-n")
    assert line.startswith("%s: would be adopted: " % run) and not sandbox.mxq_dir.exists()
    line, = adopt(sandbox)
    assert line.startswith("%s: adopted: " % run)
    assert sandbox.mxq_dir.stat().st_mode & 0o777 == 0o700
    open_gate(sandbox)
    assert end(sandbox, run)["adopted"]


# ---- how MAIN ended ----

ENDS = [("exit 0", 0), ("exit 7", 7 << 8), ("exit 255", 255 << 8), ("kill -TERM $$", 15), ("kill -KILL $$", 9)]


@pytest.mark.parametrize("script, status", ENDS, ids=[script for script, _ in ENDS])
@pytest.mark.parametrize("reaped", [True, False], ids=["reaped", "zombie"])
def test_the_status_is_the_true_one(sandbox, script, status, reaped):
    """Reaped by a parent that is not the watcher before it looked, or not reaped at all."""
    with parent_of_orphans():
        before = orphan(sandbox, *on_gate(script))
        run, main = before["run"], before["main"]["pid"]
        line, = adopt(sandbox)
        watcher = watcher_of(sandbox, run)
        assert line == "%s: adopted: MAIN %d runs on without a reaper, process %d is its reaper now" % (
            run, main, watcher)
        assert adopt(sandbox) == [], "a second time nothing is to be done"
        os.kill(watcher, signal.SIGSTOP)
        open_gate(sandbox)
        wait_for(lambda: not processes.is_alive(main))
        if reaped:
            assert reap(main) == status
        os.kill(watcher, signal.SIGCONT)
        after = end(sandbox, run)
        if not reaped:
            assert reap(main) == status
    assert after["status"] == status
    assert (after["exit"], after["signal"]) == ((status >> 8, None) if not status & 0x7f else (None, status))
    assert after["reason"] is None and after["error"] is None and after["adopted"] is True
    assert after["reaper"]["pid"] == watcher and after["front"] is None
    assert {name: after[name] for name in ("main", "date_start", "argv", "run")} == {
        name: before[name] for name in ("main", "date_start", "argv", "run")}
    assert hidden(sandbox) == []
    sandbox.run("mxq-collect", check=True)
    row, = sandbox.queue("SELECT job.state, run.status FROM job JOIN run USING (job)")
    assert tuple(row) == ("finished" if status == 0 else "failed", status)


def test_a_core_is_known(sandbox):
    with parent_of_orphans():
        run = orphan(sandbox, *on_gate("ulimit -c unlimited; kill -ABRT $$"))["run"]
        adopt(sandbox)
        open_gate(sandbox)
        status = reap(read_record(sandbox, run)["main"]["pid"])
        after = end(sandbox, run)
    assert after["status"] == status and after["signal"] == signal.SIGABRT
    assert after["core"] == bool(status & 0x80)


def test_a_main_that_ended_before_anybody_came_and_was_not_reaped(sandbox):
    with parent_of_orphans():
        before = orphan(sandbox, "sh", "-c", "sleep 0.1; exit 9")
        wait_for(lambda: processes.state(before["main"]["pid"]) == "Z")
        adopt(sandbox)
        assert end(sandbox, before["run"])["exit"] == 9
        reap(before["main"]["pid"])


@pytest.mark.needs("strace")
def test_a_kernel_that_does_not_tell(sandbox):
    """ENOTTY is what Linux before 6.13 answers: nobody knows, and nobody guesses."""
    with parent_of_orphans():
        before = orphan(sandbox, *on_gate("exit 7"))
        run, main = before["run"], before["main"]["pid"]
        traced = sandbox.spawn("strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=ioctl",
                               "-e", "inject=ioctl:error=ENOTTY", "mxq-adopt")
        wait_for(lambda: watcher_of(sandbox, run) != before["reaper"]["pid"])
        watcher = watcher_of(sandbox, run)
        os.kill(watcher, signal.SIGSTOP)
        open_gate(sandbox)
        reap(main)
        os.kill(watcher, signal.SIGCONT)
        after = end(sandbox, run)
        traced.wait(20)
    assert (after["status"], after["exit"], after["reason"]) == (None, None, "lost")
    assert after["date_end"] > after["date_start"] and after["real"] > 0
    assert after["rusage"]["maxrss"] > 0
    sandbox.run("mxq-collect", check=True)
    assert sandbox.queue("SELECT state FROM job")[0]["state"] == "lost"


# ---- signals and limits ----

@pytest.mark.parametrize("number, reason, signum", [
    (signal.SIGUSR1, "kill", signal.SIGTERM), (signal.SIGUSR2, "kill-now", signal.SIGKILL)])
def test_the_watcher_kills(sandbox, number, reason, signum):
    run = orphan(sandbox, "sh", "-c", "sleep 100 & sleep 100")["run"]
    adopt(sandbox)
    os.kill(watcher_of(sandbox, run), number)
    after = end(sandbox, run)
    assert (after["reason"], after["signal"]) == (reason, signum)
    assert after["signals"][0]["signal"] == signal.Signals(number).name[3:]
    assert sandbox.pids() == []


def test_the_watcher_stops_and_continues(sandbox):
    before = orphan(sandbox, "sh", "-c", "sleep 100 & wait")
    adopt(sandbox)
    watcher, main = watcher_of(sandbox, before["run"]), before["main"]["pid"]
    job = [main] + processes.children(main)
    assert len(job) == 2
    os.kill(watcher, signal.SIGTSTP)
    wait_for(lambda: all(processes.state(pid) == "T" for pid in job))
    assert processes.state(watcher) != "T"
    os.kill(watcher, signal.SIGCONT)
    wait_for(lambda: all(processes.state(pid) != "T" for pid in job))
    os.kill(watcher, signal.SIGUSR2)
    end(sandbox, before["run"])


def test_signals_of_a_shutdown_do_not_end_the_watcher(sandbox):
    run = orphan(sandbox, "sleep", "100")["run"]
    adopt(sandbox)
    watcher = watcher_of(sandbox, run)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        os.kill(watcher, number)
    wait_for(lambda: int(processes.status(watcher, "ShdPnd"), 16) == 0, what="all signals taken")
    os.kill(watcher, signal.SIGUSR2)
    after = end(sandbox, run)
    assert {each["signal"] for each in after["signals"]} == {"TERM", "INT", "HUP", "QUIT", "USR2"}
    assert after["reason"] == "kill-now"


def test_the_time_limit_counts_from_the_start_of_the_job(sandbox):
    before = orphan(sandbox, "-t", "2s", "--grace", "1s", "sleep", "100")
    run = before["run"]
    adopt(sandbox)
    after = end(sandbox, run)
    assert (after["reason"], after["signal"]) == ("time", signal.SIGXCPU)
    assert 2 <= after["real"] < 3


def test_a_limit_that_passed_while_nobody_watched(sandbox):
    before = orphan(sandbox, "-t", "1s", "--grace", "1s", "sh", "-c", "trap '' XCPU TERM; while :; do sleep 1; done")
    start_s = before["main"]["start"] / os.sysconf("SC_CLK_TCK")
    wait_for(lambda: time.clock_gettime(time.CLOCK_BOOTTIME) > start_s + 1.2)
    adopt(sandbox)
    after = end(sandbox, before["run"])
    assert (after["reason"], after["signal"]) == ("time", signal.SIGKILL)


def test_the_memory_limit(sandbox):
    before = orphan(sandbox, "-m", "30", "sh", "-c", "mkfifo gate; read line <gate; exec %s 100" % EAT)
    adopt(sandbox)
    wait_for((sandbox.work / "gate").exists)
    open_gate(sandbox)
    after = end(sandbox, before["run"])
    assert after["reason"] == "memory" and after["max_sumrss"] > 30 << 20


# ---- what MAIN leaves behind ----

def test_leftovers_are_ended(sandbox):
    """By environment, by session, by descent; one that ignores TERM is killed after the grace of the run."""
    script = ("setsid sh -c 'echo $$ >a; exec sleep 100' & env -i sh -c 'echo $$ >b; exec sleep 100' &"
              " setsid %s TERM & until test -s a && test -s b; do sleep 0.01; done;" % IGNORE
              + on_gate("exit 4")[2])
    before = orphan(sandbox, "--grace", "1s", "sh", "-c", script)
    wait_for(lambda: (sandbox.work / "gate").exists())
    adopt(sandbox)
    open_gate(sandbox)
    after = end(sandbox, before["run"])
    assert (after["exit"], after["reason"]) == (4, None)
    assert after["leftovers"] >= 3 and after["survivors"] == []
    assert sandbox.pids() == []


def test_a_session_of_the_run_is_known_by_its_output(sandbox):
    """MAIN is dead, the environment is empty: what is left is in the dead reaper's session and writes to the log."""
    before = orphan(sandbox, "sh", "-c", "env -i sleep 100 & echo $! >pid; sleep 100")
    wait_for(lambda: (sandbox.work / "pid").exists() and (sandbox.work / "pid").read_text())
    left = int((sandbox.work / "pid").read_text())
    kill(before["main"]["pid"])
    adopt(sandbox)
    end(sandbox, before["run"])
    assert not processes.is_alive(left)


def test_only_descendants_are_left(sandbox):
    """Nobody can know how MAIN ended; what it left is ended before the run is called lost."""
    with parent_of_orphans():
        before = orphan(sandbox, "sh", "-c", "setsid sleep 100 & echo $! >pid; sleep 100")
        wait_for(lambda: (sandbox.work / "pid").exists() and (sandbox.work / "pid").read_text())
        kill(before["main"]["pid"])
        reap(before["main"]["pid"])
    line, = adopt(sandbox)
    assert "MAIN is gone, what it left behind is being ended" in line
    after = end(sandbox, before["run"])
    assert (after["status"], after["reason"], after["date_end"]) == (None, "lost", None)
    assert after["leftovers"] >= 1
    assert sandbox.pids() == []


def test_a_caller_that_ignores_the_end_of_children_loses_no_status(sandbox):
    """A cron, or a supervisor, that ignores CHLD hands that down; waitpid() of the watcher then finds no child."""
    run = orphan(sandbox, *on_gate("exit 7"))["run"]
    line, = sandbox.run("sh", "-c", "trap '' CHLD; exec mxq-adopt", check=True,
                        preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)).stdout.splitlines()
    assert "is its reaper now" in line
    open_gate(sandbox)
    assert end(sandbox, run)["exit"] == 7


def test_linger_is_kept(sandbox):
    before = orphan(sandbox, "--linger", "sh", "-c", "(mkfifo gate; read line <gate; echo done >out) & exit 3")
    wait_for(lambda: (sandbox.work / "gate").exists())
    adopt(sandbox)
    watcher = watcher_of(sandbox, before["run"])
    os.kill(watcher, 0)
    assert read_record(sandbox, before["run"])["state"] == "running"
    open_gate(sandbox)
    after = end(sandbox, before["run"])
    assert (sandbox.work / "out").read_text() == "done\n"
    assert after["leftovers"] == 0


def test_a_fork_bomb_is_ended(sandbox):
    before = orphan(sandbox, "--grace", "0s", FORKS)
    adopt(sandbox)
    with contextlib.suppress(ProcessLookupError):       # a bomb that could fork no more has ended by itself
        os.kill(watcher_of(sandbox, before["run"]), signal.SIGUSR2)
    end(sandbox, before["run"])
    wait_for(lambda: sandbox.pids() == [])


def test_an_inner_run_ends_with_a_record(sandbox):
    before = orphan(sandbox, "sh", "-c", "mxq-reap -- sh -c 'echo ready; sleep 100' | cat >out & sleep 100")
    wait_for(lambda: (sandbox.work / "out").exists() and (sandbox.work / "out").read_text())
    inner = [record for record in sandbox.records() if record["run"] != before["run"]][0]["run"]
    assert adopt(sandbox)[0].startswith(before["run"])
    os.kill(watcher_of(sandbox, before["run"]), signal.SIGUSR1)
    assert end(sandbox, before["run"])["reason"] == "kill"
    assert end(sandbox, inner)["reason"] == "kill"


# ---- who has it already ----

def test_a_front_that_is_there_takes_over(sandbox):
    front = sandbox.spawn("mxq-reap", "--", "sh", "-c", "echo ready; read line; exit 6", stdin=-1)
    read_until(front.stdout, b"ready\n")
    before = sandbox.record()
    os.kill(front.pid, signal.SIGSTOP)
    kill(before["reaper"]["pid"])
    assert adopt(sandbox) == []
    assert sandbox.record() == before
    os.kill(front.pid, signal.SIGCONT)
    front.communicate("\n", timeout=20)
    assert front.returncode == 6 and sandbox.record()["exit"] == 6


def test_front_and_reaper_dead(sandbox):
    front = sandbox.spawn("mxq-reap", "--", "sh", "-c", "echo ready; read line; exit 6", stdin=-1)
    read_until(front.stdout, b"ready\n")
    before = sandbox.record()
    front.kill()
    front.wait()
    kill(before["reaper"]["pid"])
    assert len(adopt(sandbox)) == 1
    front.stdin.write("\n")
    front.stdin.close()
    assert end(sandbox, before["run"])["exit"] == 6


def test_a_watcher_that_dies_is_followed_by_another(sandbox):
    run = orphan(sandbox, *on_gate("exit 5"))["run"]
    for _ in range(3):
        assert len(adopt(sandbox)) == 1
        kill(watcher_of(sandbox, run))
    adopt(sandbox)
    open_gate(sandbox)
    assert end(sandbox, run)["exit"] == 5


def test_the_room_is_taken_over(sandbox):
    """A disk that is full by then cannot keep the outcome out."""
    run = orphan(sandbox, *on_gate("exit 5"))["run"]
    room = sandbox.runs / ("." + run)
    before = room.stat()
    adopt(sandbox)
    assert room.stat().st_ino == before.st_ino and room.stat().st_blocks == before.st_blocks
    assert adopt(sandbox) == []         # nor is it removed
    open_gate(sandbox)
    end(sandbox, run)
    assert (sandbox.runs / (run + ".json")).stat().st_ino == before.st_ino


def test_a_watcher_has_nothing_of_the_callers(sandbox):
    run = orphan(sandbox, "sleep", "100")["run"]
    lock = os.open(sandbox.work / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    sandbox.run("mxq-adopt", pass_fds=[lock], check=True)       # returns, so stdout and stderr are free
    os.close(lock)
    watcher = watcher_of(sandbox, run)
    assert os.getsid(watcher) == watcher
    assert processes.comm(watcher) == "mxq-reaper"
    held = [os.readlink("/proc/%d/fd/%s" % (watcher, fd)) for fd in os.listdir("/proc/%d/fd" % watcher)]
    assert sorted(path for path in held if path.startswith("/")) == sorted(
        ["/dev/null"] * 3 + [str(sandbox.runs / ("." + run))])
    assert len(held) <= 7           # and its pidfd and signal descriptor
    os.kill(watcher, signal.SIGUSR2)
    end(sandbox, run)


def test_inside_a_job_it_warns(sandbox):
    run = orphan(sandbox, "sleep", "100")["run"]
    done = sandbox.run("mxq-adopt", env={"MXQ_RUN": "1.1"}, check=True)
    assert done.stderr == "mxq-adopt: warning: run inside a job: what is adopted here ends with it\n"
    os.kill(watcher_of(sandbox, run), signal.SIGUSR2)
    end(sandbox, run)


def test_many_at_once(sandbox):
    runs = [detach(sandbox, "sleep", "100") for _ in range(10)]
    for record in sandbox.records():
        kill(record["reaper"]["pid"])
    assert sorted(line.split(":")[0] for line in adopt(sandbox)) == sorted(runs)
    watchers = {record["reaper"]["pid"] for record in sandbox.records()}
    assert len(watchers) == 10
    for pid in watchers:
        os.kill(pid, signal.SIGUSR2)
    for run in runs:
        assert end(sandbox, run)["signal"] == signal.SIGKILL
    assert hidden(sandbox) == []
