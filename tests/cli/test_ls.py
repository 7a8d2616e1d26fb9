"""mxq-ls: the queue with the spool laid over it; a table for a terminal, all of it for programs; nothing changes."""

import json
import os
import pty
import re
import shlex
import signal
import subprocess

import pytest

from tests.harness import oracle, queueing, records
from tests.harness.sandbox import read_until

FIELDS = ["job", "state", "run", "attempt", "name", "group", "host", "priority", "threads", "memory", "runtime",
          "date_submit", "date_start", "date_end", "real", "exit", "signal", "reason", "command"]


def ls(sandbox, *argv, status=0, **kw):
    done = sandbox.run("mxq-ls", *argv, **kw)
    assert done.returncode == status, done.stderr
    return done.stdout


def lines(sandbox, *argv, **kw):
    """The rows of the lines for programs, as dicts."""
    heading, *rows = ls(sandbox, *argv, **kw).split("\n")[:-1]
    return [dict(zip(heading.split("\t"), row.split("\t"))) for row in rows]


def objects(sandbox, *argv, **kw):
    return [json.loads(line) for line in ls(sandbox, "--json", *argv, **kw).splitlines()]


def fill(sandbox, *entries, collect=False):
    runs = records.make_spool(sandbox.spool)
    for entry in entries:
        records.put(runs, entry)
    if collect:
        sandbox.run("mxq-collect", check=True)
    return runs


def on_terminal(sandbox, *argv, columns=80, env=None):
    """What mxq-ls writes on a terminal of so many columns."""
    leader, follower = pty.openpty()
    try:
        subprocess.run(["stty", "cols", str(columns), "-opost"], stdin=follower, check=True)
        process = sandbox.spawn("mxq-ls", *argv, stdout=follower, env=env)
        os.close(follower)
        data = b""
        while True:
            try:
                more = os.read(leader, 65536)
            except OSError:
                break
            if not more:
                break
            data += more
        assert process.wait(20) == 0, process.stderr.read()
    finally:
        os.close(leader)
    return data.decode("utf-8", "surrogateescape")


# ---- what there is not ----

def test_nothing_at_all_is_an_empty_list_and_nothing_is_made(sandbox):
    assert ls(sandbox).split("\t") == FIELDS[:-1] + ["command\n"]
    assert ls(sandbox, "--json") == ""
    assert not sandbox.mxq_dir.exists()


def test_a_spool_without_a_queue_and_a_queue_without_a_spool(sandbox):
    fill(sandbox, records.make_ended(None, 256), records.make_running("2.1"))
    before = [(row["job"], row["state"]) for row in lines(sandbox)]
    assert before == [("2", "running"), ("-", "failed")]
    assert not sandbox.queue_file.exists()
    sandbox.run("mxq-collect", check=True)
    for path in sandbox.runs.iterdir():
        path.unlink()
    for path in sandbox.spool.iterdir():
        path.rmdir()
    sandbox.spool.rmdir()
    assert [(row["job"], row["state"]) for row in lines(sandbox)] == [("2", "running"), ("3", "failed")]
    assert not sandbox.spool.exists()


# ---- real runs ----

def test_a_run_is_seen_while_it_runs_when_it_ended_and_when_it_was_collected(sandbox):
    gate = sandbox.work / "gate"
    os.mkfifo(gate)
    run = sandbox.run("mxq-reap", "-b", "-N", "mine", "--", "sh", "-c", "cat gate; exit 5", check=True).stdout.strip()
    row = lines(sandbox)[0]
    assert (row["job"], row["run"], row["state"], row["name"], row["exit"]) == ("-", run, "running", "mine", "-")
    gate.write_text("go")
    sandbox.wait_for(lambda: lines(sandbox)[0]["state"] == "failed")
    row = lines(sandbox)[0]
    assert (row["job"], row["exit"], row["signal"]) == ("-", "5", "-")
    sandbox.run("mxq-collect", check=True)
    assert lines(sandbox)[0] == dict(row, job="1")


@pytest.mark.parametrize("locale", ["C.UTF-8", "C", None])
def test_any_bytes_are_listed_as_they_are(sandbox, locale):
    odd = ["printf", "a b", "", "\t", "line\nbreak", "back\\slash", "\udcff\udc80", "über 日本", "it's", '"$x`']
    fill(sandbox, records.make_ended("1.1", argv=odd, name="n\udcff"), collect=True)
    records.put(sandbox.runs, records.make_ended("2.1", argv=odd, name="n\udcff"))
    env = {"LANG": locale, "LC_ALL": locale}
    rows = lines(sandbox, env=env)
    assert len(rows) == 2
    for row in rows:
        assert row["name"] == "n\udcff"
        command = row["command"].replace("\\\\", "\0").replace("\\n", "\n").replace("\\t", "\t").replace("\0", "\\")
        assert shlex.split(command) == odd
    assert [row["argv"] for row in objects(sandbox, env=env)] == [odd, odd]
    shown = on_terminal(sandbox, columns=300, env=env)
    assert len(shown.splitlines()) == 3 and "日本" in shown and "\\n" in shown


# ---- which jobs ----

@pytest.fixture
def some(sandbox):
    """Jobs in several states: 1 finished, 2 failed, 3 killed by a limit, 4 running, and 5 not collected yet."""
    fill(sandbox, records.make_ended("1.1", name="a", date_end="2026-11-30T18:00:01.000000Z"),
         records.make_ended("2.1", 768, name="b", group="g", date_end="2026-11-30T18:00:02.000000Z"),
         records.make_ended("3.1", 15, reason="time", name="a", group="g", date_end="2026-11-30T18:00:03.000000Z"),
         records.make_running("4.1", name="a", group="g", memory=3 << 29, threads=2), collect=True)
    records.put(sandbox.runs, records.make_ended("5.1", 11, name="e", date_end="2026-11-30T18:00:04.000000Z"))
    return sandbox


@pytest.mark.parametrize("argv, wanted", [
    ([], "45321"), (["-n", "2"], "45"), (["-n", "0"], "45321"), (["-s", "failed"], "52"),
    (["-s", "running,killed"], "43"),
    (["-g", "g"], "432"), (["-N", "a"], "431"), (["-g", "g", "-N", "a"], "43"), (["-g", "g", "-s", "failed"], "2"),
    (["-N", "nobody"], ""), (["-n", "1", "-s", "finished"], "1"), (["-g", ""], ""), (["-n", "99"], "45321"),
])
def test_which_jobs_are_listed(some, argv, wanted):
    assert "".join(row["job"] for row in lines(some, *argv)) == wanted
    assert "".join(str(row["job"]) for row in objects(some, *argv)) == wanted


def test_the_last_thousand_that_ended_unless_something_is_chosen(sandbox):
    fill(sandbox, *[records.make_ended("%d.1" % n) for n in range(1, 1101)], collect=True)
    fill(sandbox, records.make_running())
    assert len(lines(sandbox)) == 1001
    assert len(lines(sandbox, "-n", "0")) == 1101
    assert len(lines(sandbox, "-s", "finished")) == 1100


def test_nothing_is_changed(some):
    before = oracle.snapshot(some)
    for argv in ([], ["--json"], ["-l", "2"], ["--events"], ["--owed"], ["--joblog"]):
        ls(some, *argv)
    assert oracle.snapshot(some) == before


# ---- forms ----

def test_objects_have_all_fields(some):
    row = [row for row in objects(some) if row["job"] == 3][0]
    assert {"job", "state", "name", "argv", "run", "attempt", "group", "host", "exit", "signal", "core", "reason",
            "real",
            "date_submit", "date_start", "date_end", "threads", "memory", "cwd"} <= set(row)
    assert (row["state"], row["signal"], row["exit"], row["reason"], row["status"]) == ("killed", 15, None, "time", 15)
    assert len({tuple(row) for row in objects(some)}) == 1


def test_a_table_is_cut_to_the_width_of_the_terminal(some):
    for columns in (40, 80, 200):
        shown = on_terminal(some, columns=columns)
        assert len(shown.splitlines()) == 6
        assert max(map(len, shown.splitlines())) <= columns
    heading, *rows = on_terminal(some, columns=120).splitlines()
    assert heading.split() == "JOB STATE RESULT NAME GROUP THR MEMORY START TIME COMMAND".split()
    assert [row.split()[:3] for row in rows] == [["4", "running", "-"], ["5", "failed", "SIGSEGV"],
                                                 ["3", "killed", "time"],
                                                 ["2", "failed", "3"], ["1", "finished", "0"]]
    assert rows[0].split()[6] == "1536M"


def test_dates_are_local_on_a_terminal_and_utc_for_programs(some):
    zone = {"TZ": "CET-1"}
    assert "2026-11-30 18:45:27" in on_terminal(some, columns=120, env=zone)
    assert lines(some, env=zone)[0]["date_start"] == objects(some, env=zone)[0]["date_start"] \
        == "2026-11-30T17:45:27.123456Z"
    assert "2026-11-30 18:45:27" in on_terminal(some, "--events", columns=120, env=zone)
    assert "2026-11-30T17:45:27.123456Z" in ls(some, "--events", env=zone)


def test_the_next_try_is_local_on_a_terminal_and_utc_for_programs(sandbox):
    fill(sandbox, records.make_ended("1.1", 256, deliveries=[{"sink": "mail", "to": "a@b", "on": "failure"}]))
    assert sandbox.run("mxq-collect", env={"MXQ_SENDMAIL": "exit 1"}).returncode == 75
    utc = lines(sandbox, "--owed")[0]["next_try"]
    assert utc.endswith("Z") and "T" in utc
    assert utc[:19].replace("T", " ") in on_terminal(sandbox, "--owed", columns=200)


@pytest.mark.parametrize("env, coloured", [
    ({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": ""}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False),
    ({"TERM": "dumb"}, False), ({}, False),
])
def test_states_are_coloured_on_a_terminal_that_wants_it(some, env, coloured):
    plain = on_terminal(some, columns=120)
    shown = on_terminal(some, columns=120, env=env)
    for state, code in (("running", 36), ("failed", 31), ("killed", 33), ("finished", 32)):
        assert ("\x1b[%dm%s\x1b[m" % (code, state) in shown) is coloured
    # But for the time that the running job has taken so far.
    assert re.sub("\x1b\\[[0-9]*m", "", shown).splitlines()[2:] == plain.splitlines()[2:]
    assert "\x1b" not in ls(some, env=env) + ls(some, "--json", env=env)


@pytest.mark.parametrize("columns", range(5, 18))
def test_a_colour_ends_where_the_line_is_cut(some, columns):
    for row in on_terminal(some, columns=columns, env={"TERM": "xterm"}).splitlines():
        codes = re.findall("\x1b\\[([0-9]*)m", row)
        assert codes in ([], [codes[0], ""] if codes else [])
        assert len(re.sub("\x1b\\[[0-9]*m", "", row)) <= columns


def test_the_columns_of_parallel(some):
    heading, *rows = ls(some, "--joblog").splitlines()
    assert heading == "Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand"
    assert [row.split("\t") for row in rows][:2] == [
        ["5", "node7", "1796060727.123", "    60.000", "0", "0", "0", "11", "true"],
        ["3", "node7", "1796060727.123", "    60.000", "0", "0", "0", "15", "true"]]


def test_all_about_a_job(some):
    shown = ls(some, "-l", "3")
    assert shown.startswith("job 3: killed\n")
    for words in ("run 3.1: killed", "reason        time", "signal        15 (TERM)", "reaper        pid 41 on node7",
                  "event 3.1/005: terminated", "children      pid=42 comm=true"):
        assert words in shown, words
    whole = objects(some, "-l", "3")[0]
    assert (whole["job"], whole["state"], len(whole["runs"])) == (3, "killed", 1)
    assert whole["runs"][0]["record"] == records.make_ended(
        "3.1", 15, reason="time", name="a", group="g", date_end="2026-11-30T18:00:03.000000Z")
    assert [event["event"] for event in whole["events"]] == ["3/000", "3.1/001", "3.1/005"]


def test_sizes_and_durations_are_written_as_options_take_them(sandbox):
    sandbox.run("mxq-reap", "-m", "1536M", "-t", "90", "--grace", "2m", "true", check=True)
    shown = ls(sandbox, "-l", sandbox.record()["run"])
    for words in ("memory        1536M", "runtime       1h30m", "grace         2m"):
        assert "  %s\n" % words in shown, words


def test_all_about_what_nobody_collected_yet(some):
    assert "job 5: failed" in ls(some, "-l", "5") and "job 5: failed" in ls(some, "-l", "5.1")
    entry = records.make_running(argv=["sleep", "9"])
    records.put(some.runs, entry)
    shown = ls(some, "-l", entry["run"])
    assert shown.startswith("job -: running\n") and "sleep 9" in shown
    assert objects(some, "-l", entry["run"])[0]["runs"][0]["record"] == entry


def test_all_attempts_of_a_job(sandbox):
    fill(sandbox, records.make_ended("1.1", 256), records.make_ended("1.2", 0), collect=True)
    assert [run["run"] for run in objects(sandbox, "-l", "1")[0]["runs"]] == ["1.1", "1.2"]
    assert [run["run"] for run in objects(sandbox, "-l", "1.1")[0]["runs"]] == ["1.1"]
    assert [row["attempt"] for row in lines(sandbox)] == ["2"]


def test_who_is_unknown_is_named_and_the_others_are_shown(some):
    done = some.run("mxq-ls", "-l", "99", "-l", "1", "-l", "no-such-run")
    assert done.returncode == 69
    assert done.stdout.startswith("job 1: finished")
    assert done.stderr == ("mxq-ls: error: no such job or run: 99\n"
                           "mxq-ls: error: no such job or run: no-such-run\n")


def test_a_terminal_gets_no_control_characters_in_any_form(sandbox):
    odd = "\x1b]0;title\x07\x1b[2J\r"
    fill(sandbox, records.make_ended("1.1", argv=[odd, odd], name="x", cwd="/" + odd, error=odd,
                                     children=[{"pid": 1, "comm": odd}]), collect=True)
    for argv in ([], ["-l", "1"], ["--events"], ["--owed"]):
        shown = on_terminal(sandbox, *argv)
        assert all(char == "\n" or char.isprintable() for char in shown), argv


def test_events_and_what_is_owed(sandbox):
    fill(sandbox, records.make_ended("1.1", 256, deliveries=[{"sink": "mail", "to": "a@b", "on": "failure"}]))
    sandbox.run("mxq-collect", "--no-deliver", check=True)
    assert [(row["event"], row["what"]) for row in lines(sandbox, "--events")] == [
        ("1/000", "submitted"), ("1.1/001", "executing"), ("1.1/005", "terminated")]
    rows = lines(sandbox, "--owed")
    assert [(row["event"], row["sink"], row["target"], row["state"], row["tries"]) for row in rows] == [
        ("1.1/005", "mail", "a@b", "owed", "0")]
    assert "mail to a@b for 1.1/005: owed" in ls(sandbox, "-l", "1")
    sandbox.run("mxq-collect", check=True)
    assert lines(sandbox, "--owed") == []
    assert "mail to a@b for 1.1/005: done" in ls(sandbox, "-l", "1")


def shown_events(sandbox):
    return sorted((row["event"], row["date"], row["what"]) for row in lines(sandbox, "-n", "0", "--events"))


def test_events_are_the_same_before_and_after_they_are_collected(sandbox):
    """What becomes of the job decides which event the end of a run is."""
    for words in (("--retries", "1"), ("-r", "always"), ("--retries", "1"), ("--hold",)):
        queueing.submit(sandbox, *words, "--", "true")
    submitted = [row[0] for row in sandbox.queue("SELECT date_submit FROM job ORDER BY job")]
    fill(sandbox, records.make_ended("1.1", 256, date_submit=submitted[0]),
         records.make_ended("2.1", None, restart="always", date_submit=submitted[1]),
         records.make_ended("3.1", 256, date_submit=submitted[2]), collect=True)
    fill(sandbox, records.make_ended("3.2", 256, date_submit=submitted[2]),         # the last retry
         records.make_ended("2.1", 0, restart="always", date_submit=submitted[1]),  # late, but true
         records.make_ended("4.1", 256, date_submit=submitted[3]),                  # was put into the queue by hand
         records.make_ended("5.1", None, restart="always"), records.make_ended("5.2", 9),   # of a queue that is lost
         records.make_running("6.1"), records.make_ended("7.1", 127 << 8, reason="exec", date_start=None))
    before = shown_events(sandbox)
    assert {event for event, _, _ in before} > {"3.2/005", "2.1/005", "4.1/005", "5/000", "5.2/005", "6.1/001"}
    sandbox.run("mxq-collect", check=True)
    assert shown_events(sandbox) == before


def test_events_of_a_run_that_has_no_number_yet(sandbox):
    entry = records.make_ended(status=256)
    fill(sandbox, entry)
    before = shown_events(sandbox)
    assert [(event, what) for event, _, what in before] == [
        ("-", "submitted"), (entry["run"] + "/001", "executing"), (entry["run"] + "/005", "terminated")]
    assert objects(sandbox, "--events")[0]["event"] is None
    assert "/005: terminated" in ls(sandbox, "-l", entry["run"])
    sandbox.run("mxq-collect", check=True)
    assert shown_events(sandbox) == sorted([("1/000",) + before[0][1:]] + before[1:])


# ---- trouble ----

@pytest.mark.parametrize("argv, words", [
    (["1"], "no operands"), (["-s", "done"], "not a state: done"), (["-s", ""], "not a state"),
    (["-n", "-1"], "not a number"),
    (["-n", "x"], "not a number"), (["-l"], "needs a value"), (["--events", "--owed"], "contradict"),
    (["-l", "1", "--joblog"], "contradict"), (["--json", "--joblog"], "contradict"),
    (["-l", "1", "-s", "failed"], "contradict"),
])
def test_bad_usage(sandbox, argv, words):
    done = sandbox.run("mxq-ls", *argv)
    assert (done.returncode, done.stdout) == (64, "")
    assert words in done.stderr and done.stderr.count("\n") == 1


def test_a_damaged_file_is_warned_of_and_the_rest_is_shown(some):
    (some.runs / "9.1.json").write_bytes(b"{")
    done = some.run("mxq-ls")
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 6
    assert done.stderr.startswith("mxq-ls: warning: runs/9.1.json: ") and done.stderr.count("\n") == 1
    assert some.run("mxq-ls", "-q").stderr == ""
    assert (some.runs / "9.1.json").exists()


def test_a_queue_that_is_none(some):
    some.queue_file.write_bytes(b"nonsense" * 1000)
    done = some.run("mxq-ls")
    assert (done.returncode, done.stdout) == (69, "") and done.stderr.count("\n") == 1


def test_a_spool_that_others_can_write_to(some):
    some.spool.chmod(0o777)
    done = some.run("mxq-ls")
    assert done.returncode == 77 and "written by others" in done.stderr


def test_a_writer_does_not_keep_it_from_reading(some):
    import sqlite3
    other = sqlite3.connect(some.queue_file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    other.execute("UPDATE job SET name = 'changed'")
    assert len(lines(some)) == 5 and "changed" not in ls(some)
    other.execute("ROLLBACK")
    other.close()


def test_a_reader_that_leaves_ends_it_quietly(sandbox):
    fill(sandbox, *[records.make_ended("%d.1" % n, argv=["x" * 1000]) for n in range(1, 400)], collect=True)
    process = sandbox.spawn("mxq-ls", text=False)
    read_until(process.stdout, b"\n")
    process.stdout.close()
    assert process.wait(20) == -signal.SIGPIPE
    assert process.stderr.read() == b""


@pytest.mark.as_root
def test_on_a_full_disk_it_shows_what_there_is(sandbox):
    script = """mount -t tmpfs -o size=1m,mode=700 tmpfs "$MXQ_DIR" && mxq-reap -N seen false; mxq-collect &&
        cat /dev/zero >"$MXQ_DIR/full" 2>/dev/null; mxq-ls | cut -f 2,5; echo $?; rm "$MXQ_DIR"/full"""
    sandbox.mxq_dir.mkdir(mode=0o700)
    done = sandbox.run("unshare", "-m", "bash", "-o", "pipefail", "-c", script)
    assert (done.stdout, done.stderr) == ("state\tname\nfailed\tseen\n0\n", "")


def test_a_full_disk_is_an_error(some):
    with open("/dev/full", "w", encoding="ascii") as full:
        done = some.run("mxq-ls", stdout=full)
    assert done.returncode == 74 and "No space left" in done.stderr


def test_a_closed_standard_output_is_an_error(some):
    done = some.run("mxq-ls", preexec_fn=lambda: os.close(1))
    assert done.returncode == 74 and "closed" in done.stderr
