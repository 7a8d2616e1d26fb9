"""process: references, the tree, signals that hit nobody else, and what /proc shows in a namespace."""

import errno
import os
import resource
import signal
import subprocess
import sys
import threading

import pytest

from mxqlib import process
from tests.harness import pids, processes
from tests.harness.sandbox import TREE as SOURCE
from tests.harness.sandbox import wait_for
from tests.harness.snippet import run_snippet, spawn_snippet


@pytest.fixture
def sleeper(sandbox):
    """A process that sleeps."""
    started = sandbox.spawn("sleep", "60")
    wait_for(lambda: processes.comm(started.pid) == "sleep")
    return started.pid


# ---- who ----

def test_a_number_that_is_only_that_of_a_thread_a_group_or_a_session_is_no_process(monkeypatch):
    """Else a reaper that died, and whose job lives in its session, would count as hidden, and its job be left alone."""
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    assert process.open_pidfd(thread.native_id) is None
    stop.set()
    thread.join()

    def refuse(_pid):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    for number in (errno.EINVAL, errno.ENOENT, errno.ESRCH):    # what Linux 5.3 and later, 6.16 and later, all say
        assert process.open_pidfd(1) is None
    number = errno.EMFILE
    with pytest.raises(OSError, match="Too many open files"):
        process.open_pidfd(1)



def test_a_process_is_seen_with_its_parent_group_and_name(sleeper):
    seen = process.look(sleeper)
    assert (seen.pid, seen.ppid, seen.pgrp, seen.session) == (sleeper, os.getpid(), sleeper, os.getsid(0))
    assert (seen.comm, seen.terminal) == ("sleep", 0) and seen.state in "SDR"


@pytest.mark.parametrize("name", ["a) R 1 1 1", "(", ")))", "a\nb", "\udcff", "  "])
def test_a_name_may_hold_anything(sandbox, name):
    started = spawn_snippet(sandbox, """
        open("/proc/self/comm", "wb").write(os.fsencode(sys.argv[1]))
        print("ready", flush=True)
        sys.stdin.read()
        """, name, stdin=subprocess.PIPE)
    assert started.stdout.readline() == "ready\n"
    seen = process.look(started.pid)
    assert (seen.comm, seen.ppid) == (name, os.getpid())


def test_a_process_that_has_gone_is_none():
    pid = subprocess.Popen(["true"])
    assert process.look(pid.pid) is not None
    pid.wait()
    assert process.look(pid.pid) is None


def test_a_zombie_is_still_there(sandbox):
    done = sandbox.spawn("true")
    wait_for(lambda: processes.state(done.pid) == "Z")
    assert process.look(done.pid).state == "Z"


@pytest.mark.parametrize("prepared", [True, False])
def test_what_is_loaded_before_a_fork_is_not_loaded_after_it(sandbox, prepared):
    done = run_snippet(sandbox, """
        import sys
        from mxqlib import process
        %s
        before = set(sys.modules)
        pid = os.fork()
        if pid == 0:
            process.become_subreaper()
            print(set(sys.modules) == before, flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
        """ % ("process.prepare_for_forks()" if prepared else ""))
    assert done.stdout == "%s\n" % prepared


def test_a_reference_finds_its_process_and_nobody_else(sleeper):
    reference = process.reference(sleeper)
    assert set(reference) == {"host", "boot", "pidns", "timens", "pid", "start"}
    assert process.find(reference).pid == sleeper
    assert process.find(dict(reference, start=reference["start"] + 1)) is None
    assert process.find(dict(reference, start=None)) is None
    assert process.reference(os.getpid())["start"] == process.look(os.getpid()).start


def test_without_a_descriptor_nobody_is_taken_for_gone(sleeper):
    """EMFILE is no end of a process: a reference without start would name nobody, and its run be declared lost."""
    reference, us = process.reference(sleeper), os.getpid()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open("/dev/null", os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        for call, argument in ((process.find, reference), (process.reference, us), (process.read, us)):
            with pytest.raises(OSError):
                call(argument)
        assert process.look(us) is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert process.find(reference) is not None


def test_a_reference_to_one_that_has_gone_has_no_start():
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert process.reference(gone.pid)["start"] is None


# ---- the tree ----

TREE = "sh -c 'sh -c \"sleep 60 & wait\" & sleep 61 & wait' & sleep 62 & wait"


def names_below(root, into=lambda seen: True):
    return sorted(seen.comm for seen in process.descendants(root, into))


def test_descendants_are_all_below_and_no_zombies(sandbox):
    started = sandbox.spawn("sh", "-c", TREE)
    wait_for(lambda: names_below(started.pid) == ["sh", "sh", "sleep", "sleep", "sleep"])
    started.kill()
    wait_for(lambda: processes.state(started.pid) == "Z")
    assert process.descendants(started.pid) == []
    sandbox.kill_all()


def test_those_below_what_is_not_entered_are_left_out(sandbox):
    started = sandbox.spawn("sh", "-c", TREE)
    wait_for(lambda: names_below(started.pid) == ["sh", "sh", "sleep", "sleep", "sleep"])
    assert names_below(started.pid, lambda seen: seen.comm != "sh") == ["sh", "sleep"]


def test_children_of_every_thread_are_children(sandbox):
    started = spawn_snippet(sandbox, """
        import subprocess, threading
        started = threading.Event()
        def start():
            subprocess.Popen(["sleep", "60"])
            started.set()
            threading.Event().wait()
        threading.Thread(target=start, daemon=True).start()
        started.wait()
        print("ready", flush=True)
        sys.stdin.read()
        """, stdin=subprocess.PIPE)
    assert started.stdout.readline() == "ready\n"
    wait_for(lambda: names_below(started.pid) == ["sleep"])


def test_more_children_than_a_page_holds(sandbox):
    done = run_snippet(sandbox, """
        import time
        from mxqlib import process
        read, write = os.pipe()
        pids = set()
        for _ in range(1500):
            pid = os.fork()
            if pid == 0:
                os.close(write)
                os.read(read, 1)
                os._exit(0)
            pids.add(pid)
        print(set(process.children(os.getpid())) == pids, len(process.descendants(os.getpid())))
        os.close(write)
        """)
    assert done.stdout == "True 1500\n"


def test_a_subreaper_gets_the_orphans(sandbox):
    done = run_snippet(sandbox, """
        from mxqlib import process
        process.become_subreaper()
        read, write = os.pipe()
        if os.fork() == 0:
            if os.fork() == 0:
                os.setsid()
                os.close(write)
                os.read(read, 1)
            os._exit(0)
        os.close(read)
        os.wait()
        print([seen.ppid == os.getpid() for seen in process.descendants(os.getpid())])
        """)
    assert done.stdout == "[True]\n"


def test_the_resident_size_counts_what_is_touched(sandbox):
    started = spawn_snippet(sandbox, """
        before = open("/proc/self/statm").read().split()[1]
        data = bytearray(64 << 20)
        print("ready", flush=True)
        sys.stdin.read()
        """, stdin=subprocess.PIPE)
    assert started.stdout.readline() == "ready\n"
    assert 64 << 20 < process.resident_b([process.look(started.pid)]) < 128 << 20


# ---- signals to others ----

def test_a_signal_reaches_its_process(sleeper):
    assert process.send(process.look(sleeper), signal.SIGTERM)
    assert os.waitpid(sleeper, 0)[1] == signal.SIGTERM


def test_who_has_gone_is_not_signalled(sandbox):
    done = sandbox.spawn("sleep", "60")
    seen = process.look(done.pid)
    done.kill()
    done.wait()
    assert not process.send(seen, signal.SIGTERM)


def test_who_got_the_pid_of_another_is_not_signalled(sandbox):
    first = sandbox.spawn("sleep", "60")
    seen = process.look(first.pid)
    first.kill()
    first.wait()
    second = pids.take(first.pid, ["sleep", "60"])
    try:
        seen.start -= 1000          # both may have started within one tick
        assert not process.send(seen, signal.SIGKILL)
        assert processes.is_alive(second.pid)
        assert process.send(process.look(second.pid), signal.SIGTERM)
    finally:
        second.kill()
        second.wait()


@pytest.mark.as_root
def test_who_may_not_be_signalled_is_no_error(sandbox, sleeper):
    done = run_snippet(sandbox, """
        from mxqlib import process
        os.setuid(65534)
        print(process.send(process.look(int(sys.argv[1])), 15))
        """, str(sleeper))
    assert done.stdout == "False\n"
    assert processes.is_alive(sleeper)


# ---- our own ----

def test_the_environment_is_the_callers_byte_for_byte(sandbox):
    # In the C locale os.environb has LC_CTYPE=C.UTF-8, which nobody set.
    given = {b"PATH": b"/bin", b"A": b"\xff\n\t=x", b"EMPTY": b""}
    done = subprocess.run([sys.executable, "-IS", "-c", "import sys; sys.path.insert(0, %r)\n"
                           "from mxqlib import process; print(process.own_environ())" % str(SOURCE)],
                          env=given, stdout=subprocess.PIPE, check=True)
    assert eval(done.stdout) == given


def test_an_environment_without_names_or_with_doubles_is_no_trouble(sandbox):
    code = "import sys; sys.path.insert(0, %r)\nfrom mxqlib import process; print(process.own_environ())"
    done = sandbox.run("env", "-i", "=noname", "A=1", sys.executable, "-IS", "-c", code % str(SOURCE))
    assert eval(done.stdout) == {b"A": b"1"}


def test_a_large_environment_is_read_to_its_end(sandbox):
    changes = {"LARGE_%d" % n: "x" * 100000 for n in range(8)}
    done = run_snippet(sandbox, """
        from mxqlib import process
        print(sum(len(value) for name, value in process.own_environ().items() if name.startswith(b"LARGE_")))
        """, env=changes)
    assert done.stdout == "800000\n"


def test_the_name_is_what_ps_shows(sandbox):
    done = run_snippet(sandbox, """
        from mxqlib import process
        process.set_name("mxq-reaper")
        print(process.look(os.getpid()).comm, open("/proc/self/comm").read(), end="")
        """)
    assert done.stdout == "mxq-reaper mxq-reaper\n"


# ---- a pid namespace ----

NAMESPACE = ["unshare", "--pid", "--fork"] if os.geteuid() == 0 else ["unshare", "-r", "--pid", "--fork"]


@pytest.mark.needs("unshare")
def test_in_a_namespace_with_the_outer_proc_pids_are_translated(sandbox):
    if subprocess.run(NAMESPACE + ["true"], stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("machine cannot: no pid namespaces for this user")
    code = """if 1:
        import os, sys
        sys.path.insert(0, %r)
        from mxqlib import process
        process.check_proc()
        read, write = os.pipe()
        if os.fork() == 0:
            if os.fork() == 0:
                os.close(write)
                os.read(read, 1)
                os._exit(0)
            os._exit(os.wait()[1])
        seen = process.look(3)
        while seen is None:
            seen = process.look(3)
        print(os.getpid(), sorted(each.pid for each in process.descendants(1)))
        print(process.reference(3)["start"] == seen.start, process.send(seen, 9))
        """ % str(SOURCE)
    done = sandbox.run(*NAMESPACE, sys.executable, "-IS", "-c", code, check=True)
    assert done.stdout == "1 [2, 3]\nTrue True\n"
