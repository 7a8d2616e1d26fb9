"""A million ended jobs: what is done often gets no slower, and what has to look at all of them comes to an end."""

import os
import re

import pytest

from tests.harness.million import fill_with_ended
from tests.harness.queueing import submit
from tests.scale.test_sub import TIME

FEW, MANY, FORGOTTEN = 1000, 1000000, 50000
OFTEN = {
    "ls": "mxq-ls -n 20", "one": "mxq-ls -l 7", "failed": "mxq-ls -s failed", "page": "mxq-ls -n 100 --report -",
    "claim": "sh -c 'mxq-sub true; mxq-run -j 9'", "collect": "sh -c 'mxq-reap true; mxq-collect'",
    "adopt": "mxq-adopt", "nothing to forget": "mxq-collect --forget 90y",
}


def seconds(sandbox, command):
    """Processor time of a command: the least of five."""
    taken = []
    for _ in range(5):
        done = sandbox.run("sh", "-c", "%s %s >/dev/null" % (TIME, command), check=True, timeout_s=60)
        taken.append(float(re.search(r"seconds ([\d.]+)", done.stderr).group(1)))
    return min(taken)


def costs(sandbox):
    found = {name: seconds(sandbox, command) for name, command in OFTEN.items()}
    sandbox.run("mxq-wait", "--all", check=True)
    return found


@pytest.mark.timeout_s(600)
def test_what_is_done_often_costs_the_same_with_a_million(sandbox):
    fill_with_ended(sandbox, FEW)
    before = costs(sandbox)
    for path in sandbox.mxq_dir.glob("queue.db*"):
        path.unlink()
    fill_with_ended(sandbox, MANY)
    after = costs(sandbox)
    print("; ".join("%s %.0f ms, %.0f ms" % (name, 1000 * before[name], 1000 * after[name]) for name in OFTEN))
    assert {name for name in OFTEN if after[name] > 1.3 * before[name] + 0.01} == set()
    done = sandbox.run("mxq-ls", "--check", timeout_s=120)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.timeout_s(600)
def test_many_are_forgotten_beside_others(sandbox):
    fill_with_ended(sandbox, FORGOTTEN)
    forgetter = sandbox.spawn("mxq-collect", "-v", "--forget", "30d")
    others = 0
    while forgetter.poll() is None:
        submit(sandbox, "--hold", "true")
        others += 1
    assert forgetter.returncode == 0 and "%d forgotten, 0 kept" % FORGOTTEN in forgetter.stderr.read()
    assert others > 10
    assert [tuple(row) for row in sandbox.queue("SELECT state, count(*) FROM job GROUP BY state")] == [("held", others)]
    size_b = os.stat(sandbox.queue_file).st_size
    sandbox.run("mxq-collect", "--vacuum", check=True, timeout_s=60)
    assert os.stat(sandbox.queue_file).st_size < size_b / 5
