"""mxq-reap in jobs of GNU parallel: its joblog and ours say the same, whatever it kills."""

import re
import signal

import pytest

from tests.harness import processes
from tests.harness.reaping import outcome
from tests.harness.sandbox import wait_for

pytestmark = pytest.mark.needs("parallel")

# What a job does, by its number. `deaf` has to be killed; `leaves` leaves somebody behind.
JOB = """
case $1 in
    exit*) exit ${1#exit} ;;
    segv) kill -SEGV $$ ;;
    waits) echo >"ready.$MXQ_RUN"; until test -e go; do sleep 0.1; done; exit 6 ;;
    polite) trap 'exit 9' TERM; echo >"ready.$MXQ_RUN"; while :; do sleep 0.1; done ;;
    deaf) trap '' TERM; sleep 1000 & echo >"ready.$MXQ_RUN"; while :; do sleep 0.1; done ;;
    leaves) setsid sleep 1000 & exit 7 ;;
    once) test -e tried && exit 0; touch tried; exit 8 ;;
    fails) until test "$(ls ready.* | wc -l)" -ge "$2"; do sleep 0.1; done; exit 5 ;;
esac
"""

FORMS = {"Starttime": r"\d{10}\.\d{3}", "JobRuntime": r" *\d+\.\d{3}", "Send": "0", "Receive": "0"}


@pytest.fixture
def command(sandbox):
    """The start of a command line: parallel, whose jobs are JOB under mxq-reap, each with the argument it is given."""
    (sandbox.work / "job").write_text(JOB)
    # dash stays between the two, dies of parallel's TERM in the job's place, and is what parallel sees.
    sandbox.env["PARALLEL_SHELL"] = "/bin/bash"

    def build(*options):
        return ["parallel", "--no-notice", "--joblog", "joblog", *options, "mxq-reap", "--grace", "1s", "--", "sh",
                "job"]
    return build


def joblog(text):
    """The lines of a joblog as dicts."""
    lines = [line.split("\t") for line in text.splitlines()]
    return [dict(zip(lines[0], line)) for line in lines[1:]]


def both_joblogs(sandbox):
    """parallel's lines and ours, by what was run under mxq-reap."""
    theirs = joblog((sandbox.work / "joblog").read_text())
    ours = joblog(sandbox.run("mxq-ls", "--joblog", check=True).stdout)
    return {line["Command"].partition(" -- ")[2]: line for line in theirs}, {line["Command"]: line for line in ours}


def by_seq(sandbox):
    """The records by the number that parallel gave the job."""
    return {int(record["outer"]["PARALLEL_SEQ"]): record for record in sandbox.records()}


def test_its_joblog_and_ours_say_the_same(sandbox, command):
    words = ["exit0", "exit3", "exit255", "segv", "leaves"] * 8
    parallel = sandbox.spawn(*command("-j4"), "{}", "{#}", ":::", *words)
    stdout, stderr = parallel.communicate(timeout=100)
    assert (parallel.returncode, stdout, stderr) == (32, "", ""), "the number of jobs that failed"
    theirs, ours = both_joblogs(sandbox)
    assert set(theirs) == set(ours) and len(ours) == len(words)
    for job, line in theirs.items():
        assert list(line) == list(ours[job])
        assert (line["Exitval"], line["Signal"]) == (ours[job]["Exitval"], ours[job]["Signal"]), job
        for name, form in FORMS.items():
            assert re.fullmatch(form, line[name]) and re.fullmatch(form, ours[job][name]), name
    assert not sandbox.pids()
    sandbox.run("mxq-collect", check=True)
    assert {job: dict(line, Seq=None) for job, line in both_joblogs(sandbox)[1].items()} == {
        job: dict(line, Seq=None) for job, line in ours.items()}


def test_the_record_has_its_numbers(sandbox, command):
    parallel = sandbox.spawn(*command("-j2"), "{}", ":::", "exit0", "exit1", "exit2")
    assert parallel.wait(60) == 2
    records = by_seq(sandbox)
    assert {seq: record["exit"] for seq, record in records.items()} == {1: 0, 2: 1, 3: 2}
    assert {record["outer"]["PARALLEL_PID"] for record in records.values()} == {str(parallel.pid)}
    assert {record["outer"]["PARALLEL_JOBSLOT"] for record in records.values()} == {"1", "2"}


def test_each_try_has_a_record(sandbox, command):
    assert sandbox.run(*command("-j1", "--retries", "3"), "{}", ":::", "once").returncode == 0
    assert [(record["exit"], record["outer"]["PARALLEL_SEQ"]) for record in sandbox.records()] == [(8, "1"), (0, "1")]


def test_a_timeout_of_parallel_is_in_both_joblogs(sandbox, command):
    """It sends TERM, TERM, TERM, KILL to the job's processes, and waits between them."""
    done = sandbox.run(*command("-j3", "--timeout", "3"), "{}", ":::", "polite", "deaf", "exit4")
    assert done.returncode == 3 and done.stderr.count("timed out") == 2
    assert {seq: outcome(record) for seq, record in by_seq(sandbox).items()} == {
        1: (9, None, None), 2: (None, 9, None), 3: (4, None, None)}
    theirs, ours = both_joblogs(sandbox)
    assert {job: (line["Exitval"], line["Signal"]) for job, line in ours.items()} == {
        "sh job polite": ("9", "0"), "sh job deaf": ("0", "9"), "sh job exit4": ("4", "0")}
    # For what it had to kill it writes -1.
    assert {job: (line["Exitval"], line["Signal"]) for job, line in theirs.items()} == {
        "sh job polite": ("9", "0"), "sh job deaf": ("-1", "9"), "sh job exit4": ("4", "0")}
    assert not sandbox.pids()


def test_halt_now_kills_and_our_record_says_whom(sandbox, command):
    """What it killed is not in its own joblog."""
    done = sandbox.run(*command("-j3", "--halt", "now,fail=1"), "{}", "2", ":::", "polite", "deaf", "fails", "exit0")
    assert done.returncode == 5
    wait_for(lambda: not sandbox.pids(), what="the end of all that was killed")
    assert {seq: outcome(record) for seq, record in by_seq(sandbox).items()} == {
        1: (9, None, None), 2: (None, 9, None), 3: (5, None, None)}
    theirs, ours = both_joblogs(sandbox)
    assert list(theirs) == ["sh job fails 2"] and len(ours) == 3


def test_halt_soon_lets_the_others_end(sandbox, command):
    (sandbox.work / "go").touch()
    done = sandbox.run(*command("-j2", "--halt", "soon,fail=1"), "{}", "1", ":::", "waits", "fails", "exit0", "exit0")
    assert done.returncode in (5, 6)
    outcomes = {seq: outcome(record) for seq, record in by_seq(sandbox).items()}
    assert (outcomes[1], outcomes[2]) == ((6, None, None), (5, None, None))
    assert len(outcomes) < 4, "the last was not started"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_killing_parallel(sandbox, command, number):
    """KILL leaves the jobs, which tell how they ended; TERM, the second time, ends them."""
    parallel = sandbox.spawn(*command("-j2"), "{}", ":::", "waits", "polite", "exit0")
    wait_for(lambda: len(list(sandbox.work.glob("ready.*"))) == 2)
    parallel.send_signal(number)
    if number == signal.SIGTERM:
        wait_for(lambda: "no new jobs" in (parallel.stderr.readline() or "no new jobs"))
        parallel.send_signal(number)
    parallel.wait(20)
    if number == signal.SIGKILL:
        (sandbox.work / "go").touch()
        wait_for(lambda: by_seq(sandbox)[1]["state"] == "ended")
        assert processes.is_alive(by_seq(sandbox)[2]["main"]["pid"])
        sandbox.run("mxq-ctl", "kill", by_seq(sandbox)[2]["run"], check=True)
    wait_for(lambda: not sandbox.pids(), what="the end of all")
    expected = {1: (6, None, None), 2: (9, None, "kill")} if number == signal.SIGKILL else {
        1: (None, 15, None), 2: (9, None, None)}
    assert {seq: outcome(record) for seq, record in by_seq(sandbox).items()} == expected
    assert sandbox.run("mxq-adopt", check=True).stdout == ""
