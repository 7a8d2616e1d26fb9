"""A hundred thousand files in the spool, and a thousand jobs at once."""

import json
import re

import pytest

from tests.harness import owing, records
from tests.harness.queueing import states
from tests.harness.sandbox import wait_for
from tests.scale.test_sub import TIME

FILES, JOBS = 100000, 1000


def fill(sandbox, first, count):
    owing.fill(sandbox, *(records.make_ended(records.make_run_id(n), children=[]) for n in range(first, first + count)))


def collect(sandbox):
    """(seconds of processor time, KiB of resident memory at most) of one mxq-collect."""
    done = sandbox.run("sh", "-c", TIME + " mxq-collect", check=True, timeout_s=200)
    return map(float, re.search(r"seconds ([\d.]+) kib (\d+)", done.stderr).groups())


@pytest.mark.timeout_s(600)
def test_a_hundred_thousand_files(sandbox):
    """Listed, looked at and collected; memory of mxq-collect does not grow with their number."""
    fill(sandbox, 1, FILES // 4)
    few_kib = list(collect(sandbox))[1]
    fill(sandbox, FILES, FILES)
    assert json.loads(sandbox.run("mxq-ls", "-n", "1", "--json", timeout_s=200).stdout)["job"] is None
    assert sandbox.run("mxq-ls", "--check", timeout_s=200).stdout == ""
    assert sandbox.run("mxq-adopt", check=True, timeout_s=200).stdout == ""
    took_s, kib = collect(sandbox)
    print("%d files in %.1f s of processor time, %d KiB" % (FILES, took_s, kib))
    assert list(sandbox.runs.iterdir()) == []
    assert sandbox.queue("SELECT count(*) FROM run WHERE state = 'finished'")[0][0] == FILES + FILES // 4
    assert kib < 1.25 * few_kib, (few_kib, kib)


@pytest.mark.timeout_s(600)
def test_a_thousand_jobs_that_wait_at_once(sandbox):
    """All run at the same time, are seen, and end as they should when what they wait for comes."""
    sandbox.run("mkfifo", "gate", check=True)
    lines = "".join("read line <gate; exit %d\n" % (n % 3) for n in range(JOBS))
    sandbox.run("mxq-sub", "-f", "-", input=lines, check=True)
    sandbox.run("mxq-run", "-j", str(JOBS), check=True, timeout_s=200)
    wait_for(lambda: len(list(sandbox.runs.glob("[!.]*.json"))) == JOBS, 200)
    assert len(sandbox.run("mxq-ls", "-s", "running", timeout_s=100).stdout.splitlines()) == JOBS + 1
    assert sandbox.run("mxq-ls", "--check", timeout_s=100).stdout == ""
    assert sandbox.run("mxq-adopt", check=True, timeout_s=100).stderr == ""
    # Opening for writing waits for a reader; all of them are at the gate when this has been done for each.
    opener = sandbox.spawn("sh", "-c", "i=0; while [ $i -lt %d ]; do echo >gate; i=$((i + 1)); done" % JOBS)
    done = sandbox.run("mxq-wait", "--all", "--timeout", "3", timeout_s=200)
    opener.kill()
    assert done.returncode == 3, done.stderr
    found = states(sandbox)
    assert [found[n + 1] for n in range(JOBS)] == ["finished" if n % 3 == 0 else "failed" for n in range(JOBS)]
    assert sandbox.queue("SELECT count(*) FROM run")[0][0] == JOBS
