"""contrib/completions: what the option tables say, tried in the shells themselves."""

import importlib
import shlex
import subprocess
import sys

import pytest

from tests.harness.sandbox import TREE
from tests.harness.terminal import Terminal

HERE = TREE / "contrib/completions"
# Typed before the TAB, and the words that the line then has.
CASES = (
    ("mxq-ls --ow", ["mxq-ls", "--owed"]),
    ("mxq-ls -s failed,kil", ["mxq-ls", "-s", "failed,killed"]),
    ("mxq-ls -d other -l ", ["mxq-ls", "-d", "other", "-l", "1"]),
    ("mxq-ctl rel", ["mxq-ctl", "release"]),
    ("mxq-ctl release ", ["mxq-ctl", "release", "2"]),
    ("mxq-ctl -v kill --no", ["mxq-ctl", "-v", "kill", "--now"]),
    ("mxq-wait -g lo", ["mxq-wait", "-g", "long ones"]),
    ("mxq-run -j 2 --ma", ["mxq-run", "-j", "2", "--max"]),
    ("mxq-adopt --dr", ["mxq-adopt", "--dry-run"]),
    ("mxq-collect --no-d", ["mxq-collect", "--no-deliver"]),
    ("mxq-sub --mail-on al", ["mxq-sub", "--mail-on", "always"]),
    ("mxq-sub --mail-on=al", ["mxq-sub", "--mail-on=always"]),
    ("mxq-sub -f jo", ["mxq-sub", "-f", "jobs.txt"]),
    ("mxq-reap -w fol", ["mxq-reap", "-w", "folder/"]),
    ("mxq-reap -N x some-o", ["mxq-reap", "-N", "x", "some-odd-command"]),
    ("mxq-reap -N x -- some-o", ["mxq-reap", "-N", "x", "--", "some-odd-command"]),
    ("mxq-reap cat jo", ["mxq-reap", "cat", "jobs.txt"]),
)


def test_the_completions_are_those_of_the_option_tables():
    done = subprocess.run([sys.executable, "-IS", str(TREE / "tools/completions.py"), "--check"],
                          stdout=subprocess.PIPE, encoding="utf-8", check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + "`make completions` writes them anew"


def test_the_verbs_are_those_of_mxq_ctl(completions):
    ctl = importlib.import_module("mxqlib.ctl")
    assert {verb: bool(states) for verb, states in completions.VERBS.items()} == {
        verb: "JOB" in allowed for verb, (_, allowed) in ctl.VERBS.items()}


def test_each_list_of_values_belongs_to_an_option(completions):
    options = [option for command in completions.COMMANDS for option in completions.list_options(command)]
    assert set(completions.WORDS) <= {option.key for option in options}
    assert set(completions.KINDS) <= {option.arg for option in options}


@pytest.fixture
def completions(monkeypatch):
    """The module tools/completions.py."""
    monkeypatch.syspath_prepend(str(TREE / "tools"))
    return importlib.import_module("completions")


@pytest.fixture
def place(sandbox):
    """The sandbox with a queued and a held job, another base directory with one, and files to find."""
    sandbox.run("mxq-sub", "-g", "long ones", "true", check=True)
    sandbox.run("mxq-sub", "--hold", "true", check=True)
    sandbox.run("mxq-sub", "-d", sandbox.work / "other", "true", check=True)
    (sandbox.work / "folder").mkdir()
    (sandbox.work / "jobs.txt").write_text("true\n")
    program = sandbox.bin / "some-odd-command"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return sandbox


def complete_all(shell):
    """Type each case, complete it, and have the shell print the words the line has then."""
    for typed, words in CASES:
        shell.type(typed + "\t")
        shell.type("\x01printf '<%s>' \x05 '=>'\n")     # to the start of the line, and to its end
        # A shell may put the `=` after a long option that takes a value, and take the `/` of a folder off again.
        shown = shell.expect("<=>>").replace("\r", "").rpartition("\n")[2].replace("<folder>", "<folder/>")
        assert shown in ("".join("<%s>" % word for word in words + ["=>"]),
                         "".join("<%s>" % word for word in words) + "=<=>>"), "%r gave %r" % (typed, shown)
        shell.expect("ready> ")


@pytest.mark.needs("bash")
@pytest.mark.parametrize("before", [":", ". /usr/share/bash-completion/bash_completion"], ids=["alone", "package"])
def test_bash_completes(place, before):
    package = before.split()[-1]
    if before != ":" and subprocess.run(["test", "-e", package], check=False).returncode:
        pytest.skip("no Debian package bash-completion")
    shell = Terminal(place, "bash", "--norc", "--noprofile", "-i", columns=200, env={"TERM": "dumb"})
    shell.type("%s; . %s; bind 'set bell-style none'; echo rea''dy\n" % (before, shlex.quote(str(HERE / "mxq.bash"))))
    shell.expect("\nready")
    shell.expect("ready> ")
    complete_all(shell)
    shell.close()


@pytest.mark.needs("zsh")
def test_zsh_completes(place):
    shell = Terminal(place, "zsh", "-f", "-i", columns=200, env={"TERM": "dumb"})
    shell.expect("ready> ")
    shell.type("fpath=(%s $fpath); autoload -U compinit; compinit -u -D; unsetopt beep; echo rea''dy\n"
               % shlex.quote(str(HERE)))
    shell.expect("\nready")
    shell.expect("ready> ")
    complete_all(shell)
    shell.close()


@pytest.mark.needs("fish")
@pytest.mark.parametrize("typed, words", CASES, ids=[typed for typed, _ in CASES])
def test_fish_completes(place, typed, words):
    place.env["XDG_CONFIG_HOME"] = place.env["XDG_DATA_HOME"] = str(place.work)
    done = place.run("fish", "-c", "source $argv[1]; complete -C $argv[2]", HERE / "mxq.fish", typed, check=True)
    assert done.stderr == ""
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == words[-1:]
