"""A whole HTCondor pool on this machine, for the tests of one module: daemons, queue, submit.

    with Pool() as pool:
        job = pool.submit(sandbox, "vanilla", "sh", "-c", "exit 3")
        pool.end(sandbox, job)

The programs are those of tests/harness/trixie.py, chrooted in a mount
namespace of their own and in a network namespace that has only loopback. In
there the tree is /mnt/mxq, the folder of all sandboxes is /tmp, and UID has a
name. The daemons' state is in a sandbox, with which all of them end.
"""

import os
import re
import socket
import tempfile
from pathlib import Path

from tests.harness import trixie
from tests.harness.sandbox import SYSTEM_PATH, TREE, Sandbox, wait_for
from tests.harness.users import UID, hand_over

USER = "mxqcondor"
CONFIG = """\
include : /etc/condor/condor_config
LOCAL_DIR = {local}
FS_LOCAL_DIR = {shared}
LOCAL_CONFIG_FILE = {last}
"""
# What Debian's own files must not override: they are read before this one.
LAST = """\
NUM_CPUS = 12
MEMORY = 2048
SCHEDD_INTERVAL = 1
SCHEDD_MIN_INTERVAL = 1
NEGOTIATOR_INTERVAL = 1
NEGOTIATOR_MIN_INTERVAL = 1
NEGOTIATOR_CYCLE_DELAY = 1
UPDATE_INTERVAL = 1
MASTER_BACKOFF_CONSTANT = 1
MACHINE_MAX_VACATE_TIME = 3
"""
FOLDERS = ("run/condor", "log/condor", "lock/condor", "spool/condor", "lib/condor/execute", "lib/condor/cred_dir")
# HTCondor wants / to be a mount point.
START = """
set -e
root=$1 tree=$2 sandboxes=$3 etc=$4
mount --bind "$root" "$root" && cd "$root"
mount -t proc proc proc && mount -t sysfs sys sys && mount --rbind /dev dev
mount --bind "$sandboxes" tmp
mount -t tmpfs -o mode=755 tmpfs mnt && mkdir mnt/mxq && mount --bind "$tree" mnt/mxq
mount -t tmpfs -o mode=755 tmpfs run
for file in passwd hosts; do mount --bind "$etc/$file" "etc/$file"; done
ip link set lo up
exec chroot . condor_master -f
"""
JOB = """\
universe = {universe}
executable = /mnt/mxq/bin/mxq-reap
arguments = "{arguments}"
transfer_executable = false
should_transfer_files = no
request_memory = 10
initialdir = {work}
environment = "{environment}"
output = out.$(Cluster)
error = err.$(Cluster)
log = log.$(Cluster)
{more}
queue
"""


class Pool:
    """The daemons, from `with` on; as root only."""

    def __init__(self):
        self.box = None

    def __enter__(self):
        root = trixie.need()
        self.box = Sandbox()
        try:
            self._start(root)
        except BaseException:
            self.box.close(keep=True)
            raise
        return self

    def __exit__(self, *_):
        self.box.close()
        assert self.box.pids() == []

    def _start(self, root):
        box = self.box
        box.path.chmod(0o755)
        local = box.path / "local"
        daemon = next(line.split(":") for line in (root / "etc/passwd").read_text().splitlines()
                      if line.startswith("condor:"))
        for folder in FOLDERS:
            (local / folder).mkdir(parents=True)
        for folder in [local, *local.rglob("*")]:
            os.chown(folder, int(daemon[2]), int(daemon[3]))
        shared = box.path / "shared"        # who may make a folder there has proved who he is
        shared.mkdir()
        shared.chmod(0o1777)
        (box.path / "config").write_text(CONFIG.format(
            local=inside(local), shared=inside(shared), last=inside(box.path / "last")))
        (box.path / "last").write_text(LAST)
        (box.path / "hosts").write_text("127.0.0.1 localhost %s\n" % socket.gethostname())
        (box.path / "passwd").write_text("%s%s:x:%d:%d::/nonexistent:/bin/sh\n" % (
            (root / "etc/passwd").read_text(), USER, UID, UID))
        box.env.update(PATH=SYSTEM_PATH, CONDOR_CONFIG=inside(box.path / "config"))
        self.master = box.spawn("unshare", "--mount", "--net", "sh", "-c", START, "sh", root, TREE,
                                tempfile.gettempdir(), box.path, text=True, stdout=open(box.path / "said", "w"),
                                stderr=open(box.path / "said", "a"))
        wait_for(self._is_ready, 90, "a slot in %s" % box.path)

    def _is_ready(self):
        assert self.master.poll() is None, (self.box.path / "said").read_text()
        return "slot1" in self.run("/", "condor_status", "-af", "Name", check=False)

    def run(self, cwd, *argv, user=None, env=(), check=True):
        """What a command says in there; `cwd` and the paths in `argv` are as in there, `env` is like `NAME=value`."""
        switch = [] if user is None else ["setpriv", "--reuid=%d" % UID, "--regid=%d" % UID, "--clear-groups"]
        done = self.box.run("nsenter", "--target=%d" % self.master.pid, "--mount", "--net", "--root", *switch, "env",
                            "--chdir=%s" % cwd, *env, *argv, cwd="/")
        assert not check or done.returncode == 0, "%r: status %d: %s%s" % (
            argv, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def as_user(self, sandbox, *argv):
        """What a command of the user says, started in the sandbox's work."""
        words = ("%s=%s" % (name, value) for name, value in _environment(sandbox).items())
        return self.run(inside(sandbox.work), *argv, user=UID, env=words)

    def submit(self, sandbox, universe, *argv, more=""):
        """Submit `mxq-reap ARGV`, its environment the sandbox's, and return the cluster's number as text."""
        hand_over(sandbox)
        quoted = " ".join("'%s'" % word.replace("'", "''").replace('"', '""') for word in argv)
        job = sandbox.path / "job.sub"
        job.write_text(JOB.format(
            universe=universe, arguments=quoted, more=more, work=inside(sandbox.work),
            environment=" ".join("%s='%s'" % pair for pair in _environment(sandbox).items())))
        job.chmod(0o644)
        said = self.as_user(sandbox, "condor_submit", "-terse", inside(job))
        return re.match(r"(\d+)\.0 ", said).group(1)

    def await_event(self, sandbox, cluster, number, count=1):
        """Wait until HTCondor's log of the job has `count` events of that number."""
        log = sandbox.work / ("log.%s" % cluster)
        pattern = re.compile(r"(?m)^%03d \(0*%s\." % (number, cluster))
        wait_for(lambda: len(pattern.findall(log.read_text())) >= count, 60,
                 "event %03d of job %s in %s" % (number, cluster, log))

    def history(self, cluster, *attributes):
        """Attributes of a job that has left the queue, as a list of text."""
        wait_for(lambda: not self.run("/", "condor_q", "-all", "-af", "ClusterId", "-constraint",
                                      "ClusterId == %s" % cluster), what="the job's leaving the queue")
        return self.run("/", "condor_history", cluster, "-limit", "1", "-af", *attributes).split()


def inside(path):
    """A path below the folder of all sandboxes, as it is called in there."""
    return str(Path("/tmp") / Path(path).relative_to(tempfile.gettempdir()))


def _environment(sandbox):
    return {"MXQ_DIR": inside(sandbox.mxq_dir), "MXQ_FALLBACK": inside(sandbox.path / "fallback"),
            "MXQ_TEST_SANDBOX": sandbox.token}
