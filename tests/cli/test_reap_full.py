"""mxq-reap where the record cannot be written: refused before the start, written for ever after it."""

import json
import os
import signal
import subprocess
import time

import pytest

from mxqlib import record as records
from tests.harness import processes
from tests.harness.reaping import nothing_was_started, outcome, running, spawn_ready
from tests.harness.sandbox import wait_for

UNSHARE = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "-r", "--mount"]


@pytest.fixture
def small(sandbox):
    """Run a shell line with a tmpfs of SIZE mounted for a base directory, which only it sees."""
    sandbox.mxq_dir.mkdir(mode=0o700)
    if subprocess.run(UNSHARE + ["mount", "-t", "tmpfs", "tmpfs", str(sandbox.mxq_dir)], stderr=subprocess.DEVNULL,
                      check=False).returncode:
        pytest.skip("machine cannot: this user may not mount a tmpfs")

    def command(size, line):
        return UNSHARE + ["sh", "-c", 'mount -t tmpfs -o size=%s,mode=0700 tmpfs "$MXQ_DIR" && %s' % (size, line)]

    return command


# ---- a real full disk ----

@pytest.mark.parametrize("full", ["", 'head -c 60K /dev/zero >"$MXQ_DIR/fill"; '], ids=["empty", "full"])
def test_a_spool_without_room_is_refused_before_the_start(sandbox, small, full):
    done = sandbox.run(*small("64K", full + "mxq-reap touch ran; echo $?; find $MXQ_DIR -type f -name '[0-9.]*'"))
    assert done.stdout == "125\n"
    assert "No space left on device" in done.stderr and done.stderr.count("\n") == 1
    assert done.stderr.startswith("mxq-reap: error: ")
    assert not (sandbox.work / "ran").exists()


def test_a_disk_that_fills_while_the_job_runs_takes_the_outcome_all_the_same(sandbox, small):
    job = "sh -c 'cat /dev/zero >$MXQ_DIR/fill; head -c 100K /dev/zero >&2; exit 5'"
    done = sandbox.run(*small("400K", "mxq-reap %s 2>/dev/null; echo $?; cat $MXQ_DIR/spool/runs/*.json" % job))
    status, _, line = done.stdout.partition("\n")
    assert status == "5"
    assert outcome(json.loads(line)) == (5, None, None)


def test_a_large_record_fits_into_the_room_that_was_reserved(sandbox, small):
    # A thousand children with names that grow sixfold in JSON, and a full disk.
    job = r"""/usr/bin/python3 -IS -c '
import os
for n in range(600):
    if os.fork() == 0:
        open("/proc/self/comm", "wb").write(b"\1\2\3\4\5\6\7\16\17\20\21\22\23\24\25")
        os.setsid()
        if os.fork() == 0:
            import time
            time.sleep(60)
        os._exit(0)
    os.wait()
try:
    with open(os.environ["MXQ_DIR"] + "/fill", "wb", 0) as fill:
        while True:
            fill.write(bytes(4096))
except OSError:
    os._exit(5)
'"""
    done = sandbox.run(*small("2M", "mxq-reap --grace 0 %s; echo $?; cat $MXQ_DIR/spool/runs/*.json" % job))
    status, _, line = done.stdout.partition("\n")
    assert (status, done.stderr) == ("5", "")
    record = records.decode(line.encode())
    assert outcome(record) == (5, None, None)
    assert len(record["children"]) + record["children_more"] == 601 and record["leftovers"] == 600


def test_a_record_without_its_room_is_written_as_soon_as_there_is_room(sandbox, small):
    job = ("sh -c 'for room in $MXQ_DIR/spool/runs/.[0-9]*; do : >$room; done; cat /dev/zero >$MXQ_DIR/fill; exit 5'"
           " 2>/dev/null")
    reap = sandbox.spawn(*small("400K", "mxq-reap %s; echo $?; cat $MXQ_DIR/spool/runs/*.json" % job))
    reaper = wait_for(lambda: [pid for pid in sandbox.pids() if processes.comm(pid) == "mxq-reaper"])[-1]
    fill = "/proc/%d/root%s/fill" % (reaper, sandbox.mxq_dir)
    wait_for(lambda: processes.children(reaper) == [] and os.path.exists(fill))
    os.unlink(fill)
    status, _, line = reap.communicate(timeout=60)[0].partition("\n")
    assert status == "5"
    assert outcome(json.loads(line)) == (5, None, None)


# ---- a place that cannot be written to ----

class Stuck:
    """A run whose outcome (exit 5) cannot be written, as runs/ is no directory, and which has said so."""

    def __init__(self, sandbox, *options, take_over=False, **kw):
        self.sandbox = sandbox
        os.mkfifo(sandbox.work / "go")
        self.reap = spawn_ready(sandbox, "mxq-reap", *options, "sh", "-c", "echo ready; read line <go; exit 5", **kw)
        self.record = running(sandbox)
        self.reaper = self.record["reaper"]["pid"]
        if take_over:
            os.kill(self.reaper, signal.SIGKILL)
            wait_for(lambda: sandbox.record()["reaper"]["pid"] == self.reap.pid)
            self.reaper = self.reap.pid
            wait_for(lambda: processes.state(self.reaper) == "S")       # the directory is synced
            assert "going on in its place" in self.reap.stderr.readline()
        sandbox.runs.rename(sandbox.spool / "away")
        sandbox.runs.write_text("in the way")
        (sandbox.work / "go").write_text("\n")
        self.warning = self.reap.stderr.readline()

    def clear(self):
        """Make it possible."""
        self.sandbox.runs.unlink()
        (self.sandbox.spool / "away").rename(self.sandbox.runs)


@pytest.fixture(params=[False, True], ids=["reaper", "front"])
def stuck(request, sandbox):
    """A run that cannot write its outcome; the one that tries is its reaper, or its front in the reaper's place."""
    return Stuck(sandbox, take_over=request.param)


def test_it_says_so_once_and_goes_on_trying(stuck, sandbox):
    run = stuck.record["run"]
    assert stuck.warning == ("mxq-reap: warning: %s: cannot write the record to %s/%s.json: Not a directory; trying "
                             "until it can be written (kill -USR2 %d gives up this place)\n" % (
                                 run, sandbox.runs, run, stuck.reaper))
    assert stuck.reap.poll() is None
    time.sleep(0.5)                 # a few tries
    stuck.clear()
    assert stuck.reap.wait(60) == 5
    assert stuck.reap.stderr.read() == "mxq-reap: warning: %s: the record is written now\n" % run
    assert outcome(sandbox.record()) == (5, None, None)
    assert [name for name in os.listdir(sandbox.runs) if name.startswith(".")] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_it_is_never_deaf(stuck, sandbox, number):
    before = time.monotonic()
    os.kill(stuck.reaper, number)
    answer = stuck.reap.stderr.readline()
    assert time.monotonic() - before < 1
    assert "%s noted; the job has ended, its record cannot be written yet: Not a directory" % (
        signal.Signals(number).name[3:]) in answer
    assert stuck.reap.poll() is None
    stuck.clear()
    assert stuck.reap.wait(60) == 5
    record = sandbox.record()
    assert (outcome(record), record["signals"][-1]["signal"]) == ((5, None, None), signal.Signals(number).name[3:])


def test_usr2_gives_the_place_up(stuck, sandbox):
    before = time.monotonic()
    os.kill(stuck.reaper, signal.SIGUSR2)
    assert stuck.reap.wait(20) == 74
    assert time.monotonic() - before < 2
    path = sandbox.path / "fallback" / (stuck.record["run"] + ".json")
    assert stuck.record["fallback"] == str(path)
    said = stuck.reap.stderr.read().splitlines()
    assert said[-2] == "mxq-reap: error: %s: the record is not in its place but in %s, where mxq-collect finds it" % (
        stuck.record["run"], path)
    assert path.read_text() == said[-1] + "\n"
    record = records.decode(path.read_bytes(), stuck.record["run"])
    assert outcome(record) == (5, None, None)
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    stuck.clear()
    assert sandbox.record()["state"] == "running"


def test_where_the_fallback_cannot_be_had_either_the_record_is_on_standard_error(stuck, sandbox):
    (sandbox.path / "fallback").write_text("in the way")
    os.kill(stuck.reaper, signal.SIGUSR2)
    assert stuck.reap.wait(20) == 74
    said = stuck.reap.stderr.read().splitlines()
    assert "cannot write the record to %s either: " % stuck.record["fallback"] in said[-2]
    assert outcome(records.decode((said[-1] + "\n").encode())) == (5, None, None)


def test_the_path_of_the_fallback_is_told_to_those_who_want_no_warnings(sandbox):
    os.mkfifo(sandbox.work / "go")
    reap = spawn_ready(sandbox, "mxq-reap", "-q", "sh", "-c", "echo ready; read line <go; exit 5")
    reaper = running(sandbox)["reaper"]["pid"]
    sandbox.runs.rename(sandbox.spool / "away")
    sandbox.runs.write_text("in the way")
    (sandbox.work / "go").write_text("\n")
    wait_for(lambda: processes.children(reaper) == [])
    while reap.poll() is None:              # the first one may still be for the job
        os.kill(reaper, signal.SIGUSR2)
        time.sleep(0.05)
    assert reap.returncode == 74
    assert "the record is not in its place but in" in reap.stderr.read()


def test_a_usr2_for_the_job_gives_no_place_up(sandbox):
    os.mkfifo(sandbox.work / "go")
    reap = spawn_ready(sandbox, "mxq-reap", "sh", "-c", "echo ready; read line <go; exit 5")
    record = running(sandbox)
    sandbox.runs.rename(sandbox.spool / "away")
    sandbox.runs.write_text("in the way")
    reaper = record["reaper"]["pid"]
    os.kill(reaper, signal.SIGSTOP)
    (sandbox.work / "go").write_text("\n")
    wait_for(lambda: not processes.is_alive(record["main"]["pid"]))
    os.kill(reaper, signal.SIGUSR2)
    os.kill(reaper, signal.SIGCONT)
    assert "trying until it can be written" in reap.stderr.readline()
    sandbox.runs.unlink()
    (sandbox.spool / "away").rename(sandbox.runs)
    assert reap.wait(60) == 5
    assert sandbox.record()["reason"] is None


def test_a_spool_that_was_removed_is_made_again(sandbox):
    done = sandbox.run("mxq-reap", "sh", "-c", 'rm -r "$MXQ_DIR"; exit 5')
    assert done.returncode == 5
    assert outcome(sandbox.record()) == (5, None, None)


def test_room_that_was_removed_is_not_needed_where_there_is_some(sandbox):
    done = sandbox.run("mxq-reap", "sh", "-c", 'rm "$MXQ_DIR"/spool/runs/.[0-9]*; exit 5')
    assert (done.returncode, done.stderr) == (5, "")
    assert outcome(sandbox.record()) == (5, None, None)


def test_what_is_refused_before_the_start_leaves_nothing(sandbox):
    sandbox.run("mxq-reap", "true", check=True)
    for file in sandbox.runs.iterdir():
        file.unlink()
    sandbox.runs.rename(sandbox.spool / "away")
    sandbox.runs.symlink_to("away")
    done = sandbox.run("mxq-reap", "touch", "ran")
    assert done.returncode == 125
    assert nothing_was_started(sandbox)
