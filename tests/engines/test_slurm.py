"""mxq-reap inside a real Slurm: it sees the true status, our record has its ids, and what it kills is not invented.

Jobs are batch scripts that end in `exec mxq-reap`: what Slurm starts, signals and waits for is then the front. Slurm
(22.05, proctrack/linuxproc) starts a batch job once every two seconds and looks at time limits twice a minute.
"""

import functools

import pytest

from tests.harness import outside
from tests.harness.outside import STATE_S, wait_ready
from tests.harness.reaping import received
from tests.harness.sandbox import Sandbox, wait_for
from tests.harness.slurm import Slurm

pytestmark = [pytest.mark.as_root, pytest.mark.timeout_s(240)]


@pytest.fixture(scope="module")
def slurm():
    cluster = Slurm()
    yield cluster
    cluster.close()


@pytest.fixture(scope="module", autouse=True)
def limited(slurm):
    """A sandbox and a job that runs into Slurm's shortest time limit while other tests run."""
    box = Sandbox()
    yield box, submit(slurm, box, "sleep 600 & exec setsid sleep 600", "--time=0:01")
    box.close()


def submit(slurm, box, script, *options, wrapper="exec mxq-reap -- sh -c '%s'"):
    """Submit a batch script that runs `script` (without single quotes), and return the number of the job."""
    path = box.work / "job"
    path.write_text("#!/bin/sh\n%s\n" % (wrapper % script))
    done = box.run(*slurm.command("sbatch", "--parsable", "--output=%j.out", *options, path, cwd=box.work), check=True)
    return done.stdout.strip()


def inside(slurm, box, *argv):
    """What a command prints that runs where the jobs do: process ids mean the same there."""
    return box.run(*slurm.command(*argv, cwd=box.work), check=True).stdout


def wait_state(slurm, job, *states, timeout_s=STATE_S):
    """Wait until Slurm says so, and return (JobState, ExitCode)."""
    def look():
        shown = slurm.job(job)
        return shown.get("JobState") in states and (shown["JobState"], shown["ExitCode"])
    return wait_for(look, timeout_s, "job %s %s" % (job, "/".join(states)))


def record_of(box, job):
    """The only record of a job."""
    return outside.record_of(box, "SLURM_JOB_ID", job)


def ended(box, job):
    """(exit, signal, reason) of the record, once it is there."""
    return outside.ended(box, "SLURM_JOB_ID", job)


def rows(slurm, box):
    """What mxq-ls says once the spool was collected, by the number of Slurm's job."""
    found = outside.rows(box, functools.partial(inside, slurm, box))
    return {row["outer"]["SLURM_JOB_ID"]: row for row in found}


def test_slurm_sees_the_status_and_the_queue_its_ids(slurm, sandbox):
    scripts = {"exit 0": ("COMPLETED", "0:0", 0, None), "exit 3": ("FAILED", "3:0", 3, None),
               "kill -KILL $$": ("FAILED", "0:9", None, 9), "exec /nonexistent": ("FAILED", "127:0", 127, None)}
    jobs = {submit(slurm, sandbox, script): expected for script, expected in scripts.items()}
    for job, (state, code, status, signum) in jobs.items():
        assert wait_state(slurm, job, "COMPLETED", "FAILED") == (state, code)
        assert ended(sandbox, job) == (status, signum, None)
        assert record_of(sandbox, job)["outer"] == {"SLURM_JOB_ID": job, "SLURM_PROCID": "0"}
    shown = rows(slurm, sandbox)
    assert {job: (row["exit"], row["signal"]) for job, row in shown.items()} == {
        job: expected[2:] for job, expected in jobs.items()}


def test_what_cannot_be_recorded_is_not_started(slurm, sandbox):
    """Slurm hears 125: the folder of the spool cannot be made."""
    sandbox.mxq_dir.write_text("")
    job = submit(slurm, sandbox, "touch ran")
    assert wait_state(slurm, job, "COMPLETED", "FAILED") == ("FAILED", "125:0")
    assert not (sandbox.work / "ran").exists()


def test_each_task_of_srun_has_a_record(slurm, sandbox):
    done = sandbox.run(*slurm.command("srun", "--ntasks=3", "mxq-reap", "--", "sh", "-c", "exit $SLURM_PROCID",
                                      cwd=sandbox.work))
    assert done.returncode == 2, done.stderr
    outer = sorted((record["outer"]["SLURM_PROCID"], record["outer"]["SLURM_STEP_ID"], record["exit"])
                   for record in sandbox.records())
    assert outer == [("0", "0", 0), ("1", "0", 1), ("2", "0", 2)]


def test_srun_passes_input_and_output(slurm, sandbox):
    done = sandbox.run(*slurm.command("srun", "mxq-reap", "--", "sort", cwd=sandbox.work), input="b\na\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "a\nb\n", "")


def test_each_task_of_an_array_has_a_record(slurm, sandbox):
    array = submit(slurm, sandbox, "exit $SLURM_ARRAY_TASK_ID", "--array=0-3")
    for index in range(4):
        state = "FAILED" if index else "COMPLETED"
        assert wait_state(slurm, "%s_%d" % (array, index), "COMPLETED", "FAILED") == (state, "%d:0" % index)
    shown = rows(slurm, sandbox)
    assert len(shown) == 4
    for row in shown.values():
        assert row["outer"]["SLURM_ARRAY_JOB_ID"] == array
        assert str(row["exit"]) == row["outer"]["SLURM_ARRAY_TASK_ID"]


def test_scancel(slurm, sandbox):
    """CONT and TERM to every process, after KillWait KILL to every process, our own too."""
    scripts = {"dies": "sleep 600 & touch dies; exec setsid sleep 600",
               "answers": "trap \"exit 5\" TERM; touch answers; sleep 600 & wait",
               "ignores": "trap : TERM; setsid sh -c \"trap : TERM; touch ignores; while :; do sleep 600; done\" & "
                          "while :; do wait; done"}
    jobs = {name: submit(slurm, sandbox, script) for name, script in scripts.items()}
    wait_ready(sandbox, *scripts)
    inside(slurm, sandbox, "scancel", *jobs.values())
    for job in jobs.values():
        wait_state(slurm, job, "CANCELLED")
    assert ended(sandbox, jobs["dies"]) == (None, 15, None)
    assert ended(sandbox, jobs["answers"]) == (5, None, None)
    wait_for(lambda: sandbox.pids() == [], what="the end of every process")
    # Slurm kills who writes it as well, a moment before or after. Nobody makes up what nobody has seen.
    inside(slurm, sandbox, "mxq-adopt")
    row = rows(slurm, sandbox)[jobs["ignores"]]
    assert (row["state"], row["exit"], row["signal"]) in (("lost", None, None), ("failed", None, 9))


def test_a_script_that_does_not_exec_is_killed_with_its_job(slurm, sandbox):
    """TERM ends the script, and slurmstepd then kills what it left at once: the outcome is the true one, or lost."""
    job = submit(slurm, sandbox, "touch ready; exec sleep 600", wrapper="mxq-reap -- sh -c '%s'; exit $?")
    wait_ready(sandbox, "ready")
    inside(slurm, sandbox, "scancel", job)
    wait_state(slurm, job, "CANCELLED")
    wait_for(lambda: sandbox.pids() == [], what="the end of every process")
    inside(slurm, sandbox, "mxq-adopt")
    row = rows(slurm, sandbox)[job]
    assert (row["state"], row["exit"], row["signal"]) in (("failed", None, 15), ("lost", None, None))


def test_a_signal_of_sbatch_reaches_the_job_once(slurm, sandbox):
    """scancel --signal --batch is what --signal=B:USR1@60 does in time: the front passes it on."""
    job = submit(slurm, sandbox, "trap \"echo usr1 >>got\" USR1; touch ready; "
                                 "until test -e got; do sleep 0.1; done; exit 6")
    wait_ready(sandbox, "ready")
    inside(slurm, sandbox, "scancel", "--signal=USR1", "--batch", job)
    assert wait_state(slurm, job, "COMPLETED", "FAILED") == ("FAILED", "6:0")
    assert (sandbox.work / "got").read_text() == "usr1\n"
    assert ended(sandbox, job) == (6, None, None)


def test_a_signal_to_every_process_of_a_step_is_no_order(slurm, sandbox):
    """As srun --signal=USR1@60 does in time: the reaper gets it too, and does not end the job."""
    script = "trap \"echo usr1 >>got\" USR1; touch ready; until test -e go; do sleep 0.1; done; exit 6"
    step = sandbox.spawn(*slurm.command("srun", "mxq-reap", "sh", "-c", script, cwd=sandbox.work))
    wait_ready(sandbox, "ready")
    job = sandbox.record()["outer"]["SLURM_JOB_ID"]
    inside(slurm, sandbox, "scancel", "--signal=USR1", job)
    wait_ready(sandbox, "got")
    (sandbox.work / "go").touch()
    assert step.wait(STATE_S) == 6
    assert ended(sandbox, job) == (6, None, None)
    assert "reaper USR1" in received(record_of(sandbox, job))


def test_suspend_and_resume(slurm, sandbox):
    job = submit(slurm, sandbox, "touch ready; until test -e go; do sleep 0.1; done; exit 4")
    wait_ready(sandbox, "ready")
    inside(slurm, sandbox, "scontrol", "suspend", job)
    wait_state(slurm, job, "SUSPENDED")
    (sandbox.work / "go").touch()
    inside(slurm, sandbox, "scontrol", "resume", job)
    assert wait_state(slurm, job, "COMPLETED", "FAILED") == ("FAILED", "4:0")
    assert ended(sandbox, job) == (4, None, None)


def test_requeue(slurm, sandbox):
    """Slurm ends the job and runs it again under the same number: two runs, the first not taken for the second."""
    job = submit(slurm, sandbox, "test -n \"$SLURM_RESTART_COUNT\" && exit 0; touch ready; exec sleep 600", "--requeue")
    wait_ready(sandbox, "ready")
    inside(slurm, sandbox, "scontrol", "requeue", job)
    # A requeued job is not eligible for a while (scontrol(1)); nobody has to wait for that.
    wait_state(slurm, job, "PENDING")
    inside(slurm, sandbox, "scontrol", "update", "JobId=%s" % job, "StartTime=now")
    assert wait_state(slurm, job, "COMPLETED", "FAILED") == ("COMPLETED", "0:0")
    first, second = sorted(sandbox.records(), key=lambda record: record["date_start"])
    assert (first["exit"], first["signal"], "SLURM_RESTART_COUNT" in first["outer"]) == (None, 15, False)
    assert (second["exit"], second["outer"]["SLURM_RESTART_COUNT"]) == (0, "1")
    assert first["outer"]["SLURM_JOB_ID"] == second["outer"]["SLURM_JOB_ID"] == job


def test_slurm_dies_and_the_job_ends_meanwhile(slurm, sandbox):
    job = submit(slurm, sandbox, "touch ready; until test -e go; do sleep 0.1; done; exit 3")
    wait_ready(sandbox, "ready")
    slurm.wait_saved()
    slurm.kill("slurmctld", "slurmd")
    (sandbox.work / "go").touch()
    assert ended(sandbox, job) == (3, None, None)
    slurm.start()
    assert wait_state(slurm, job, "COMPLETED", "FAILED") == ("FAILED", "3:0")
    assert rows(slurm, sandbox)[job]["exit"] == 3


def test_the_supervisor_of_slurm_dies(slurm, sandbox):
    """Slurm does not notice (it says RUNNING on and on); the job ends, and its record is true."""
    job = submit(slurm, sandbox, "touch ready; until test -e go; do sleep 0.1; done; exit 3")
    wait_ready(sandbox, "ready")
    inside(slurm, sandbox, "sh", "-c", "kill -9 $(ps -o ppid= %d)" % record_of(sandbox, job)["front"]["pid"])
    (sandbox.work / "go").touch()
    assert ended(sandbox, job) == (3, None, None)
    wait_for(lambda: sandbox.pids() == [], what="the end of every process")


def test_the_reaper_dies(slurm, sandbox):
    """The front goes on in its place, and Slurm does not notice."""
    job = submit(slurm, sandbox, "touch ready; until test -e go; do sleep 0.1; done; exit 3")
    wait_ready(sandbox, "ready")
    inside(slurm, sandbox, "kill", "-9", record_of(sandbox, job)["reaper"]["pid"])
    (sandbox.work / "go").touch()
    assert wait_state(slurm, job, "COMPLETED", "FAILED") == ("FAILED", "3:0")
    assert ended(sandbox, job) == (3, None, None)


def test_front_and_reaper_die(slurm, sandbox):
    """For Slurm the job has ended, by KILL, and what is left is nobody's; mxq-adopt takes it over."""
    job = submit(slurm, sandbox, "touch ready; until test -e go; do sleep 0.1; done; exit 3")
    wait_ready(sandbox, "ready")
    record = record_of(sandbox, job)
    # The other way round the front may begin to take over in between.
    inside(slurm, sandbox, "kill", "-9", record["front"]["pid"], record["reaper"]["pid"])
    assert wait_state(slurm, job, "COMPLETED", "FAILED") == ("FAILED", "0:9")
    assert record_of(sandbox, job) == record
    inside(slurm, sandbox, "mxq-adopt")
    (sandbox.work / "go").touch()
    # Since Linux 6.15 the status of a process can be had that is not one's child; before, nobody can know.
    assert ended(sandbox, job) in ((3, None, None), (None, None, "lost"))
    wait_for(lambda: sandbox.pids() == [], what="the end of every process")
    assert rows(slurm, sandbox)[job]["state"] in ("failed", "lost")


def test_time_limit(slurm, limited):
    """As scancel; the job of the fixture `limited` has had the time that the other tests took."""
    box, job = limited
    wait_state(slurm, job, "TIMEOUT", timeout_s=150)
    assert ended(box, job) == (None, 15, None)
    wait_for(lambda: box.pids() == [], what="the end of every process")
    assert rows(slurm, box)[job]["state"] == "failed"
