"""A command that has done something and cannot print it says so, whatever became of its standard output."""

import pytest

from tests.harness.adopting import end, on_gate, open_gate, orphan
from tests.harness.queueing import states, submit
from tests.harness.reaping import ended

NOWHERE = {
    "full": ("%s >/dev/full", "No space left on device"),
    "closed": ("%s >&-", "standard output is closed"),
    # The reader is gone for sure before the command starts.
    "left": ("{ until test -e gone; do sleep 0.01; done; %s; echo $? >status; } | { exec <&-; touch gone; }",
             "Broken pipe"),
}
nowhere = pytest.mark.parametrize("how, why", NOWHERE.values(), ids=NOWHERE)


def told(sandbox, how, command):
    """(status, what it says on standard error) of a command whose standard output leads nowhere."""
    done = sandbox.run("sh", "-c", how % command)
    status = sandbox.work / "status"
    return int(status.read_text()) if status.exists() else done.returncode, done.stderr


@nowhere
def test_a_number_that_cannot_be_printed(sandbox, how, why):
    status, said = told(sandbox, how, "mxq-sub true")
    assert (status, said) == (74, "mxq-sub: error: job 1 is submitted, but that cannot be written: %s\n" % why)
    assert states(sandbox) == {1: "queued"}


@nowhere
def test_a_run_id_that_cannot_be_printed(sandbox, how, why):
    status, said = told(sandbox, how, "mxq-reap -b true")
    entry = ended(sandbox)
    assert (status, said) == (74, "mxq-reap: error: %s runs, but that cannot be written: %s\n" % (entry["run"], why))
    assert entry["exit"] == 0


@nowhere
def test_what_was_done_to_several_jobs_is_done_and_said_once(sandbox, how, why):
    submit(sandbox, "true")
    submit(sandbox, "true")
    status, said = told(sandbox, how, "mxq-ctl hold 1 2")
    assert status == 74
    assert said == "mxq-ctl: error: cannot tell on standard output what is done, and go on: %s\n" % why
    assert states(sandbox) == {1: "held", 2: "held"}


@nowhere
def test_an_adoption_goes_on(sandbox, how, why):
    run = orphan(sandbox, *on_gate("exit 3"))["run"]
    status, said = told(sandbox, how, "mxq-adopt")
    assert status == 74
    assert said == "mxq-adopt: error: cannot tell on standard output what is done, and go on: %s\n" % why
    open_gate(sandbox)
    assert end(sandbox, run)["exit"] == 3
