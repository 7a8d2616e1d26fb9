"""census: do processes live, how did they end, whose are they; what cannot be known is not guessed."""

import os
import signal
import subprocess
import time

import pytest

from mxqlib import census, process
from tests.harness.sandbox import wait_for

ENDS = [("exit 0", 0), ("exit 7", 7 << 8), ("exit 255", 255 << 8), ("kill -9 $$", 9), ("kill -15 $$", 15)]


def start(script):
    """A shell that runs `script` once it reads a line; its pid."""
    return subprocess.Popen(["sh", "-c", "read line; " + script], stdin=subprocess.PIPE)


BASE = "/var/lib/mxq"
ENVIRON = {"PATH": "/bin:/usr/bin", "A": "1", "MXQ_RUN": "17.1", "MXQ_DIR": BASE, "Z": ""}


@pytest.fixture
def sleeper():
    child = subprocess.Popen(["sleep", "100"], env=ENVIRON)
    yield child
    child.kill()
    child.wait()


def test_a_reference_of_a_living_process(sleeper):
    reference = process.reference(sleeper.pid)
    assert census.judge(reference) == census.LIVING
    sleeper.kill()
    wait_for(lambda: process.look(sleeper.pid).has_ended)
    assert census.judge(reference) == census.ENDED
    sleeper.wait()
    assert census.judge(reference) == census.GONE


@pytest.mark.parametrize("change, word", [
    ({"start": 1}, census.GONE), ({"start": None}, census.GONE), ({"pid": 0}, census.GONE),
    ({"pid": 1 << 62}, census.GONE), ({"host": "alpha"}, census.LIVING), ({"boot": "x"}, census.EARLIER),
    ({"boot": None}, census.HIDDEN), ({"pidns": 1}, census.HIDDEN), ({"pidns": None}, census.HIDDEN),
    ({"timens": 1}, census.HIDDEN), ({"host": "alpha", "boot": "x"}, census.ELSEWHERE),
    ({"host": "alpha", "boot": None}, census.ELSEWHERE),
    ({"boot": "x", "pidns": 1}, census.EARLIER),
])
def test_a_reference_that_differs_in_something(sleeper, change, word):
    assert census.judge(dict(process.reference(sleeper.pid), **change)) == word


def test_another_users_process_that_proc_hides_is_not_gone(monkeypatch, sleeper):
    reference = process.reference(sleeper.pid)
    monkeypatch.setattr(process, "look", lambda pid: None)      # as with hidepid=2 (proc(5))
    assert census.judge(reference) == census.HIDDEN


def test_a_dead_process_of_another_clock_is_gone():
    child = subprocess.Popen(["true"])
    reference = dict(process.reference(child.pid), timens=1)
    child.wait()
    assert census.judge(reference) == census.GONE


@pytest.mark.parametrize("script, status", ENDS, ids=[script for script, _ in ENDS])
def test_how_it_ended(script, status):
    child = start(script)
    fd, begun = os.pidfd_open(child.pid), process.look(child.pid).start
    assert not census.has_ended(fd)
    assert census.reaped_status(fd) is None and census.zombie_status(child.pid, begun) is None
    child.communicate(b"\n")        # reaps it as well
    assert census.has_ended(fd)
    assert census.zombie_status(child.pid, begun) is None
    assert census.reaped_status(fd) in ((status,) if kernel_tells() else (status, None))
    os.close(fd)


def kernel_tells():
    """Linux 6.15 and later."""
    return tuple(int("".join(filter(str.isdigit, part))) for part in os.uname().release.split(".")[:2]) >= (6, 15)


@pytest.mark.parametrize("script, status", ENDS, ids=[script for script, _ in ENDS])
def test_how_a_zombie_ended(script, status):
    child = start(script)
    fd, begun = os.pidfd_open(child.pid), process.look(child.pid).start
    child.stdin.write(b"\n")
    child.stdin.close()
    wait_for(lambda: census.has_ended(fd))
    assert census.reaped_status(fd) is None, "not before it was reaped"
    assert census.zombie_status(child.pid, begun) == status
    assert census.zombie_status(child.pid, begun + 1) is None
    child.wait()
    assert census.zombie_status(child.pid, begun) is None
    os.close(fd)


def test_a_kernel_that_does_not_tell(monkeypatch):
    child = start("exit 3")
    fd = os.pidfd_open(child.pid)
    child.communicate(b"\n")
    monkeypatch.setattr(census, "_GET_INFO", 0xC040FF7F)    # an ioctl that there is not
    assert census.reaped_status(fd) is None
    os.close(fd)


def test_the_run_in_the_environment(sleeper):
    wait_for(lambda: census.marks_in_environ(sleeper.pid) == ("17.1", BASE))
    for env, marks in (({}, (None, None)), ({"XMXQ_RUN": "1"}, (None, None)), ({"MXQ_RUN": ""}, ("", None)),
                       ({"X": "MXQ_RUN=3", "MXQ_DIR": "/a=b"}, (None, "/a=b"))):
        child = subprocess.Popen(["/bin/sleep", "100"], env=env)
        wait_for(lambda: census.marks_in_environ(child.pid) == marks)
        child.kill()
        child.wait()
    assert census.marks_in_environ(child.pid) == (None, None)


@pytest.mark.parametrize("run, folder, ours", [
    ("17.1", BASE, True), ("17.1", BASE + "/", True), ("17.1", "/srv/mxq", False), ("17.1", None, False),
    ("20261130T174527.123456Z-alpha-4711", "/srv/mxq", True), ("20261130T174527.123456Z-alpha-4711", None, True)])
def test_a_run_of_another_queue_has_the_same_id(run, folder, ours):
    """Each has a run 17.1; only what a wrapper started is named once for all."""
    env = {"MXQ_RUN": run}
    if folder is not None:
        env["MXQ_DIR"] = folder
    child = subprocess.Popen(["/bin/sleep", "100"], env=env)
    wait_for(lambda: census.marks_in_environ(child.pid)[0] == run)
    seen = census.Census(BASE)
    assert (child.pid in seen.runs.get(run, ())) == ours
    assert (seen.run_of[child.pid] == run) == ours
    child.kill()
    child.wait()


def test_a_census(sleeper):
    seen = census.Census(BASE)
    assert seen.processes[os.getpid()].same(process.look(os.getpid()))
    assert sleeper.pid in seen.runs["17.1"] and seen.run_of[sleeper.pid] == "17.1"
    sleeper.kill()
    wait_for(lambda: process.look(sleeper.pid).has_ended)
    again = census.Census(BASE)
    assert sleeper.pid not in again.processes and sleeper.pid not in again.run_of


def test_what_started_before_is_not_looked_into(sleeper):
    seen = census.Census(BASE, since=process.look(sleeper.pid).start + 1)
    assert sleeper.pid in seen.processes and sleeper.pid not in seen.run_of


def test_what_was_read_is_kept(monkeypatch, sleeper):
    """A process that has just begun is read again: it may be in the middle of its execve."""
    known, born = {}, time.clock_gettime(time.CLOCK_BOOTTIME)
    census.Census(BASE, known=known)
    assert known[sleeper.pid, process.look(sleeper.pid).start] == "17.1"
    reads = []
    monkeypatch.setattr(census, "marks_in_environ", lambda pid: reads.append(pid) or (None, None))
    assert census.Census(BASE, known=known).run_of[sleeper.pid] == "17.1"
    assert sleeper.pid not in reads
    old = [pid for pid in reads if process.look(pid)
           and process.look(pid).start / process.TICKS < born - 2]
    assert old == []


def test_peak_and_outputs(sleeper):
    wait_for(lambda: census.peak_kib(sleeper.pid) > 100)
    assert census.peak_kib(1 << 30) is None
    with open(os.devnull, "w") as null:
        child = subprocess.Popen(["sleep", "100"], stdout=null, stderr=null)
        assert census.outputs(child.pid) == {os.devnull}
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert census.outputs(child.pid) == set()
