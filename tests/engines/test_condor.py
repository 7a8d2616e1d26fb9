"""mxq-reap as the executable of HTCondor jobs, in the vanilla and in the local universe of a real pool.

HTCondor sees how the job ended; the record has HTCondor's ids; what HTCondor kills has its true outcome, or is lost.
"""

import os
import signal

import pytest

from tests.harness import processes
from tests.harness.condor import Pool
from tests.harness.reaping import outcome, received
from tests.harness.sandbox import wait_for

pytestmark = [pytest.mark.as_root, pytest.mark.needs("ip", "nsenter", "unshare"), pytest.mark.timeout_s(1500)]

UNIVERSES = ("vanilla", "local")
REMOVED, HELD, EXECUTES, ENDED, EVICTED, SUSPENDED = 9, 12, 1, 5, 4, 10
# They say `ready` in a file of their own name; what they start would outlive them.
POLITE = "trap 'exit 9' TERM; setsid sleep 1000 & echo >ready.$MXQ_RUN; while :; do sleep 0.1; done"
WAITS = "echo >ready.$MXQ_RUN; until test -e go; do sleep 0.1; done; exit 6"
AGAIN = "test -e ready.* && exit 5; " + POLITE
DEAF = "trap '' TERM; setsid sleep 1000 & echo >ready.$MXQ_RUN; while :; do sleep 0.1; done"


@pytest.fixture(scope="module")
def pool():
    with Pool() as it:
        yield it


def record_of(sandbox, cluster, starts=0):
    """The record of a job's run that `starts` others came before; None while there is none."""
    for record in sandbox.records():
        outer = record["outer"]
        if outer["ClusterId"] == cluster and outer.get("NumJobStarts", "0") == str(starts):
            return record
    return None


def ready(sandbox, cluster, starts=0):
    """Wait until the job says `ready`; its running record."""
    def look():
        record = record_of(sandbox, cluster, starts)
        return record and (sandbox.work / ("ready.%s" % record["run"])).exists() and record
    return wait_for(look, 60, "job %s" % cluster)


def ended(sandbox, cluster, starts=0):
    """Wait until the run's record is that of an ended run."""
    def look():
        record = record_of(sandbox, cluster, starts)
        return record and record["state"] == "ended" and record
    return wait_for(look, 60, "the end of job %s" % cluster)


def nobody_is_left(sandbox):
    wait_for(lambda: not sandbox.pids(), what="the end of all processes")


def parent_of(pid, comm, number):
    """Send the parent a signal and return its pid; `comm` must be its name."""
    parent = int(processes.status(pid, "PPid"))
    assert processes.comm(parent) == comm
    os.kill(parent, number)
    return parent


def was_killed_outright(record):
    """Lost, or the true status, when somebody has still to reap the dead and mxq-adopt could ask the kernel."""
    assert outcome(record) in ((None, None, "lost"), (None, 9, None)) and record["adopted"], record


# ---- ends ----

SCRIPTS = {"exit 0": (0, None), "exit 3": (3, None), "kill -SEGV $$": (None, 11), "kill -KILL $$": (None, 9),
           "setsid sleep 1000 & exit 7": (7, None), "exec ./missing": (127, None)}


def test_htcondor_sees_how_the_job_ended(sandbox, pool):
    jobs = {(universe, script): pool.submit(sandbox, universe, "--", "sh", "-c", script)
            for universe in UNIVERSES for script in SCRIPTS}
    for (universe, script), cluster in jobs.items():
        status, number = SCRIPTS[script]
        record = ended(sandbox, cluster)
        assert outcome(record) == (status, number, None), script
        assert record["leftovers"] == ("setsid" in script)
        pool.await_event(sandbox, cluster, ENDED)
        seen = pool.history(cluster, "ExitBySignal", "ExitSignal" if number else "ExitCode", "GlobalJobId")
        assert seen[:2] == [str(number is not None).lower(), str(number or status)], (universe, script)
        slot = {"_CONDOR_SLOT": record["outer"].get("_CONDOR_SLOT")} if universe == "vanilla" else {}
        starts = {"NumJobStarts": "0"} if "NumJobStarts" in record["outer"] else {}
        assert record["outer"] == dict({"ClusterId": cluster, "ProcId": "0", "GlobalJobId": seen[2]}, **slot, **starts)
    nobody_is_left(sandbox)
    pool.as_user(sandbox, "/mnt/mxq/bin/mxq-collect")
    listed = pool.as_user(sandbox, "/mnt/mxq/bin/mxq-ls", "--joblog")
    assert len(listed.splitlines()) == 1 + len(jobs)


def test_a_detached_run_does_not_outlive_the_job(sandbox, pool):
    """HTCondor ends what a job leaves; a session of its own does not hide the run."""
    cluster = pool.submit(sandbox, "vanilla", "-b", "--", "sleep", "1000")
    pool.await_event(sandbox, cluster, ENDED)
    assert pool.history(cluster, "ExitCode") == ["0"]
    nobody_is_left(sandbox)
    pool.as_user(sandbox, "/mnt/mxq/bin/mxq-adopt")
    was_killed_outright(ended(sandbox, cluster))


# ---- condor_rm, condor_hold, condor_suspend ----

def test_condor_rm_is_a_term_that_the_job_may_answer(sandbox, pool):
    for universe in UNIVERSES:
        cluster = pool.submit(sandbox, universe, "--grace", "1s", "--", "sh", "-c", POLITE)
        ready(sandbox, cluster)
        pool.as_user(sandbox, "condor_rm", cluster)
        pool.await_event(sandbox, cluster, REMOVED)
        record = ended(sandbox, cluster)
        assert outcome(record) == (9, None, None) and received(record) == ["front TERM"]
        assert record["leftovers"] >= 1
    nobody_is_left(sandbox)


def test_what_htcondor_kills_outright_is_lost(sandbox, pool):
    """HTCondor knows the whole family, the reaper with it: nobody is left who could have seen the end."""
    cluster = pool.submit(sandbox, "vanilla", "--", "sh", "-c", DEAF, more="job_max_vacate_time = 1")
    ready(sandbox, cluster)
    pool.as_user(sandbox, "condor_rm", cluster)
    pool.await_event(sandbox, cluster, REMOVED)
    nobody_is_left(sandbox)
    assert record_of(sandbox, cluster)["state"] == "running"
    pool.as_user(sandbox, "/mnt/mxq/bin/mxq-adopt")
    was_killed_outright(ended(sandbox, cluster))


def test_a_deaf_job_of_the_local_universe_ends_by_mxq_ctl(sandbox, pool):
    """condor_rm sends one TERM and waits for ever."""
    cluster = pool.submit(sandbox, "local", "--", "sh", "-c", DEAF)
    run = ready(sandbox, cluster)["run"]
    pool.as_user(sandbox, "condor_rm", cluster)
    wait_for(lambda: pool.run("/", "condor_q", "-all", cluster, "-af", "JobStatus").strip() == "3")
    pool.as_user(sandbox, "/mnt/mxq/bin/mxq-ctl", "kill", "--now", run)
    pool.await_event(sandbox, cluster, REMOVED)
    assert outcome(ended(sandbox, cluster)) == (None, 9, "kill-now")
    nobody_is_left(sandbox)


def test_a_held_job_has_a_record_for_each_of_its_runs(sandbox, pool):
    for universe in UNIVERSES:
        for file in sandbox.work.glob("ready.*"):
            file.unlink()
        cluster = pool.submit(sandbox, universe, "--grace", "1s", "--", "sh", "-c", AGAIN)
        ready(sandbox, cluster)
        pool.as_user(sandbox, "condor_hold", cluster)
        pool.await_event(sandbox, cluster, HELD)
        assert outcome(ended(sandbox, cluster)) == (9, None, None)
        nobody_is_left(sandbox)
        pool.as_user(sandbox, "condor_release", cluster)
        pool.await_event(sandbox, cluster, ENDED)
        assert outcome(ended(sandbox, cluster, starts=1)) == (5, None, None)
        assert pool.history(cluster, "ExitCode") == ["5"]
    assert len(sandbox.records()) == 2 * len(UNIVERSES)


def test_a_suspended_job_goes_on(sandbox, pool):
    cluster = pool.submit(sandbox, "vanilla", "--", "sh", "-c", WAITS)
    record = ready(sandbox, cluster)
    pids = [record[role]["pid"] for role in ("front", "reaper", "main")]
    pool.as_user(sandbox, "condor_suspend", cluster)
    wait_for(lambda: {processes.state(pid) for pid in pids} == {"T"}, 30, "all stopped")
    (sandbox.work / "go").touch()
    pool.as_user(sandbox, "condor_continue", cluster)
    pool.await_event(sandbox, cluster, ENDED)
    assert outcome(ended(sandbox, cluster)) == (6, None, None) and pool.history(cluster, "ExitCode") == ["6"]


# ---- HTCondor's own processes are killed ----

def test_a_job_that_is_vacated_runs_again_and_both_runs_are_told(sandbox, pool):
    cluster = pool.submit(sandbox, "vanilla", "--", "sh", "-c", AGAIN)
    ready(sandbox, cluster)
    pool.as_user(sandbox, "condor_vacate_job", "-fast", cluster)
    pool.await_event(sandbox, cluster, ENDED)
    assert outcome(ended(sandbox, cluster, starts=1)) == (5, None, None) and pool.history(cluster, "ExitCode") == ["5"]
    nobody_is_left(sandbox)
    assert record_of(sandbox, cluster)["state"] == "running"
    pool.as_user(sandbox, "/mnt/mxq/bin/mxq-adopt")
    was_killed_outright(ended(sandbox, cluster))


def test_a_killed_starter_leaves_a_true_outcome_or_none(sandbox, pool):
    cluster = pool.submit(sandbox, "vanilla", "--grace", "1s", "--", "sh", "-c", AGAIN)
    record = ready(sandbox, cluster)
    parent_of(record["front"]["pid"], "condor_starter", signal.SIGKILL)
    pool.await_event(sandbox, cluster, ENDED)
    assert pool.history(cluster, "ExitCode") == ["5"]
    nobody_is_left(sandbox)
    pool.as_user(sandbox, "/mnt/mxq/bin/mxq-adopt")
    was_killed_outright(ended(sandbox, cluster))
    assert [outcome(each) for each in sandbox.records()][1:] == [(5, None, None)]


def test_a_killed_schedd_runs_the_local_job_twice_and_the_records_tell(sandbox, pool):
    waits = pool.submit(sandbox, "vanilla", "--", "sh", "-c", WAITS)
    ready(sandbox, waits)
    again = pool.submit(sandbox, "local", "--grace", "1s", "--", "sh", "-c", AGAIN.replace("ready.*", "again"))
    starter = parent_of(ready(sandbox, again)["front"]["pid"], "condor_starter", 0)
    (sandbox.work / "again").touch()
    parent_of(starter, "condor_schedd", signal.SIGKILL)
    pool.await_event(sandbox, again, ENDED)
    (sandbox.work / "go").touch()
    pool.await_event(sandbox, waits, ENDED)
    nobody_is_left(sandbox)
    pool.as_user(sandbox, "/mnt/mxq/bin/mxq-adopt")
    assert outcome(ended(sandbox, waits)) == (6, None, None)
    first, second = (each for each in sandbox.records() if each["outer"]["ClusterId"] == again)
    was_killed_outright(first)
    assert outcome(second) == (5, None, None) and second["date_start"] > first["date_start"]
