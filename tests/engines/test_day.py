"""A day in the life: a real cron with the three-word crontab, mxq-run --wait, and everything that can go wrong.

Jobs of mixed size, priority and group; at random instants kill -9 of every kind of MXQ process, a drain and resume, a
full disk for a while, the database locked for longer than anybody waits for it. At the end every job has exactly one
outcome, the true one, and none ran twice unless its restart policy allowed it.

    MXQ_TEST_SEED=1 MXQ_TEST_JOBS=500 ... pytest tests/engines/test_day.py
"""

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import threading
import time

import pytest

JOBS = int(os.environ.get("MXQ_TEST_JOBS", "500"))
SEED = int(os.environ.get("MXQ_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
LOCKED_S = 40
# What a job does: it says that it started, which run it is, and how it is going to end; then it ends so.
JOB = 'echo "start $MXQ_RUN" >> log/$1; sleep $2; echo "end $MXQ_RUN $3" >> log/$1; exit $3'
NAMES = ("mxq-reaper", "mxq-front", "mxq-run", "mxq-collect", "mxq-adopt", "mxq-main")


class Day:
    """One run of the test: the jobs, the trouble, the truth."""

    def __init__(self, sandbox, mounted):
        self.sandbox, self.mounted, self.random = sandbox, mounted, random.Random(SEED)
        self.jobs = {}              # number -> (status, restart policy)
        self.kills = 0

    def submit(self):
        """All the jobs."""
        os.mkdir(os.path.join(self.sandbox.home, "log"))
        for name in range(JOBS):
            status, restart = self.random.choice((0, 0, 0, 1, 7)), self.random.choice(("never", "always"))
            words = ["-j", str(self.random.choice((1, 1, 1, 2))), "-m", self.random.choice(("10M", "100M", "400M")),
                     "-p", str(self.random.randrange(3)), "-g", self.random.choice("abc"), "-r", restart]
            done = self.sandbox.run(
                "mxq-sub", *words, "--", "sh", "-c", JOB, "job", str(name),
                "%.2f" % self.random.choice((0, 0.1, 0.5, 1, 2)), str(status), cwd=self.sandbox.home, check=True)
            self.jobs[int(done.stdout)] = (name, status, restart)

    # ---- trouble ----

    def kill_one(self):
        """kill -9 of some MXQ process, or of two."""
        found = [pid for pid in self.sandbox.pids() if command_of(pid) in NAMES]
        for pid in self.random.sample(found, min(len(found), self.random.choice((1, 1, 2)))):
            try:
                os.kill(pid, signal.SIGKILL)
                self.kills += 1
            except ProcessLookupError:
                pass

    def drain(self):
        """Nothing is started for a while."""
        self.sandbox.run("mxq-ctl", "drain", "-r", "a test")
        time.sleep(2)
        self.sandbox.run("mxq-ctl", "resume")

    def fill(self):
        """The disk is full for a while."""
        filler = os.path.join(self.mounted, "filler")
        subprocess.run(["dd", "if=/dev/zero", "of=" + filler, "bs=64k"], stderr=subprocess.DEVNULL, check=False)
        time.sleep(3)
        os.unlink(filler)

    def lock(self):
        """The database is locked for longer than anybody waits."""
        db = sqlite3.connect(str(self.sandbox.queue_file), isolation_level=None, timeout=60)
        db.execute("BEGIN IMMEDIATE")
        time.sleep(LOCKED_S)
        db.execute("ROLLBACK")
        db.close()

    def go_wrong(self, until_s):
        """Trouble of all kinds until the jobs are done or the time is over."""
        while time.monotonic() < until_s and self.left():
            self.kill_one()
            time.sleep(self.random.uniform(0.1, 0.8))
            # mxq-adopt drains the host for each run that was lost: an operator lifts that.
            if self.random.random() < 0.1:
                self.sandbox.run("mxq-ctl", "resume")

    def trouble(self):
        """A drain, a full disk and a locked database, one after the other, while the kills go on."""
        plan = [self.drain, self.fill, self.lock]
        self.random.shuffle(plan)
        for step in plan:
            time.sleep(5)
            step()

    def left(self):
        """How many jobs are not over; all when the queue cannot be asked."""
        try:
            rows = self.sandbox.queue(
                "SELECT count(*) FROM job WHERE state NOT IN ('finished', 'failed', 'killed', 'lost', 'cancelled')")
            return rows[0][0]
        except sqlite3.Error:
            return JOBS

    # ---- the truth ----

    def check(self):
        """Every job has one outcome, and it is what the job itself wrote down."""
        counts = {}
        for number, (name, status, restart) in self.jobs.items():
            state = self.sandbox.queue("SELECT state FROM job WHERE job = ?", number)[0][0]
            counts[state] = counts.get(state, 0) + 1
            said = self.read_log(name)
            starts = [words[1] for words in said if words[0] == "start"]
            ends = [words[1] for words in said if words[0] == "end"]
            where = "job %d (log %d, %s, seed %d): %s, said %s" % (number, name, restart, SEED, state, said)
            assert len(starts) == len(set(starts)), "a run ran twice: " + where
            assert restart == "always" or len(starts) <= 1, "ran again: " + where
            runs = self.sandbox.queue("SELECT run, state, status FROM run WHERE job = ?", number)
            for run, how, raw in runs:
                assert how not in ("loaded", "running"), where
                if how in ("finished", "failed"):
                    assert run in ends and raw == status << 8, "invented: " + where
                elif how == "cancelled":
                    assert run not in starts, "ran, and was given back: " + where
            assert state in ("finished", "failed", "lost", "killed"), where
            if state in ("finished", "failed"):
                assert state == ("finished" if status == 0 else "failed"), where
        return counts

    def read_log(self, name):
        """The words of each line that the job wrote."""
        try:
            with open(os.path.join(self.sandbox.home, "log", str(name)), encoding="ascii") as log:
                return [line.split() for line in log]
        except FileNotFoundError:
            return []


def command_of(pid):
    """Which of our commands a process is, by its name or its script; None for another, or when it has gone."""
    try:
        with open("/proc/%d/comm" % pid, encoding="utf-8", errors="replace") as comm:
            name = comm.read().strip()
        with open("/proc/%d/cmdline" % pid, "rb") as cmdline:
            words = cmdline.read().split(b"\0")
    except OSError:
        return None
    if name.startswith("mxq-"):
        return name
    return next((os.path.basename(word).decode() for word in words[1:3] if word.startswith(b"/") and b"/mxq-" in word),
                None)


@pytest.fixture
def mounted(sandbox):
    """A small disk of its own under the base directory."""
    os.makedirs(sandbox.mxq_dir, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m,mode=700", "tmpfs", sandbox.mxq_dir], check=True)
    yield str(sandbox.mxq_dir)
    sandbox.kill_all()
    subprocess.run(["umount", sandbox.mxq_dir], check=True)


def start_cron(sandbox):
    """A real cron whose only table is ours, in a mount namespace of its own."""
    tables = os.path.join(sandbox.home, "crontabs")
    os.mkdir(tables, 0o700)
    environment = sandbox.environment()
    table = os.path.join(tables, "root")
    with open(table, "w", encoding="utf-8") as file:
        for name in ("PATH", "MXQ_DIR", "HOME", "MXQ_TEST_SANDBOX"):
            if name in environment:
                file.write("%s=%s\n" % (name, environment[name]))
        file.write("MAILTO=\"\"\n* * * * *  mxq-collect; mxq-adopt; mxq-run -j 2 -m 1G\n")
    os.chmod(table, 0o600)
    script = "mount --bind %s /var/spool/cron/crontabs && mount -t tmpfs tmpfs /run && exec cron -f" % tables
    return sandbox.spawn("unshare", "-m", "sh", "-c", script)


@pytest.mark.long
@pytest.mark.as_root
@pytest.mark.needs("cron", "unshare")
@pytest.mark.timeout_s(900)
@pytest.mark.leaves_processes
def test_a_day_in_the_life(sandbox, mounted, capsys):
    day = Day(sandbox, mounted)
    with capsys.disabled():
        print("\nseed %d, %d jobs" % (SEED, JOBS))
    day.submit()
    trouble = threading.Thread(target=day.trouble, daemon=True)
    trouble.start()
    cron = start_cron(sandbox)
    end_s = time.monotonic() + 420
    waiting = None
    trouble_s = time.monotonic() + 240
    while day.left() and time.monotonic() < end_s:
        if waiting is None or waiting.poll() is not None:
            waiting = sandbox.spawn("mxq-run", "-j", "2", "-m", "1G", "--wait",
                                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        day.go_wrong(min(trouble_s, time.monotonic() + 15))
        if time.monotonic() > trouble_s:
            sandbox.run("mxq-ctl", "resume")
            sandbox.run("mxq-adopt")
            time.sleep(1)
    trouble.join(120)
    cron.kill()
    if waiting.poll() is None:
        waiting.wait(60)
    sandbox.wait_for(lambda: settle(sandbox) and not day.left(), 60)
    counts = day.check()
    with capsys.disabled():
        print("%d kills; %s" % (day.kills, counts))
    assert day.kills > 5
    assert counts.get("finished", 0) + counts.get("failed", 0) > JOBS * 0.7
    assert shutil.disk_usage(mounted).free > 0


def settle(sandbox):
    """One more round by hand."""
    for words in (["mxq-ctl", "resume"], ["mxq-adopt"], ["mxq-collect"]):
        sandbox.run(*words)
    return True
