"""contrib: the examples do what they say, asked of the programs that read them."""

import os
import shutil

import pytest

from tests.harness.sandbox import TREE

CONTRIB = TREE / "contrib"


@pytest.mark.needs("systemd-analyze")
@pytest.mark.parametrize("whose", ["--system", "--user"])
def test_systemd_takes_the_units(sandbox, whose):
    # `verify` wants to be shown a copy: it takes the folder of a unit for a search path.
    for unit in (CONTRIB / "systemd").iterdir():
        shutil.copy(unit, sandbox.work)
    argv = ["systemd-analyze", whose, "--man=no", "verify", "./mxq.service", "./mxq.timer"]
    env = {"XDG_RUNTIME_DIR": sandbox.home}
    done = sandbox.run(*argv, env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    # It would have seen a mistake.
    service = sandbox.work / "mxq.service"
    service.write_text(service.read_text().replace("KillMode=process", "KillMode=proces"))
    assert "kill mode" in sandbox.run(*argv, env=env).stderr


def test_the_pass_of_systemd_is_the_pass_of_cron():
    service = (CONTRIB / "systemd/mxq.service").read_text()
    steps = [line.partition("=")[2].lstrip("-") for line in service.splitlines() if line.startswith("ExecStart=")]
    line = (CONTRIB / "crontab").read_text().splitlines()[-1]
    assert line.split(None, 5)[5].split("; ") == steps
    assert "* * * * *  " + "; ".join(steps) in (TREE / "README.md").read_text()


@pytest.mark.needs("logrotate")
def test_a_rotated_log_goes_on_in_a_new_file(sandbox):
    log = sandbox.work / "jobs.log"
    conf = sandbox.work / "logrotate.conf"
    text = (CONTRIB / "logrotate").read_text()
    names = "/var/log/mxq/*.log /var/log/mxq/*.jsonl"
    assert names in text
    conf.write_text(text.replace(names, str(log)))
    conf.chmod(0o600)       # logrotate wants a configuration that nobody else can write
    for exit_status in (3, 4):
        sandbox.run("mxq-reap", "--log", log, "--", "sh", "-c", "exit %d" % exit_status)
        sandbox.run("mxq-collect", check=True)
        if exit_status == 3:
            sandbox.run("logrotate", "-f", "-s", sandbox.work / "state", conf, check=True,
                        env={"PATH": os.defpath + ":/usr/sbin:/sbin"})
            assert not log.exists()
    assert [(sandbox.work / name).read_text().count("005 (") for name in ("jobs.log.1", "jobs.log")] == [1, 1]
    assert "return value 3" in (sandbox.work / "jobs.log.1").read_text()
    assert "return value 4" in log.read_text()
