"""cli: how options are read, what help says, how messages look and how a command ends."""

import os

import pytest

from mxqlib import cli, exits, units
from mxqlib.cli import Failure, Option
from tests.harness.snippet import run_snippet

OPTIONS = (
    Option("j", "threads", "N", "threads", lambda text: units.number(text, 1, 99)),
    Option("b", "detach", None, "detach"),
    Option(None, "mail-on", "WHEN", "when"),
    Option("l", None, "JOB", "all about", many=True),
)


def parse(*argv):
    return cli.parse(OPTIONS, argv, "[OPTION]...", "Text.")


def refuse(*argv):
    with pytest.raises(Failure) as failure:
        parse(*argv)
    assert failure.value.status == exits.USAGE
    return str(failure.value)


@pytest.mark.parametrize("argv, threads, operands", [
    ([], None, []), (["-j2"], 2, []), (["-j", "2", "x"], 2, ["x"]), (["--threads=2"], 2, []),
    (["--threads", "2", "--", "-j", "9"], 2, ["-j", "9"]), (["-bj2", "-b"], 2, []), (["-j1", "-j2"], 2, []),
    (["x", "-j2"], None, ["x", "-j2"]), (["-", "-j2"], None, ["-", "-j2"]), (["--", "--"], None, ["--"]),
])
def test_options_end_at_the_first_operand(argv, threads, operands):
    values, rest = parse(*argv)
    assert (values.threads, rest) == (threads, operands)


def test_values_that_were_not_given_are_none_and_lists_are_empty():
    values, _ = parse()
    assert (values.threads, values.detach, values.mail_on, values.l) == (None, None, None, [])
    values, _ = parse("-l", "1", "-l2", "-b", "--mail-on=", "-q")
    assert (values.detach, values.mail_on, values.l, values.q) == (True, "", ["1", "2"], True)


def test_what_is_wrong_is_named():
    assert "--thread" in refuse("--thread", "2")        # never abbreviated
    assert "-x" in refuse("-x")
    assert "-x" in refuse("-bx")
    assert "-j N" in refuse("-j")
    assert "--threads" in refuse("--threads=0")
    assert "--detach" in refuse("--detach=1")
    assert "-j" in refuse("-j", "two")


def test_an_argument_that_looks_like_an_option_is_an_argument():
    values, rest = parse("-l", "-b", "--", "--mail-on")
    assert (values.l, values.detach, rest) == (["-b"], None, ["--mail-on"])


@pytest.mark.parametrize("word", ["-h", "--help", "-V", "--version", "-bh"])
def test_help_and_version_are_shown_and_nothing_else_is_done(word, capfd):
    with pytest.raises(SystemExit) as left:
        parse(word, "--no-such-option")
    assert left.value.code == exits.OK
    shown = capfd.readouterr().out
    assert ("--mail-on WHEN" in shown) == (word not in ("-V", "--version"))


@pytest.mark.parametrize("text, shown", [
    ("a b", "a b"), ("a\nb\t", "a\\nb\\t"), ("\x1b[2J", "\\x1b[2J"), ("über 日本", "über 日本"), ("\udcff", "\\udcff"),
])
def test_messages_stay_on_one_line_and_move_no_cursor(text, shown):
    assert cli.printable(text) == shown


@pytest.mark.parametrize("end, status, said", [
    ("return 3", 3, ""),
    ("raise cli.Failure(75, 'locked')", 75, "prog: error: locked\n"),
    ("raise OSError(28, 'No space left on device', 'x')", 74, "No space left on device"),
    ("raise SystemExit(64)", 64, ""),
    ("return 1 // 0", 70, "ZeroDivisionError"),
])
def test_how_a_command_ends(sandbox, end, status, said):
    done = run_snippet(sandbox, """
        from mxqlib import cli
        cli.program = "prog"
        def main(argv):
            %s
        cli.run(main)
    """ % end, check=False)
    assert done.returncode == status
    assert said in done.stderr and (said or not done.stderr)
    assert ("Traceback" in done.stderr) == (status == 70)


def test_a_closed_pipe_ends_a_command_quietly(sandbox):
    done = run_snippet(sandbox, """
        import os, sys
        from mxqlib import cli
        def main(argv):
            reading, writing = os.pipe()
            os.close(reading)
            os.dup2(writing, 1)
            sys.stdout.write("x")
            return 0
        cli.run(main)
    """, check=False)
    assert (done.returncode, done.stderr) == (-13, "")


def test_output_that_cannot_be_written_is_an_error(sandbox):
    with open("/dev/full", "w", encoding="ascii") as full:
        done = sandbox.run("mxq-ls", stdout=full)
    assert done.returncode == exits.IOERR
    assert "No space left on device" in done.stderr and "Traceback" not in done.stderr


def test_descriptors_that_were_closed_do_not_become_files_of_ours(sandbox):
    def close_all():
        os.close(0), os.close(1), os.close(2)

    done = sandbox.run("mxq-collect", preexec_fn=close_all)
    assert done.returncode == 0
    assert sandbox.queue("SELECT count(*) FROM job")[0][0] == 0
