"""mxq-collect delivers what is owed: log, record, mail, hook, at least once; one that fails holds up nobody."""

import datetime
import email
import json
import os
import shutil
import signal
import sqlite3
import time
from email import policy

import pytest

from tests.harness import records
from tests.harness.owing import events, fill, make_due, owed, owing
from tests.harness.sandbox import wait_for

QUICK = {"MXQ_DELIVERY_TIMEOUT": "1s"}


def collect(sandbox, *options, status=0, **kw):
    done = sandbox.run("mxq-collect", *options, **kw)
    assert done.returncode == status, (done.returncode, done.stderr)
    return done


def is_owing(sandbox):
    """True while the marker beside the queue says that something is owed."""
    return (sandbox.mxq_dir / "queue.db-owed").exists()


def test_a_real_run_is_told_everywhere_and_in_silence(sandbox):
    hook = 'echo "$MXQ_EVENT $MXQ_RUN $MXQ_JOBID $(pwd)" >>hooked; cat >>hooked'
    done = sandbox.run("mxq-reap", "--log", "log", "--record", "lines", "--mail", "joe@example.org", "--hook", hook,
                       "-o", "out", "--", "sh", "-c", "echo the last words; exit 3")
    assert done.returncode == 3
    run = sandbox.record()["run"]
    done = collect(sandbox)
    assert (done.stdout, done.stderr) == ("", "")
    assert events(sandbox.work / "log") == [(0, "1/000"), (1, run + "/001"), (5, run + "/005")]
    line = json.loads((sandbox.work / "lines").read_text())
    assert (line["event"], line["job"], line["run"], line["exit"]) == (run + "/005", 1, run, 3)
    mail = email.message_from_string(sandbox.mails()[0], policy=policy.default)
    assert mail["Subject"] == "[mxq] 1 failed (exit 3): sh -c 'echo the last words; exit 3'"
    assert mail["To"] == "joe@example.org" and "\n| the last words\n" in mail.get_content()
    first, rest = (sandbox.work / "hooked").read_text().split("\n", 1)
    assert first == "%s/005 %s 1 %s" % (run, run, sandbox.work)
    assert json.loads(rest) == line
    assert len(sandbox.mails()) == 1 and owed(sandbox) == {} and not is_owing(sandbox)
    collect(sandbox)
    assert len(sandbox.mails()) == 1 and len(events(sandbox.work / "log")) == 3


@pytest.mark.parametrize("on, status, count", [
    ("always", 0, 1), ("always", 256, 1), ("failure", 0, 0), ("failure", 256, 1), ("failure", None, 1),
    ("never", 256, 0)])
def test_when_mail_is_sent(sandbox, on, status, count):
    fill(sandbox, owing(sandbox, status=status, mail="joe", on=on))
    collect(sandbox)
    assert len(sandbox.mails()) == count


def test_mail_with_odd_bytes_goes_to_its_reader_and_nobody_else(sandbox):
    fill(sandbox, owing(sandbox, mail="joe", argv=["x\nBcc: evil", "\udcff", "\u00fc" * 300], name="n\u00fc"))
    collect(sandbox)
    mail = email.message_from_string(sandbox.mails()[0], policy=policy.default)
    assert mail["Bcc"] is None and "x\\nBcc: evil" in mail["Subject"]
    assert sandbox.mails()[0].isascii()


# ---- mailers that are broken ----

BROKEN = {
    "hangs": ("cat >/dev/null; sleep 1000 & sleep 1000", "not done within 1 s, and ended"),
    "fails": ("cat >/dev/null; echo told to fail >&2; exit 75", "exit 75: told to fail"),
    "crashes": ("kill -SEGV $$", "died by signal SEGV"),
    "is missing": ("/nonexistent/sendmail -t", "exit 127: "),
    "floods": ("cat >/dev/null; yes", "not done within 1 s, and ended: y"),
    "closes its input": ("exec <&-; exit 0", "read only 0 of "),
    "reads half": ("head -c 20 >/dev/null", "of "),
}


@pytest.mark.parametrize("mailer, words", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_mailer_delays_nobody_and_its_mail_stays_owed(sandbox, mailer, words):
    env = dict(QUICK, MXQ_SENDMAIL="date >>%s/began; %s" % (sandbox.work, mailer))
    fill(sandbox, owing(sandbox, 1, mail="joe", log="log", line="lines"))
    first = sandbox.spawn("mxq-collect", env=env)
    wait_for((sandbox.work / "began").exists)
    # While it runs, or hangs: another one's outcome is committed at once.
    fill(sandbox, owing(sandbox, 2))
    start = time.monotonic()
    sandbox.run("mxq-collect", env=env)
    assert time.monotonic() - start < 0.9 or first.poll() is not None
    assert len(sandbox.queue("SELECT * FROM run WHERE state = 'failed'")) == 2
    _, stderr = first.communicate(timeout=20)
    assert first.returncode == 75
    assert stderr.startswith("mxq-collect: warning: cannot mail ") and words in stderr and stderr.endswith(
        "; tried again in 10s\n")
    (state, tries, error), = owed(sandbox).values()
    assert (state, tries) == ("owed", 1) and words in error
    assert len(events(sandbox.work / "log")) == 3 and (sandbox.work / "lines").read_text().count("\n") == 1
    assert sandbox.pids() == []
    collect(sandbox)                                    # it has to wait, and that is no failure
    assert sandbox.mails() == [] and is_owing(sandbox)
    collect(sandbox, "--retry")
    assert len(sandbox.mails()) == 1 and owed(sandbox) == {} and not is_owing(sandbox)


def test_the_first_pause_is_short_and_they_grow_until_it_is_parked(sandbox):
    fill(sandbox, owing(sandbox, mail="joe"))
    (sandbox.mail / "fail").write_text("75")
    pauses = []
    for tries in range(1, 21):
        done = collect(sandbox, status=75)
        now_s = time.time()
        (state, counted, error), = owed(sandbox).values()
        assert counted == tries and error == "exit 75: sendmail: told to fail"
        date = sandbox.queue("SELECT next_try FROM delivery")[0][0]
        when = datetime.datetime.strptime(date, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=datetime.timezone.utc)
        pauses.append(when.timestamp() - now_s)
        make_due(sandbox)
    assert 0 < pauses[0] <= 10 and all(a < b + 5 for a, b in zip(pauses, pauses[1:]))
    assert state == "parked" and "parked after 20 tries (mxq-collect --retry tries again)" in done.stderr
    assert not is_owing(sandbox)
    (sandbox.mail / "fail").unlink()
    collect(sandbox)
    assert sandbox.mails() == []
    collect(sandbox, "--retry")
    assert len(sandbox.mails()) == 1 and owed(sandbox) == {}


def test_a_mailer_that_hung_is_not_asked_again_by_the_same_process(sandbox):
    fill(sandbox, *(owing(sandbox, n, mail="joe", hook="echo $MXQ_EVENT >>hooked") for n in range(1, 6)))
    (sandbox.mail / "hang").touch()
    start = time.monotonic()
    collect(sandbox, status=75, env=QUICK)
    assert time.monotonic() - start < 8
    assert sorted(row[0] for row in sandbox.queue("SELECT tries FROM delivery WHERE sink = 'mail'")) == [0, 0, 0, 0, 1]
    assert len(list(sandbox.mail.glob("*.arguments"))) == 1
    (sandbox.mail / "hang").unlink()
    collect(sandbox)
    assert len(sandbox.mails()) == 4


def test_what_was_committed_while_a_mailer_ran_is_delivered_by_the_same_process(sandbox):
    env = {"MXQ_SENDMAIL": "cat >/dev/null; touch began; while [ ! -e go ]; do sleep 0.05; done"}
    env["MXQ_SENDMAIL"] = "cd %s; %s" % (sandbox.work, env["MXQ_SENDMAIL"])
    fill(sandbox, owing(sandbox, 1, mail="joe"), owing(sandbox, 2, mail="joe"))
    first = sandbox.spawn("mxq-collect", env=env)
    wait_for((sandbox.work / "began").exists)
    fill(sandbox, owing(sandbox, 3, log="log"))
    collect(sandbox, env=env)
    assert events(sandbox.work / "log") == []           # one at a time: it left that to the first
    (sandbox.work / "go").touch()
    assert first.wait(20) == 0
    assert len(events(sandbox.work / "log")) == 3 and owed(sandbox) == {}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_and_the_mailer_and_the_mail_stays_owed(sandbox, number):
    fill(sandbox, owing(sandbox, mail="joe"))
    (sandbox.mail / "hang").touch()
    first = sandbox.spawn("mxq-collect")
    wait_for(lambda: list(sandbox.mail.glob("*.arguments")))
    first.send_signal(number)
    assert first.wait(10) == -number
    assert sandbox.pids() == []
    (sandbox.mail / "hang").unlink()
    collect(sandbox)
    assert len(sandbox.mails()) == 1


def test_no_mail_goes_out_when_the_queue_takes_no_changes(sandbox):
    """Or it would go out again and again, as nothing could say that it has."""
    fill(sandbox, owing(sandbox, mail="joe"))
    collect(sandbox, "--no-deliver")
    with sqlite3.connect(sandbox.queue_file) as db:
        db.execute("CREATE TRIGGER full BEFORE UPDATE ON delivery BEGIN SELECT RAISE(ABORT, 'disk is full'); END")
    db.close()
    assert "disk is full" in collect(sandbox, status=74).stderr
    assert sandbox.mails() == [] and list(sandbox.mail.glob("*.arguments")) == []


def test_mailers_and_hooks_find_what_is_in_sbin(sandbox):
    """Users and cron do not have it in their PATH, and sendmail is there."""
    for path in ("/usr/bin:/bin", "", None):
        fill(sandbox, owing(sandbox, hook='echo "$PATH" >path'))
        collect(sandbox, env={"PATH": path}, executable=shutil.which("mxq-collect", path=sandbox.env["PATH"]))
        assert "/usr/sbin" in (sandbox.work / "path").read_text().strip().split(":")
        sandbox.queue_file.unlink()


# ---- options ----

def test_two_cron_lines(sandbox):
    fill(sandbox, owing(sandbox, 1, log="log"))
    collect(sandbox, "--no-deliver")
    assert events(sandbox.work / "log") == [] and len(owed(sandbox)) == 3
    fill(sandbox, owing(sandbox, 2, log="log"))
    collect(sandbox, "--deliver")
    assert len(events(sandbox.work / "log")) == 3 and owed(sandbox) == {}
    assert len(list(sandbox.runs.glob("*.json"))) == 1
    for options in (["--no-deliver", "--deliver"], ["--no-deliver", "--retry"]):
        assert "exclude each other" in collect(sandbox, *options, status=64).stderr
    assert collect(sandbox, status=78, env={"MXQ_DELIVERY_TIMEOUT": "soon"}).stderr.startswith(
        "mxq-collect: error: MXQ_DELIVERY_TIMEOUT: not a time")


def test_owed_is_listed_with_its_reason(sandbox):
    fill(sandbox, owing(sandbox, mail="joe"))
    (sandbox.mail / "fail").write_text("75")
    collect(sandbox, status=75)
    found = sandbox.run("mxq-ls", "--owed", check=True).stdout
    assert "exit 75: sendmail: told to fail" in found and "joe" in found


# ---- standard output ----

def test_records_on_standard_output(sandbox):
    fill(sandbox, *(owing(sandbox, n, line="-") for n in (1, 2, 3)))
    lines = collect(sandbox).stdout.splitlines()
    assert sorted(json.loads(line)["run"] for line in lines) == [records.make_run_id(n) for n in (1, 2, 3)]
    assert collect(sandbox).stdout == ""


@pytest.mark.parametrize("where, words", [("| sleep 0", "Broken pipe"), (">/dev/full", "No space left on device"),
                                          (">&-", "")])
def test_standard_output_that_takes_nothing_is_a_failed_delivery(sandbox, where, words):
    fill(sandbox, owing(sandbox, line="-", hook="touch hooked"))
    if where.startswith("|"):
        script = "mkfifo f; { mxq-collect >f; echo $? >status; } & exec 3<f; exec 3<&-; wait"
        script = "trap '' PIPE; mkfifo f; sh -c 'exec 3<f' & { sleep 0.2; mxq-collect; echo $? >status; } >f; wait"
    else:
        script = "mxq-collect %s; echo $? >status" % where
    done = sandbox.run("sh", "-c", script)
    assert words in done.stderr and "Traceback" not in done.stderr
    assert (sandbox.work / "status").read_text() == ("75\n" if words else "0\n")
    assert [key[1] for key in owed(sandbox)] == ["record"] and (sandbox.work / "hooked").exists()
    assert json.loads(collect(sandbox, "--retry").stdout)["exit"] == 3


def test_standard_output_that_nobody_reads_does_not_hold_up_the_rest(sandbox):
    fill(sandbox, *(owing(sandbox, n, line="-") for n in range(1, 100)), owing(sandbox, 100, hook="touch hooked"))
    first = sandbox.spawn("mxq-collect", env=QUICK)
    wait_for((sandbox.work / "hooked").exists)
    assert first.wait(10) == 75 and "nobody reads it" in first.stderr.read()
    first.stdout.close()
    assert 0 < len(sandbox.queue("SELECT * FROM delivery WHERE state = 'owed'")) < 99


# ---- files ----

def test_a_log_in_a_missing_directory_is_written_in_order_once_it_is_there(sandbox):
    first = records.make_running("7.1", deliveries=[{"sink": "log", "path": str(sandbox.work / "logs" / "log")}])
    fill(sandbox, first)
    done = collect(sandbox, status=75)
    assert "No such file or directory; tried again in 10s" in done.stderr and done.stderr.count("\n") == 1
    fill(sandbox, dict(records.make_ended("7.1", 0), deliveries=first["deliveries"]))
    (sandbox.work / "logs").mkdir()
    collect(sandbox)            # the end is due, and waits: it must not overtake the start
    assert events(sandbox.work / "logs" / "log") == []
    make_due(sandbox)
    collect(sandbox)
    assert events(sandbox.work / "logs" / "log") == [(0, "7/000"), (1, "7.1/001"), (5, "7.1/005")]


@pytest.mark.as_user
def test_a_log_that_is_read_only_is_written_later(sandbox):
    (sandbox.work / "log").write_text("")
    (sandbox.work / "log").chmod(0o400)
    fill(sandbox, owing(sandbox, log="log"))
    assert "Permission denied" in collect(sandbox, status=75).stderr
    (sandbox.work / "log").chmod(0o600)
    collect(sandbox, "--retry")
    assert len(events(sandbox.work / "log")) == 3


def test_a_log_that_is_rotated_away_goes_on_under_its_name(sandbox):
    fill(sandbox, owing(sandbox, 1, log="log"))
    collect(sandbox)
    os.rename(sandbox.work / "log", sandbox.work / "log.1")
    fill(sandbox, owing(sandbox, 2, log="log"))
    collect(sandbox)
    assert [len(events(sandbox.work / name)) for name in ("log", "log.1")] == [3, 3]


@pytest.mark.as_root
@pytest.mark.needs("unshare", "mount")
def test_a_log_on_a_full_disk_never_shows_half_an_event(sandbox):
    """A reader that looks all the time sees whole events only; when there is room they are all there."""
    fill(sandbox, *(owing(sandbox, n, log="full/log") for n in range(1, 101)))
    collect(sandbox, "--no-deliver")
    done = sandbox.run("unshare", "-m", "sh", "-c", """
        mkdir full && mount -t tmpfs -o size=64k none full
        (while [ ! -e stop ]; do cp full/log seen 2>/dev/null && tail -c 5 seen; done | sort -u >ends) &
        head -c 40960 /dev/zero >full/ballast
        mxq-collect; echo $?; wc -c <full/log
        rm full/ballast; mount -o remount,size=1m full
        mxq-collect --retry; echo $?
        touch stop; wait; cp full/log copy; grep -vx -e '[.]*' ends""")
    assert done.stdout.split() == ["75", "0", "0"], done
    assert "No space left on device" in done.stderr
    assert len(events(sandbox.work / "copy")) == 300


@pytest.mark.slow
def test_logs_of_many_jobs_share_their_files(sandbox):
    fill(sandbox, *(owing(sandbox, n, log="log%d" % (n % 3), line="lines") for n in range(1, 2501)))
    collect(sandbox)
    for name in range(3):
        found, seen = events(sandbox.work / ("log%d" % name)), {}
        for code, event in found:
            job = event.split("/")[0]
            seen.setdefault(job, []).append(code)
        assert len(found) > 2400 and {tuple(codes) for job, codes in seen.items() if not job.isdigit()} == {(1, 5)}
    assert (sandbox.work / "lines").read_text().count("\n") == 2500


# ---- hooks ----

def test_a_log_tells_the_cause_before_what_it_cancels(sandbox):
    sandbox.run("mxq-sub", "--log", "log", "false", check=True)
    sandbox.run("mxq-sub", "--log", "log", "--after", "1", "true", check=True)
    sandbox.run("mxq-run", "--wait", check=True)
    assert [event for _, event in events(sandbox.work / "log")] == ["1/000", "2/000", "1.1/001", "1.1/005", "2/009"]


def test_a_hook_that_ends_its_caller_holds_up_nobody_and_is_parked_in_the_end(sandbox):
    fill(sandbox, owing(sandbox, 1, hook="echo >>tries; kill -9 $PPID"), owing(sandbox, 2, hook="touch works"))
    collect(sandbox, status=-signal.SIGKILL)
    collect(sandbox, status=-signal.SIGKILL)        # at once again: it may have been somebody else who killed it
    assert (sandbox.work / "works").exists()
    collect(sandbox)                                # it has to wait now
    for _ in range(18):
        make_due(sandbox)
        collect(sandbox, status=-signal.SIGKILL)
    assert list(owed(sandbox).values()) == [("parked", 20, "no result: ended meanwhile")]
    make_due(sandbox)
    collect(sandbox)
    assert (sandbox.work / "tries").read_text() == "\n" * 20


def test_a_hook_that_fails_is_run_again_and_one_that_hangs_leaves_nothing(sandbox):
    fill(sandbox, owing(sandbox, 1, hook="exit 9"), owing(sandbox, 2, hook="setsid sleep 1000 & sleep 1000"),
         owing(sandbox, 3, hook="touch works"),
         owing(sandbox, 4, hook="pwd >%s/where" % sandbox.work, cwd="/nonexistent"))
    done = collect(sandbox, status=75, env=QUICK)
    assert "exit 9" in done.stderr and "not done within 1 s" in done.stderr and done.stderr.count("\n") == 2
    assert sandbox.pids() == [] and (sandbox.work / "works").exists()
    assert (sandbox.work / "where").read_text() == "/\n"
    assert [row[0] for row in sandbox.queue("SELECT tries FROM delivery ORDER BY number")] == [1, 1, 1, 1]


def test_a_hook_that_starts_mxq_commands(sandbox):
    """It may look at the queue, and even commit: the deliverer has no transaction open meanwhile."""
    fill(sandbox, owing(sandbox, 1, hook="mxq-ls >listed && mxq-reap true && mxq-collect", cwd=str(sandbox.work)))
    collect(sandbox)
    assert "failed" in (sandbox.work / "listed").read_text()
    assert len(sandbox.queue("SELECT * FROM job")) == 2


def test_output_of_hooks_goes_nowhere(sandbox):
    fill(sandbox, owing(sandbox, hook="echo out; echo err >&2"))
    done = collect(sandbox)
    assert (done.stdout, done.stderr) == ("", "")


def test_a_caller_that_ignores_the_death_of_children_loses_no_failure(sandbox):
    fill(sandbox, owing(sandbox, mail="joe"))
    (sandbox.mail / "fail").write_text("75")
    done = sandbox.spawn("mxq-collect", preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
    assert done.wait(20) == 75 and len(owed(sandbox)) == 1
