"""mxq-sub: what was asked for is in the queue, all of it or nothing, as it was when it was submitted."""

import json
import os
import pwd
import subprocess

import pytest



LONG = b"true " + b"x" * 994 + b"\n"       # a thousand are nearly a mebibyte


def submit(sandbox, *words, **kw):
    """The numbers that mxq-sub printed."""
    return [int(line) for line in sandbox.run("mxq-sub", *words, check=True, **kw).stdout.splitlines()]


def job(sandbox, number):
    """The row of a job."""
    row, = sandbox.queue("SELECT * FROM job WHERE job = ?", number)
    return row


def argvs(sandbox):
    """The argv of each job, in the order of the numbers; JSON keeps bytes that are no text as lone surrogates."""
    return [json.loads(row["argv"]) for row in sandbox.queue("SELECT argv FROM job ORDER BY job")]


def environment(sandbox, number):
    """The environment stored with a job, bytes to bytes."""
    row, = sandbox.queue("SELECT content FROM environment JOIN job ON environment = id WHERE job = ?", number)
    assert row["content"].endswith(b"\0")
    return dict(field.split(b"=", 1) for field in row["content"][:-1].split(b"\0"))


def refused(done, status, *words):
    """True when a command ended with this status, and one line that has these words."""
    assert done.returncode == status, done
    assert done.stdout == "" and done.stderr.count("\n") == 1 and done.stderr.startswith("mxq-sub: error: "), done
    return all(word in done.stderr for word in words)


def is_empty(sandbox):
    return not sandbox.queue_file.exists() or sandbox.queue("SELECT count(*) FROM job")[0][0] == 0


# ---- one command ----

def test_a_job_is_as_it_was_asked_for(sandbox):
    done = sandbox.run("mxq-sub", "-w", "/", "-o", "out-%j", "-e", "err", "-u", "027", "-p", "200", "-j", "3", "-m",
                       "2G", "-t", "1h", "-N", "a name", "-g", "night", "-r", "always", "--retries", "4", "--",
                       "echo", "-n", "")
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
    row = job(sandbox, 1)
    assert json.loads(row["argv"]) == ["echo", "-n", ""]
    assert [row[key] for key in ("state", "cwd", "stdout", "stderr", "umask", "priority", "threads", "memory",
                                 "runtime", "name", "group_name", "restart", "retries", "attempt", "waits")] == [
        "queued", "/", "out-%j", "err", 0o27, 200, 3, 2 << 30, 3600, "a name", "night", "always", 4, 0, 0]
    assert row["date_submit"] and row["date_end"] is None
    assert [tuple(event) for event in sandbox.queue("SELECT attempt, code FROM event WHERE job = 1")] == [(0, 0)]


def test_without_options_it_takes_what_the_caller_has(sandbox):
    submit(sandbox, "/bin/true", preexec_fn=lambda: os.umask(0o31))
    row = job(sandbox, 1)
    assert [row[key] for key in ("cwd", "umask", "priority", "threads", "memory", "runtime", "name", "group_name",
                                 "restart", "retries", "stdout", "stderr", "deliveries")] == [
        str(sandbox.work), 0o31, 127, 1, 0, 0, "true", "default", "never", 0, None, None, None]


def test_what_is_made_is_private_whatever_the_umask(sandbox):
    submit(sandbox, "true", preexec_fn=lambda: os.umask(0))
    assert sandbox.mxq_dir.stat().st_mode & 0o777 == 0o700
    assert sandbox.queue_file.stat().st_mode & 0o777 == 0o600


def test_every_byte_of_an_argument_survives(sandbox):
    argument = bytes(range(1, 256))
    submit(sandbox, "printf", "%s", argument, "", env={"LC_ALL": "C"})
    assert [word.encode("utf-8", "surrogateescape") for word in argvs(sandbox)[0]] == [b"printf", b"%s", argument, b""]
    sandbox.run("mxq-run", "--wait", check=True)
    assert (sandbox.spool / "output" / "1.1.log").read_bytes() == argument


def test_deliveries_are_stored_and_have_defaults(sandbox):
    submit(sandbox, "--record", "-", "--hook", "cat >x", "true",
           env={"MXQ_MAIL": "me@example.org", "MXQ_MAIL_ON": "always", "MXQ_LOG": "log"})
    submit(sandbox, "--mail", "you@example.org", "--mail-on", "never", "true", env={"MXQ_MAIL": "me@example.org"})
    assert json.loads(job(sandbox, 1)["deliveries"]) == [
        {"sink": "log", "path": str(sandbox.work / "log")}, {"sink": "record", "path": "-"},
        {"sink": "mail", "to": "me@example.org", "on": "always"}, {"sink": "hook", "command": "cat >x"}]
    assert json.loads(job(sandbox, 2)["deliveries"]) == [{"sink": "mail", "to": "you@example.org", "on": "never"}]


def test_hold(sandbox):
    submit(sandbox, "--hold", "true")
    assert job(sandbox, 1)["state"] == "held"
    assert [event["code"] for event in sandbox.queue("SELECT code FROM event ORDER BY code")] == [0, 12]


# ---- the environment ----

def test_the_environment_is_the_callers_without_terminal_and_run(sandbox):
    left_out = "TERM DISPLAY SHLVL PWD OLDPWD _ MXQ_RUN MXQ_JOBID MXQ_THREADS MXQ_MEMORY MXQ_TIME".split()
    changes = dict({name: "x" for name in left_out}, COLOUR="red\nblue", EMPTY="", MXQ_LOG="/log", TEXT="a=b")
    submit(sandbox, "true", env=changes)
    found = environment(sandbox, 1)
    wanted = {name: value for name, value in sandbox.environment(changes).items() if name not in left_out}
    assert found == {name.encode(): value.encode() for name, value in wanted.items()}


def test_python_adds_nothing_to_the_environment(sandbox):
    env = {"LANG": None, "LC_ALL": None, "ODD": b"\xff\xfe"}
    done = subprocess.run(["mxq-sub", "true"], cwd=sandbox.work, check=True, capture_output=True,
                          env={name: value for name, value in {**sandbox.env, **env}.items() if value is not None},
                          executable=str(sandbox.env["PATH"].split(":")[0]) + "/mxq-sub")
    assert done.stdout == b"1\n"
    assert environment(sandbox, 1)[b"ODD"] == b"\xff\xfe" and b"LC_CTYPE" not in environment(sandbox, 1)


def test_equal_environments_are_stored_once(sandbox):
    for order in ("A=1 B=2", "B=2 A=1"):
        submit(sandbox, "-f", "-", input="true\ntrue\n", env={"ORDER": None})
        sandbox.run("sh", "-c", "env %s mxq-sub true" % order, check=True)
    submit(sandbox, "true", cwd="/")
    assert len(sandbox.queue("SELECT id FROM environment")) == 2
    submit(sandbox, "true", env={"A": "3"})
    assert len(sandbox.queue("SELECT id FROM environment")) == 3


def test_a_clean_environment(sandbox):
    submit(sandbox, "--clean-env", "true", env={"COLOUR": "red"})
    assert environment(sandbox, 1) == {name.encode(): sandbox.env[name].encode()
                                       for name in ("HOME", "LOGNAME", "USER", "SHELL", "PATH")}


def test_a_clean_environment_for_a_caller_without_one(sandbox):
    command = sandbox.env["PATH"].split(":")[0] + "/mxq-sub"
    submit_bare = sandbox.run("env", "-i", "MXQ_DIR=%s" % sandbox.mxq_dir, command, "--clean-env", "true")
    assert submit_bare.returncode == 0, submit_bare.stderr
    found, account = environment(sandbox, 1), pwd.getpwuid(os.geteuid())
    assert set(found) == {b"HOME", b"LOGNAME", b"USER", b"SHELL", b"PATH"}
    assert found[b"HOME"].decode() == account.pw_dir and found[b"LOGNAME"].decode() == account.pw_name
    assert found[b"PATH"] == b"/usr/local/bin:/usr/bin:/bin"


# ---- many ----

@pytest.mark.parametrize("source", ["pipe", "standard input", "file"])
def test_each_line_is_a_job_of_the_shell(sandbox, source):
    lines = b"echo a  b\n\n  \n\t\nfalse # b\n" + b"printf '\xff%s' \xc3\xa4\necho last"
    file = sandbox.work / "lines"
    file.write_bytes(lines)
    if source == "pipe":
        numbers = submit(sandbox, "-f", "-", input=lines)
    elif source == "file":
        numbers = submit(sandbox, "-f", "lines")
    else:
        with open(file, "rb") as stdin:
            numbers = submit(sandbox, "-f", "-", stdin=stdin)
    assert numbers == [1, 2, 3, 4]
    assert [argv[:2] for argv in argvs(sandbox)] == [["sh", "-c"]] * 4
    assert [argv[2].encode("utf-8", "surrogateescape") for argv in argvs(sandbox)] == [
        b"echo a  b", b"false # b", b"printf '\xff%s' \xc3\xa4", b"echo last"]
    assert job(sandbox, 1)["name"] == "sh"


def test_nul_ends_commands_that_have_newlines(sandbox):
    assert submit(sandbox, "-0", "-f", "-", input=b"echo 1\necho 2\0\0\n\0echo 3") == [1, 2]
    assert [argv[2] for argv in argvs(sandbox)] == ["echo 1\necho 2", "echo 3"]


def test_lines_that_cross_blocks_are_whole(sandbox):
    lines = ["echo %d %s" % (n, "ä" * n) for n in range(0, 65000, 613)]
    assert sum(map(len, lines)) > 3 << 20
    numbers = submit(sandbox, "-f", "-", input="\n".join(lines))
    assert len(numbers) == len(lines) and [argv[2] for argv in argvs(sandbox)] == lines
    assert sorted(path.name for path in sandbox.mxq_dir.iterdir() if not path.name.startswith("queue.db")) == []


def test_more_than_a_statement_holds_and_less(sandbox):
    for count in (99, 100, 101, 201):
        before = len(argvs(sandbox)) if sandbox.queue_file.exists() else 0
        assert submit(sandbox, "-f", "-", input="".join("echo %d\n" % n for n in range(count))) == list(
            range(before + 1, before + 1 + count))
        assert [argv[2] for argv in argvs(sandbox)[before:]] == ["echo %d" % n for n in range(count)]


@pytest.mark.parametrize("words, lines, shown", [
    ((), b"", "no commands"), ((), b"\n\n \n", "no commands"), (("-0",), b"\0\0", "no commands"),
    ((), b"true\nfa\0lse\n", "command 2: a NUL byte"), ((), LONG * 1500 + b"\0\n", "command 1501: a NUL byte"),
    ((), b"true\n" + b"x" * 131072 + b"\n", "command 2: more than 131071 bytes"),
    ((), b"true\n" * 9 + b"\xc3\xa4" * 65536, "command 10: more than 131071 bytes"),
    ((), b"x" * (3 << 20), "command 1: more than 131071 bytes"),
], ids=range(8))
def test_what_cannot_be_run_is_refused_and_all_else_with_it(sandbox, words, lines, shown):
    done = sandbox.run("mxq-sub", *words, "-f", "-", input=lines)
    assert refused(done, 65, shown)
    assert is_empty(sandbox)


def test_the_longest_line_can_be_run(sandbox):
    line = ": " + "x" * (131071 - 2)
    assert submit(sandbox, "-f", "-", input=line) == [1]
    sandbox.run("mxq-run", "--wait", check=True)
    assert job(sandbox, 1)["state"] == "finished"


def test_a_slow_writer_keeps_nobody_waiting(sandbox):
    slow = sandbox.spawn("mxq-sub", "-f", "-", stdin=subprocess.PIPE)
    slow.stdin.write(LONG.decode() * 2000)          # more than a block: it is being read
    slow.stdin.flush()
    sandbox.wait_for(lambda: sandbox.mxq_dir.exists())
    assert submit(sandbox, "true", timeout_s=20) == [1]
    slow.stdin.close()
    assert len(slow.stdout.read().split()) == 2000 and slow.wait(60) == 0
    assert sandbox.queue("SELECT count(*) FROM job")[0][0] == 2001


# ---- after ----

def test_after_waits_for_each_once(sandbox):
    submit(sandbox, "-f", "-", input="true\nfalse\n")
    submit(sandbox, "--after", "1,2", "--after", "2", "-f", "-", input="a\nb\n")
    assert [job(sandbox, number)["waits"] for number in (3, 4)] == [2, 2]
    assert [tuple(row) for row in sandbox.queue("SELECT job, after FROM dependency ORDER BY 1, 2")] == [
        (3, 1), (3, 2), (4, 1), (4, 2)]
    sandbox.run("mxq-run", "--wait", check=True)
    assert [job(sandbox, number)["state"] for number in (1, 2, 3, 4)] == [
        "finished", "failed", "cancelled", "cancelled"]


def test_after_one_that_ended_well_or_not(sandbox):
    submit(sandbox, "-f", "-", input="true\nfalse\n")
    sandbox.run("mxq-run", "--wait", check=True)
    submit(sandbox, "--after", "1", "true")
    assert (job(sandbox, 3)["state"], job(sandbox, 3)["waits"]) == ("queued", 0)
    done = sandbox.run("mxq-sub", "--after", "2", "true")
    assert (done.returncode, done.stdout) == (0, "4\n") and "warning: cancelled at once" in done.stderr
    assert job(sandbox, 4)["state"] == "cancelled"


@pytest.mark.parametrize("after", ["3", "99", "1,99", str((1 << 63) - 1)])
def test_after_an_unknown_job_or_itself(sandbox, after):
    submit(sandbox, "-f", "-", input="true\nfalse\n")
    done = sandbox.run("mxq-sub", "--after", after, "true")      # it would be job 3
    assert refused(done, 69, "no such job: %s" % after.split(",")[-1])
    assert len(argvs(sandbox)) == 2


# ---- what is wrong ----

@pytest.mark.parametrize("words", [
    [], ["-f", "x", "true"], ["-0", "true"], ["-f", "nowhere"], ["-f", "/"], ["-f", "/dev/null/x"], ["-f", ""],
    ["--after", "0", "true"], ["--after", "-1", "true"], ["--after", "1,", "true"], ["--after", "x", "true"],
    ["--after", str(1 << 63), "true"], ["--after", "9" * 30, "true"], ["--retries", "-1", "true"],
    ["--retries", "65536", "true"], ["-j", "0", "true"], ["-m", "0", "true"], ["-t", "x", "true"], ["-u", "9", "true"],
    ["-p", "-1", "true"], ["-r", "often", "true"], ["-N", "", "true"], ["-g", "a\nb", "true"],
    ["-w", "nowhere", "true"], ["-o", "%x", "true"], ["-o", "a%", "true"], ["-o", "nowhere/x", "true"],
    ["-e", "/", "true"], ["--mail", "a b", "true"],
    ["--mail-on", "monday", "true"],
    ["--log", "", "true"], ["--unknown", "true"], ["-x", "true"], ["--hold=1", "true"],
    ["-f"],
], ids=" ".join)
def test_wrong_usage(sandbox, words):
    assert refused(sandbox.run("mxq-sub", *words), 64)
    assert is_empty(sandbox)


def test_an_output_file_whose_directory_depends_on_the_job_is_accepted(sandbox):
    submit(sandbox, "-o", "%j/out", "-e", "err-%n%%", "true")
    assert job(sandbox, 1)["stdout"] == "%j/out"


def test_a_wrong_setting(sandbox):
    assert refused(sandbox.run("mxq-sub", "true", env={"MXQ_MAIL": "-x"}), 78, "MXQ_MAIL")
    assert refused(sandbox.run("mxq-sub", "true", env={"MXQ_MAIL": "a@b", "MXQ_MAIL_ON": "x"}), 78, "MXQ_MAIL_ON")
    assert is_empty(sandbox)


def test_a_directory_that_is_gone(sandbox):
    done = sandbox.run("sh", "-c", "mkdir gone; cd gone; rmdir ../gone; mxq-sub true")
    assert refused(done, 64, "current directory")


@pytest.mark.as_user
def test_no_permission(sandbox):
    secret = sandbox.work / "secret"
    secret.write_text("true\n")
    secret.chmod(0)
    assert refused(sandbox.run("mxq-sub", "-f", "secret"), 77, "secret", "Permission denied")
    submit(sandbox, "true")
    sandbox.queue_file.chmod(0o400)
    assert refused(sandbox.run("mxq-sub", "true"), 77, "queue.db")
    sandbox.queue_file.chmod(0o600)
    sandbox.mxq_dir.chmod(0o500)
    assert sandbox.run("mxq-sub", "true").returncode == 77
    sandbox.mxq_dir.chmod(0o700)
    assert len(argvs(sandbox)) == 1


def test_a_queue_that_others_can_write_to(sandbox):
    submit(sandbox, "true")
    sandbox.queue_file.chmod(0o666)
    assert refused(sandbox.run("mxq-sub", "true"), 77, "can be written by others")


def test_a_base_that_cannot_be_made(sandbox):
    assert refused(sandbox.run("mxq-sub", "true", env={"MXQ_DIR": "/proc/mxq"}), 73, "/proc/mxq")


def test_numbers_that_cannot_be_printed_are_told(sandbox):
    with open("/dev/full", "w", encoding="ascii") as full:
        done = sandbox.run("mxq-sub", "-f", "-", input="true\ntrue\n", stdout=full)
    assert done.returncode == 74
    assert done.stderr == ("mxq-sub: error: jobs 1 to 2 are submitted, but that cannot be written: "
                           "No space left on device\n")
    assert len(argvs(sandbox)) == 2


def test_a_closed_standard_input_has_no_commands(sandbox):
    done = sandbox.run("sh", "-c", "mxq-sub -f - <&-")
    assert refused(done, 65, "no commands")
    assert sandbox.run("sh", "-c", "mxq-sub true <&- >&- 2>&-").returncode == 74
    assert len(argvs(sandbox)) == 1


def test_many_at_once_get_different_numbers(sandbox):
    spawned = [sandbox.spawn("mxq-sub", "-f", "-", stdin=subprocess.PIPE) for _ in range(6)]
    for process in spawned:
        process.stdin.write("true\n" * 50)
        process.stdin.close()
    numbers = [int(word) for process in spawned for word in process.stdout.read().split()]
    assert [process.wait(60) for process in spawned] == [0] * 6
    assert sorted(numbers) == list(range(1, 301))
