"""signals: names, masks, the one wait, and ending by a signal."""

import signal

import pytest

from mxqlib import signals
from tests.harness import processes
from tests.harness.snippet import run_snippet

LIBC_OWN = (32, 33)         # what the C library keeps for itself; kill(1) sends it by number


def test_every_signal_has_one_name_and_the_usual_one():
    names = [signals.name(number) for number in range(1, signal.NSIG)]
    assert len(set(names)) == len(names)
    assert [signals.name(n) for n in (1, 2, 6, 9, 15, 17, 29)] == ["HUP", "INT", "ABRT", "KILL", "TERM", "CHLD", "IO"]
    real_time = (signals.RTMIN, signals.RTMIN + 3, signals.RTMAX)
    assert [signals.name(n) for n in real_time] == ["RTMIN", "RTMIN+3", "RTMIN+30"]
    assert signals.name(32) == "32"


def test_all_is_waited_for_but_faults_kill_stop_and_what_the_c_library_keeps():
    never = {signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL,
             signal.SIGTRAP, signal.SIGSYS, *LIBC_OWN}
    assert set(signals.CATCHABLE) == set(range(1, signal.NSIG)) - never


def test_a_process_that_is_stopped_while_it_waits_gets_no_signal_that_nobody_sent(sandbox):
    """Continued when the time had gone by: Python's sigtimedwait gives what is on the stack then."""
    done = run_snippet(sandbox, """
        import os, time
        from mxqlib import signals

        signals.block([signals.USR1, signals.USR2])
        waiter, (told, tells) = os.getpid(), os.pipe()
        if os.fork() == 0:
            os.read(told, 1)
            os.kill(waiter, signals.USR1)
            os.read(told, 1)
            time.sleep(0.1)
            os.kill(waiter, signals.STOP)
            time.sleep(0.6)
            os.kill(waiter, signals.CONT)
            os._exit(0)
        os.write(tells, b"x")
        print(signals.wait([signals.USR1], 10).si_signo == signals.USR1)
        os.write(tells, b"x")
        print(signals.wait([signals.USR1], 0.3))
        print(signals.wait([signals.USR1], 0))
    """)
    assert done.stdout.split() == ["True", "None", "None"], done


def test_a_signal_of_somebody_else_is_taken_and_one_of_our_own_doing_is_not(sandbox):
    done = run_snippet(sandbox, """
        from mxqlib import signals
        signals.block(signals.CATCHABLE)
        if os.fork() == 0:
            os.kill(os.getppid(), signals.PIPE)
            os._exit(0)
        os.wait()
        seen = [signals.wait([signals.PIPE], 5).si_signo]
        read, write = os.pipe()
        os.close(read)
        try:
            os.write(write, b"x")
        except BrokenPipeError:
            seen.append("broken")
        seen.append(signals.wait([signals.PIPE], 0))
        print(seen)
        """)
    assert done.stdout == "[13, 'broken', None]\n"


def test_wait_ends_with_its_time(sandbox):
    done = run_snippet(sandbox, """
        from mxqlib import clock, signals
        signals.block(signals.CATCHABLE)
        for timeout_s in (0, -1, 0.05):
            before = clock.boot_s()
            print(signals.wait([signals.TERM], timeout_s), timeout_s <= clock.boot_s() - before < timeout_s + 1.5)
        """)
    assert done.stdout == "None True\n" * 3


@pytest.mark.parametrize("number", processes.ENDING)
def test_a_process_ends_by_the_signal_whatever_its_mask_and_dispositions(sandbox, number):
    done = run_snippet(sandbox, """
        import resource
        from mxqlib import signals
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        number = int(sys.argv[1])
        signals.block(signals.CATCHABLE)
        if number in signals.CATCHABLE:
            signals.ignore(number)
        signals.die(number)
        print("still here")
        """, str(number), check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-number, "", "")


def test_the_job_starts_with_defaults_and_an_empty_mask_but_keeps_what_the_caller_ignored(sandbox):
    done = run_snippet(sandbox, """
        from mxqlib import signals
        for number in (signals.HUP, signals.INT, signals.CHLD):
            signals.ignore(number)
        ignored = signals.inherited_ignores()
        print(ignored)
        signals.block(signals.CATCHABLE)
        signals.restore_job(ignored)
        sys.stdout.flush()
        os.execvp("grep", ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"])
        """)
    ignored = 1 << signal.SIGHUP - 1 | 1 << signal.SIGINT - 1 | processes.ignored_mask(LIBC_OWN)
    assert done.stdout == "[1, 2]\nSigBlk:\t%016x\nSigIgn:\t%016x\n" % (0, ignored)
