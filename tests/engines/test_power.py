"""Real power cuts: a machine of its own is switched off, without a word, at random instants, again and again.

On it jobs are submitted, held, released, killed, waited for, started by mxq-run, and run by mxq-reap, all at once. What
the commands said was received on this machine, and what the jobs say comes over a serial line: nobody's memory depends
on the disk of the machine. After each cut it is booted, mxq-adopt and mxq-collect are run (and cut off themselves,
sometimes), and the queue is compared with all that was ever said. All cuts are of one disk, which grows old.

    MXQ_TEST_SEED=1 MXQ_TEST_CUTS=20 ... pytest tests/engines/test_power.py
"""

import os
import random
import shutil
import threading
import time

import pytest

from tests.harness import oracle, witness
from tests.harness.uml import DISK, HOST, PROGRAMS, Machine, PowerCut, make_disk

CUTS = int(os.environ.get("MXQ_TEST_CUTS", "20"))
SEED = int(os.environ.get("MXQ_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
MOST = 25                   # commands that end between two cuts

pytestmark = [pytest.mark.long, pytest.mark.needs(*PROGRAMS), pytest.mark.timeout_s(1800)]


class History:
    """All that was said to us, by commands and by jobs, and what the queue must therefore hold."""

    def __init__(self, sandbox):
        self.sandbox, self.random = sandbox, random.Random(SEED)
        self.machine = Machine(sandbox, "node1", make_disk(sandbox, "node1.img"))
        self.machine.env.update(MXQ_LOG=DISK + "/mxq/events.log")
        witness.put_script(sandbox)
        self.jobs, self.outcomes, self.trouble = [], {}, []
        self.cuts = self.answers = 0

    # ---- work, until the power goes ----

    def work(self):
        """Do all at once, and cut the power somewhere in the middle."""
        tasks = (self.submit, self.wrap, self.wrap, self.start, self.operate)
        threads = [threading.Thread(target=self._until_cut, args=(task, random.Random(self.random.random())))
                   for task in tasks]
        enough = self.answers + self.random.randrange(1, MOST)
        for thread in threads:
            thread.start()
        self.sandbox.wait_for(lambda: self.answers >= enough or self.trouble, 300, "the end of a few commands")
        time.sleep(self.random.uniform(0, 0.5))
        self.cut()
        for thread in threads:
            thread.join()
        assert not self.trouble, self.trouble

    def cut(self):
        """One power cut."""
        self.machine.cut_power()
        self.cuts += 1

    def _until_cut(self, task, choose):
        try:
            while True:
                task(choose)
        except PowerCut:
            pass
        except Exception as error:
            self.trouble.append("%s: %r" % (task.__name__, error))

    def ask(self, *argv, expect=(0,), **kw):
        """Run a command of ours in the machine; anything but an expected status fails the test."""
        done = self.machine.run(*argv, **kw)
        assert done.returncode in expect, "%r: status %s, %s" % (argv, done.returncode, done.stderr)
        self.answers += 1
        return done

    def make_job(self, choose, restart="never"):
        """A Job that nobody has been told of yet."""
        job = witness.Job("tag-%08x" % choose.getrandbits(32), choose.choice((0, 0, 7)), restart,
                          choose.choice((0, 0.2, 0.4)))
        self.jobs.append(job)
        return job

    def submit(self, choose):
        """mxq-sub: one job, one that is held, or a few at once."""
        how = choose.choice(("one", "held", "some"))
        restart = choose.choice(("never", "samehost", "always"))
        jobs = [self.make_job(choose, restart) for _ in range(4 if how == "some" else 1)]
        words = ["mxq-sub", "-r", restart]
        if how == "some":
            words, text = words + ["-f", "-"], "".join(" ".join(job.argv) + "\n" for job in jobs)
        else:
            words, text = words + ["--hold"] * (how == "held") + ["--"] + jobs[0].argv, ""
        done = self.ask(*words, input=text)
        for job, number in zip(jobs, done.stdout.split()):
            job.number, job.fate = int(number), "held" if how == "held" else None

    def wrap(self, choose):
        """mxq-reap: in front, or in the background."""
        job = self.make_job(choose)
        if choose.random() < 0.3:
            job.run = self.ask("mxq-reap", "-b", "-N", job.tag, "--", *job.argv).stdout.strip()
        else:
            job.end = self.ask("mxq-reap", "-N", job.tag, "--", *job.argv, expect=(job.status,)).returncode

    def start(self, choose):
        """What cron does every minute; or mxq-run --wait."""
        if choose.random() < 0.1:
            self.ask("mxq-run", "-j", "4", "--wait")
        else:
            self.ask("mxq-run", "-j", "4")
            self.ask("mxq-collect")
            self.ask("mxq-adopt")

    def operate(self, choose):
        """Somebody releases and kills what is held, and waits for what is not."""
        known = [job for job in self.jobs if job.number is not None]
        held = [job for job in known if job.fate == "held"]
        open_ones = [job for job in known if job.fate is None and job.end is None]
        if held and choose.random() < 0.6:
            job = choose.choice(held)
            job.fate = "asked"
            what = choose.choice(("release", "kill"))
            self.ask("mxq-ctl", what, str(job.number))
            job.fate = "cancelled" if what == "kill" else None
        elif open_ones:
            job = choose.choice(open_ones)
            # 4: it was lost; 75: not in this time.
            done = self.ask("mxq-wait", "--timeout", "3s", str(job.number), expect=(job.status, 4, 75))
            if done.returncode == job.status:
                job.end = job.status
        else:
            self.ask("mxq-ls")

    # ---- recovery ----

    def recover(self):
        """Boot, mxq-adopt, mxq-collect; the power may go meanwhile."""
        self.machine.boot()
        while self.random.random() < 0.3:
            self.machine.spawn("sh", "-c", "mxq-adopt; mxq-collect")
            time.sleep(self.random.uniform(0, 1))
            self.cut()
            self.machine.boot()
        self.ask("mxq-adopt")
        self.ask("mxq-collect")
        assert self.ask("mxq-adopt").stdout == "", "mxq-adopt found something to do twice"

    def finish(self):
        """Let all that waits run to its end."""
        self.ask("mxq-ctl", "release", "--all")
        for job in self.jobs:
            job.fate = None if job.fate in ("held", "asked") else job.fate
        self.ask("mxq-run", "-j", "4", "--wait", timeout_s=600)
        self.ask("mxq-collect", "--retry")

    # ---- the truth ----

    def check(self, finished=False):
        """Compare the queue with all that was ever said."""
        shutil.rmtree(self.sandbox.mxq_dir, ignore_errors=True)
        self.machine.run("sh", "-c", "cp -r %s/mxq %s/ && sync" % (DISK, HOST), check=True)
        truth = witness.Truth(self.sandbox, self.machine.words)
        now = truth.outcomes()
        found = oracle.findings(self.sandbox)
        found += truth.run_findings(may_be_lost=lambda row: row["reason"] == "reboot")
        found += truth.log_findings(self.sandbox.mxq_dir / "events.log")
        for job in self.jobs:
            found += truth.job_findings(job)
        found += ["run %s was %s, is %s" % (run, before, now.get(run)) for run, before in self.outcomes.items()
                  if now.get(run) != before]
        self.outcomes = now
        if list(self.sandbox.spool.glob("drain*")):
            found.append("a power cut has drained the host")
        if finished:
            found += ["job %d is %s" % (row["job"], row["state"]) for row in truth.jobs.values()
                      if row["state"] not in witness.ENDED]
        assert not found, "seed %d, after %d cuts:\n%s" % (SEED, self.cuts, "\n".join(found))
        return truth


def test_what_is_not_synced_is_lost(sandbox):
    """The cut is a real one: without fsyncs, what mxq-reap had confirmed is gone."""
    machine = Machine(sandbox, "node1", make_disk(sandbox, "node1.img"))
    machine.boot()
    machine.run("mxq-reap", "-N", "synced", "--", "true", check=True)
    machine.run("mxq-reap", "-N", "lazy", "--", "true", check=True, env={"MXQ_SYNC": "0"})
    assert len(machine.run("sh", "-c", "cat %s/mxq/spool/runs/*.json" % DISK).stdout.splitlines()) == 2
    machine.cut_power()
    machine.boot()
    left = machine.run("sh", "-c", "cat %s/mxq/spool/runs/*.json" % DISK).stdout
    assert '"synced"' in left and '"lazy"' not in left
    machine.shut_down()


def test_power_cuts_lose_nothing_that_was_confirmed(sandbox, capsys):
    with capsys.disabled():
        print("\nseed %d, %d power cuts" % (SEED, CUTS))
    history = History(sandbox)
    history.machine.boot()
    while history.cuts < CUTS:
        history.work()
        history.recover()
        history.check()
    history.finish()
    truth = history.check(finished=True)
    history.machine.shut_down()
    states = [row["state"] for row in truth.runs.values()]
    counts = {state: states.count(state) for state in sorted(set(states))}
    told = {"numbers": sum(job.number is not None for job in history.jobs),
            "statuses": sum(job.end is not None for job in history.jobs),
            "cancelled": sum(job.fate == "cancelled" for job in history.jobs),
            "detached": sum(job.run is not None for job in history.jobs)}
    with capsys.disabled():
        print("%d cuts; confirmed: %s; runs: %s" % (history.cuts, told, counts))
    assert sum(told.values()) > CUTS and counts["lost"] > CUTS // 4
