"""A real mail system takes what mxq-collect hands it and delivers it on this machine.

The system's own sendmail, whichever it is; where there is none, Debian's dma
is installed: it has no daemon and listens nowhere.
"""

import email
import os
import pwd
import shutil
import subprocess
from email import policy
from pathlib import Path

import pytest

from tests.harness.owing import fill, owed, owing
from tests.harness.sandbox import BIN, SYSTEM_PATH, wait_for

pytestmark = [pytest.mark.as_root, pytest.mark.timeout_s(300), pytest.mark.leaves_processes]

USER = "mxqmail"


def run(*argv):
    return subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                          encoding="utf-8", env={"PATH": SYSTEM_PATH, "DEBIAN_FRONTEND": "noninteractive"})


@pytest.fixture(scope="module")
def mailbox():
    """The path of the mailbox of a user made for this; goes with the user."""
    if not shutil.which("sendmail", path=SYSTEM_PATH):
        run("apt-get", "update", "-qq")
        done = run("apt-get", "install", "-y", "-qq", "--no-install-recommends", "dma")
        if done.returncode:
            pytest.skip("machine cannot: install a mail system: %s" % done.stdout.strip()[-300:])
    try:
        pwd.getpwnam(USER)
    except KeyError:
        assert run("useradd", "--system", "--no-create-home", "--home-dir", "/nonexistent", USER).returncode == 0
    path = Path("/var/mail", USER)
    path.write_bytes(b"")
    shutil.chown(path, USER, "mail")
    path.chmod(0o660)
    yield path
    path.unlink()
    run("userdel", USER)


def arrived(mailbox, count):
    """The messages in the mailbox once there are `count`."""
    def split():
        parts = ("\n" + mailbox.read_text("utf-8", "surrogateescape")).split("\nFrom ")[1:]
        return parts if len(parts) >= count else None

    return [email.message_from_string(part.partition("\n")[2], policy=policy.default)
            for part in wait_for(split, 60, "mail in %s" % mailbox)]


def test_a_failed_job_is_mailed_to_its_owner(sandbox, mailbox):
    """The default mailer, as under cron: without sbin in the PATH."""
    sandbox.env["PATH"] = "%s:/usr/bin:/bin" % BIN
    (sandbox.work / "fails").write_text("#!/bin/sh\necho 'Gr\u00fc\u00dfe'\necho 'From here on'\nexit 3\n", "utf-8")
    assert sandbox.run("mxq-reap", "--mail", USER, "-o", "out", "--", "sh", "fails", "\u00fc\n.\n").returncode == 3
    done = sandbox.run("mxq-collect")
    assert (done.returncode, done.stderr) == (0, "")
    mail, = arrived(mailbox, 1)
    assert mail["Subject"] == "[mxq] 1 failed (exit 3): sh fails '\u00fc\\n.\\n'"
    assert "| Gr\u00fc\u00dfe\n| From here on\n" in mail.get_content().replace("\n>From", "\nFrom")
    assert mail["Message-ID"].startswith("<mxq.") and len(mail.get_all("Message-ID")) == 1
    assert len(mail.get_all("From")) == 1 and len(mail.get_all("Date")) == 1
    assert owed(sandbox) == {}


def test_many_mails_arrive_once_each(sandbox, mailbox):
    before = len(arrived(mailbox, 0))
    sandbox.env["MXQ_SENDMAIL"] = "/usr/sbin/sendmail -t -i"
    fill(sandbox, *(owing(sandbox, n, mail=USER) for n in range(1, 11)))
    assert sandbox.run("mxq-collect").returncode == 0
    found = arrived(mailbox, before + 10)[before:]
    wanted = ["[mxq] %d failed (exit 3): true" % n for n in range(1, 11)]
    assert sorted(mail["Subject"] for mail in found) == sorted(wanted)
    assert len({mail["Message-ID"] for mail in found}) == 10


def test_a_mail_that_the_system_refuses_stays_owed(sandbox, mailbox):
    fill(sandbox, owing(sandbox, mail=USER))
    os.chmod(mailbox, 0o660)
    done = sandbox.run("mxq-collect", env={"MXQ_SENDMAIL": "/usr/sbin/sendmail -t -i --no-such-option"})
    (state, tries, error), = owed(sandbox).values()
    assert (done.returncode, state, tries) == (75, "owed", 1) and error.startswith("exit ")
