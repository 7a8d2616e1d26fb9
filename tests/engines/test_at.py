"""mxq-reap in jobs of at and batch, started by a real atd: as from a shell, with a record.

atd and at run in a mount namespace of their own, with spool folders of their own: the machine's jobs are not touched.
"""

import os
import signal

import pytest

from tests.harness import processes
from tests.harness.reaping import outcome, received
from tests.harness.sandbox import wait_for

pytestmark = [pytest.mark.as_root, pytest.mark.needs("at", "atd", "atrm")]

# at(1) wants its folders as Debian's package makes them. The stub stands for sendmail, which at calls with what a job
# printed.
START = """
mount -t tmpfs tmpfs /run &&
for folder in atjobs atspool; do
    mount -t tmpfs -o mode=1770,uid=daemon,gid=daemon tmpfs /var/spool/cron/$folder || exit 1
done
touch /var/spool/cron/atjobs/.SEQ && chown daemon:daemon /var/spool/cron/atjobs/.SEQ &&
chmod 600 /var/spool/cron/atjobs/.SEQ || exit 1
exec atd -f -b 1 -l 1000
"""


class At:
    """A running atd, and at in its namespace."""

    def __init__(self, sandbox):
        self.sandbox = sandbox
        self.atd = sandbox.spawn("unshare", "--mount", "sh", "-c", START, new_session=True)
        wait_for(self._is_ready, what="atd")

    def _is_ready(self):
        assert self.atd.poll() is None, self.atd.stderr.read()
        return processes.comm(self.atd.pid) == "atd" and self.run("test", "-s", "/run/atd.pid").returncode == 0

    def run(self, *argv, **kw):
        """Run a command in the namespace, in work/."""
        return self.sandbox.run("nsenter", "--target=%d" % self.atd.pid, "--mount", "env",
                                "--chdir=%s" % self.sandbox.work, *argv, **kw)

    def submit(self, script, *argv):
        """Give at a script; returns the job's number."""
        done = self.run(*(argv or ("at", "now")), input=script, check=True)
        words = done.stderr.split("\n")[-2].split()
        assert words[0] == "job", done.stderr
        return words[1]


@pytest.fixture
def at(sandbox):
    return At(sandbox)


def ended(sandbox, count=1):
    """The records by name once `count` runs have ended."""
    def look():
        found = {record["name"]: record for record in sandbox.records() if record["state"] == "ended"}
        return len(found) == count and found
    return wait_for(look, 30, "%d ended runs" % count)


def status(sandbox, name):
    """What the script of the job has seen: its own file says so."""
    wait_for(lambda: (sandbox.work / name).exists() and (sandbox.work / name).read_text().endswith("\n"))
    return int((sandbox.work / name).read_text())


SCRIPTS = {"fails": ("exit 3", 3, (3, None, None)), "killed": ("kill -KILL $$", 137, (None, 9, None)),
           "leaves": ("sleep 600 & setsid sleep 600 & exit 5", 5, (5, None, None)),
           "stops": ("kill -TSTP 0; exit 4", 4, (4, None, None))}


@pytest.mark.parametrize("command", [("at", "now"), ("batch",)], ids=["at", "batch"])
def test_the_script_sees_how_the_job_ended(sandbox, at, command):
    for name, (script, _, _) in SCRIPTS.items():
        at.submit("mxq-reap -N %s sh -c '%s'; echo $? >%s\n" % (name, script, name), *command)
    records = ended(sandbox, len(SCRIPTS))
    for name, (_, seen, truth) in SCRIPTS.items():
        assert (status(sandbox, name), outcome(records[name])) == (seen, truth), name
        assert records[name]["outer"] is None, "at tells its jobs nothing that names them"
        assert records[name]["cwd"] == str(sandbox.work)
    assert records["leaves"]["leftovers"] == 2
    wait_for(lambda: at.run("atq", check=True).stdout == "", what="an empty queue of at")


def test_the_job_has_the_submitters_surroundings(sandbox, at):
    at.sandbox.env["ODD"] = "a 'b' \"c\" $d\n\u00fc"
    at.submit("umask 027; mxq-reap -N inside sh -c 'env -0 >inside; umask'  >mask; env -0 >outside; touch done\n")
    wait_for((sandbox.work / "done").exists)
    inside, outside = (set((sandbox.work / name).read_bytes().split(b"\0")) for name in ("inside", "outside"))
    names = {word.partition(b"=")[0] for word in inside - outside}
    assert names <= {b"MXQ_RUN", b"MXQ_THREADS", b"_"} and {b"MXQ_RUN", b"MXQ_THREADS"} <= names
    assert ("ODD=" + sandbox.env["ODD"]).encode() in inside
    assert (sandbox.work / "mask").read_text() == "0027\n"


def test_atrm_before_the_start_leaves_no_record(sandbox, at):
    job = at.submit("mxq-reap touch ran\n", "at", "now + 1 hour")
    at.run("atrm", job, check=True)
    at.submit("mxq-reap -N after true\n")
    assert set(ended(sandbox)) == {"after"} and not (sandbox.work / "ran").exists()


def test_a_job_outlives_atd_and_tells_how_it_ended(sandbox, at):
    at.submit("mxq-reap -N waits sh -c 'echo >ready; until test -e go; do sleep 0.1; done; exit 6'; echo $? >waits\n")
    at.submit("mxq-reap -b -N detached sh -c 'echo >ready2; until test -e go; do sleep 0.1; done; exit 7' >run\n")
    wait_for(lambda: (sandbox.work / "ready").exists() and (sandbox.work / "ready2").exists())
    wait_for(lambda: (sandbox.work / "run").read_text().endswith("\n"))
    os.kill(at.atd.pid, signal.SIGKILL)
    at.atd.wait(10)
    (sandbox.work / "go").touch()
    records = ended(sandbox, 2)
    assert (outcome(records["waits"]), status(sandbox, "waits")) == ((6, None, None), 6)
    assert outcome(records["detached"]) == (7, None, None)
    assert (sandbox.work / "run").read_text() == records["detached"]["run"] + "\n"


def test_killing_the_group_takes_the_job_and_not_its_record(sandbox, at):
    """A job of at is in the process group of atd; at has no command that ends it."""
    at.submit("mxq-reap -N job sh -c 'echo >ready; sleep 600 & wait'; echo $? >job\n")
    wait_for((sandbox.work / "ready").exists)
    record, = sandbox.records()
    group = processes.group(record["main"]["pid"])
    assert group == at.atd.pid
    os.killpg(group, signal.SIGKILL)
    assert outcome(ended(sandbox)["job"]) == (None, 9, None)
    assert not (sandbox.work / "job").exists(), "the script was in the group"
    wait_for(lambda: not sandbox.pids(), what="the end of all")


def test_a_job_outlives_its_script(sandbox, at):
    at.submit("mxq-reap -N job sh -c 'echo >ready; until test -e go; do sleep 0.1; done; exit 6'; echo $? >job\n")
    wait_for((sandbox.work / "ready").exists)
    record, = sandbox.records()
    os.kill(int(processes.status(record["front"]["pid"], "PPid")), signal.SIGKILL)
    (sandbox.work / "go").touch()
    assert outcome(ended(sandbox)["job"]) == (6, None, None) and not (sandbox.work / "job").exists()


def test_a_term_to_each_process_is_answered_by_the_job(sandbox, at):
    at.submit("trap : TERM; mxq-reap -N job sh -c 'trap \"exit 9\" TERM; echo >ready; while :; do sleep 0.1; done'\n"
              "echo $? >job\n")
    wait_for((sandbox.work / "ready").exists)
    record, = sandbox.records()
    for pid in [record[role]["pid"] for role in ("front", "reaper", "main")]:
        os.kill(pid, signal.SIGTERM)
    record = ended(sandbox)["job"]
    assert (outcome(record), status(sandbox, "job")) == ((9, None, None), 9)
    assert "reaper TERM" in received(record)
