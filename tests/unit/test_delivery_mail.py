"""delivery.mail: the message says what happened, its headers are in order whatever the job was called."""

import email
import os
from email import policy

import pytest

from mxqlib.delivery import Undelivered, mail
from tests.harness import records

ODD = ["a\nBcc: evil@example.org", "\udcff\udcfe", "b\u00fccher", "\u2028x", "\x1b[31m", ""]


class Due:
    """What jobqueue.due.Due has, made up."""

    def __init__(self, entry=None, target="joe@example.org", **changes):
        self.entry = records.make_ended("17.1", 3 << 8, argv=["make", "-j4"]) if entry is None else entry
        self.event, self.job, self.attempt, self.code, self.n = "17.1/005", 17, 1, 5, 0
        self.date, self.note, self.run, self.target = "2026-11-30T17:46:27.123456Z", None, "17.1", target
        self.name, self.group, self.cwd = "make", "default", "/home/joe"
        self.argv, self.date_submit = self.entry.get("argv", ["true"]), "2026-11-30T17:45:27.000000Z"
        self.__dict__.update(changes)


def read(due):
    """The message as a mail program understands it; its bytes are 7 bits, and no line is too long (RFC 5322)."""
    data = mail.message(due, "joe")
    assert data.isascii() or not due.target.isascii()
    assert max(map(len, data.split(b"\n"))) <= 998 and b"\r" not in data and b"\0" not in data
    return email.message_from_bytes(data, policy=policy.default)


def test_subject_and_headers():
    found = read(Due())
    assert found["Subject"] == "[mxq] 17 failed (exit 3): make -j4"
    assert (found["To"], found["From"]) == ("joe@example.org", "MXQ <joe>")
    assert found["Date"] == "Mon, 30 Nov 2026 17:46:27 -0000"
    assert (found["Auto-Submitted"], found["X-MXQ-Event"]) == ("auto-generated", "17.1/005")
    assert found["X-MXQ-State"] == "failed"
    assert len(found.get_all("Message-ID")) == 1 and found["Message-ID"].endswith("@%s>" % os.uname().nodename)
    assert found.get_content_type() == "text/plain"


@pytest.mark.parametrize("status, changes, words", [
    (0, {}, "finished"), (256, {}, "failed (exit 1)"), (11, {}, "failed (signal 11)"),
    (0x8b, {}, "failed (signal 11, core dumped)"), (15, {"reason": "time"}, "killed (time limit, signal 15)"),
    (0, {"reason": "kill"}, "killed (on request)"), (127 << 8, {"reason": "exec"}, "failed (not executed, exit 127)"),
    (None, {}, "lost"), (None, {"reason": "reboot"}, "lost (the host was rebooted)")])
def test_how_it_ended(status, changes, words):
    due = Due(records.make_ended("17.1", status, **changes))
    assert mail.outcome(due) == words
    assert read(due)["Subject"] == "[mxq] 17 %s: true" % words


def test_a_cancelled_job_has_no_record():
    found = read(Due({}, event="17/009", attempt=0, run=None, note="job 3 did not finish"))
    assert found["Subject"] == "[mxq] 17 cancelled: true"
    assert "Note:        job 3 did not finish\n" in found.get_content()


@pytest.mark.parametrize("odd", ODD)
def test_odd_bytes_stay_where_they_belong(odd):
    due = Due(records.make_ended("17.1", 256, argv=["echo", odd]), name="n", cwd="/" + odd)
    found = read(due)
    assert "Bcc" not in found and len(found.keys()) == len(set(found.keys()))
    assert found["Subject"].startswith("[mxq] 17 failed (exit 1): echo ")
    assert "Command:     echo " in found.get_content()
    assert all(line.isprintable() for line in found.get_content().split("\n"))


def test_long_commands_are_cut():
    for argv in (["x" * 100000], ["xy"] * 50000, ["\u00fc" * 5000]):
        found = read(Due(records.make_ended("17.1", 256, argv=argv)))
        assert len(found["Subject"]) <= 150 and found["Subject"].endswith("...")
        assert len(found.get_content()) < 4000


@pytest.mark.parametrize("target, names", [
    ("joe", ["joe"]), ("joe,ann@example.org", ["joe", "ann@example.org"]), ("b\u00fc@b\u00fccher.example", None)])
def test_addresses(target, names):
    found = read(Due(target=target))
    if names:
        assert [each.addr_spec for each in found["To"].addresses] == names
    else:
        assert mail.message(Due(target=target), "joe").startswith(("To: %s\n" % target).encode())


@pytest.mark.parametrize("target", ["joe\nBcc: x@example.org", "joe\r\n\r\nbody", "", "(nobody)", "a@b\udcff"])
def test_what_is_no_address_fails(target):
    with pytest.raises(Undelivered, match="cannot make a mail to"):
        mail.message(Due(target=target), "joe")


def test_the_same_event_makes_the_same_message_and_another_one_another_id():
    assert mail.message(Due(), "joe") == mail.message(Due(), "joe")
    others = [Due(target="ann"), Due(event="17.2/005"), Due(date="2026-11-30T17:46:27.123457Z")]
    assert len({mail.message_id(due) for due in others + [Due()]}) == 4
    long = Due(event="%s/005" % records.make_run_id(1, "h" * 64))
    assert b"\nMessage-ID: <mxq.2026" in mail.message(long, "joe")
    assert all(c.isascii() and c.isprintable() and c != " " for due in others for c in mail.message_id(due))


def test_the_last_lines_of_the_output(tmp_path):
    out, err = tmp_path / "out", tmp_path / "err"
    out.write_bytes(b"".join(b"line %d \xff\x07\r\n" % n for n in range(100000)))
    err.write_bytes(b"")
    text = read(Due(records.make_ended("17.1", 256, stdout=str(out), stderr=str(err)))).get_content()
    assert "The last lines of %s:\n| line 99970 \\xff\\x07\n" % out in text and "line 99969" not in text
    assert "%s is empty.\n" % err in text
    err.write_bytes(b"no newline")
    text = read(Due(records.make_ended("17.1", 256, stdout=None, stderr=str(err)))).get_content()
    assert "\n%s:\n| no newline\n" % err in text
    out.write_bytes(b"x" * 100000)
    assert "| " + "x" * 500 + "\n" in read(Due(records.make_ended("17.1", 256, stdout=str(out)))).get_content()


def test_what_is_no_file_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, "/dev/zero", tmp_path / "gone"):
        assert mail.tail(str(path)) is None
