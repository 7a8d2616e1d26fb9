"""Deliveries in numbers: they are made in batches, and nothing gets slower with those that were made."""

import time

import pytest

from tests.harness.owing import events, fill, owed, owing

pytestmark = pytest.mark.timeout_s(300)

COUNT = 10000


def test_ten_thousand_jobs_owe_a_log_line_each(sandbox):
    """Under ten seconds, each job's events in their order."""
    fill(sandbox, *(owing(sandbox, n, log="log") for n in range(1, COUNT + 1)))
    sandbox.run("mxq-collect", "--no-deliver", check=True, timeout_s=120)
    start = time.monotonic()
    sandbox.run("mxq-collect", "--deliver", check=True, timeout_s=120)
    took_s = time.monotonic() - start
    print("%d events in %.1f s" % (3 * COUNT, took_s))
    assert took_s < 10
    found, codes = events(sandbox.work / "log"), {}
    for code, event in found:
        codes.setdefault(event.split("/")[0], []).append(code)
    assert len(found) == 3 * COUNT and owed(sandbox) == {}
    assert {tuple(each) for run, each in codes.items() if not run.isdigit()} == {(1, 5)}


def test_a_log_for_each_job(sandbox):
    """A thousand files, each opened, locked and synced for itself; a few that cannot be written hold up nobody."""
    fill(sandbox, *(owing(sandbox, n, log="missing/log" if n % 100 == 0 else "log-%d" % n) for n in range(1, 1001)))
    start = time.monotonic()
    done = sandbox.run("mxq-collect", timeout_s=120)
    assert done.returncode == 75 and done.stderr.count("\n") == 1 and "and 29 more" in done.stderr
    assert time.monotonic() - start < 30
    assert sum(len(events(sandbox.work / ("log-%d" % n))) for n in range(1, 1001)) == 3 * 990


def test_one_delivery_among_many_that_were_made(sandbox):
    """To deliver one costs the same when there are 30,000 that are done."""
    def deliver_one(n):
        fill(sandbox, owing(sandbox, n, log="log"))
        sandbox.run("mxq-collect", "--no-deliver", check=True)
        start = time.monotonic()
        sandbox.run("mxq-collect", "--deliver", check=True)
        return time.monotonic() - start

    before = min(deliver_one(n) for n in range(1, 6))
    fill(sandbox, *(owing(sandbox, n, log="log") for n in range(100, COUNT + 100)))
    sandbox.run("mxq-collect", check=True, timeout_s=120)
    after = min(deliver_one(n) for n in range(10, 16))
    print("%.1f ms, then %.1f ms" % (before * 1000, after * 1000))
    assert after < 1.3 * before + 0.02
