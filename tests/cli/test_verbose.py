"""-v: every command tells the steps it takes, on standard error; without it, none."""

import pytest

from tests.harness.sandbox import BIN

COMMANDS = sorted(path.name for path in BIN.glob("mxq-*"))
# What is typed, and a step that must be among those told. Before that one job was run, and one waits.
CASES = {
    "mxq-adopt": ([], "1 running records of this host"),
    "mxq-collect": ([], "1.1: finished"),
    "mxq-ctl": (["drain"], ""),         # what it does is its output
    "mxq-ls": ([], "2 records in {base}/spool; the queue is {base}/queue.db"),
    "mxq-reap": (["true"], "the outcome is safe"),
    "mxq-run": ([], "2.1: handed to a reaper"),
    "mxq-sub": (["true"], "1 queued, with "),
    "mxq-wait": (["1"], "1 outcomes are in the spool: collecting"),
}


@pytest.mark.leaves_processes
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_tells_its_steps_only_when_asked(sandbox, command):
    operands, wanted = CASES[command]
    sandbox.run("mxq-sub", "true", check=True)
    sandbox.run("mxq-run", check=True)
    sandbox.wait_for(lambda: sandbox.record()["state"] == "ended")
    sandbox.run("mxq-sub", "true", check=True)
    sandbox.run("mxq-reap", "-b", "sleep", "1000", check=True)
    done = sandbox.run(command, "-v", *operands, check=True)
    lines = done.stderr.splitlines()
    assert lines[0] == "%s: info: the base directory is %s" % (command, sandbox.mxq_dir)
    assert all(line.startswith(command + ": info: ") for line in lines)
    assert wanted.format(base=sandbox.mxq_dir) in done.stderr
    assert sandbox.run(command, *operands, check=True).stderr == ""
