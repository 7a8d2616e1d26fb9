"""What signals to the reaper and to the front of mxq-reap mean."""

import os
import signal

import pytest

from mxqlib import record as records
from mxqlib import signals
from tests.harness import processes
from tests.harness.reaping import (CATCH, COUNT, IGNORE, ended, nothing_was_started, outcome, received, running,
                                   spawn_ready)
from tests.harness.sandbox import read_until, wait_for


def reaper_of(sandbox):
    """The pid of the reaper of the only run."""
    return running(sandbox)["reaper"]["pid"]


# ---- to the reaper ----

def test_usr1_is_term_and_cont_to_every_process_of_the_job(sandbox):
    # One in its own session, one stopped, one that says what it got.
    reap = spawn_ready(sandbox, "mxq-reap", "sh", "-c", """
        setsid sleep 61 & sleep 62 & kill -STOP $!
        exec %s CONT TERM""" % CATCH)
    wait_for(lambda: len(processes.children(running(sandbox)["main"]["pid"])) == 2)
    left = processes.children(running(sandbox)["main"]["pid"])
    os.kill(reaper_of(sandbox), signal.SIGUSR1)
    assert reap.wait(20) == 7
    assert reap.stdout.read() in ("got TERM\n", "got CONT\ngot TERM\n", "got TERM\ngot CONT\n")
    record = sandbox.record()
    assert outcome(record) == (7, None, "kill")
    assert records.state_of(record) == "killed"
    assert received(record) == ["reaper USR1"]
    assert not any(map(processes.is_alive, left))


def test_usr1_to_a_job_that_does_not_know_it(sandbox):
    reap = sandbox.spawn("mxq-reap", "sleep", "60")
    os.kill(reaper_of(sandbox), signal.SIGUSR1)
    assert reap.wait(20) == -signal.SIGTERM
    assert outcome(sandbox.record()) == (None, signal.SIGTERM, "kill")


def test_usr2_is_kill_to_every_process_of_the_job(sandbox):
    reap = spawn_ready(sandbox, "mxq-reap", "sh", "-c", "setsid %s one & exec %s two" % (IGNORE, IGNORE))
    wait_for(lambda: (sandbox.work / "one").exists() and (sandbox.work / "two").exists())
    os.kill(reaper_of(sandbox), signal.SIGUSR2)
    assert reap.wait(20) == -signal.SIGKILL
    record = sandbox.record()
    assert outcome(record) == (None, signal.SIGKILL, "kill-now")
    assert received(record) == ["reaper USR2"]
    assert [child["status"] for child in record["children"] if child["status"]] == [9, 9]


def test_usr2_after_usr1_works_and_the_first_is_the_reason(sandbox):
    reap = spawn_ready(sandbox, "mxq-reap", IGNORE)
    reaper = reaper_of(sandbox)
    os.kill(reaper, signal.SIGUSR1)
    os.kill(reaper, signal.SIGUSR2)
    assert reap.wait(20) == -signal.SIGKILL
    record = sandbox.record()
    assert outcome(record) == (None, signal.SIGKILL, "kill")
    assert received(record) == ["reaper USR1", "reaper USR2"]


def test_a_job_that_ends_well_after_our_kill_was_killed_all_the_same(sandbox):
    os.mkfifo(sandbox.work / "fifo")
    reap = spawn_ready(sandbox, "mxq-reap", "sh", "-c", "trap 'exit 0' TERM; echo ready; read line <fifo")
    wait_for(lambda: processes.state(running(sandbox)["main"]["pid"]) == "S")
    os.kill(reaper_of(sandbox), signal.SIGUSR1)
    reap.wait(20)
    record = sandbox.record()
    assert record["reason"] == "kill" and records.state_of(record) == "killed"


def test_tstp_and_cont_stop_and_continue_every_process_of_the_job(sandbox):
    reap = spawn_ready(sandbox, "mxq-reap", "sh", "-c", "setsid sleep 60 & sleep 60 & echo ready; wait")
    record = running(sandbox)
    main, reaper = record["main"]["pid"], record["reaper"]["pid"]
    job = [main] + wait_for(lambda: len(processes.children(main)) == 2 and processes.children(main))
    os.kill(reaper, signal.SIGTSTP)
    wait_for(lambda: {processes.state(pid) for pid in job + [reap.pid]} == {"T"})
    os.kill(reaper, signal.SIGCONT)
    wait_for(lambda: "T" not in {processes.state(pid) for pid in job + [reap.pid]})
    os.kill(reaper, signal.SIGUSR2)
    assert reap.wait(20) == -signal.SIGKILL
    assert received(sandbox.record()) == ["reaper TSTP", "reaper CONT", "reaper USR2"]


def test_kill_works_while_the_job_is_stopped(sandbox):
    for number, seen in ((signal.SIGUSR1, signal.SIGTERM), (signal.SIGUSR2, signal.SIGKILL)):
        reap = sandbox.spawn("mxq-reap", "sleep", "60")
        reaper = reaper_of(sandbox)
        os.kill(reaper, signal.SIGTSTP)
        wait_for(lambda front=reap.pid: processes.state(front) == "T")
        os.kill(reaper, number)
        assert reap.wait(20) == -seen
        for file in sandbox.runs.iterdir():
            file.unlink()


NOTED = ["TERM", "INT", "HUP", "QUIT", "XCPU"]


def test_at_shutdown_the_reaper_outlives_the_job(sandbox):
    os.mkfifo(sandbox.work / "go")
    reap = spawn_ready(sandbox, "mxq-reap", "sh", "-c", "echo ready; read line <go; exit 5")
    reaper = reaper_of(sandbox)
    for name in NOTED + ["ALRM", "PIPE", "WINCH", "VTALRM", "PROF", "PWR", "RTMIN"]:
        os.kill(reaper, getattr(signal, "SIG" + name))
    wait_for(lambda: int(processes.status(reaper, "ShdPnd"), 16) == 0)
    assert processes.is_alive(running(sandbox)["main"]["pid"])
    (sandbox.work / "go").write_text("\n")
    assert reap.wait(20) == 5
    record = sandbox.record()
    assert outcome(record) == (5, None, None)
    assert sorted(received(record)) == sorted("reaper " + name for name in NOTED)


def test_the_record_tells_who_sent_what_and_when(sandbox):
    reap = spawn_ready(sandbox, "mxq-reap", CATCH, "TERM")
    os.kill(reaper_of(sandbox), signal.SIGHUP)
    wait_for(lambda: int(processes.status(reaper_of(sandbox), "ShdPnd"), 16) == 0)
    reap.terminate()
    assert reap.wait(20) == 7
    record = sandbox.record()
    for each in record["signals"]:
        assert (each["pid"], each["uid"]) == (os.getpid(), os.getuid())
        assert record["date_start"] < each["date"] < record["date_done"]
    assert sorted(received(record)) == ["front TERM", "reaper HUP"]


OUTER = ({"SLURM_JOB_ID": "7"}, {"PBS_JOBID": "7.host"}, {"JOB_ID": "7", "SGE_CELL": "default"})


@pytest.mark.parametrize("environment", OUTER, ids=lambda each: min(each))
def test_a_warning_of_an_outer_batch_system_to_every_process_is_no_order(sandbox, environment):
    """We are the ancestor of it all that does not have the id: its slurmstepd or shepherd."""
    job = spawn_ready(sandbox, "mxq-reap", "--", IGNORE, env=environment)
    record = running(sandbox)
    reaper = record["reaper"]["pid"]
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        os.kill(reaper, number)
        # A second one of the same number would be lost while this one is pending.
        wait_for(lambda: not int(processes.status(reaper, "ShdPnd"), 16), what="a signal that was taken")
    sandbox.run("sh", "-c", "kill -USR2 %d" % reaper, check=True)
    assert job.wait(20) == -signal.SIGKILL
    record = ended(sandbox)
    assert outcome(record) == (None, 9, "kill-now")
    assert received(record) == ["reaper USR1", "reaper USR2", "reaper USR2"]


@pytest.mark.parametrize("environment", OUTER, ids=lambda each: min(each))
def test_an_order_from_inside_an_outer_batch_job_is_one(sandbox, environment):
    """The script of the job is an ancestor as well, and has the id."""
    script = "mxq-reap -- %s & until read pid <pid; do sleep 0.01; done; kill -USR1 $pid; wait $!" % COUNT
    job = sandbox.spawn("sh", "-c", script, env=environment)
    record = running(sandbox)
    (sandbox.work / "part").write_text("%d\n" % record["reaper"]["pid"])
    (sandbox.work / "part").rename(sandbox.work / "pid")
    job.communicate(timeout=20)
    assert outcome(ended(sandbox))[2] == "kill"


@pytest.mark.parametrize("environment", ({}, {"JOB_ID": "7"}, {"PARALLEL_SEQ": "7"}), ids=str)
def test_without_a_batch_system_an_ancestor_gives_orders(sandbox, environment):
    job = spawn_ready(sandbox, "mxq-reap", "--", IGNORE, env=environment)
    os.kill(running(sandbox)["reaper"]["pid"], signal.SIGUSR2)
    assert job.wait(20) == -signal.SIGKILL
    assert outcome(ended(sandbox)) == (None, 9, "kill-now")


def test_thousands_of_signals_are_no_trouble(sandbox):
    reap = spawn_ready(sandbox, "mxq-reap", "sh", "-c", "trap '' HUP; echo ready; exec sleep 60")
    reaper = reaper_of(sandbox)
    for _ in range(1000):
        os.kill(reaper, signal.SIGTERM)
        os.kill(reap.pid, signal.SIGHUP)
    os.kill(reaper, signal.SIGUSR2)
    assert reap.wait(20) == -signal.SIGKILL
    assert 1 <= len(sandbox.record()["signals"]) <= 100


# ---- to the front ----

PASSED = [number for number in signal.valid_signals() if number not in (
    signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGIO, signal.SIGTERM, signal.SIGRTMIN,
    signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS)]


def test_each_signal_to_the_front_reaches_main_once(sandbox):
    reap = spawn_ready(sandbox, "mxq-reap", COUNT)
    running(sandbox)
    for number in sorted(PASSED) + [signal.SIGTERM]:
        reap.send_signal(number)
        assert read_until(reap.stdout, b"\n") == b"%d\n" % number
    assert reap.wait(20) == 0, "one came twice"
    names = ["front " + signals.name(number) for number in sorted(PASSED) + [signal.SIGTERM]]
    # Before 3.11 Python has no name for this one.
    assert [name.replace("STKFLT", "16") for name in received(sandbox.record())] == [
        name.replace("STKFLT", "16") for name in names]


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM,
                                    signal.SIGRTMIN + 5])
def test_a_signal_to_the_front_ends_a_job_that_does_not_know_it(sandbox, number):
    reap = sandbox.spawn("mxq-reap", "sleep", "60")
    running(sandbox)
    reap.send_signal(number)
    assert reap.wait(20) == -number
    # Nobody here killed it: it failed.
    record = sandbox.record()
    assert outcome(record) == (None, number, None)
    assert records.state_of(record) == "failed"


def test_a_stop_of_the_jobs_own_is_seen_by_the_caller_and_cont_is_passed_on(sandbox):
    reap = sandbox.spawn("mxq-reap", "sh", "-c", "kill -STOP $$; exit 6")
    assert os.WIFSTOPPED(os.waitpid(reap.pid, os.WUNTRACED)[1])
    main = running(sandbox)["main"]["pid"]
    assert processes.state(main) == "T"
    reap.send_signal(signal.SIGCONT)
    assert reap.wait(20) == 6


def test_rtmin_detaches(sandbox):
    os.mkfifo(sandbox.work / "go")
    reap = spawn_ready(sandbox, "mxq-reap", "sh", "-c", "echo ready; read line <go; exit 5")
    main = running(sandbox)["main"]["pid"]
    reap.send_signal(signal.SIGRTMIN)
    assert reap.wait(20) == 75
    assert processes.is_alive(main)
    assert sandbox.record()["state"] == "running"
    (sandbox.work / "go").write_text("\n")
    assert outcome(ended(sandbox)) == (5, None, None)


def test_a_detached_job_still_answers_to_its_reaper(sandbox):
    reap = sandbox.spawn("mxq-reap", "sleep", "60")
    reaper = reaper_of(sandbox)
    reap.send_signal(signal.SIGRTMIN)
    assert reap.wait(20) == 75
    os.kill(reaper, signal.SIGUSR1)
    assert outcome(ended(sandbox)) == (None, signal.SIGTERM, "kill")


# ---- before the start ----

@pytest.fixture
def slow(sandbox):
    """A tracer under which each fsync takes its time; the spool is there already."""
    sandbox.run("mxq-reap", "true", check=True)
    for file in sandbox.runs.iterdir():
        file.unlink()
    return ["strace", "-f", "-o", "/dev/null", "-e", "trace=fsync", "-e", "inject=fsync:delay_enter=600000"]


def at_the_gate(traced):
    """Front, reaper and MAIN below the tracer, once MAIN is held at the gate."""
    def look():
        pids, below = [], [traced.pid]
        while below:
            pids += below[:1]
            below = processes.children(below[0])
        return len(pids) == 4 and processes.comm(pids[3]) == "mxq-main" and pids[1:]
    return wait_for(look)


@pytest.mark.needs("strace")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_before_the_record_is_durable_starts_nothing(sandbox, slow, number):
    traced = sandbox.spawn(*slow, "mxq-reap", "touch", "ran")
    front, reaper, main = at_the_gate(traced)
    wait_for(lambda: processes.group(front) != traced.pid)      # it knows MAIN
    os.kill(reaper, signal.SIGSTOP)         # it will not open the gate before MAIN has the signal
    os.kill(front, number)
    wait_for(lambda: not processes.is_alive(main))
    os.kill(reaper, signal.SIGCONT)
    assert traced.wait(30) == -number
    assert nothing_was_started(sandbox)
    assert traced.stderr.read() == ""


@pytest.mark.needs("strace")
def test_a_stop_before_the_record_is_durable_is_relayed_and_gone_on_from(sandbox, slow):
    traced = sandbox.spawn(*slow, "mxq-reap", "touch", "ran")
    front, _, main = at_the_gate(traced)
    os.kill(main, signal.SIGSTOP)
    wait_for(lambda: processes.state(front) in ("T", "t") and processes.state(main) in ("T", "t"))
    os.kill(front, signal.SIGCONT)
    assert traced.wait(30) == 0
    assert outcome(sandbox.record()) == (0, None, None)
    assert (sandbox.work / "ran").exists()


def test_a_signal_before_the_exec_is_not_taken_for_that_of_a_nested_run(sandbox):
    # Waiting in open(2) of its output, MAIN is not the command yet; it got USR1 in the place of TERM.
    os.mkfifo(sandbox.work / "fifo")
    reap = sandbox.spawn("mxq-reap", "-o", "fifo", "true")
    reaper = wait_for(lambda: sandbox.records() and sandbox.record())["reaper"]["pid"]
    wait_for(lambda: any(processes.comm(pid) == "mxq-main" and processes.state(pid) == "S" for pid in sandbox.pids()))
    os.kill(reaper, signal.SIGUSR1)
    assert reap.wait(20) == -signal.SIGTERM
    assert outcome(sandbox.record()) == (None, signal.SIGTERM, "kill")
