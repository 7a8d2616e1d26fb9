"""mxq-adopt: never a signal to a stranger, never a run lost that may live: pids, hosts, boots, namespaces."""

import json
import os
import signal
import subprocess

import pytest

from tests.harness import pids, processes
from tests.harness.adopting import (adopt, end, kill, on_gate, open_gate, orphan, parent_of_orphans, reap, rewrite,
                                    watcher_of)
from tests.harness.queueing import detach, read_record, states, submit, wait_until_ended
from tests.harness.records import BOOT, make_running, put
from tests.harness.sandbox import wait_for

INNER = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]


def need_namespaces(*words):
    """Skip where these may not be made."""
    if subprocess.run([*INNER, *words, "true"], stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("machine cannot: no namespaces for this user")


def outer_pid(pid, below):
    """The pid that we see of process `pid` of a namespace, one of those below process `below`."""
    queue = [below]
    while queue:
        seen = queue.pop()
        if processes.status(seen, "NSpid").split()[1:] == [str(pid)]:
            return seen
        queue += processes.children(seen)
    return None


class Container:
    """A shell in a pid namespace of its own, with its own /proc, that executes lines."""

    def __init__(self, sandbox, *words):
        self.sandbox = sandbox
        self.process = sandbox.spawn(*INNER, *words, "--mount-proc", "sh", stdin=-1)

    def run(self, line):
        """What a command line prints."""
        self.process.stdin.write(line + "; echo; echo done\n")
        self.process.stdin.flush()
        lines = []
        while lines[-1:] != ["done"]:
            lines.append(self.process.stdout.readline().rstrip("\n"))
        return [line for line in lines[:-1] if line]

    def end(self):
        """Have it end with all that is in it."""
        self.process.stdin.close()
        assert self.process.wait(20) == 0


@pytest.fixture
def container(sandbox):
    need_namespaces("--mount-proc")
    return Container(sandbox)


# ---- pids ----

@pytest.mark.parametrize("session", [False, True], ids=["process", "session leader"])
@pytest.mark.parametrize("name", ["reaper", "main"])
def test_a_pid_that_is_reused_is_a_stranger(sandbox, name, session):
    with parent_of_orphans():
        before = read_record(sandbox, detach(sandbox, "--grace", "0s", "sleep", "100"))
        for each in ("reaper", "main"):
            kill(before[each]["pid"])
            reap(before[each]["pid"])
    stranger = pids.take(before[name]["pid"], ["sh", "-c", "sleep 50 & echo $!; wait"], stdout=-1,
                         start_new_session=session)
    try:
        below = int(stranger.stdout.readline())
        assert [line.split(": ")[1] for line in adopt(sandbox)] == ["lost"]
        assert adopt(sandbox) == []
        assert stranger.poll() is None and processes.is_alive(below)
    finally:
        os.kill(below, signal.SIGKILL)
        stranger.wait(20)
        stranger.stdout.close()
    assert stranger.returncode == 0, "it left by itself"


def test_a_session_whose_leader_was_a_stranger(sandbox):
    """The number of the reaper's session was reused, and the leader of the new one has gone: nothing tells it from
    ours but what it has open."""
    with parent_of_orphans():
        before = read_record(sandbox, detach(sandbox, "--grace", "0s", "sleep", "100"))
        for each in ("reaper", "main"):
            kill(before[each]["pid"])
            reap(before[each]["pid"])
    leader = pids.take(before["reaper"]["pid"], ["sh", "-c", "sleep 50 & echo $!"], stdout=-1, start_new_session=True)
    stranger = int(leader.stdout.readline())
    leader.wait(20)
    leader.stdout.close()
    try:
        assert os.getsid(stranger) == before["reaper"]["pid"]
        assert [line.split(": ")[1] for line in adopt(sandbox)] == ["lost"]
        assert processes.is_alive(stranger)
    finally:
        os.kill(stranger, signal.SIGKILL)


def test_a_pid_that_is_reused_while_the_watcher_watches(sandbox):
    pids.need()
    pids.require()
    with parent_of_orphans():
        before = read_record(sandbox, detach(sandbox, "--grace", "0s", "sh", "-c", "sleep 100; exit 3"))
        kill(before["reaper"]["pid"])
        adopt(sandbox)
        watcher, main = watcher_of(sandbox, before["run"]), before["main"]["pid"]
        os.kill(watcher, signal.SIGSTOP)
        for pid in processes.children(main):
            kill(pid)
        reap(main)
        stranger = pids.take(main, ["sleep", "50"])
        os.kill(watcher, signal.SIGUSR2)
        os.kill(watcher, signal.SIGCONT)
        after = end(sandbox, before["run"])
    assert after["exit"] in (3, 128 + 9) and after["reason"] in (None, "kill-now")
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_a_stranger_that_has_mxq_run_of_another_run(sandbox):
    with parent_of_orphans():
        before = read_record(sandbox, detach(sandbox, "sleep", "100"))
        for each in ("reaper", "main"):
            kill(before[each]["pid"])
            reap(before[each]["pid"])
    others = [subprocess.Popen(["sleep", "50"], env={"PATH": "/usr/bin:/bin", "MXQ_RUN": name})
              for name in (before["run"] + "0", before["run"][:-1], "")]
    adopt(sandbox)
    assert sandbox.record()["reason"] == "lost"
    for process in others:
        assert process.poll() is None
        process.kill()
        process.wait()


def test_a_run_of_another_queue_has_the_same_id(sandbox):
    """Every queue on this host has a run 1.1."""
    with parent_of_orphans():
        submit(sandbox, "sh", "-c", "setsid sleep 100 & echo $! >pid; sleep 100")
        sandbox.run("mxq-run", check=True)
        other = {"MXQ_DIR": sandbox.path / "other"}
        assert submit(sandbox, "sleep", "100", env=other) == 1
        sandbox.run("mxq-run", env=other, check=True)
        wait_for(lambda: (sandbox.work / "pid").exists() and (sandbox.work / "pid").read_text())
        before = read_record(sandbox, "1.1")
        for name in ("reaper", "main"):
            kill(before[name]["pid"])
            reap(before[name]["pid"])
        adopt(sandbox)
        assert end(sandbox, "1.1")["reason"] == "lost"
        assert not processes.is_alive(int((sandbox.work / "pid").read_text()))
        assert [line.split(": ")[1] for line in adopt(sandbox, env=other)] == ["re-attached"]
        sandbox.run("mxq-ctl", "kill", "--now", "1", env=other, check=True)
        sandbox.run("mxq-collect", env=other, check=True)
    said = sandbox.run("mxq-ls", "--json", env=other, check=True).stdout
    assert json.loads(said)["reason"] == "kill-now", "nobody else has ended it"


# ---- hosts ----

def test_records_of_other_hosts_are_left_alone(sandbox):
    detach(sandbox, "true")
    wait_for(lambda: all(entry["state"] == "ended" for entry in sandbox.records()))
    put(sandbox.runs, make_running("7.1", host="alpha"))
    before = read_record(sandbox, "7.1")
    assert adopt(sandbox) == [] and read_record(sandbox, "7.1") == before


def test_the_operators_word(sandbox):
    submit(sandbox, "-r", "always", "true")
    with sandbox_queue(sandbox) as db:
        db.execute("UPDATE job SET state = 'loaded', attempt = 1")
        db.execute("INSERT INTO run (run, job, attempt, state, host, runner)"
                   " VALUES ('1.1', 1, 1, 'loaded', 'alpha', 'x')")
    detach(sandbox, "true")
    wait_for(lambda: all(entry["state"] == "ended" for entry in sandbox.records()))
    for n, host in enumerate(("alpha", "beta", "gamma"), 7):
        put(sandbox.runs, make_running("%d.1" % n, host=host, restart="always", **{
            name: dict(make_running()[name], host=host) for name in ("reaper", "front", "main")}))
    assert adopt(sandbox) == []
    lines = adopt(sandbox, "--host", "alpha", "--host", "beta")
    assert sorted(lines) == [
        "1.1: given back: it was handed over, and not started",
        "7.1: lost: its host alpha is dead, says the operator", "8.1: lost: its host beta is dead, says the operator"]
    assert read_record(sandbox, "9.1")["state"] == "running"
    found = states(sandbox)
    assert (found[1], found[7], found[8]) == ("queued", "queued", "queued") and 9 not in found
    assert not list(sandbox.spool.glob("drain*")), "the operator knows"


def sandbox_queue(sandbox):
    """The database, for tests that make up its rows."""
    import sqlite3
    return sqlite3.connect(sandbox.queue_file)


@pytest.mark.parametrize("boot, why", [
    (None, "its reaper lives on this very machine"),        # which had another name
    (BOOT, "a living process has its record locked")])
def test_the_operator_may_err(sandbox, boot, why):
    run = detach(sandbox, "sleep", "100")
    rewrite(sandbox, run, lambda text: text.replace('"host":"%s"' % os.uname().nodename, '"host":"alpha"'))
    if boot:
        rewrite(sandbox, run, lambda text: text.replace(read_record(sandbox, run)["reaper"]["boot"], boot))
    done = sandbox.run("mxq-adopt", "--host", "alpha")
    assert done.returncode == 69
    assert "%s: not declared lost: %s; is alpha dead?" % (run, why) in done.stderr
    assert read_record(sandbox, run)["state"] == "running"
    os.kill(read_record(sandbox, run)["reaper"]["pid"], signal.SIGUSR2)
    end(sandbox, run)


def test_an_orphan_from_before_the_host_was_renamed(sandbox):
    run = orphan(sandbox, *on_gate("exit 5"))["run"]
    rewrite(sandbox, run, lambda text: text.replace('"host":"%s"' % os.uname().nodename, '"host":"alpha"'))
    assert adopt(sandbox) == []
    line, = adopt(sandbox, "--host", "alpha")
    assert line.startswith("%s: adopted: MAIN " % run)
    open_gate(sandbox)
    assert end(sandbox, run)["exit"] == 5


# ---- boots ----

def test_after_a_reboot_nobody_is_killed(sandbox):
    """Whoever has the pid, and whatever is in its environment: it is of this boot, and no process of the run."""
    with parent_of_orphans():
        before = read_record(sandbox, detach(sandbox, "sleep", "100"))
        kill(before["reaper"]["pid"])
        rewrite(sandbox, before["run"], lambda text: text.replace(before["main"]["boot"], BOOT))
        assert [line.split(": ")[1] for line in adopt(sandbox)] == ["reboot"]
        assert processes.is_alive(before["main"]["pid"])
        kill(before["main"]["pid"])
        reap(before["main"]["pid"])


# ---- namespaces ----

def test_a_run_in_a_container_that_lives(sandbox, container):
    run, = container.run("mxq-reap -b sleep 100")
    before = read_record(sandbox, run)
    assert before["reaper"]["pidns"] != os.stat("/proc/self/ns/pid").st_ino
    for words in ([], ["--host", os.uname().nodename]):
        assert adopt(sandbox, *words) == []
        assert read_record(sandbox, run) == before
    container.run("kill -9 %d" % before["reaper"]["pid"])
    assert adopt(sandbox) == [] and read_record(sandbox, run) == before, "an orphan is for the mxq-adopt in there"
    line, = container.run("mxq-adopt")
    assert line.startswith("%s: adopted: MAIN %d" % (run, before["main"]["pid"]))
    os.kill(outer_pid(before["main"]["pid"], container.process.pid), signal.SIGTERM)
    assert wait_until_ended(sandbox, run)["signal"] == signal.SIGTERM
    container.end()


def test_a_container_that_has_ended(sandbox, container):
    run, = container.run("mxq-reap -b sleep 100")
    container.end()
    assert adopt(sandbox) == ["%s: reboot: its container (pid namespace) has ended" % run]
    after = read_record(sandbox, run)
    assert (after["status"], after["reason"]) == (None, "reboot")


def test_another_container_cannot_tell(sandbox, container):
    run, = container.run("mxq-reap -b sleep 100")
    other = Container(sandbox)
    before = read_record(sandbox, run)
    assert other.run("mxq-adopt") == []
    container.end()
    assert other.run("mxq-adopt") == [], "it cannot see that the other one has ended"
    assert read_record(sandbox, run) == before
    line, = other.run("mxq-adopt --host $(uname -n)")
    assert line.startswith("%s: lost: its host" % run)
    other.end()


def test_a_container_does_not_see_the_host(sandbox, container):
    run = detach(sandbox, "sleep", "100")
    kill(read_record(sandbox, run)["reaper"]["pid"])
    before = read_record(sandbox, run)
    assert container.run("mxq-adopt") == [] and read_record(sandbox, run) == before
    container.end()
    assert len(adopt(sandbox)) == 1
    os.kill(watcher_of(sandbox, run), signal.SIGUSR2)
    end(sandbox, run)


def test_another_clock(sandbox):
    need_namespaces("--time", "--boottime", "1000")
    run = detach(sandbox, "sleep", "100")
    kill(read_record(sandbox, run)["reaper"]["pid"])
    before = read_record(sandbox, run)
    done = sandbox.run("unshare", "--user", "--map-root-user", "--time", "--boottime", "1000", "--fork", "mxq-adopt")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert read_record(sandbox, run) == before
    adopt(sandbox)
    os.kill(watcher_of(sandbox, run), signal.SIGUSR2)
    end(sandbox, run)


def test_another_proc(sandbox):
    need_namespaces()
    run = detach(sandbox, "sleep", "100")
    kill(read_record(sandbox, run)["reaper"]["pid"])
    before = read_record(sandbox, run)
    done = sandbox.run(*INNER, "mxq-adopt")
    assert (done.returncode, done.stdout) == (69, "")
    assert done.stderr == "mxq-adopt: error: another pid namespace is mounted on /proc: nothing can be judged\n"
    assert read_record(sandbox, run) == before
    adopt(sandbox)
    os.kill(watcher_of(sandbox, run), signal.SIGUSR2)
    end(sandbox, run)


def test_a_reaper_that_is_stopped_lives(sandbox):
    run = detach(sandbox, "sh", "-c", "mkfifo gate; read line <gate; exit 3")
    before = read_record(sandbox, run)
    os.kill(before["reaper"]["pid"], signal.SIGSTOP)
    assert adopt(sandbox) == []
    os.kill(before["reaper"]["pid"], signal.SIGCONT)
    wait_for((sandbox.work / "gate").exists)
    open_gate(sandbox)
    assert end(sandbox, run)["exit"] == 3
    assert json.dumps(before["front"]) != "null"


def test_a_first_thread_that_has_ended_is_no_end(sandbox):
    """/proc shows a zombie, and the other threads go on."""
    code = ("import ctypes, threading, time, os; threading.Thread(target=lambda: (open('on', 'w').close(),"
            " [time.sleep(0.01) for _ in iter(lambda: os.path.exists('off'), True)], os._exit(4))).start();"
            " ctypes.CDLL(None).syscall(60, 0)")
    if os.uname().machine != "x86_64":
        pytest.skip("machine cannot: the number of exit(2) is that of x86_64")
    run = detach(sandbox, "/usr/bin/python3", "-c", code)
    before = read_record(sandbox, run)
    wait_for(lambda: (sandbox.work / "on").exists() and processes.state(before["main"]["pid"]) == "Z")
    kill(before["reaper"]["pid"])
    assert adopt(sandbox)[0].startswith("%s: adopted" % run)
    assert read_record(sandbox, run)["state"] == "running"
    (sandbox.work / "off").touch()
    assert end(sandbox, run)["exit"] == 4
