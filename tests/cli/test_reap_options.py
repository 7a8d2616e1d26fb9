"""What the options of mxq-reap do to the job, and what the record says of them."""

import os
import pwd
import re
import socket

import pytest

from tests.harness.reaping import COUNT, outcome, running, spawn_ready

FIELDS = """format state run job attempt name group user uid gid host reaper front main argv cwd umask stdout stderr
    threads memory cpus runtime priority restart date_submit date_start fallback deliveries outer
    grace linger""".split()
ADDED = """date_end date_done real status exit signal core reason error signals rusage maxrss_floor max_sumrss children
    children_more leftovers survivors adopted""".split()
DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


def user_name():
    """The name of the user, or the number of one without a name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def test_the_record_of_a_plain_run(sandbox):
    done = sandbox.run("mxq-reap", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")
    record = sandbox.record()
    assert sorted(record) == sorted(FIELDS + ADDED)
    plain = {"format": 1, "state": "ended", "job": None, "attempt": 1, "name": "sh", "group": "default",
             "user": user_name(), "uid": os.geteuid(), "gid": os.getegid(),
             "host": socket.gethostname(), "argv": ["sh", "-c", "echo out; echo err >&2; exit 3"],
             "cwd": str(sandbox.work), "umask": 0o022, "stdout": None, "stderr": None, "threads": 1, "memory": None,
             "cpus": None, "runtime": None, "priority": 127, "restart": "never", "deliveries": [], "outer": None,
             "grace": 10, "linger": False, "status": 3 << 8, "exit": 3, "signal": None, "core": None, "reason": None,
             "error": None, "signals": [], "children_more": 0, "leftovers": 0, "survivors": [], "adopted": False}
    assert {name: record[name] for name in plain} == plain
    host = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())
    assert re.fullmatch(r"\d{8}T\d{6}\.\d{6}Z-%s-%d" % (host, record["front"]["pid"]), record["run"])
    assert record["fallback"] == "%s/fallback/%s.json" % (sandbox.path, record["run"])
    dates = [record["date_" + name] for name in ("submit", "start", "end", "done")]
    assert all(map(DATE.fullmatch, dates)) and dates == sorted(dates)
    assert 0 <= record["real"] < 60
    assert [child["pid"] for child in record["children"]] == [record["main"]["pid"]]
    assert len(record["rusage"]) == 16 and record["rusage"]["utime"] >= 0
    assert set(record["main"]) == {"host", "boot", "pidns", "timens", "pid", "start"}
    assert record["reaper"] != record["front"] != record["main"]


def test_the_record_of_a_running_job(sandbox):
    reap = spawn_ready(sandbox, "mxq-reap", COUNT)
    record = running(sandbox)
    assert sorted(record) == sorted(FIELDS) and record["state"] == "running"
    assert record["front"]["pid"] == reap.pid
    for role in ("front", "reaper", "main"):
        with open("/proc/%d/stat" % record[role]["pid"], encoding="ascii") as file:
            assert int(file.read().rpartition(")")[2].split()[19]) == record[role]["start"]
    names = sorted(os.listdir(sandbox.runs))
    assert names == ["." + record["run"], record["run"] + ".json"]
    assert (sandbox.runs / names[0]).stat().st_blocks * 512 >= 128 << 10
    reap.terminate()
    assert reap.wait(20) == 0
    assert os.listdir(sandbox.runs) == [record["run"] + ".json"]


OPTIONS = [
    (["-p", "200"], {"priority": 200}),
    (["-p0"], {"priority": 0}),
    (["-j", "4"], {"threads": 4}),
    (["--threads=4"], {"threads": 4}),
    (["-m", "100"], {"memory": 100 << 20}),
    (["-m", "2G"], {"memory": 2 << 30}),
    (["-m1000K"], {"memory": 1000 << 10}),
    (["-t", "5"], {"runtime": 300}),
    (["-t", "1d12h"], {"runtime": 129600}),
    (["-t", "1-02:03:04"], {"runtime": 93784}),
    (["-N", "a name \u00e4"], {"name": "a name \u00e4"}),
    (["-g", "some/group"], {"group": "some/group"}),
    (["-r", "samehost"], {"restart": "samehost"}),
    (["-r", "always"], {"restart": "always"}),
    (["-u", "027"], {"umask": 0o027}),
    (["--grace", "2m", "--linger"], {"grace": 120, "linger": True}),
    (["-qvN", "bundled"], {"name": "bundled"}),
    (["--mail", "a@b", "--mail-on", "always"], {"deliveries": [{"sink": "mail", "to": "a@b", "on": "always"}]}),
    (["--mail", "a@b"], {"deliveries": [{"sink": "mail", "to": "a@b", "on": "failure"}]}),
    (["--log", "l", "--hook", "cat", "--record", "-", "--mail", "m"],
     {"deliveries": [{"sink": "log", "path": "{work}/l"}, {"sink": "record", "path": "-"},
                     {"sink": "mail", "to": "m", "on": "failure"}, {"sink": "hook", "command": "cat"}]}),
    (["--record", "r"], {"deliveries": [{"sink": "record", "path": "{work}/r"}]}),
]


def filled(value, sandbox):
    """`value` with {work} filled in."""
    if isinstance(value, list):
        return [{name: filled(text, sandbox) for name, text in each.items()} for each in value]
    return value.replace("{work}", str(sandbox.work)) if isinstance(value, str) else value


@pytest.mark.parametrize("options, fields", OPTIONS, ids=[" ".join(options) for options, _ in OPTIONS])
def test_options_are_in_the_record(sandbox, options, fields):
    done = sandbox.run("mxq-reap", *options, "true")
    assert (done.returncode, done.stdout) == (0, "")
    record = sandbox.record()
    assert {name: record[name] for name in fields} == {name: filled(value, sandbox) for name, value in fields.items()}


@pytest.mark.parametrize("env, deliveries", [
    ({"MXQ_MAIL": "me"}, [{"sink": "mail", "to": "me", "on": "failure"}]),
    ({"MXQ_MAIL": "me", "MXQ_MAIL_ON": "always"}, [{"sink": "mail", "to": "me", "on": "always"}]),
    ({"MXQ_LOG": "/log"}, [{"sink": "log", "path": "/log"}])])
def test_deliveries_from_the_environment(sandbox, env, deliveries):
    sandbox.run("mxq-reap", "true", env=env, check=True)
    assert sandbox.record()["deliveries"] == deliveries


# ---- what the job sees ----

def test_the_job_is_told_what_it_has(sandbox):
    done = sandbox.run("mxq-reap", "-j", "3", "-m", "1500K", "-t", "90s", "sh", "-c", "env | grep ^MXQ_ | sort",
                       env={"MXQ_JOBID": "17", "MXQ_RUN": "17.1", "MXQ_TEST_SANDBOX": None, "MXQ_FALLBACK": None})
    run = sandbox.record()["run"]
    # What names an outer run does not name this one.
    assert done.stdout.splitlines() == ["MXQ_DIR=%s" % sandbox.mxq_dir, "MXQ_MEMORY=2", "MXQ_RUN=%s" % run,
                                        "MXQ_THREADS=3", "MXQ_TIME=2"]


def test_without_limits_no_limit_is_told(sandbox):
    done = sandbox.run("mxq-reap", "sh", "-c", "env", env={"MXQ_MEMORY": "1", "MXQ_TIME": "1"})
    assert "MXQ_MEMORY" not in done.stdout and "MXQ_TIME" not in done.stdout


def test_the_working_directory(sandbox):
    (sandbox.work / "inner").mkdir()
    for option in ("inner", sandbox.work / "inner", "../work/inner"):
        assert sandbox.run("mxq-reap", "-w", option, "pwd").stdout == "%s/inner\n" % sandbox.work
    assert sandbox.run("mxq-reap", "pwd").stdout == "%s\n" % sandbox.work


def test_the_umask_is_the_callers_or_the_one_asked_for(sandbox):
    assert sandbox.run("mxq-reap", "sh", "-c", "umask", preexec_fn=lambda: os.umask(0o037)).stdout == "0037\n"
    assert sandbox.run("mxq-reap", "-u", "007", "-o", "out", "sh", "-c", "umask").stdout == ""
    assert (sandbox.work / "out").read_text() == "0007\n"
    assert (sandbox.work / "out").stat().st_mode & 0o777 == 0o660


@pytest.mark.parametrize("options, out, err", [
    (["-o", "out"], "out", None), (["-e", "err"], None, "err"), (["-o", "out", "-e", "err"], "out", "err"),
    (["-o", "both", "-e", "both"], "both", "both")])
def test_output_files_are_appended_to(sandbox, options, out, err):
    for _ in range(2):
        done = sandbox.run("mxq-reap", *options, "sh", "-c", "echo to-out; echo to-err >&2")
        assert done.stdout == ("" if out else "to-out\n") and done.stderr == ("" if err else "to-err\n")
    once = {}
    for name, text in ((out, "to-out\n"), (err, "to-err\n")):
        if name:
            once[name] = once.get(name, "") + text
    for name, text in once.items():
        assert (sandbox.work / name).read_text() == text * 2


def test_a_relative_output_is_in_the_jobs_directory(sandbox):
    (sandbox.work / "inner").mkdir()
    sandbox.run("mxq-reap", "-w", "inner", "-o", "out", "echo", "text", check=True)
    assert (sandbox.work / "inner" / "out").read_text() == "text\n"
    assert sandbox.record()["stdout"] == "%s/inner/out" % sandbox.work


def test_patterns_in_output_files(sandbox):
    sandbox.run("mxq-reap", "-N", "a/name", "-o", "%%-%j-%r-%a-%h-%u-%n-%%j", "true", check=True)
    record = sandbox.record()
    run, host, user = record["run"], record["host"], record["user"]
    wanted = "%%-%s-%s-1-%s-%s-a-name-%%j" % (run, run, host, user)
    assert os.listdir(sandbox.work) == [wanted]
    assert record["stdout"] == "%s/%s" % (sandbox.work, wanted)


def test_dev_null_and_a_device_are_outputs_too(sandbox):
    done = sandbox.run("mxq-reap", "-o", "/dev/null", "-e", "/dev/full", "sh", "-c", "echo x; echo y >&2 || exit 3")
    assert (done.returncode, done.stdout) == (3, "")


def test_cpus(sandbox):
    cpu = sorted(os.sched_getaffinity(0))[-1]
    done = sandbox.run("mxq-reap", "--cpus", str(cpu), "sed", "-n", "s/^Cpus_allowed_list:.//p", "/proc/self/status")
    assert done.stdout == "%d\n" % cpu
    assert sandbox.record()["cpus"] == [cpu]


def test_verbose_tells_the_steps_and_quiet_no_warnings(sandbox):
    done = sandbox.run("mxq-reap", "-v", "true")
    assert done.returncode == 0
    assert all(line.startswith("mxq-reap: info: ") for line in done.stderr.splitlines()) and done.stderr
    assert sandbox.run("mxq-reap", "-q", "true").stderr == ""


# ---- outer batch systems ----

@pytest.mark.parametrize("env, outer", [
    ({"SLURM_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "2"}, {"SLURM_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "2"}),
    ({"JOB_ID": "7", "SGE_TASK_ID": "undefined", "RESTARTED": "0"},
     {"JOB_ID": "7", "SGE_TASK_ID": "undefined", "RESTARTED": "0"}),
    ({"JOB_ID": "anybody's"}, None),
    ({"PBS_JOBID": "9.server"}, {"PBS_JOBID": "9.server"}),
    ({"_CONDOR_SLOT": "slot1_1"}, {"_CONDOR_SLOT": "slot1_1"}),
    ({"_CONDOR_SLOT": ""}, None),
    ({"PARALLEL_SEQ": "3", "PARALLEL_PID": "4"}, {"PARALLEL_SEQ": "3", "PARALLEL_PID": "4"})])
def test_the_ids_of_an_outer_batch_system(sandbox, env, outer):
    sandbox.run("mxq-reap", "true", env=env, check=True)
    assert sandbox.record()["outer"] == outer


AD = """Args = "ClusterId = 9"
AutoClusterId = 2
ClusterId = 17
GlobalJobId = "n\u00f6de#17.3#1796094097"
NumJobStarts = 1
ProcId = 3
"""


def test_the_ids_in_htcondors_job_ad(sandbox):
    (sandbox.work / "ad").write_text(AD, "utf-8")
    sandbox.run("mxq-reap", "true", env={"_CONDOR_JOB_AD": "ad", "_CONDOR_SLOT": "slot1"}, check=True)
    assert sandbox.record()["outer"] == {"_CONDOR_SLOT": "slot1", "ClusterId": "17", "ProcId": "3", "NumJobStarts": "1",
                                         "GlobalJobId": "n\u00f6de#17.3#1796094097"}


def test_a_job_ad_that_cannot_be_read_delays_nothing(sandbox):
    os.mkfifo(sandbox.work / "fifo")
    (sandbox.work / "noise").write_bytes(bytes(range(256)) * 100)
    for path in ("missing", "fifo", "/", "noise", "/dev/zero"):
        sandbox.run("mxq-reap", "true", env={"_CONDOR_JOB_AD": path}, check=True)
    assert [record["outer"] for record in sandbox.records()] == [None] * 5


# ---- two at once ----

def test_many_at_once_have_records_of_their_own(sandbox):
    reaps = [sandbox.spawn("mxq-reap", "sh", "-c", "exit %d" % n) for n in range(20)]
    assert [reap.wait(60) for reap in reaps] == list(range(20))
    assert sorted(record["exit"] for record in sandbox.records()) == list(range(20))
    assert len({record["run"] for record in sandbox.records()}) == 20


def test_without_fsync_the_record_is_the_same(sandbox):
    sandbox.run("mxq-reap", "sh", "-c", "exit 2", env={"MXQ_SYNC": "0"})
    assert outcome(sandbox.record()) == (2, None, None)
