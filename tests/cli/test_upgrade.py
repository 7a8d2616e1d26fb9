"""The package is taken away while commands wait: they have loaded all they need, and end as ever."""

import shutil

import pytest

from tests.harness.sandbox import TREE


@pytest.fixture
def installed(sandbox):
    """The commands and the library in a folder of their own, first on PATH."""
    folder = sandbox.work / "installed"
    for name in ("bin", "mxqlib"):
        shutil.copytree(TREE / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    sandbox.env["PATH"] = "%s:%s" % (folder / "bin", sandbox.env["PATH"])
    return folder


def test_commands_that_wait_outlive_the_package(sandbox, installed):
    job = ("sh", "-c", "while [ ! -e gate ]; do sleep 0.02; done; exit 3")
    log = sandbox.work / "log"
    sandbox.run("mxq-sub", "--log", log, "--", *job, check=True)
    sandbox.run("mxq-sub", "--", "sh", "-c", "exit 4", check=True)
    runner = sandbox.spawn("mxq-run", "-v", "-j", "1", "--wait")
    sandbox.wait_for(lambda: sandbox.records())
    waiter = sandbox.spawn("mxq-wait", "-v", "1")
    front = sandbox.spawn("mxq-reap", "-v", "--", *job)
    stubborn = sandbox.spawn("mxq-reap", "-N", "stubborn", "--", "sh", "-c",
                             "trap 'echo >told' TERM; echo >trapped; while :; do sleep 0.05; done")
    sandbox.wait_for(lambda: len(sandbox.records()) == 3 and (sandbox.work / "trapped").exists())
    run, = [record["run"] for record in sandbox.records() if record["name"] == "stubborn"]
    kill = sandbox.spawn("mxq-ctl", "kill", "--grace", "1s", run)
    # All are past their start: the waiter says so, the runs have records, mxq-ctl has sent its TERM.
    assert "waiting for 1" in waiter.stderr.readline() + waiter.stderr.readline()
    sandbox.wait_for((sandbox.work / "told").exists)
    installed.rename(sandbox.work / "gone")
    (sandbox.work / "gate").touch()
    for process, status in ((front, 3), (waiter, 3), (runner, 0), (kill, 0), (stubborn, -9)):
        stderr = process.communicate(timeout=30)[1]
        assert (process.returncode, "Traceback" in stderr) == (status, False), stderr
    assert [row["state"] for row in sandbox.queue("SELECT state FROM job WHERE job IN (1, 2)")] == ["failed"] * 2
    assert "return value 3" in log.read_text()
