"""delivery.command: input, output, time limit, and the end of all that a mailer or a hook started."""

import os
import time

import pytest

from mxqlib.delivery import Stopped, Undelivered
from mxqlib.delivery.command import Command
from tests.harness.sandbox import wait_for


def run(sandbox, text, data=b"input\n", limit_s=20, stop=lambda: False, cwd=None, **kw):
    command = Command(text, sandbox.environment(), str(cwd or sandbox.work), **kw)
    return command.run(data, limit_s, stop)


def fail(sandbox, *args, **kw):
    with pytest.raises(Undelivered) as failed:
        run(sandbox, *args, **kw)
    return str(failed.value)


def test_exit_0_is_a_success_and_the_input_is_whole(sandbox):
    run(sandbox, "cat >got", b"\0\xff" * 500000)
    assert (sandbox.work / "got").read_bytes() == b"\0\xff" * 500000


@pytest.mark.parametrize("text, words", [
    ("exit 75", "exit 75"), ("echo one >&2; echo last words; exit 1", "exit 1: last words"),
    ("kill -9 $$", "died by signal KILL"), ("no-program", "exit 127: /bin/sh: 1: no-program: not found"),
    ("printf 'a\\033[1m\\377' >&2; exit 2", "exit 2: a\\x1b[1m\ufffd")])
def test_a_failure_is_kept_in_words(sandbox, text, words):
    assert fail(sandbox, text) == words


def test_a_flood_of_output_is_read_and_dropped(sandbox):
    assert fail(sandbox, "head -c 30000000 /dev/zero | tr '\\0' x; echo; echo end; exit 3") == "exit 3: end"
    run(sandbox, "head -c 30000000 /dev/zero")


def test_a_flood_without_an_end_ends_at_the_time_limit(sandbox):
    assert fail(sandbox, "yes", limit_s=0.5).startswith("not done within 0.5 s, and ended: y")
    assert sandbox.pids() == []


def test_input_that_is_not_read_counts_where_it_must_be_read(sandbox):
    for text, size in (("true", 6), ("exec <&-; sleep 0.1", 6), ("head -c 3 >/dev/null", 6), ("true", 300000),
                       ("dd bs=1 count=70000 status=none >/dev/null", 300000)):
        run(sandbox, text, b"x" * size)
        assert "of %d bytes" % size in fail(sandbox, text, b"x" * size, must_read=True)
    run(sandbox, "cat >/dev/null", b"x" * 300000, must_read=True)


ESCAPES = {
    "the command itself": "sleep 1000",
    "children": "sleep 1000 & sleep 1000",
    "setsid": "setsid sleep 1000 & wait",
    "twice forked": "(setsid sh -c 'sleep 1000 & exit' &) ; sleep 1000",
    "deaf to TERM": "trap '' TERM; sleep 1000 & sleep 1000; sleep 1000",
    "deaf and in its own session": "(trap '' TERM; setsid sleep 1000 &); sleep 1000",
    "goes on": "while :; do sleep 0.05; done",
    "stopped": "kill -STOP $$",
}


@pytest.mark.parametrize("text", ESCAPES.values(), ids=ESCAPES.keys())
def test_everything_below_is_ended_at_the_time_limit(sandbox, text):
    start = time.monotonic()
    assert fail(sandbox, text, limit_s=0.3) == "not done within 0.3 s, and ended"
    assert time.monotonic() - start < 10
    assert sandbox.pids() == []


def test_a_loop_of_forks_is_ended(sandbox):
    (sandbox.work / "bomb").write_text("trap '' TERM\nwhile :; do sleep 0.1 & done\n")
    fail(sandbox, "sh bomb", limit_s=0.3)
    assert sandbox.pids() == []


def test_term_comes_before_kill(sandbox):
    fail(sandbox, "trap 'echo TERM >got; exit' TERM; while :; do sleep 0.05; done", limit_s=0.3)
    assert (sandbox.work / "got").read_text() == "TERM\n"


@pytest.mark.leaves_processes
def test_a_background_delivery_is_let_alone(sandbox):
    """As exim and dma do it: the message is taken, the delivery goes on behind."""
    start = time.monotonic()
    run(sandbox, "cat >/dev/null; (sleep 0.5; echo later >got) & exit 0", must_read=True)
    assert time.monotonic() - start < 0.4
    wait_for((sandbox.work / "got").exists)


def test_it_can_be_stopped(sandbox):
    with pytest.raises(Stopped):
        run(sandbox, "sleep 1000", stop=lambda: (sandbox.work / "go").exists() or (sandbox.work / "go").touch())
    assert sandbox.pids() == []


def test_surroundings(sandbox):
    (sandbox.work / "inner").mkdir()
    before = os.umask(0o077)
    try:
        run(sandbox, "pwd >../got; umask >>../got; trap >>../got; grep SigBlk /proc/self/status >>../got;"
            " ls /proc/self/fd | tail -n +5 >>../got", cwd=sandbox.work / "inner", umask=0o027)
    finally:
        os.umask(before)
    got = (sandbox.work / "got").read_text().split("\n")
    assert got == [str(sandbox.work / "inner"), "0027", "SigBlk:\t0000000000000000", ""]


def test_what_cannot_be_started_is_said(sandbox):
    assert fail(sandbox, "true", cwd="/nonexistent") == "cannot run it: No such file or directory"
    assert fail(sandbox, "x" * 200000).startswith("cannot run it: Argument list too long")


def test_no_descriptor_is_left(sandbox):
    before = os.listdir("/proc/self/fd")
    for text in ("true", "exit 1", "exec >&- 2>&- <&-; sleep 0.1"):
        try:
            run(sandbox, text, b"x" * 100)
        except Undelivered:
            pass
    fail(sandbox, "true", cwd="/nonexistent")
    assert os.listdir("/proc/self/fd") == before
