"""delivery.log, delivery.recordline: the texts; HTCondor's own readers are asked in tests/engines."""

import json
import re

import pytest

from mxqlib import outbox
from mxqlib.delivery import log, recordline
from tests.harness import records

DATE = "2026-11-30T17:46:27.123456Z"
ODD = "x\n...\n009 (001.000.000) \udcff\x1b"


class Due:
    """What jobqueue.due.Due has, made up."""

    def __init__(self, code, entry=None, earlier=(), **changes):
        self.code, self.entry, self.job, self.n, self.date, self.note = code, entry or {}, 17, 0, DATE, None
        self.run, self.attempt = self.entry.get("run"), self.entry.get("attempt", 0)
        self.line = records.record.encode(self.entry).decode()[:-1] if entry else None
        self.name, self.argv, self.cwd, self.umask, self.group = "make", ["make"], "/home/joe", 18, "default"
        self.date_submit, self.earlier = DATE, lambda: list(earlier)
        self.__dict__.update(changes)
        self.event = outbox.event_id(self.job, self.run, self.attempt, code, self.n)


@pytest.fixture(autouse=True)
def utc(monkeypatch):
    """Dates in the log are local time."""
    monkeypatch.setenv("TZ", "UTC")
    log.time.tzset()
    yield
    monkeypatch.undo()
    log.time.tzset()


def text(*args, **kw):
    return log.text(Due(*args, **kw)).decode("ascii")


def test_the_life_of_a_job():
    ended = records.make_ended("17.1", 3 << 8, threads=2, memory=1 << 30)
    ended["rusage"].update(utime=93784.9, stime=1.0)
    assert "".join(text(code, ended if code == 1 else None) for code in (0, 12, 13, 1)).split("\n") == [
        "000 (017.000.000) 2026-11-30 17:46:27 Job submitted from host: <%s:0>" % log.process.context()["host"],
        '    MxqEvent = "17/000"', "    Name: make", "...",
        "012 (017.000.000) 2026-11-30 17:46:27 Job was held.", '\theld by the user (MxqEvent = "17/012")',
        "\tCode 1 Subcode 0", "...",
        "013 (017.000.000) 2026-11-30 17:46:27 Job was released.",
        '\treleased by the user (MxqEvent = "17/013")', "...",
        "001 (017.000.000) 2026-11-30 17:46:27 Job executing on host: <node7:0>", '\tMxqEvent = "17.1/001"', "...", ""]
    assert text(5, ended).split("\n") == [
        "005 (017.000.000) 2026-11-30 17:46:27 Job terminated.", "\t(1) Normal termination (return value 3)",
        "\t\tUsr 1 02:03:04, Sys 0 00:00:01  -  Run Remote Usage",
        "\t\tUsr 0 00:00:00, Sys 0 00:00:00  -  Run Local Usage",
        "\t\tUsr 1 02:03:04, Sys 0 00:00:01  -  Total Remote Usage",
        "\t\tUsr 0 00:00:00, Sys 0 00:00:00  -  Total Local Usage",
        "\t0  -  Run Bytes Sent By Job", "\t0  -  Run Bytes Received By Job",
        "\t0  -  Total Bytes Sent By Job", "\t0  -  Total Bytes Received By Job",
        "\tPartitionable Resources :    Usage  Request Allocated Assigned",
        "\t   Cpus                 :  1563.10        2         2 ",
        "\t   Memory (MB)          :        1     1024      1024 ",
        '\t   MxqEvent             :                             "17.1/005"', "...", ""]


def test_a_signal_and_a_core():
    assert "\t(0) Abnormal termination (signal 9)\n\t(0) No core file\n" in text(5, records.make_ended("17.1", 9))
    assert "(signal 11)\n\t(1) Corefile in: /x/core\n" in text(5, records.make_ended("17.1", 0x8b, cwd="/x"))
    assert '\t   MxqReason            :                             "time"\n' in text(
        5, records.make_ended("17.1", 15, reason="time"))


def test_usage_of_all_attempts():
    first, second = records.make_ended("17.1", 256), records.make_ended("17.2", 0)
    for entry in first, second:
        entry["rusage"]["utime"] = 60.0
    found = text(5, second, [first])
    assert "Usr 0 00:01:00, Sys 0 00:00:00  -  Run Remote" in found
    assert "Usr 0 00:02:00, Sys 0 00:00:00  -  Total Remote" in found


def test_evicted_and_aborted():
    found = text(4, records.make_ended("17.1", 256))
    assert "\t(0) Job terminated and was requeued\n" in found
    assert '\t(1) Normal termination (return value 1)\n\tit is to run again (MxqEvent = "17.1/004")\n' in found
    found = text(4, records.make_ended("17.1", None))
    assert '\t(0) CPU times\n' in found
    assert '\tReason: lost: nobody can know how it ended (MxqEvent = "17.1/004")\n' in found
    assert text(9, records.make_ended("17.1", None, reason="reboot")).split("\n")[1] == \
        '\tlost: the host was rebooted (MxqEvent = "17.1/009")'
    assert text(9, note="job 3 did not finish").split("\n")[1] == '\tjob 3 did not finish (MxqEvent = "17/009")'
    assert '"17/012.3"' in text(12, n=2)


@pytest.mark.parametrize("code", [0, 1, 4, 5, 9, 12, 13])
def test_nothing_can_break_out_of_an_event(code):
    entry = records.make_ended("17.1", 0x8b, cwd="/" + ODD, host=ODD) if code in (1, 4, 5) else None
    found = text(code, entry, note=ODD, name=ODD)
    assert found.endswith("\n...\n") and found.count("\n...") == 1
    assert len(re.findall(r"(?m)^\d{3} \(", found)) == 1
    assert all(line.isprintable() or line.startswith("\t") for line in found.split("\n"))


def test_a_record_with_nonsense_in_it_makes_a_text():
    entry = records.make_ended("17.1", 0, rusage={"utime": "x", "stime": None, "maxrss": []}, real=0, date_end=None)
    assert "Usr 0 00:00:00" in text(5, entry, date="2026-99-99T99:99:99.000000Z")
    assert text(5, date=DATE)


# ---- record lines ----

def test_a_line_is_the_record_with_the_event_in_front():
    ended = records.make_ended("17.1", 3 << 8, argv=["\udcff", "\n"])
    line = recordline.text(Due(5, ended))
    assert line.startswith(b'{"event":"17.1/005","format":1,') and line.endswith(b"}\n") and line.count(b"\n") == 1
    assert json.loads(line) == dict(ended, event="17.1/005")


def test_a_run_that_no_queue_knew_gets_its_job_number():
    ended = records.make_ended()
    assert ended["job"] is None
    assert json.loads(recordline.text(Due(5, ended))) == dict(ended, event=ended["run"] + "/005", job=17)


def test_a_cancelled_job_has_a_line_too():
    found = json.loads(recordline.text(Due(9, note="why")))
    assert (found["state"], found["job"], found["event"], found["argv"], found["note"]) == (
        "cancelled", 17, "17/009", ["make"], "why")
