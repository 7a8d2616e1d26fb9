"""mxq-reap where callers are odd: descriptors, dispositions, masks, limits, groups; and what it keeps of theirs."""

import fcntl
import itertools
import os
import resource
import signal
import subprocess

import pytest

from tests.harness import processes
from tests.harness.reaping import CATCH, ended, nothing_was_started, outcome, received, running, spawn_ready
from tests.harness.sandbox import BIN, read_until, wait_for
from tests.harness.users import as_ordinary_user


def status_of_self(field):
    """A job that tells one field of its own status."""
    return ["sed", "-n", "s/^%s:[[:space:]]*//p" % field, "/proc/self/status"]


# ---- descriptors ----

CLOSED = [fds for count in (1, 2, 3) for fds in itertools.combinations((0, 1, 2), count)]


@pytest.mark.parametrize("closed", CLOSED, ids=str)
def test_closed_descriptors_become_dev_null(sandbox, closed):
    done = sandbox.run("mxq-reap", "sh", "-c", "for n in 0 1 2; do readlink /proc/$$/fd/$n; done >seen; exit 3",
                       preexec_fn=lambda: [os.close(fd) for fd in closed])
    assert done.returncode == 3
    seen = (sandbox.work / "seen").read_text().split()
    # 1 is the file itself.
    assert [seen[fd] == "/dev/null" for fd in (0, 2)] == [fd == 0 or fd in closed for fd in (0, 2)]
    assert outcome(sandbox.record()) == (3, None, None)
    assert sandbox.record()["argv"][0] == "sh"


def test_with_all_closed_an_error_is_written_into_nothing(sandbox):
    done = sandbox.run("mxq-reap", "no-such-command", preexec_fn=lambda: [os.close(fd) for fd in range(3)])
    assert done.returncode == 127
    assert sandbox.record()["reason"] == "exec"


def test_the_job_gets_no_descriptor_of_ours(sandbox):
    plain = sandbox.run("ls", "/proc/self/fd").stdout
    assert sandbox.run("mxq-reap", "ls", "/proc/self/fd").stdout == plain


def test_a_descriptor_of_the_caller_is_the_jobs_alone(sandbox):
    lock = os.open(sandbox.work / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.mkfifo(sandbox.work / "close")
    os.mkfifo(sandbox.work / "end")
    reap = spawn_ready(sandbox, "mxq-reap", "bash", "-c",
                       "echo ready; read x <close; eval \"exec $FD>&-\"; read x <end",
                       env={"FD": str(lock)}, pass_fds=[lock])
    os.close(lock)
    another = os.open(sandbox.work / "lock", os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)
    (sandbox.work / "close").write_text("\n")

    def is_free():
        try:
            fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False

    wait_for(is_free)
    assert reap.poll() is None
    (sandbox.work / "end").write_text("\n")
    assert reap.wait(20) == 0
    os.close(another)


def test_no_directory_of_the_caller_is_held(sandbox):
    reap = spawn_ready(sandbox, "mxq-reap", CATCH, "TERM")
    record = running(sandbox)
    where = {role: os.readlink("/proc/%d/cwd" % record[role]["pid"]) for role in ("front", "reaper", "main")}
    assert where == {"front": "/", "reaper": "/", "main": str(sandbox.work)}
    reap.terminate()
    assert reap.wait(20) == 7


def test_a_lock_is_free_when_mxq_reap_returns_whatever_was_left_behind(sandbox):
    lock = os.open(sandbox.work / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    done = sandbox.run("mxq-reap", "--grace", "0", "sh", "-c", "trap '' TERM; sleep 60 & setsid sleep 60 & exit 2",
                       pass_fds=[lock])
    assert done.returncode == 2
    os.close(lock)
    another = os.open(sandbox.work / "lock", os.O_RDWR)
    fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(another)


def test_an_output_that_the_job_closes_is_closed_at_once(sandbox):
    os.mkfifo(sandbox.work / "end")
    reap = sandbox.spawn("mxq-reap", "sh", "-c", "echo data; exec >&-; read x <end")
    assert reap.stdout.read() == "data\n"           # the end of it, while the job runs
    assert reap.poll() is None
    (sandbox.work / "end").write_text("\n")
    assert reap.wait(20) == 0


def test_an_input_that_the_job_closes_is_closed_at_once(sandbox):
    os.mkfifo(sandbox.work / "end")
    reap = spawn_ready(sandbox, "mxq-reap", "sh", "-c", "exec <&-; echo ready; read x <end", stdin=subprocess.PIPE,
                       text=False)
    with pytest.raises(BrokenPipeError):
        os.write(reap.stdin.fileno(), b"x")
    (sandbox.work / "end").write_text("\n")
    assert reap.wait(20) == 0


@pytest.mark.parametrize("line, status", [
    ("yes | mxq-reap head -n 1", "0"), ("mxq-reap yes | head -n 1; echo ${PIPESTATUS[0]}", "141"),
    ("mxq-reap sh -c 'yes | head -n 1'", "0")])
def test_a_pipe_whose_reader_has_gone_ends_its_writer(sandbox, line, status):
    done = sandbox.run("bash", "-c", line + "; echo $?")
    assert done.stdout.split()[0] == "y" and done.stdout.split()[1] == status
    assert done.stderr == ""


def test_a_warning_into_a_closed_pipe_is_not_the_jobs_death(sandbox):
    # The front's own SIGPIPE was passed on to the job.
    os.mkfifo(sandbox.work / "go")
    reap = spawn_ready(sandbox, "mxq-reap", "sh", "-c", "exec 2>/dev/null; echo ready; read x <go; exit 5")
    reap.stderr.close()
    os.kill(running(sandbox)["reaper"]["pid"], signal.SIGKILL)
    wait_for(lambda: sandbox.record()["reaper"]["pid"] == reap.pid)
    (sandbox.work / "go").write_text("\n")
    assert reap.wait(20) == 5
    assert outcome(sandbox.record()) == (5, None, None)


# ---- dispositions and masks ----

def test_a_caller_that_ignores_chld_loses_nothing(sandbox):
    done = sandbox.run("mxq-reap", "sh", "-c", "sh -c 'exit 9'; test $? = 9 && exit 6",
                       preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
    assert done.returncode == 6
    assert outcome(sandbox.record()) == (6, None, None)


def test_the_jobs_mask_is_empty_whatever_the_caller_blocked(sandbox):
    def block():
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())

    done = sandbox.run("mxq-reap", *status_of_self("SigBlk"), preexec_fn=block)
    assert int(done.stdout, 16) == 0
    reap = spawn_ready(sandbox, "mxq-reap", CATCH, "TERM", preexec_fn=block)
    reap.terminate()
    assert reap.wait(20) == 7


def test_what_the_caller_ignores_stays_ignored_but_chld_pipe_and_xfsz(sandbox):
    numbers = [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGTSTP]

    def ignore():
        for number in numbers + [signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ]:
            signal.signal(number, signal.SIG_IGN)

    done = sandbox.run("mxq-reap", *status_of_self("SigIgn"), preexec_fn=ignore)
    wanted = sum(1 << number - 1 for number in numbers)
    assert int(done.stdout, 16) == wanted | processes.ignored_mask((32, 33))


def test_nothing_is_ignored_or_caught_that_was_not(sandbox):
    plain = sandbox.run(*status_of_self("SigIgn"), restore_signals=True).stdout
    assert sandbox.run("mxq-reap", *status_of_self("SigIgn"), restore_signals=True).stdout == plain


def test_under_nohup_a_hangup_passes_by(sandbox):
    os.mkfifo(sandbox.work / "go")
    reap = sandbox.spawn("nohup", "mxq-reap", "sh", "-c", "echo ready; read x <go; exit 8")
    read_until(reap.stdout, b"ready\n")
    for _ in range(2):
        reap.send_signal(signal.SIGHUP)
        os.killpg(processes.group(running(sandbox)["main"]["pid"]), signal.SIGHUP)
    (sandbox.work / "go").write_text("\n")
    assert reap.wait(20) == 8
    assert outcome(sandbox.record()) == (8, None, None)


def test_an_alarm_set_before_the_exec_reaches_the_job(sandbox):
    reap = sandbox.run("mxq-reap", "sleep", "60", preexec_fn=lambda: signal.setitimer(signal.ITIMER_REAL, 0.3))
    assert reap.returncode == -signal.SIGALRM
    assert outcome(sandbox.record()) == (None, signal.SIGALRM, None)


def test_a_child_from_before_the_exec_is_none_of_ours(sandbox):
    done = sandbox.spawn("sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!; exec mxq-reap sh -c 'exit 4'")
    stranger = int(done.stdout.readline())
    assert done.wait(20) == 4
    assert processes.is_alive(stranger)
    assert sandbox.record()["leftovers"] == 0
    sandbox.kill_all()


def test_a_child_from_before_the_exec_is_none_of_ours_for_a_front_alone(sandbox):
    os.mkfifo(sandbox.work / "go")
    done = sandbox.spawn("sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!; "
                         "exec mxq-reap sh -c 'setsid sleep 61 & read x <go; exit 4'")
    stranger = int(done.stdout.readline())
    os.kill(running(sandbox)["reaper"]["pid"], signal.SIGKILL)
    wait_for(lambda: sandbox.record()["reaper"]["pid"] == done.pid)
    (sandbox.work / "go").write_text("\n")
    assert done.wait(20) == 4
    assert processes.is_alive(stranger)
    assert sandbox.record()["leftovers"] == 1
    sandbox.kill_all()


# ---- the environment ----

@pytest.mark.parametrize("locale", [{}, {"LC_ALL": "C"}, {"LANG": "C.UTF-8"}, {"LC_CTYPE": ""}, {"LC_ALL": "xx_XX"}])
def test_the_environment_is_the_callers_and_what_names_the_run(sandbox, locale):
    given = dict(locale, PATH=sandbox.env["PATH"], MXQ_DIR=str(sandbox.mxq_dir), ODD="\udcff\n\t", EMPTY="",
                 MXQ_TEST_SANDBOX=sandbox.token)
    sandbox.env = given
    plain = set(sandbox.run("env", "-0").stdout.split("\0"))
    inside = set(sandbox.run("mxq-reap", "env", "-0").stdout.split("\0"))
    assert plain - inside == set()
    assert {name.partition("=")[0] for name in inside - plain} == {"MXQ_RUN", "MXQ_THREADS"}


def test_as_cron_starts_it(sandbox):
    sandbox.env = {"HOME": str(sandbox.home), "LOGNAME": "tester", "SHELL": "/bin/sh", "PATH": "/usr/bin:/bin",
                   "MXQ_DIR": str(sandbox.mxq_dir), "MXQ_TEST_SANDBOX": sandbox.token}
    done = sandbox.run("/bin/sh", "-c", "%s/mxq-reap sh -c 'kill -TSTP 0; echo out; exit 5'" % BIN, new_session=True)
    # A stop signal of the job's own must not stop it for ever: there is nobody to let it go on.
    assert (done.returncode, done.stdout, done.stderr) == (5, "out\n", "")


# ---- limits ----

def limited(what, soft, hard=None):
    """A preexec_fn that sets a limit; the hard one stays when not given."""
    def limit():
        resource.setrlimit(what, (soft, resource.getrlimit(what)[1] if hard is None else hard))
    return limit


def is_limitless():
    """True when we may raise hard limits (CAP_SYS_RESOURCE)."""
    return int(processes.status("self", "CapEff"), 16) >> 24 & 1


@pytest.mark.parametrize("command, status", [("true", 0), ("no-such-command", 127), ("/etc/passwd", 126)])
def test_under_a_soft_file_size_limit_of_nothing(sandbox, command, status):
    done = sandbox.run("mxq-reap", command, preexec_fn=limited(resource.RLIMIT_FSIZE, 0))
    assert done.returncode == status
    assert sandbox.record()["exit"] == status


def test_the_file_size_limit_is_the_jobs(sandbox):
    done = sandbox.run("mxq-reap", "sh", "-c", "echo x >file", preexec_fn=limited(resource.RLIMIT_FSIZE, 0))
    assert done.returncode == -signal.SIGXFSZ
    assert outcome(sandbox.record()) == (None, signal.SIGXFSZ, None)


def test_under_a_hard_file_size_limit_nothing_is_started_that_could_not_be_recorded(sandbox):
    user = as_ordinary_user(sandbox)
    done = sandbox.run(*user, "mxq-reap", "touch", "ran", preexec_fn=limited(resource.RLIMIT_FSIZE, 0, 0))
    assert done.returncode == 125
    assert done.stderr.startswith("mxq-reap: error: cannot reserve room") and "File too large" in done.stderr
    assert nothing_was_started(sandbox)


def test_under_a_hard_file_size_limit_who_may_raise_it_does(sandbox):
    done = sandbox.run("mxq-reap", "sh", "-c", "ulimit -f", preexec_fn=limited(resource.RLIMIT_FSIZE, 0, 0))
    if is_limitless():
        assert (done.returncode, done.stdout) == (0, "0\n")
        assert outcome(sandbox.record()) == (0, None, None)
    else:
        assert done.returncode == 125
        assert nothing_was_started(sandbox)


def test_a_front_alone_writes_the_record_under_a_file_size_limit(sandbox):
    os.mkfifo(sandbox.work / "go")
    reap = spawn_ready(sandbox, "mxq-reap", "sh", "-c", "echo ready; read x <go; exit 4",
                       preexec_fn=limited(resource.RLIMIT_FSIZE, 0))
    os.kill(running(sandbox)["reaper"]["pid"], signal.SIGKILL)
    wait_for(lambda: sandbox.record()["reaper"]["pid"] == reap.pid)
    (sandbox.work / "go").write_text("\n")
    assert reap.wait(20) == 4
    assert outcome(sandbox.record()) == (4, None, None)


@pytest.mark.parametrize("hard", [None, 16])
def test_with_sixteen_descriptors(sandbox, hard):
    reap = spawn_ready(sandbox, "mxq-reap", "sh", "-c", "ulimit -n; exec %s TERM" % CATCH,
                       preexec_fn=limited(resource.RLIMIT_NOFILE, 16, hard))
    reap.terminate()
    assert reap.wait(20) == 7
    assert received(sandbox.record()) == ["front TERM"]


@pytest.mark.parametrize("count", range(5, 16))
def test_with_too_few_descriptors_it_works_or_starts_nothing(sandbox, count):
    done = sandbox.run("mxq-reap", "touch", "ran", preexec_fn=limited(resource.RLIMIT_NOFILE, count, count))
    if done.returncode == 0:
        assert outcome(sandbox.record()) == (0, None, None)
    else:
        assert done.returncode == 125
        assert "Too many open files" in done.stderr and done.stderr.count("\n") == 1
        assert nothing_was_started(sandbox)


@pytest.mark.parametrize("count", range(1, 5))
def test_with_too_few_processes_it_works_or_starts_nothing(sandbox, count):
    user = as_ordinary_user(sandbox)
    if not user:
        pytest.skip("machine cannot: other processes of this user count as well")
    code = "import os, resource; resource.setrlimit(resource.RLIMIT_NPROC, (%d, %d)); os.execvp('mxq-reap', %r)"
    done = sandbox.run(*user, "/usr/bin/python3", "-c", code % (count, count, ["mxq-reap", "true"]))
    if done.returncode == 0:
        assert count >= 3
        assert outcome(sandbox.record()) == (0, None, None)
    else:
        assert count < 3, "front, reaper and MAIN are three"
        assert done.returncode == 125
        assert "Resource temporarily unavailable" in done.stderr and done.stderr.count("\n") == 1
        assert nothing_was_started(sandbox)


# ---- the process group ----

def test_kill_of_the_whole_group_takes_the_job_and_not_the_reaper(sandbox):
    reap = spawn_ready(sandbox, "mxq-reap", "sh", "-c", "echo ready; sleep 60")
    main = running(sandbox)["main"]["pid"]
    assert processes.group(main) == reap.pid
    wait_for(lambda: processes.group(reap.pid) != reap.pid)
    os.killpg(reap.pid, signal.SIGKILL)
    assert reap.wait(20) == -signal.SIGKILL
    assert outcome(ended(sandbox)) == (None, signal.SIGKILL, None)


def test_kill_of_the_whole_group_where_the_front_leads_the_session(sandbox):
    # The front cannot leave and dies too; the reaper tells how it ended.
    reap = spawn_ready(sandbox, "mxq-reap", "sh", "-c", "echo ready; sleep 60", new_session=True)
    record = running(sandbox)
    os.killpg(reap.pid, signal.SIGKILL)
    assert reap.wait(20) == -signal.SIGKILL
    record = ended(sandbox)
    assert outcome(record) == (None, signal.SIGKILL, None)
    assert record["adopted"] is False


def test_a_term_to_the_whole_group_reaches_the_job_once(sandbox):
    reap = spawn_ready(sandbox, "mxq-reap", CATCH, "HUP", "TERM")
    for _ in range(3):
        os.killpg(reap.pid, signal.SIGHUP)
        read_until(reap.stdout, b"got HUP\n")
    os.killpg(reap.pid, signal.SIGTERM)
    assert reap.stdout.read() == "got TERM\n"
    assert reap.wait(20) == 7
    assert received(sandbox.record()) == []


# ---- places ----

def test_a_current_directory_that_is_gone(sandbox):
    (sandbox.work / "gone").mkdir()
    done = sandbox.run("sh", "-c", "cd gone && rmdir ../gone && exec mxq-reap touch ran")
    assert done.returncode == 125
    assert done.stderr.startswith("mxq-reap: error: the current directory is gone (use -w)")
    assert nothing_was_started(sandbox)
    done = sandbox.run("sh", "-c", "mkdir gone; cd gone && rmdir ../gone && exec mxq-reap -w / pwd")
    assert (done.returncode, done.stdout) == (0, "/\n")


def test_the_spool_is_private_whatever_the_umask(sandbox):
    for umask in (0, 0o777):
        sandbox.run("mxq-reap", "sh", "-c", "umask >&2; :", preexec_fn=lambda mask=umask: os.umask(mask), check=True)
    for folder in (sandbox.mxq_dir, sandbox.spool, sandbox.runs, sandbox.spool / "output", sandbox.spool / "corrupt"):
        assert folder.stat().st_mode & 0o7777 == 0o700
    assert {file.stat().st_mode & 0o7777 for file in sandbox.runs.iterdir()} == {0o600}
    assert [record["umask"] for record in sandbox.records()] == [0, 0o777]


def test_another_python_environment_changes_nothing(sandbox):
    (sandbox.work / "os.py").write_text("raise SystemExit(99)\n")
    done = sandbox.run("mxq-reap", "sh", "-c", "echo $PYTHONHOME",
                       env={"PYTHONPATH": sandbox.work, "PYTHONHOME": "/no"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "/no\n", "")
