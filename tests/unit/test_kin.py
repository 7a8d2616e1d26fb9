"""kin: which processes belong to a run whose reaper died, and above all which do not."""

import os

import pytest

from mxqlib import census, kin, process

RUN = "17.1"
REAPER, MAIN = 100, 101
ENTRY = {"run": RUN, "reaper": {"pid": REAPER, "start": 1000}, "main": {"pid": MAIN, "start": 1001},
         "stdout": "/spool/output/17.1.log", "stderr": None}


class Seen:
    """A Census that was made up: one line for each process."""

    def __init__(self, *rows):
        self.processes, self.runs, self.run_of = {}, {}, {}
        for pid, ppid, session, start, run, comm in rows:
            each = process.Process()
            each.pid, each.ppid, each.session, each.start, each.comm, each.state = pid, ppid, session, start, comm, "S"
            each.threads = 1
            self.processes[pid] = each
            if run is not None:
                self.run_of[pid] = run
                self.runs.setdefault(run, []).append(pid)


def find(*rows):
    """The pids of those found."""
    return sorted(each.pid for each in kin.find(Seen(*rows), ENTRY, kin.sessions_of(ENTRY)))


def row(pid, ppid=1, session=1, start=2000, run=None, comm="sh"):
    """A process, by default a stranger's."""
    return pid, ppid, session, start, run, comm


@pytest.fixture(autouse=True)
def files(monkeypatch):
    """What has the run's output open."""
    writers = set()
    monkeypatch.setattr(census, "outputs", lambda pid: {ENTRY["stdout"]} if pid in writers else set())
    return writers


def test_nobody():
    assert find() == [] and find(row(500), row(501, 500, 500)) == []


def test_main_by_its_reference():
    assert find(row(MAIN, start=1001)) == [MAIN]
    assert find(row(MAIN, start=1002)) == []


def test_by_environment():
    assert find(row(500, run=RUN), row(501, run="17.10"), row(502, run="7.1"), row(503, run="")) == [500]


def test_by_descent():
    assert find(row(MAIN, start=1001), row(500, MAIN), row(501, 500), row(502, 1), row(503, 502)) == [MAIN, 500, 501]
    assert find(row(500, run=RUN), row(501, 500)) == [500, 501]


def test_the_parent_of_a_pid_that_was_reused():
    """Older than what it seems to descend from: it is another's child."""
    assert find(row(500, start=3000, run=RUN), row(501, 500, start=2999), row(502, 500, start=3000)) == [500, 502]


def test_an_inner_reaper_but_not_what_is_below():
    assert find(row(MAIN, start=1001), row(500, MAIN, comm="mxq-reaper"), row(501, 500)) == [MAIN, 500]


def test_a_session_made_by_a_member():
    assert find(row(500, run=RUN, session=500), row(501, session=500)) == [500, 501]


def test_a_session_of_the_dead_reaper_with_a_member_in_it():
    assert find(row(500, run=RUN, session=REAPER), row(501, session=REAPER)) == [500, 501]


def test_a_session_of_the_dead_reaper_with_nobody_else(files):
    assert find(row(501, session=REAPER)) == []
    files.add(501)
    assert find(row(501, session=REAPER)) == [501]


def test_a_session_that_a_stranger_made(files):
    """Its leader has the reaper's pid and lives; what is in it may even write to our log."""
    files.update({501, 502})
    assert find(row(REAPER, session=REAPER, start=5000), row(501, session=REAPER, start=5001)) == []
    assert find(row(502, session=400), row(500, run=RUN, session=400)) == [500], "the caller's session is not ours"


def test_a_session_with_somebody_of_an_inner_run(files):
    assert find(row(500, run=RUN, session=REAPER), row(501, session=REAPER, run="9.1"),
                row(502, session=REAPER, comm="mxq-reaper")) == [500]


def test_somebody_in_the_session_who_was_there_before():
    assert find(row(500, run=RUN, session=REAPER), row(501, session=REAPER, start=999)) == [500]


def test_never_ourselves():
    me = os.getpid()
    assert find(row(me, run=RUN), row(500, me), row(501, run=RUN), row(me, 501, run=RUN)) == [501]
    assert find(row(MAIN, start=1001), row(me, MAIN, run=RUN)) == [MAIN]


def test_a_circle_of_parents_ends():
    assert find(row(500, 501, run=RUN), row(501, 500)) == [500, 501]
