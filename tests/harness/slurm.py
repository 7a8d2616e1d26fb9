"""A real Slurm with one node, in a namespace of its own, with its state in a temporary folder."""

import shutil
import tempfile
import time
from pathlib import Path

import pytest

from tests.harness.namespace import Namespace
from tests.harness.sandbox import SYSTEM_PATH, wait_for

# What does not say otherwise is there for speed, or because the plugin behind the default wants more than a namespace
# has. proctrack/linuxproc is Slurm's own choice where there are no cgroups: a job is the descendants of its step.
CONFIGURATION = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={path}/munge.socket
CredType=cred/munge
StateSaveLocation={path}/state
SlurmdSpoolDir={path}/spool
SlurmctldPidFile={path}/slurmctld.pid
SlurmdPidFile={path}/slurmd.pid
SlurmctldLogFile={path}/slurmctld.log
SlurmdLogFile={path}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
KillWait=2
MinJobAge=3600
NodeName=localhost NodeAddr=127.0.0.1 CPUs=16 State=UNKNOWN
PartitionName=test Nodes=localhost Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """A running Slurm. Commands go through `command`, which is what a sandbox runs or spawns."""

    def __init__(self):
        for program in ("slurmctld", "slurmd", "munged"):
            if not shutil.which(program, path=SYSTEM_PATH):
                pytest.skip("machine cannot: run Slurm: %s is not installed" % program)
        self.path = Path(tempfile.mkdtemp(prefix="mxq-slurm-"))
        # munged wants its socket where everybody may go.
        self.path.chmod(0o711)
        self.namespace = None
        try:
            self.namespace = Namespace()
            self._start_all()
        except BaseException:
            self.close()
            raise

    def _start_all(self):
        for folder in ("state", "spool"):
            (self.path / folder).mkdir()
        self._conf.write_text(CONFIGURATION.format(path=self.path))
        key = self.path / "munge.key"
        key.write_bytes(b"nobody outside this test trusts it")
        key.chmod(0o600)
        self._daemon("munged", "--force", "--socket=%s/munge.socket" % self.path, *(
            "--%s-file=%s/munge.%s" % (name, self.path, name) for name in ("key", "pid", "log", "seed")))
        self.start()

    @property
    def _conf(self):
        return self.path / "slurm.conf"

    def _daemon(self, *argv):
        done = self.namespace.run(*argv, env={"SLURM_CONF": str(self._conf)})
        assert done.returncode == 0, "%s: %s" % (argv[0], done.stdout)

    def start(self):
        """Start both daemons, with what is known of older jobs, and wait until the node takes jobs."""
        self._daemon("slurmctld")
        self._daemon("slurmd", "-N", "localhost")
        wait_for(lambda: self.ask("sinfo", "-h", "-o", "%t").strip() in ("idle", "mix", "alloc"), 30,
                 "a node that takes jobs")

    def kill(self, *daemons):
        """kill -9 of `slurmctld`, `slurmd`."""
        for daemon in daemons:
            pid = (self.path / (daemon + ".pid")).read_text().strip()
            done = self.namespace.run("sh", "-c", "kill -9 $1; while kill -0 $1 2>/dev/null; do sleep 0.01; done",
                                      "sh", pid)
            assert done.returncode == 0, done.stdout

    def wait_saved(self):
        """Wait until what slurmctld knows is on the disk (it is every few seconds): a job that is not would be killed
        as an orphan when the daemons come back."""
        file, now = self.path / "state" / "job_state", time.time()
        wait_for(lambda: file.exists() and file.stat().st_mtime > now, 30, "a saved state")

    def command(self, *argv, cwd="/"):
        """The command line that runs `argv` where Slurm is."""
        return self.namespace.command("env", "SLURM_CONF=%s" % self._conf, *argv, cwd=cwd)

    def ask(self, *argv):
        """What a command of Slurm prints."""
        return self.namespace.run(*argv, env={"SLURM_CONF": str(self._conf)}).stdout

    def job(self, number):
        """What `scontrol show job` says of one job: the words NAME=VALUE as a dict."""
        words = self.ask("scontrol", "-o", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def close(self):
        """End all of its processes and remove its folder."""
        if self.namespace:
            self.namespace.close()
        shutil.rmtree(self.path)
