"""mxq-reap under the tools of a shell: make -j, xargs -P, nohup, timeout, script."""

import os
import re
import signal
import subprocess

import pytest

from tests.harness import processes
from tests.harness.reaping import COUNT, ended, outcome, received, running
from tests.harness.sandbox import read_until, wait_for
from tests.harness.terminal import Terminal

# They say `ready` in a file of the run's name.
POLITE = "trap 'exit 9' TERM; echo >ready.$MXQ_RUN; while :; do sleep 0.1; done"
DEAF = "trap '' TERM; sleep 1000 & echo >ready.$MXQ_RUN; while :; do sleep 0.1; done"
WAITS = "echo >ready.$MXQ_RUN; until test -e go; do sleep 0.1; done; exit 6"


def ready(sandbox, count=1):
    """Wait until so many jobs said `ready`."""
    wait_for(lambda: len(list(sandbox.work.glob("ready.*"))) == count, what="%d jobs" % count)


def by_name(sandbox, count):
    """The records by name, once there are `count` and all are those of ended runs."""
    def look():
        found = {record["name"]: record for record in sandbox.records()}
        return len(found) == count and all(record["state"] == "ended" for record in found.values()) and found
    return wait_for(look, 30, "%d ended runs" % count)


# ---- make ----

# Lines without quotation marks: make starts such a command itself. With sh between, make's TERM would end sh alone.
MAKEFILE = """\
all: good bad killed left
good bad killed left:
\t@touch $@
\t@mxq-reap -N $@ -- sh $@.sh
inner:
\t+@mxq-reap -N $@ -- $(MAKE) -f Makefile a b
a b:
\t@mxq-reap -N $@ -- true
polite waits:
\t@touch $@
\t@mxq-reap -N $@ -- sh $@.sh
.DELETE_ON_ERROR:
"""
SCRIPTS = {"good": "exit 0", "bad": "exit 3", "killed": "kill -SEGV $$", "left": "setsid sleep 1000 & exit 0",
           "polite": POLITE, "waits": WAITS}


@pytest.fixture
def makefile(sandbox):
    (sandbox.work / "Makefile").write_text(MAKEFILE)
    for name, script in SCRIPTS.items():
        (sandbox.work / (name + ".sh")).write_text(script)


@pytest.mark.needs("make")
def test_make_sees_each_status(sandbox, makefile):
    done = sandbox.run("make", "-j4", "-k")
    assert done.returncode == 2
    errors = set(re.findall(r"\[Makefile:\d+: (\w+)\] (.*)", done.stderr))
    assert {(name, text.partition(" (")[0]) for name, text in errors} == {
        ("bad", "Error 3"), ("killed", "Segmentation fault")}
    assert {name: outcome(record) for name, record in by_name(sandbox, 4).items()} == {
        "good": (0, None, None), "bad": (3, None, None), "killed": (None, 11, None), "left": (0, None, None)}
    assert not sandbox.pids()
    assert (sandbox.work / "good").exists() and not (sandbox.work / "bad").exists()


@pytest.mark.needs("make")
def test_a_make_below_has_the_slots_of_the_one_above(sandbox, makefile):
    done = sandbox.run("make", "-j2", "inner", check=True)
    assert "jobserver" not in done.stdout + done.stderr
    records = by_name(sandbox, 3)
    assert {outcome(record) for record in records.values()} == {(0, None, None)}


@pytest.mark.needs("make")
def test_make_that_is_told_to_end_ends_its_jobs(sandbox, makefile):
    make = sandbox.spawn("make", "-j2", "polite", "waits")
    ready(sandbox, 2)
    make.send_signal(signal.SIGTERM)
    assert make.wait(20) != 0
    records = by_name(sandbox, 2)
    assert outcome(records["polite"]) == (9, None, None) and outcome(records["waits"]) == (None, 15, None)
    assert not (sandbox.work / "polite").exists(), "make takes away what is half made"
    wait_for(lambda: not sandbox.pids(), what="the end of all")


@pytest.mark.needs("make")
def test_jobs_of_a_make_that_was_killed_tell_how_they_ended(sandbox, makefile):
    make = sandbox.spawn("make", "-j2", "polite", "waits")
    ready(sandbox, 2)
    make.kill()
    make.wait(20)
    (sandbox.work / "go").touch()
    assert wait_for(lambda: [record for record in sandbox.records() if record["name"] == "waits"
                             and record["state"] == "ended"])[0]["exit"] == 6
    run, = (record["run"] for record in sandbox.records() if record["name"] == "polite")
    sandbox.run("mxq-ctl", "kill", run, check=True)
    assert outcome(by_name(sandbox, 2)["polite"]) == (9, None, "kill")
    wait_for(lambda: not sandbox.pids(), what="the end of all")


# ---- xargs: its own status says what its commands' was, by xargs(1) ----

@pytest.mark.parametrize("words, status, last", [
    (["0", "0"], 0, (0, None, None)), (["0", "3", "0"], 123, (0, None, None)), (["255"], 124, (255, None, None)),
    (["kill -KILL $$"], 125, (None, 9, None)), (["exec ./missing"], 123, (127, None, None))])
def test_xargs_sees_each_status(sandbox, words, status, last):
    script = 'case $0 in [0-9]*) exit $0 ;; *) eval "$0" ;; esac'
    done = sandbox.run("xargs", "-P2", "-d\n", "-n1", "mxq-reap", "--", "sh", "-c", script, input="\n".join(words))
    assert done.returncode == status
    found = {record["argv"][-1]: outcome(record) for record in sandbox.records()}
    assert found[words[-1]] == last and len(sandbox.records()) == len(words)


def test_jobs_of_an_xargs_that_was_killed_tell_how_they_ended(sandbox):
    xargs = sandbox.spawn("sh", "-c", "printf '1\n2\n3\n' | exec xargs -P2 -n1 mxq-reap -- sh -c \"$WAITS\"",
                          env={"WAITS": WAITS})
    ready(sandbox, 2)
    front = sandbox.records()[0]["front"]["pid"]
    parent = int(processes.status(front, "PPid"))
    assert processes.comm(parent) == "xargs"
    os.kill(parent, signal.SIGKILL)
    xargs.wait(20)
    (sandbox.work / "go").touch()
    wait_for(lambda: not sandbox.pids(), what="the end of all")
    assert [outcome(record) for record in sandbox.records()] == [(6, None, None)] * 2


# ---- nohup ----

@pytest.mark.parametrize("nohup", [True, False])
def test_a_hangup_ends_the_job_unless_nohup_said_no(sandbox, nohup):
    # bash sends HUP to its jobs when it gets one (bash(1), SIGNALS).
    shell = Terminal(sandbox, "bash", "--norc", "--noprofile", "--noediting", "-i")
    shell.expect("ready> ")
    shell.type("%smxq-reap -- sh -c '%s' </dev/null >out 2>&1 &\n" % ("nohup " if nohup else "", WAITS))
    ready(sandbox)
    record = running(sandbox)
    shell.hang_up()
    shell.process.wait(20)
    if nohup:
        assert processes.is_alive(record["main"]["pid"])
        (sandbox.work / "go").touch()
    assert outcome(ended(sandbox)) == ((6, None, None) if nohup else (None, 1, None))
    wait_for(lambda: not sandbox.pids(), what="the end of all")


@pytest.mark.parametrize("argv, status", [(["sh", "-c", "exit 3"], 3), (["./missing"], 127), (["/"], 126)])
def test_nohup_ends_as_the_job_did(sandbox, argv, status):
    done = sandbox.run("nohup", "mxq-reap", "--", *argv)
    assert done.returncode == status == sandbox.record()["exit"]


# ---- timeout ----

def test_timeout_in_time_is_not_seen(sandbox):
    assert sandbox.run("timeout", "60", "mxq-reap", "--", "sh", "-c", "exit 3").returncode == 3
    assert outcome(sandbox.record()) == (3, None, None)


@pytest.mark.parametrize("options", [[], ["--foreground"]])
def test_timeout_sends_its_signal_to_the_job(sandbox, options):
    done = sandbox.run("timeout", *options, "2", "mxq-reap", "--", "sh", "-c", POLITE)
    record = sandbox.record()
    assert (done.returncode, outcome(record)) == (124, (9, None, None)) and received(record).count("front TERM") == 1
    assert not sandbox.pids()


def test_timeout_tells_the_true_status_when_asked(sandbox):
    done = sandbox.run("timeout", "--preserve-status", "2", "mxq-reap", "--", "sh", "-c", POLITE)
    assert done.returncode == 9 == sandbox.record()["exit"]


def test_what_timeout_kills_outright_has_its_outcome(sandbox):
    """KILL takes the front and the group with MAIN in it; the reaper stands aside and tells."""
    done = sandbox.run("timeout", "--kill-after=1", "2", "mxq-reap", "--grace", "1s", "--", "sh", "-c", DEAF)
    assert done.returncode in (137, -9)
    assert outcome(ended(sandbox)) == (None, 9, None)
    wait_for(lambda: not sandbox.pids(), what="the end of all")


def test_timeout_that_kills_the_front_alone_leaves_a_job_that_can_be_found(sandbox):
    """As it would leave the children of any command: the job has its reaper, and is ended through its record."""
    done = sandbox.run("timeout", "--foreground", "--kill-after=1", "2", "mxq-reap", "--grace", "1s", "--", "sh", "-c",
                       DEAF, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert done.returncode in (137, -9)
    record = sandbox.record()
    assert record["state"] == "running" and processes.is_alive(record["main"]["pid"])
    sandbox.run("mxq-ctl", "kill", "--now", record["run"], check=True)
    assert outcome(ended(sandbox)) == (None, 9, "kill-now")
    wait_for(lambda: not sandbox.pids(), what="the end of all")


def test_timeout_inside_is_a_command_like_any_other(sandbox):
    assert sandbox.run("mxq-reap", "--", "timeout", "1", "sleep", "100").returncode == 124
    assert outcome(sandbox.record()) == (124, None, None)


# ---- script: a terminal of its own ----

@pytest.mark.needs("script")
@pytest.mark.parametrize("end, status", [("exit 3", 3), ("kill -TERM $$", 143)])
def test_script_sees_how_the_job_ended_on_its_terminal(sandbox, end, status):
    (sandbox.work / "job").write_text("test -t 0 && test -t 1 && tty && stty size >/dev/null && echo said; " + end)
    done = sandbox.run("script", "--quiet", "--return", "--command", "mxq-reap -- sh job", "typescript")
    assert done.returncode == status
    assert "/dev/pts/" in done.stdout and "said" in (sandbox.work / "typescript").read_text()
    assert outcome(sandbox.record()) == ((3, None, None) if status == 3 else (None, 15, None))


@pytest.mark.needs("script")
def test_ctrl_c_in_script_reaches_the_job_once(sandbox):
    # Without exec dash would stay between, and die of the Ctrl-C after the job.
    shell = Terminal(sandbox, "script", "--quiet", "--return", "--command", "exec mxq-reap -- %s" % COUNT, "typescript")
    shell.expect("ready")
    shell.press("C-c")
    shell.expect("%d\r\n" % signal.SIGINT)
    os.kill(running(sandbox)["front"]["pid"], signal.SIGTERM)
    shell.expect("%d\r\n" % signal.SIGTERM)
    assert shell.finish() == 0, "100 says that a signal came twice"
    assert outcome(sandbox.record()) == (0, None, None)


@pytest.mark.needs("script")
def test_a_killed_script_hangs_up_and_the_record_says_so(sandbox):
    script = sandbox.spawn("script", "--quiet", "--command", "mxq-reap -- sh -c 'echo ready; sleep 1000'", "typescript")
    read_until(script.stdout, b"ready")
    script.kill()
    script.wait(20)
    assert outcome(ended(sandbox)) == (None, 1, None)
    wait_for(lambda: not sandbox.pids(), what="the end of all")
