"""child: what waitid shows, the gate, the exec, sessions and groups, descriptors, the end."""

import os
import signal
import sys

import pytest

from tests.harness.sandbox import TREE
from tests.harness.snippet import run_snippet

# ---- wait ----


def test_a_child_is_seen_before_it_is_reaped_and_its_usage_is_there_after(sandbox):
    done = run_snippet(sandbox, """
        from mxqlib import child
        pid = child.fork()
        if pid == 0:
            os._exit(7)
        while child.look() is None:
            pass
        seen = child.look(), child.look_at(pid)
        print(seen[0].pid == pid, seen[0].status, seen[1], child.reap(pid).ru_maxrss > 0)
        try:
            child.look()
        except ChildProcessError:
            print("none left")
        """)
    assert done.stdout == "True 1792 1792 True\nnone left\n"


def test_stopping_and_going_on_are_each_seen_once(sandbox):
    done = run_snippet(sandbox, """
        from mxqlib import child, signals
        pid = child.fork()
        if pid == 0:
            while True:
                os.kill(os.getpid(), signals.STOP)
        def next_change():
            while True:
                change = child.look()
                if change is not None:
                    return change.status, change.stopped
        print(next_change(), child.look())
        os.kill(pid, signals.CONT)
        print(next_change() in ((None, False), (None, True)))
        os.kill(pid, signals.KILL)
        while child.look_at(pid) is None:
            pass
        print(child.look().status)
        """)
    assert done.stdout == "(None, True) None\nTrue\n9\n"


def test_a_child_that_goes_on_between_look_and_take_is_not_called_stopped(sandbox):
    # Called stopped, it would leave the front stopped for ever, and with it the shell that waits for the front.
    done = run_snippet(sandbox, """
        from mxqlib import child, signals
        pid = child.fork()
        if pid == 0:
            os.kill(os.getpid(), signals.STOP)
            while True:
                signals.wait([])
        waitid = os.waitid
        def waitid_late(kind, which, options):
            found = waitid(kind, which, options)
            if found is not None and options & os.WNOWAIT and found.si_code == os.CLD_STOPPED:
                os.kill(pid, signals.CONT)
            return found
        os.waitid = waitid_late
        changes = []
        while not changes:
            change = child.look()
            if change is not None:
                changes.append(change.stopped)
        print(changes)
        os.kill(pid, signals.KILL)
        """)
    assert done.stdout == "[False]\n"


@pytest.mark.parametrize("how, raw", [("os._exit(0)", 0), ("os._exit(255)", 255 << 8), ("os.kill(os.getpid(), 9)", 9),
                                      ("os.kill(os.getpid(), 64)", 64)])
def test_the_raw_status_is_that_of_wait(sandbox, how, raw):
    done = run_snippet(sandbox, """
        from mxqlib import child
        pid = child.fork()
        if pid == 0:
            %s
        while child.look_at(pid) is None:
            pass
        print(child.look_at(pid), os.waitpid(pid, 0)[1])
        """ % how)
    assert done.stdout == "%d %d\n" % (raw, raw)


# ---- the job's process ----

BECOME = """
    from mxqlib import child
    launch = child.Launch(sys.argv[2:], dict(os.environb), os.getcwd(), 0o022)
    {setting}
    report = os.memfd_create("report")
    outside, gate = os.pipe()
    pid = child.fork()
    if pid == 0:
        os.close(gate)
        child.become(launch, outside, report)
    if sys.argv[1] == "open":
        os.write(gate, b"x")
    os.close(gate)
    status = os.waitpid(pid, 0)[1]
    print(status, child.read_report(report), file=sys.stderr)
    """


def become(sandbox, *argv, gate="open", setting="", **kw):
    return run_snippet(sandbox, BECOME.format(setting=setting), gate, *argv, **kw)


def test_a_gate_that_closes_lets_nothing_run(sandbox):
    done = become(sandbox, "touch", "ran", gate="close")
    assert done.stderr == "%d ('G', None)\n" % (125 << 8)
    assert not (sandbox.work / "ran").exists()
    become(sandbox, "touch", "ran")
    assert (sandbox.work / "ran").exists()


@pytest.mark.parametrize("argv, status, text", [
    (["no-such-command"], 127, "cannot execute no-such-command: No such file or directory"),
    ([""], 127, "cannot execute : No such file or directory"),
    (["./no-such-command"], 127, "cannot execute ./no-such-command: No such file or directory"),
    (["./plain/x"], 126, "cannot execute ./plain/x: Not a directory"),
    (["./plain"], 126, "cannot execute ./plain: Permission denied"),
    (["/"], 126, "cannot execute /: Permission denied"),
    (["./loop"], 126, "cannot execute ./loop: Too many levels of symbolic links"),
    (["./dead-interpreter"], 127, "cannot execute ./dead-interpreter: No such file or directory"),
])
def test_what_cannot_be_executed_is_told_with_126_or_127(sandbox, argv, status, text):
    (sandbox.work / "plain").write_text("plain")
    (sandbox.work / "loop").symlink_to("loop")
    dead = sandbox.work / "dead-interpreter"
    dead.write_text("#!/no/such/interpreter\n")
    dead.chmod(0o755)
    assert become(sandbox, *argv).stderr == "%d (%d, %r)\n" % (status << 8, status, text)


def test_a_command_that_is_found_but_forbidden_counts_more_than_one_that_is_not_found(sandbox):
    for folder, mode in (("first", 0o644), ("second", None)):
        (sandbox.work / folder).mkdir()
        if mode:
            (sandbox.work / folder / "tool").write_text("")
    path = "%s/first:%s/second" % (sandbox.work, sandbox.work)
    assert "(126, 'cannot execute tool: Permission denied')" in become(sandbox, "tool", env={"PATH": path}).stderr
    good = sandbox.work / "second" / "tool"
    good.write_text("#!/bin/sh\necho second\n")
    good.chmod(0o755)
    assert become(sandbox, "tool", env={"PATH": path}).stdout == "second\n"


def test_a_script_without_an_interpreter_line_is_run_by_the_shell(sandbox):
    script = sandbox.work / "script"
    script.write_text('echo "$0 $1"\n')
    script.chmod(0o755)
    assert become(sandbox, "./script", "a b").stdout == "./script a b\n"


def test_an_empty_name_in_path_is_the_current_directory(sandbox):
    (sandbox.work / "here").write_text("#!/bin/sh\necho here\n")
    (sandbox.work / "here").chmod(0o755)
    assert become(sandbox, "here", env={"PATH": "/no/such:"}).stdout == "here\n"


@pytest.mark.parametrize("setting, text", [
    ("launch.cwd = '/no/such'", "cannot change to directory /no/such: No such file or directory"),
    ("launch.stdin = '/no/such'", "cannot open /no/such: No such file or directory"),
    ("launch.stdout = '/no/such/out'", "cannot open /no/such/out: No such file or directory"),
    ("launch.stderr = '/'", "cannot open /: Is a directory"),
    ("launch.cpus = [65535]", "cannot run on CPUs 65535: Invalid argument"),
])
def test_a_surrounding_that_cannot_be_had_is_told_with_125(sandbox, setting, text):
    done = become(sandbox, "touch", "ran", setting=setting)
    assert done.stderr == "%d (125, %r)\n" % (125 << 8, text)
    assert not (sandbox.work / "ran").exists()


def test_a_failed_exec_is_told_under_a_file_size_limit_too(sandbox):
    # The report is a file: with the job's own limit on, XFSZ would have ended the process in the place of 127.
    done = become(sandbox, "no-such-command", setting="""
    import resource
    launch.limits = {resource.RLIMIT_FSIZE: (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1])}""")
    assert done.stderr.startswith("%d (127, " % (127 << 8))


def test_limits_are_raised_for_us_and_given_back_to_the_job(sandbox):
    done = become(sandbox, "sh", "-c", "ulimit -n; ulimit -f", setting="""
    import resource
    for what, soft in ((resource.RLIMIT_NOFILE, 17), (resource.RLIMIT_FSIZE, 512 * 3)):
        resource.setrlimit(what, (soft, resource.getrlimit(what)[1]))
    launch.limits = child.raise_limits()
    for what in child.LIMITS:
        soft, hard = resource.getrlimit(what)
        assert soft == hard, (what, soft, hard)""")
    assert done.stdout == "17\n3\n"


# ---- sessions and groups ----

@pytest.mark.parametrize("leads", ["group", "nothing", "session"])
def test_who_leads_no_session_can_leave_its_group(sandbox, leads):
    def join():
        os.setpgid(0, os.getpgid(os.getppid()))

    done = run_snippet(sandbox, """
        from mxqlib import child
        before = os.getpgrp()
        print(child.leave_group(), os.getpgrp() != before, os.getpgrp() == os.getpid())
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            print("no child left")
        """, new_session=leads == "session", preexec_fn=join if leads == "nothing" else None)
    # A group leader that leaves is in a group of a pid that is not its own; a session leader stays.
    wanted = {"group": "True True False", "nothing": "True True True", "session": "False False True"}[leads]
    assert done.stdout == wanted + "\nno child left\n"


def test_leaving_for_the_group_of_another_that_has_gone_is_leaving_all_the_same(sandbox):
    done = run_snippet(sandbox, """
        from mxqlib import child
        other = child.fork()
        if other == 0:
            child.new_group()
            os._exit(0)
        os.waitpid(other, 0)
        before = os.getpgrp()
        print(child.leave_group(other), os.getpgrp() != before)
        """)
    assert done.stdout == "True True\n"


# ---- descriptors ----

def test_all_is_let_go_but_what_is_kept(sandbox):
    done = run_snippet(sandbox, """
        from mxqlib import child
        many = [os.open("/", os.O_RDONLY) for _ in range(40)]
        os.dup2(many[0], 900)
        child.let_go([many[3], many[20]])
        left = []
        for fd in range(1000):
            try:
                os.fstat(fd)
                left.append(fd)
            except OSError:
                pass
        where = [os.readlink("/proc/self/fd/%d" % fd) for fd in (0, 1)]
        print(left == [0, 1, 2, many[3], many[20]], where, file=sys.stderr)
        """)
    assert done.stderr == "True ['/dev/null', '/dev/null']\n"


# ---- the end ----

@pytest.mark.needs("strace")
@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGQUIT])
def test_no_core_is_dumped_at_the_second_death_even_where_a_program_takes_cores(sandbox, number):
    # A core_pattern that is a pipe ignores RLIMIT_CORE (core(5)); a process that is not dumpable has no core at all.
    trace = sandbox.work / "trace"
    sandbox.run("strace", "-e", "trace=prctl,kill", "-o", trace, "--", sys.executable, "-IS", "-c",
                "import sys; sys.path.insert(0, %r)\nfrom mxqlib import child\nchild.end_like('signal', %d)" % (
                    str(TREE), number))
    lines = [line for line in trace.read_text().splitlines() if "PR_SET_DUMPABLE" in line or "kill(" in line]
    assert lines[0].startswith("prctl(PR_SET_DUMPABLE, SUID_DUMP_DISABLE") and "= 0" in lines[0]
    assert "kill(" in lines[1]


@pytest.mark.parametrize("kind, number, seen", [
    ("exit", 0, 0), ("exit", 255, 255), ("signal", 15, -15), ("signal", 9, -9)])
def test_the_end_is_like_that_of_main(sandbox, kind, number, seen):
    done = run_snippet(sandbox, "from mxqlib import child; child.end_like(sys.argv[1], int(sys.argv[2]))", kind,
                       str(number), check=False)
    assert done.returncode == seen
