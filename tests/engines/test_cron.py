"""mxq-reap in a real crontab: what cron starts runs as from a shell, with a record; contrib/crontab runs a queue.

cron runs in a mount namespace of its own, with nothing but our crontab: the machine's is not touched. It starts jobs
when a minute begins, so this takes one.
"""

import os
import re

import pytest

from tests.harness.reaping import outcome
from tests.harness.sandbox import BIN, TREE, wait_for

CRONTAB = """\
SHELL=/bin/sh
PATH=/usr/bin:/bin
MAILTO=""
MXQ_DIR={base}
MXQ_TEST_SANDBOX={token}
* * * * * {reap} -N status sh -c 'exit 3'; echo $? >{work}/status
* * * * * {reap} -N stops sh -c 'kill -TSTP 0; kill -TTOU 0; exit 4'; echo $? >{work}/stops
* * * * * {reap} -N leaves sh -c 'sleep 600 & setsid sleep 600 & exit 5'; echo $? >{work}/leaves
* * * * * {reap} -N killed sh -c 'kill -KILL $$'; echo $? >{work}/killed
* * * * * {reap} -N environment env -0 >{work}/inside; env -0 >{work}/outside
* * * * * {reap} -b -N detached sh -c 'sleep 0.2; exit 6' >{work}/detached
"""

QUEUE = """\
MXQ_DIR={base}
{contrib}"""

START = """
mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /etc/cron.d &&
mount -t tmpfs -o mode=1730,gid=crontab tmpfs /var/spool/cron/crontabs &&
mount --bind "$1" /etc/crontab &&
crontab "$2" && exec cron -f
"""


def example():
    """contrib/crontab, for commands that are installed in bin/ of the tree."""
    text, found = re.subn("(?m)^PATH=/usr/local/bin:", "PATH=%s:" % BIN, (TREE / "contrib/crontab").read_text())
    assert found == 1
    return text


@pytest.mark.as_root
@pytest.mark.needs("cron", "crontab")
@pytest.mark.timeout_s(200)
def test_jobs_of_a_crontab(sandbox):
    empty, table, other = sandbox.path / "empty", sandbox.path / "table", sandbox.path / "other"
    empty.write_text("")
    table.write_text(CRONTAB.format(base=sandbox.mxq_dir, token=sandbox.token, work=sandbox.work,
                                    reap=BIN / "mxq-reap")
                     + QUEUE.format(base=other, contrib=example()))
    sandbox.run("mxq-sub", "-d", other, "--", "sh", "-c", "exit 7", check=True)
    cron = sandbox.spawn("unshare", "--mount", "sh", "-c", START, "sh", empty, table)

    def all_done():
        assert cron.poll() is None, cron.stderr.read()
        records = {record["name"]: record for record in sandbox.records()}
        names = {"status", "stops", "leaves", "killed", "environment", "detached"}
        done = set(records) == names and all(record["state"] == "ended" for record in records.values())
        return done and (sandbox.work / "outside").exists() and records

    records = wait_for(all_done, 100, "a run of each line")
    ended = wait_for(lambda: sandbox.run("mxq-ls", "-d", other, "-s", "failed", "--json", check=True).stdout, 20)
    cron.kill()
    assert '"exit":7' in ended.replace(" ", "")
    statuses = {"status": 3, "stops": 4, "leaves": 5, "killed": 137}
    assert {name: int((sandbox.work / name).read_text()) for name in statuses} == statuses
    assert {name: records[name]["exit"] for name in statuses} == dict(statuses, killed=None)
    assert outcome(records["killed"]) == (None, 9, None)
    assert records["leaves"]["leftovers"] == 2
    assert (sandbox.work / "detached").read_text() == records["detached"]["run"] + "\n"
    assert outcome(records["detached"]) == (6, None, None)
    inside, outside = (set((sandbox.work / name).read_bytes().split(b"\0")) for name in ("inside", "outside"))
    assert outside - inside == set()
    assert {name.partition(b"=")[0] for name in inside - outside} == {b"MXQ_RUN", b"MXQ_THREADS"}
    assert not os.path.exists("/var/spool/cron/crontabs/table")
