"""A spool that two hosts share over NFS 4.2: three machines of their own, a server and two clients, joined by wires.

node1 has the queue: it submits, starts, adopts, collects. Both run mxq-reap. Meanwhile the server loses its power and
comes back; so does node2, twice. node1 must neither lose nor invent what happened on node2, nor say of a run there
that it is lost before it is told to.

    MXQ_TEST_SEED=1 ... pytest tests/engines/test_nfs.py
"""

import itertools
import json
import os
import random
import threading
import time

import pytest

from tests.harness import oracle, witness
from tests.harness.uml import HOST, PROGRAMS, Machine, make_disk, wire

SEED = int(os.environ.get("MXQ_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
BASE = "/mnt/shared/mxq"
RUNS = "/mnt/disk/export/mxq/spool/runs"        # on the server
SLOW_S = 100                # a command that has to wait for a server that boots, and for its grace period
JOBS = 12
SERVE = """set -e
mount -t tmpfs tmpfs /var/lib/nfs
mkdir /var/lib/nfs/rpc_pipefs
: >/var/lib/nfs/etab; : >/var/lib/nfs/rmtab
mount -t nfsd nfsd /proc/fs/nfsd
mount -t rpc_pipefs pipes /var/lib/nfs/rpc_pipefs
mkdir -p /mnt/disk/nfsdcld      # who its clients are: after a restart they may claim their locks again
nfsdcld -p /var/lib/nfs/rpc_pipefs -s /mnt/disk/nfsdcld
for net in 0 1; do ip addr add 10.77.$net.1/24 dev vec$net; ip link set vec$net up; done
echo 10 >/proc/fs/nfsd/nfsv4leasetime; echo 10 >/proc/fs/nfsd/nfsv4gracetime
mkdir -p /mnt/disk/export
exportfs -o rw,no_root_squash,no_subtree_check,insecure,fsid=0,sync '*:/mnt/disk/export'
rpc.nfsd -N 3 -U 4; rpc.mountd -N 3
"""
MOUNT = """set -e
ip addr add 10.77.%(net)d.2/24 dev vec0; ip link set vec0 up
mkdir /mnt/shared; mount -t nfs4 -o vers=4.2 10.77.%(net)d.1:/ /mnt/shared
"""

pytestmark = [pytest.mark.long, pytest.mark.as_root, pytest.mark.timeout_s(1200),
              pytest.mark.needs("rpc.nfsd", "nfsdcld", "rpc.mountd", "exportfs", "mount.nfs4", "modprobe", *PROGRAMS)]


class Site:
    """A server, two nodes, and what was said to us."""

    def __init__(self, sandbox):
        self.sandbox = sandbox
        self.wires = [wire(), wire()]
        self.server = Machine(sandbox, "server", make_disk(sandbox, "server.img"), modules=["nfsd"],
                              wires=[ends[0] for ends in self.wires])
        self.nodes = [Machine(sandbox, "node%d" % (net + 1), modules=["nfsv4"], wires=[self.wires[net][1]])
                      for net in (0, 1)]
        self.one, self.two = self.nodes
        self.one.env.update(MXQ_DIR=BASE, MXQ_FALLBACK="/run/fallback", MXQ_LOG=BASE + "/events.log")
        # No queue there, and runners/ is local; the spool is that of node1.
        self.two.env.update(self.one.env, MXQ_DIR="/run/mxq", MXQ_SPOOL=BASE + "/spool")
        self.jobs, self.numbers, self.trouble, self.adopted = [], itertools.count(1), [], []

    def boot_server(self, forgets=False):
        """The server, ready; what its clients had open and locked they may claim again for ten seconds.

        Not when it `forgets` them: then what they have open is dead.
        """
        self.server.boot()
        if forgets:
            self.server.run("rm", "-r", "/mnt/disk/nfsdcld", check=True)
        self.server.run("sh", "-c", SERVE, check=True)

    def boot_node(self, node):
        """A node that has mounted the share."""
        node.boot()
        node.run("sh", "-c", MOUNT % {"net": self.nodes.index(node)}, check=True, timeout_s=SLOW_S)

    def make_job(self, status=0, restart="never", seconds=0.0):
        """A Job that nobody has been told of yet."""
        job = witness.Job("tag%d" % next(self.numbers), status, restart, seconds)
        self.jobs.append(job)
        return job

    def detach(self, node, command, status=0):
        """A run of mxq-reap -b that does `command` first."""
        job = self.make_job(status)
        script = "%s; exec %s" % (command, " ".join(job.argv))
        job.run = node.run("mxq-reap", "-b", "-N", job.tag, "--", "sh", "-c", script, check=True).stdout.strip()
        return job

    def adopt(self, node):
        """What mxq-adopt says."""
        return node.run("mxq-adopt", check=True, timeout_s=SLOW_S).stdout

    def declare_dead(self):
        """What mxq-adopt says of node2 on node1; nothing while the server holds what node2 had locked."""
        done = self.one.run("mxq-adopt", "--host", "node2")
        assert done.returncode == 0 or (done.returncode == 69 and "is node2 dead?" in done.stderr), done
        return done.stdout if done.returncode == 0 else ""

    # ---- all at once ----

    def work(self, *tasks):
        """Do the tasks, functions that are called with a random.Random of their own, at once and to their end."""
        threads = [threading.Thread(target=self._try, args=(task, random.Random("%d %d" % (SEED, number))))
                   for number, task in enumerate(tasks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not self.trouble, "\n".join(self.trouble)

    def _try(self, task, choose):
        try:
            task(choose)
        except Exception as error:
            self.trouble.append("%s: %s" % (task.__name__, error))

    def queue(self, choose):
        """node1 submits, starts, collects and adopts, over and over."""
        for _ in range(JOBS):
            job = self.make_job(choose.choice((0, 0, 7)), choose.choice(("never", "always")), choose.choice((0, 0.3)))
            done = self.one.run("mxq-sub", "-r", job.restart, "--", *job.argv, check=True, timeout_s=SLOW_S)
            job.number = int(done.stdout)
            self.one.run("mxq-run", "-j", "4", check=True, timeout_s=SLOW_S)
            self.one.run("mxq-collect", check=True, timeout_s=SLOW_S)
            self.adopted.append(self.adopt(self.one))

    def reap_one(self, choose):
        """Runs on node1."""
        self._reap(self.one, choose)

    def reap_two(self, choose):
        """Runs on node2."""
        self._reap(self.two, choose)

    def _reap(self, node, choose):
        for _ in range(JOBS):
            job = self.make_job(choose.choice((0, 0, 7)), seconds=choose.choice((0, 0.3)))
            if choose.random() < 0.3:
                done = node.run("mxq-reap", "-b", "-N", job.tag, "--", *job.argv, check=True, timeout_s=SLOW_S)
                job.run = done.stdout.strip()
            else:
                done = node.run("mxq-reap", "-N", job.tag, "--", *job.argv, timeout_s=SLOW_S)
                assert done.returncode == job.status, "%s: %s" % (job, done)
                job.end = done.returncode

    def lose_server(self, choose):
        """The server loses its power, and comes back a little later."""
        time.sleep(choose.uniform(2, 8))
        self.server.cut_power()
        time.sleep(choose.uniform(0, 3))
        self.boot_server()

    # ---- the truth ----

    def collect(self):
        """Until the spool is empty: a client sees a new file of another one up to a minute later (nfs(5), acdirmax)."""
        def is_empty():
            self.one.run("mxq-collect", check=True, timeout_s=SLOW_S)
            return not self.server.run("sh", "-c", "ls %s/*.json" % RUNS).stdout

        self.sandbox.wait_for(is_empty, 180, "an empty spool")

    def truth(self):
        """The queue, copied from the server, beside what the jobs said on both nodes."""
        self.server.run("sh", "-c", "sync && rm -rf %s/mxq && cp -r /mnt/disk/export/mxq %s/ && sync" % (HOST, HOST),
                        check=True)
        return witness.Truth(self.sandbox, self.one.words + self.two.words)


@pytest.fixture
def site(sandbox):
    built = Site(sandbox)
    witness.put_script(sandbox)
    yield built
    sandbox.kill_all()
    for ends in built.wires:
        for end in ends:
            end.close()


def test_an_outcome_outlives_a_server_that_forgets_its_clients(site):
    site.boot_server()
    site.boot_node(site.one)
    site.one.run("mxq-collect", check=True)
    job = site.make_job(status=7, seconds=5)
    command = site.one.spawn("mxq-reap", "-N", job.tag, "--", *job.argv)
    site.one.wait_for(lambda: site.one.words, what="the start of the job")
    site.server.cut_power()
    site.boot_server(forgets=True)
    done = command.wait(SLOW_S)
    assert "cannot write the record" in done.stderr and "the record is written now" in done.stderr
    job.end = done.returncode
    site.collect()
    truth = site.truth()
    assert job.end == 7 and truth.job_findings(job) == []
    assert oracle.findings(site.sandbox) + truth.run_findings(may_be_lost=lambda row: False) == []


def test_two_hosts_share_a_spool(site, capsys):
    with capsys.disabled():
        print("\nseed %d" % SEED)
    site.boot_server()
    for node in site.nodes:
        site.boot_node(node)
    one, two = site.nodes
    one.run("mxq-collect", check=True)          # makes the directories

    # Both at once, with runs that outlast it all, while the server loses its power.
    near = site.detach(one, "until test -e /run/go; do sleep 0.1; done", status=7)
    far = site.detach(two, "until test -e /run/go; do sleep 0.1; done", status=7)
    site.work(site.queue, site.reap_one, site.reap_two, site.reap_two, site.lose_server)
    assert "-node2-" not in "".join(site.adopted), "node1 judged runs of node2: %s" % site.adopted

    # An orphan is for its own host.
    orphan = site.detach(two, "until test -e /run/orphan; do sleep 0.1; done")
    entry = json.loads(two.run("cat", "%s/spool/runs/%s.json" % (BASE, orphan.run), check=True).stdout)
    two.run("kill", "-9", str(entry["reaper"]["pid"]), check=True)
    assert orphan.run not in site.adopt(one)
    assert "%s: adopted" % orphan.run in site.adopt(two)
    two.run("touch", "/run/orphan", check=True)

    # node2 loses its power: node1 says nothing of its runs, node2 all.
    two.cut_power()
    assert "-node2-" not in site.adopt(one)
    one.run("mxq-collect", check=True)
    assert site.truth().runs[far.run]["state"] == "running"
    site.boot_node(two)
    said = site.adopt(two)
    assert "%s: reboot" % far.run in said and near.run not in said

    # Once more, and the operator says that it is dead.
    gone = site.detach(two, "sleep 1000")
    two.cut_power()
    assert gone.run not in site.adopt(one)
    said = site.sandbox.wait_for(site.declare_dead, 120, "the end of node2's lease")
    assert "%s: lost" % gone.run in said and near.run not in said

    one.run("touch", "/run/go", check=True)
    one.run("mxq-run", "--wait", check=True)
    site.collect()
    truth = site.truth()
    lost = {far.run: "reboot", gone.run: "lost", orphan.run: None}
    found = oracle.findings(site.sandbox)
    found += truth.run_findings(lambda row: row["run"] in lost and lost[row["run"]] in (None, row["reason"]))
    found += truth.log_findings(site.sandbox.mxq_dir / "events.log")
    for job in site.jobs:
        found += truth.job_findings(job)
    assert not found, "seed %d:\n%s" % (SEED, "\n".join(found))
    assert (truth.runs[near.run]["state"], truth.runs[near.run]["status"]) == ("failed", 7 << 8)
    for run in (far.run, gone.run):
        assert truth.runs[run]["state"] == "lost", "%s cannot be known" % run
    states = [row["state"] for row in truth.runs.values()]
    with capsys.disabled():
        print("runs: %s" % {state: states.count(state) for state in sorted(set(states))})
