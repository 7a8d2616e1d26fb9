"""A real Grid Engine with one host, in a namespace of its own, with its state in a temporary folder."""

import shutil
import tempfile
from pathlib import Path

import pytest

from tests.harness.namespace import Namespace
from tests.harness.sandbox import wait_for
from tests.harness.users import UID

HOST = "sgehost"
USER = "mxqsge"         # the name of users.UID in the namespace: root runs no jobs
ADMIN = ("runuser", "-u", "sgeadmin", "--")
ROOT = Path("/var/lib/gridengine")
SPOOL = Path("/var/spool/gridengine")
SHARE = Path("/usr/share/gridengine")
BIN = Path("/usr/lib/gridengine")
ENVIRONMENT = {"SGE_ROOT": str(ROOT), "SGE_CELL": "default"}

# queue_conf(5); `notify` is the time from the warning signal of -notify to the real one.
QUEUE = dict.fromkeys((
    "ckpt_list pe_list prolog epilog starter_method suspend_method resume_method terminate_method owner_list "
    "user_lists xuser_lists subordinate_list complex_values projects xprojects calendar load_thresholds "
    "suspend_thresholds"
).split(), "NONE")
QUEUE.update({
    "qname": "all.q", "hostlist": HOST, "seq_no": "0", "nsuspend": "1", "suspend_interval": "00:05:00",
    "priority": "0", "min_cpu_interval": "00:00:01", "processors": "UNDEFINED", "qtype": "BATCH INTERACTIVE",
    "rerun": "FALSE", "slots": "16", "tmpdir": "/tmp", "shell": "/bin/sh", "shell_start_mode": "unix_behavior",
    "notify": "00:00:02", "initial_state": "default"})
for _limit in "rt cpu fsize data stack core rss vmem".split():
    QUEUE["s_" + _limit] = QUEUE["h_" + _limit] = "INFINITY"

# sge_conf(5): accounting is written at once, nobody gets mail.
CONFIGURATION = {"mailer": "/bin/true", "administrator_mail": "none",
                 "reporting_params": "accounting=true reporting=false flush_time=00:00:01 "
                                     "accounting_flush_time=00:00:00 joblog=false sharelog=00:00:00"}
# sched_conf(5)
SCHEDULER = {"schedule_interval": "0:0:1", "flush_submit_sec": "1", "flush_finish_sec": "1"}


class GridEngine:
    """A running Grid Engine. Commands go through `command`, which is what a sandbox runs or spawns."""

    def __init__(self):
        if not (BIN / "sge_execd").exists() or not (BIN / "sge_qmaster").exists():
            pytest.skip("machine cannot: run Grid Engine: gridengine-master or gridengine-exec is not installed")
        self.path = Path(tempfile.mkdtemp(prefix="mxq-sge-"))
        self.path.chmod(0o711)
        self.namespace = None
        try:
            self._start_all()
        except BaseException:
            self.close()
            raise

    def _start_all(self):
        for folder in ("common", "spool", "spool/spooldb", "spool/qmaster", "spool/execd"):
            (self.path / folder).mkdir()
            shutil.chown(self.path / folder, "sgeadmin", "sgeadmin")
        # The name of the host comes first: the other way round every client is refused.
        self._write("hosts", "127.0.0.1 %s localhost\n" % HOST)
        for name in ("passwd", "group"):
            entry = "%s:x:%d:%s\n" % (USER, UID, "%d::/:/bin/sh" % UID if name == "passwd" else "")
            self._write(name, Path("/etc", name).read_text() + entry)
        self._write("common/bootstrap", (ROOT / "default/common/bootstrap").read_text())
        self._write("common/act_qmaster", HOST + "\n")
        shutil.chown(self.path / "common/act_qmaster", "sgeadmin", "sgeadmin")
        self.namespace = Namespace(HOST, {
            "/etc/hosts": self.path / "hosts", "/etc/passwd": self.path / "passwd", "/etc/group": self.path / "group",
            str(ROOT / "default/common"): self.path / "common", str(SPOOL): self.path / "spool"})
        self._write("configuration", _changed((SHARE / "default-configuration").read_text(), CONFIGURATION))
        self.ask(*ADMIN, BIN / "spoolinit", "berkeleydb", "libspoolb", SPOOL / "spooldb", "init")
        for words in (("configuration", self.path / "configuration"), ("complexes", SHARE / "util/resources/centry"),
                      ("usersets", SHARE / "util/resources/usersets"), ("managers", "sgeadmin")):
            self.ask(*ADMIN, BIN / "spooldefaults", *words)
        self._daemon("sge_qmaster")
        wait_for(lambda: self.attempt(*ADMIN, "qconf", "-sh").returncode == 0, 30, "an answer of sge_qmaster")
        self.attempt(*ADMIN, "qconf", "-ah", HOST)
        self.ask(*ADMIN, "qconf", "-as", HOST)
        self._write("queue", "".join("%s %s\n" % pair for pair in QUEUE.items()))
        self._write("scheduler", _changed(self.ask(*ADMIN, "qconf", "-ssconf"), SCHEDULER))
        self.ask(*ADMIN, "qconf", "-Msconf", self.path / "scheduler")
        self._daemon("sge_execd")
        self.ask(*ADMIN, "qconf", "-Aq", self.path / "queue")

    def _write(self, name, text):
        (self.path / name).write_text(text)
        (self.path / name).chmod(0o644)

    def attempt(self, *argv):
        """Run a command as root; a CompletedProcess, both outputs in one."""
        return self.namespace.run(*argv, env=ENVIRONMENT)

    def ask(self, *argv):
        """What a command prints that must succeed, run as root."""
        done = self.attempt(*argv)
        assert done.returncode == 0, "%s: %s" % (argv, done.stdout)
        return done.stdout

    def _daemon(self, name):
        # They keep what they were started with open: a pipe would never end.
        self.ask("sh", "-c", "exec %s </dev/null >/dev/null 2>&1" % name)

    def command(self, *argv, cwd="/"):
        """The command line that runs `argv` where Grid Engine is."""
        return self.namespace.command("env", *("%s=%s" % pair for pair in ENVIRONMENT.items()), *argv, cwd=cwd)

    def start(self):
        """Start both daemons again."""
        self._daemon("sge_qmaster")
        wait_for(lambda: self.attempt("qstat").returncode == 0, 30, "an answer of sge_qmaster")
        self._daemon("sge_execd")

    def kill(self):
        """kill -9 of both daemons."""
        for file in ("qmaster/qmaster.pid", "execd/%s/execd.pid" % HOST):
            pid = (self.path / "spool" / file).read_text().strip()
            self.ask("sh", "-c", "kill -9 $1; while kill -0 $1 2>/dev/null; do sleep 0.01; done", "sh", pid)

    def state(self, job):
        """The letters that qstat shows for a job; "" when it is not (any more) in the list."""
        for line in self.attempt("qstat", "-u", "*").stdout.splitlines():
            words = line.split()
            if words and words[0] == str(job):
                return words[4]
        return ""

    def accounts(self, job):
        """What qacct says of a job that has ended, a dict for each of its tasks; [] as long as it says nothing."""
        found = []
        for line in self.attempt("qacct", "-j", job).stdout.splitlines():
            if line.startswith("====="):
                found.append({})
            elif found and line.strip():
                name, _, value = line.partition(" ")
                found[-1][name] = value.strip()
        return found

    def close(self):
        """End all of its processes and remove its folder."""
        if self.namespace:
            self.namespace.close()
        shutil.rmtree(self.path)


def _changed(text, values):
    lines = [line.split(None, 1) for line in text.replace("\\\n", " ").splitlines() if line and line[0] != "#"]
    return "".join("%s %s\n" % (line[0], values.get(line[0], line[-1])) for line in lines)
