"""The programs of HTCondor, which Debian 12 lacks: those of the next Debian suite, in a folder to chroot into.

/var/tmp/trixie (MXQ_TEST_TRIXIE) is made when it is missing, in a minute, and kept. Nobody writes to it: a server's
state belongs to the test that starts it.
"""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.harness.sandbox import SYSTEM_PATH

TRIXIE = Path(os.environ.get("MXQ_TEST_TRIXIE") or "/var/tmp/trixie")
STEPS = (
    "test -d {root}/etc || debootstrap --variant=minbase --include=ca-certificates trixie {root} {mirror}",
    "printf '#!/bin/sh\\nexit 101\\n' >{root}/usr/sbin/policy-rc.d; chmod +x {root}/usr/sbin/policy-rc.d",
    "chroot {root} apt-get install -y --no-install-recommends minicondor python3",
)


class Locked:
    """One at a time makes what all use."""

    def __init__(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = open(str(path) + ".lock", "w")

    def __enter__(self):
        fcntl.flock(self.file, fcntl.LOCK_EX)

    def __exit__(self, *_):
        self.file.close()


def run(*argv, **kw):
    """Run a command without input, in a plain environment; its output and its errors are one text."""
    return subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                          encoding="utf-8", errors="replace", env={"PATH": SYSTEM_PATH, "LANG": "C.UTF-8", "TZ": "UTC",
                                                                   "DEBIAN_FRONTEND": "noninteractive"}, **kw)


def need():
    """The folder, made when it is missing; a skip where that cannot be."""
    if os.geteuid() != 0:
        pytest.skip("machine cannot: only root may chroot")
    with Locked(TRIXIE):
        if not all((TRIXIE / "usr/bin" / program).exists() for program in ("condor_wait", "python3")):
            _make()
    return TRIXIE


def _make():
    if not shutil.which("debootstrap", path=SYSTEM_PATH):
        run("apt-get", "update", "-qq")
        run("apt-get", "install", "-y", "-qq", "--no-install-recommends", "debootstrap")
    mirror = run("apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages").stdout.split("\n")[0]
    for step in STEPS:
        done = run("sh", "-c", step.format(root=TRIXIE, mirror=mirror))
        if done.returncode:
            pytest.skip("machine cannot: install HTCondor of trixie: %s" % done.stdout.strip()[-300:])
