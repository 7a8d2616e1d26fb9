"""mxq-run: what fits is started once, nothing is overbooked, and the jobs do not depend on it."""

import json
import os
import resource
import signal
import sys

import pytest

from tests.harness.processes import children, is_alive
from tests.harness.terminal import Terminal
from tests.harness.users import as_ordinary_user


def submit(sandbox, *words, **kw):
    """The number of the job."""
    return int(sandbox.run("mxq-sub", *words, check=True, **kw).stdout)


def rows(sandbox, sql):
    """What the queue answers, as tuples."""
    return [tuple(row) for row in sandbox.queue(sql)]


def states(sandbox):
    """State of each job by number, from the queue."""
    return dict(rows(sandbox, "SELECT job, state FROM job"))


def collect(sandbox):
    """What mxq-collect leaves in the queue."""
    sandbox.run("mxq-collect", check=True)
    return states(sandbox)


def is_over(sandbox):
    """True when no record says that something runs."""
    return all(record["state"] == "ended" for record in sandbox.records())


def test_nothing_to_do(sandbox):
    done = sandbox.run("mxq-run")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not os.path.exists(os.path.join(str(sandbox.mxq_dir), "queue.db"))


def test_wait_runs_and_collects_all(sandbox):
    numbers = [submit(sandbox, "sh", "-c", "exit %d" % n) for n in range(3)]
    done = sandbox.run("mxq-run", "--wait")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert states(sandbox) == dict(zip(numbers, ("finished", "failed", "failed")))
    assert sandbox.records() == []
    assert os.listdir(os.path.join(str(sandbox.mxq_dir), "runners")) == []


def test_a_reaper_carries_nothing_over_to_its_next_run(sandbox):
    submit(sandbox, "sh", "-c", "head -c 200000000 /dev/zero | sha256sum")
    for _ in range(2):
        submit(sandbox, "sh", "-c", "ulimit -S -n; ulimit -S -s")
    sandbox.run("sh", "-c", "ulimit -S -n 250; ulimit -S -s 4000; exec mxq-run -j 1 --wait", check=True)
    first, *later = [json.loads(line) for line, in rows(sandbox, "SELECT record FROM run ORDER BY job")]
    assert first["rusage"]["utime"] > 0.05
    for record in later:
        assert record["reaper"] == first["reaper"]
        with open(record["stdout"], encoding="ascii") as output:
            assert output.read() == "250\n4000\n"
        child, = record["children"]
        assert {name: record["rusage"][name] for name in ("utime", "stime", "maxrss")} == {
            "utime": round(child["utime"], 6), "stime": round(child["stime"], 6), "maxrss": child["maxrss"]}


def test_without_wait_it_leaves_and_the_jobs_go_on(sandbox):
    gate = os.path.join(sandbox.home, "gate")
    os.mkfifo(gate)
    number = submit(sandbox, "sh", "-c", "read line < gate; echo $line", cwd=sandbox.home)
    done = sandbox.run("mxq-run", check=True)
    assert (done.stdout, done.stderr) == ("", "")
    record, = sandbox.records()
    assert (record["state"], record["run"], record["job"], record["front"]) == (
        "running", "%d.1" % number, number, None)
    with open(gate, "w", encoding="ascii") as fifo:
        fifo.write("hello\n")
    sandbox.wait_for(lambda: is_over(sandbox))
    assert collect(sandbox) == {number: "finished"}
    with open(os.path.join(str(sandbox.mxq_dir), "spool", "output", "%d.1.log" % number), encoding="ascii") as output:
        assert output.read() == "hello\n"


def test_the_job_is_as_it_was_submitted(sandbox):
    folder = os.path.join(sandbox.home, "with blank")
    os.mkdir(folder)
    code = "import os, sys, json; json.dump([os.getcwd(), os.umask(0), os.environ.get('COLOUR'), " \
           "os.environ['MXQ_RUN'], os.environ['MXQ_JOBID'], os.environ['MXQ_THREADS'], " \
           "os.environ.get('MXQ_MEMORY'), os.environ.get('MXQ_TIME'), " \
           "sorted(os.sched_getaffinity(0)), os.getpgrp() == os.getpid(), sys.stdin.read()], sys.stdout)"
    number = submit(sandbox, "-u", "027", "-o", "out-%j-%a", "-m", "100", "-t", "2h", "--", sys.executable, "-c", code,
                    cwd=folder, env={"COLOUR": "red"})
    sandbox.run("mxq-run", "--wait", check=True, env={"COLOUR": "blue"}, cwd="/")
    with open(os.path.join(folder, "out-%d-1" % number), encoding="utf-8") as output:
        found = json.load(output)
    assert found == [folder, 0o027, "red", "%d.1" % number, str(number), "1", "100", "120",
                     [min(os.sched_getaffinity(0))], True, ""]
    assert os.stat(output.name).st_mode & 0o777 == 0o640


def test_a_job_that_cannot_be_executed_has_failed(sandbox):
    number = submit(sandbox, "--", "no-such-command")
    sandbox.run("mxq-run", "--wait", check=True)
    assert rows(sandbox, "SELECT job, state, status, reason FROM run") == [(number, "failed", 127 << 8, "exec")]


def test_the_directory_is_gone_when_the_job_starts(sandbox):
    folder = os.path.join(sandbox.home, "gone")
    os.mkdir(folder)
    submit(sandbox, "true", cwd=folder)
    os.rmdir(folder)
    sandbox.run("mxq-run", "--wait", check=True)
    assert rows(sandbox, "SELECT state, status, reason FROM run") == [("failed", 125 << 8, "exec")]


def test_priority_then_group_then_age(sandbox):
    plan = [("low", 1, "a"), ("old", 5, "a"), ("a2", 5, "a"), ("b1", 5, "b"), ("high", 9, "a")]
    for name, priority, group in plan:
        submit(sandbox, "-p", str(priority), "-g", group, "-N", name, "true")
    sandbox.run("mxq-run", "-j", "1", "--wait", check=True)
    started = [name for name, in rows(sandbox, "SELECT name FROM run JOIN job USING (job) ORDER BY date_start")]
    assert started == ["high", "old", "a2", "b1", "low"]


def test_the_group_with_fewest_threads_comes_next(sandbox):
    for name, group in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        submit(sandbox, "-g", group, "-N", name, "sleep", "1000")
    sandbox.run("mxq-run", "-j", "2", check=True)
    assert sorted(record["name"] for record in sandbox.records()) == ["a1", "b1"]
    end_all(sandbox)


def end_all(sandbox):
    """USR2 to every reaper, and wait for the outcomes."""
    for record in sandbox.records():
        if record["state"] == "running":
            os.kill(record["reaper"]["pid"], signal.SIGUSR2)
    sandbox.wait_for(lambda: is_over(sandbox))
    sandbox.wait_for(lambda: not any(is_alive(record["reaper"]["pid"]) for record in sandbox.records()))


def test_a_smaller_job_passes_one_that_does_not_fit(sandbox):
    submit(sandbox, "-N", "first", "-j", "2", "sleep", "1000")
    submit(sandbox, "-N", "large", "-j", "2", "sleep", "1000")
    submit(sandbox, "-N", "small", "-j", "1", "sleep", "1000")
    sandbox.run("mxq-run", "-j", "3", check=True)
    assert sorted(record["name"] for record in sandbox.records()) == ["first", "small"]
    sandbox.run("mxq-run", "-j", "3", check=True)
    assert len(sandbox.records()) == 2, "nothing more fits"
    end_all(sandbox)


def test_memory_and_number_of_jobs_are_limits_too(sandbox):
    for _ in range(3):
        submit(sandbox, "-m", "100M", "sleep", "1000")
    sandbox.run("mxq-run", "-j", "9", "-m", "250M", check=True)
    assert len(sandbox.records()) == 2
    sandbox.run("mxq-run", "-j", "9", "--max", "2", check=True)
    assert len(sandbox.records()) == 2
    sandbox.run("mxq-run", "-j", "9", "--max", "3", check=True)
    assert len(sandbox.records()) == 3
    end_all(sandbox)


def test_wrapper_runs_occupy_too(sandbox):
    sandbox.run("mxq-reap", "-b", "-j", "2", "sleep", "1000", check=True)
    submit(sandbox, "true")
    sandbox.run("mxq-run", "-j", "2", check=True)
    assert len(sandbox.records()) == 1
    sandbox.run("mxq-run", "-j", "3", check=True)
    assert len(sandbox.records()) == 2
    end_all(sandbox)


def test_less_capacity_than_what_runs(sandbox):
    submit(sandbox, "-j", "2", "sleep", "1000")
    submit(sandbox, "true")
    sandbox.run("mxq-run", "-j", "2", check=True)
    done = sandbox.run("mxq-run", "-j", "1", "-m", "1")
    assert done.returncode == 0
    assert len(sandbox.records()) == 1
    end_all(sandbox)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="machine cannot: one CPU")
def test_each_job_has_cpus_of_its_own(sandbox):
    ours = sorted(os.sched_getaffinity(0))[:2]
    for _ in range(2):
        submit(sandbox, "sleep", "1000")
    sandbox.run("mxq-run", "-j", "2", check=True)
    records = sandbox.records()
    assert sorted(record["cpus"] for record in records) == [[cpu] for cpu in ours]
    for record in records:
        assert sorted(os.sched_getaffinity(record["main"]["pid"])) == record["cpus"]
    end_all(sandbox)


def test_a_job_that_can_never_fit_is_told(sandbox):
    number = submit(sandbox, "-j", "500", "true")
    done = sandbox.run("mxq-run", "-j", "2")
    assert done.returncode == 0
    assert "job %d can never be started here: it needs 500 threads, of 2 here (-j)" % number in done.stderr
    done = sandbox.run("mxq-run", "-j", "2", "--wait")
    assert done.returncode == 69
    assert states(sandbox) == {number: "queued"}


def test_a_drain_file_keeps_jobs_from_being_started(sandbox):
    number = submit(sandbox, "true")
    sandbox.run("mxq-collect", check=True)
    drain = os.path.join(str(sandbox.mxq_dir), "spool", "drain")
    with open(drain, "w", encoding="utf-8") as file:
        file.write("disk is being changed\n")
    assert sandbox.run("mxq-run").returncode == 0
    done = sandbox.run("mxq-run", "--wait")
    assert done.returncode == 75
    assert "disk is being changed" in done.stderr
    assert states(sandbox) == {number: "queued"}
    os.unlink(drain)
    sandbox.run("mxq-run", "--wait", check=True)
    assert states(sandbox) == {number: "finished"}


def test_several_at_once_claim_each_job_once(sandbox):
    count, log = 40, os.path.join(sandbox.home, "ran")
    commands = "".join("echo %d >> ran\n" % n for n in range(count))
    sandbox.run("mxq-sub", "-f", "-", input=commands, cwd=sandbox.home, check=True)
    runs = [sandbox.spawn("mxq-run", "-j", "2", "--wait") for _ in range(3)]
    assert [run.wait(timeout=60) for run in runs] == [0, 0, 0]
    collect(sandbox)
    with open(log, encoding="ascii") as ran:
        assert sorted(map(int, ran)) == list(range(count))
    assert set(states(sandbox).values()) == {"finished"}
    assert rows(sandbox, "SELECT count(*), max(attempt) FROM run") == [(count, 1)]
    spans = rows(sandbox, "SELECT date_start, date_end FROM run")
    for start, _ in spans:
        assert sum(other <= start < end for other, end in spans) <= 2, "overbooked"


def start_waiting(sandbox, *words):
    """A started mxq-run --wait whose one job says that it is ready."""
    submit(sandbox, "sh", "-c", *words, cwd=sandbox.home)
    run = sandbox.spawn("mxq-run", "--wait", "--grace", "1s")
    sandbox.wait_for(lambda: os.path.exists(os.path.join(sandbox.home, "ready")))
    return run


def test_term_drains(sandbox):
    run = start_waiting(sandbox, "touch ready; until test -e go; do sleep 0.05; done")
    second = submit(sandbox, "true")
    run.send_signal(signal.SIGTERM)
    with open(os.path.join(sandbox.home, "go"), "w", encoding="ascii"):
        pass
    assert run.wait(timeout=20) == 0
    assert states(sandbox) == {1: "finished", second: "queued"}


@pytest.mark.parametrize("first", [None, signal.SIGTERM])
def test_int_kills(sandbox, first):
    run = start_waiting(sandbox, "trap '' TERM; touch ready; while :; do sleep 0.05; done")
    if first:
        run.send_signal(first)
    run.send_signal(signal.SIGINT)
    assert run.wait(timeout=20) == 0
    assert rows(sandbox, "SELECT state, status, reason FROM run") == [("killed", 9, "kill")]


@pytest.mark.parametrize("first", [None, signal.SIGTERM])
def test_quit_leaves_and_the_jobs_go_on(sandbox, first):
    run = start_waiting(sandbox, "touch ready; until test -e go; do sleep 0.05; done; exit 3")
    if first:
        run.send_signal(first)
    run.send_signal(signal.SIGQUIT)
    assert run.wait(timeout=20) == 75
    assert sandbox.record()["state"] == "running"
    with open(os.path.join(sandbox.home, "go"), "w", encoding="ascii"):
        pass
    sandbox.wait_for(lambda: is_over(sandbox))
    assert collect(sandbox) == {1: "failed"}


def test_killed_mxq_run_loses_nothing(sandbox):
    run = start_waiting(sandbox, "touch ready; until test -e go; do sleep 0.05; done; exit 3")
    run.kill()
    run.wait()
    with open(os.path.join(sandbox.home, "go"), "w", encoding="ascii"):
        pass
    sandbox.wait_for(lambda: is_over(sandbox))
    assert collect(sandbox) == {1: "failed"}


def test_a_killed_reaper_loses_nothing_while_mxq_run_waits(sandbox):
    run = start_waiting(sandbox, "touch ready; until test -e go; do sleep 0.05; done; exit 3")
    os.kill(sandbox.record()["reaper"]["pid"], signal.SIGKILL)
    with open(os.path.join(sandbox.home, "go"), "w", encoding="ascii"):
        pass
    assert run.wait(timeout=30) == 0
    assert rows(sandbox, "SELECT state, status FROM run") == [("failed", 3 << 8)]


def test_a_reaper_that_is_killed_while_it_waits_is_passed_over(sandbox):
    first = start_waiting(sandbox, "touch ready; until test -e go; do sleep 0.05; done")
    busy = sandbox.record()["reaper"]["pid"]
    for pid in [pid for pid in children(first.pid) if pid != busy]:
        os.kill(pid, signal.SIGKILL)
    number = submit(sandbox, "true")
    with open(os.path.join(sandbox.home, "go"), "w", encoding="ascii"):
        pass
    assert first.wait(timeout=20) == 0
    assert states(sandbox) == {1: "finished", number: "finished"}
    assert sandbox.queue("SELECT max(attempt) FROM run")[0][0] == 1


def test_dependent_jobs_and_retries_are_waited_for(sandbox):
    first = submit(sandbox, "--retries", "1", "sh", "-c", "test -e again || { touch again; exit 1; }", cwd=sandbox.home)
    second = submit(sandbox, "--after", str(first), "true")
    sandbox.run("mxq-run", "--wait", check=True)
    assert states(sandbox) == {first: "finished", second: "finished"}
    assert rows(sandbox, "SELECT run, state FROM run ORDER BY run") == [
        ("1.1", "failed"), ("1.2", "finished"), ("2.1", "finished")]


def test_what_is_owed_is_delivered_before_it_returns(sandbox):
    log = os.path.join(sandbox.home, "log")
    submit(sandbox, "--mail", "somebody@example.org", "--log", log, "false")
    sandbox.run("mxq-run", "--wait", check=True)
    assert len(sandbox.mails()) == 1
    with open(log, encoding="utf-8") as events:
        assert [line[:3] for line in events if line[:3] in ("000", "001", "005")] == ["000", "001", "005"]


def test_a_mailer_that_hangs_delays_no_job(sandbox):
    submit(sandbox, "--mail", "somebody@example.org", "false")
    submit(sandbox, "touch", os.path.join(sandbox.home, "done"))
    run = sandbox.spawn("mxq-run", "-j", "1", "--wait", env={"MXQ_SENDMAIL": "exec sleep 1000"})
    sandbox.wait_for(lambda: set(states(sandbox).values()) == {"failed", "finished"})
    run.send_signal(signal.SIGQUIT)
    assert run.wait(timeout=20) == 0
    sandbox.kill_all()


@pytest.mark.skipif(os.geteuid() != 0, reason="machine cannot: only root mounts")
def test_a_full_spool_starts_nothing_and_loses_nothing(sandbox):
    """The reaper finds no room: the claim is given back, and comes again when there is."""
    number = submit(sandbox, "true")
    sandbox.run("mxq-collect", check=True)
    runs = os.path.join(str(sandbox.mxq_dir), "spool", "runs")
    script = 'mount -t tmpfs -o size=64k,mode=700 tmpfs "$1" || exit 99; mxq-run; echo $?; rm -f "$1"/.[0-9]*; ' \
             'umount "$1"; mxq-run --wait; echo $?'
    done = sandbox.run("unshare", "-m", "sh", "-c", script, "sh", runs)
    assert done.stdout.split() == ["74", "0"], done.stderr
    assert "%d.1: not started, its job waits again: cannot reserve room" % number in done.stderr
    assert states(sandbox) == {number: "finished"}
    assert os.listdir(os.path.join(str(sandbox.mxq_dir), "runners")) == []


@pytest.mark.parametrize("count", range(6, 16))
def test_with_too_few_descriptors_each_job_runs_or_waits_again(sandbox, count):
    for _ in range(3):
        submit(sandbox, "true")
    done = sandbox.run("mxq-run", "-j", "3", preexec_fn=limited(resource.RLIMIT_NOFILE, count))
    each_ran_or_waits(sandbox, done, [])


@pytest.mark.parametrize("count", range(2, 8))
def test_with_too_few_processes_each_job_runs_or_waits_again(sandbox, count):
    user = as_ordinary_user(sandbox)
    if not user:
        pytest.skip("machine cannot: other processes of this user count as well")
    for _ in range(3):
        sandbox.run(*user, "mxq-sub", "true", check=True)
    code = "import os, resource; resource.setrlimit(resource.RLIMIT_NPROC, (%d, %d)); os.execvp('mxq-run', %r)"
    done = sandbox.run(*user, "/usr/bin/python3", "-c", code % (count, count, ["mxq-run", "-j", "3"]))
    each_ran_or_waits(sandbox, done, user)


def limited(what, count):
    """A preexec_fn that sets a limit."""
    return lambda: resource.setrlimit(what, (count, count))


def each_ran_or_waits(sandbox, done, user):
    """Nothing is left loaded; who could not start all says so and ends with 69 or 74."""
    sandbox.wait_for(lambda: not sandbox.pids())
    sandbox.run(*user, "mxq-collect", check=True)
    found = set(states(sandbox).values())
    assert found <= {"finished", "queued"}, done.stderr
    assert (done.returncode == 0) == (found == {"finished"}), (done.returncode, done.stderr)
    assert done.returncode in (0, 69, 74) and "Traceback" not in done.stderr
    assert os.listdir(os.path.join(str(sandbox.mxq_dir), "runners")) == []


def test_inside_a_job_it_warns_that_its_jobs_are_part_of_that(sandbox):
    submit(sandbox, "sleep", "60")
    done = sandbox.run("mxq-reap", "mxq-run", check=True)
    assert done.stderr == "mxq-run: warning: run inside a job: what is started here ends with it\n"


def test_records_for_the_output_of_mxq_collect_wait_for_one(sandbox):
    submit(sandbox, "--record", "-", "true")
    done = sandbox.run("mxq-run", "--wait", check=True)
    assert done.stdout == "" and rows(sandbox, "SELECT state FROM delivery") == [("owed",)]
    assert json.loads(sandbox.run("mxq-collect", check=True).stdout)["state"] == "ended"
    assert rows(sandbox, "SELECT state FROM delivery") == [("done",)]


@pytest.mark.parametrize("harm", ["echo x >%s", "rm %s"])
@pytest.mark.parametrize("collected", [False, True], ids=["loaded", "running"])
def test_a_run_whose_record_was_damaged_or_removed_keeps_its_place(sandbox, harm, collected):
    submit(sandbox, "sleep", "60")
    submit(sandbox, "true")
    sandbox.run("mxq-run", "-j", "1", check=True)
    if collected:
        collect(sandbox)
    sandbox.run("sh", "-c", harm % (sandbox.runs / "1.1.json"), check=True)
    assert sandbox.run("mxq-run", "-j", "1", check=True).stderr == ""
    assert states(sandbox)[2] == "queued"
    sandbox.kill_all()


def test_two_queues_that_share_a_spool_lose_no_outcome(sandbox):
    """Both number from 1: the later run of a number is not started, rather than to replace the record of the first."""
    spool, dirs = str(sandbox.path / "shared"), [str(sandbox.path / name) for name in ("one", "two")]
    for where, status in zip(dirs, ("3", "4")):
        env = {"MXQ_DIR": where, "MXQ_SPOOL": spool}
        sandbox.run("mxq-sub", "--", "sh", "-c", "exit " + status, env=env, check=True)
    for where in dirs:
        done = sandbox.run("mxq-run", env={"MXQ_DIR": where, "MXQ_SPOOL": spool})
        sandbox.wait_for(lambda: not sandbox.pids())
    assert done.returncode == 74
    assert "runs/1.1.json is there already; do two queues share this spool?" in done.stderr
    listed = [json.loads(sandbox.run("mxq-ls", "--json", env={"MXQ_DIR": where, "MXQ_SPOOL": str(sandbox.path / "no")},
                                     check=True).stdout)["state"] for where in dirs]
    assert listed == ["loaded", "queued"]
    sandbox.run("mxq-collect", env={"MXQ_DIR": dirs[0], "MXQ_SPOOL": spool}, check=True)
    assert json.loads(sandbox.run("mxq-ls", "--json", env={"MXQ_DIR": dirs[0]}, check=True).stdout)["exit"] == 3


def test_what_another_ran_is_tried_again(sandbox):
    submit(sandbox, "--retries", "1", "--", "sh", "-c", 'test "$MXQ_RUN" = 1.2')
    sandbox.run("mxq-run", check=True)
    sandbox.wait_for(lambda: not sandbox.pids())
    sandbox.run("mxq-run", "--wait", check=True)
    assert states(sandbox) == {1: "finished"}


def test_a_message_on_a_terminal_does_not_follow_the_line_of_progress(sandbox):
    submit(sandbox, "-j", "2", "true")
    submit(sandbox, "sleep", "0.2")
    run = Terminal(sandbox, "mxq-run", "-j", "1", "--wait")
    before = run.expect("mxq-run: warning: job 1 can never be started here")
    assert "waiting" in before and before.rpartition("\r")[2] == "mxq-run: warning: job 1 can never be started here"
    assert run.process.wait(20) == 69


def test_bad_options(sandbox):
    for words in (["-j", "0"], ["-j", "-1"], ["-m", "x"], ["--max", "99999999999999999999"], ["operand"], ["--nope"]):
        done = sandbox.run("mxq-run", *words)
        assert done.returncode == 64, words
        assert done.stderr.count("\n") == 1
