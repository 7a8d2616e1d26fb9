"""make deb: a package that installs, runs, is upgraded and removed under running jobs, and purges cleanly."""

import json
import re
import shutil
import subprocess

import pytest

from mxqlib import __version__
from tests.harness.chroot import Chroot
from tests.harness.sandbox import TREE
from tests.meta.test_install import COMMANDS, make

BASE = "/srv/mxq"           # of the jobs in the chroot
NEWER = "99"                # a version after all others
TOOLS = pytest.mark.needs("dpkg-buildpackage", "dh", "dh_python3")


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The package, as make deb writes it."""
    done = subprocess.run(["dpkg-checkbuilddeps"], cwd=TREE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          encoding="utf-8", check=False)
    if done.returncode:
        pytest.skip(done.stdout.strip())
    folder = tmp_path_factory.mktemp("deb")
    make("deb", "DEB=%s" % folder)
    found, = folder.glob("*.deb")
    return found


@pytest.fixture
def chroot(sandbox, package):
    """A root directory with the package in /mnt, and a newer one that differs in nothing but the version."""
    chroot = Chroot(sandbox)
    shutil.copy(package, chroot.mnt / "mxq.deb")
    tree = sandbox.work / "newer"
    subprocess.run(["dpkg-deb", "--raw-extract", str(package), str(tree)], check=True)
    for file in (tree / "DEBIAN/control", tree / "usr/lib/mxq/mxqlib/__init__.py"):
        text = file.read_text()
        assert __version__ in text
        file.write_text(text.replace(__version__, NEWER))
    subprocess.run(["dpkg-deb", "--build", str(tree), str(chroot.mnt / "newer.deb")], check=True,
                   stdout=subprocess.DEVNULL)
    return chroot


def list_mxq(chroot):
    return sorted(chroot.run("find", "/usr", "/etc", "/var/lib", "-xdev", "-name", "*mxq*").stdout.split())


def test_the_version_of_the_package_is_that_of_the_program():
    assert re.match(r"mxq \((.*)\) ", (TREE / "debian/changelog").read_text()).group(1) == __version__


@TOOLS
@pytest.mark.slow
def test_the_package_has_what_is_installed_otherwise(package, tmp_path):
    """Only the list of make uninstall, byte code (made at installation) and the license are not in it."""
    make("install", "PREFIX=/usr", "DESTDIR=%s" % tmp_path)
    installed = {"/" + str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")
                 if not path.is_dir() and path.suffix != ".pyc"}
    listing = subprocess.run(["dpkg-deb", "--contents", str(package)], stdout=subprocess.PIPE, encoding="utf-8",
                             check=True).stdout
    packaged = {re.sub(r"\.gz$", "", line.split()[5][1:]) for line in listing.splitlines() if line[0] != "d"}
    assert {name.replace("/site-functions/", "/vendor-completions/") for name in installed} - packaged == {
        "/usr/lib/mxq/installed", "/usr/share/doc/mxq/LICENSE"}
    assert "/usr/share/doc/mxq/copyright" in packaged
    assert not [name for name in packaged if name.endswith(".pyc")]


@TOOLS
@pytest.mark.slow
@pytest.mark.as_root
@pytest.mark.needs("mandb")
def test_it_installs_runs_and_purges_cleanly(chroot):
    before = list_mxq(chroot)
    chroot.run("dpkg", "--install", "/mnt/mxq.deb")
    for command in COMMANDS:
        done = chroot.run(command, "--version")
        assert done.stdout == "%s (MXQ) %s\n" % (command, __version__)
        assert chroot.run("head", "-n", "1", "/usr/bin/" + command).stdout == "#!/usr/bin/python3 -IS\n"
    assert chroot.run("sh", "-c", "ls /usr/lib/mxq/mxqlib/__pycache__/*.pyc").stdout
    chroot.run("sh", "-c", "mxq-sub -d %s -- sh -c 'exit 6'; mxq-run -d %s --wait" % (BASE, BASE))
    assert states(chroot) == {1: ("failed", 6)}
    pages = {line.split(" (")[0] for line in chroot.run("man", "-k", "mxq").stdout.splitlines()}
    assert pages >= {path.name.rpartition(".")[0] for path in (TREE / "man").glob("*.[1-8]")}
    chroot.run("dpkg", "--purge", "mxq")
    assert list_mxq(chroot) == before
    assert chroot.run("ls", BASE + "/queue.db").stdout, "what jobs left is the user's"


def states(chroot):
    lines = chroot.run("mxq-ls", "-d", BASE, "--json").stdout.splitlines()
    return {row["job"]: (row["state"], row["exit"]) for row in map(json.loads, lines)}


@TOOLS
@pytest.mark.slow
@pytest.mark.as_root
@pytest.mark.parametrize("between", [("--install", "/mnt/newer.deb"), ("--purge", "mxq")], ids=["upgraded", "removed"])
def test_jobs_go_on_while_the_package_changes(sandbox, chroot, between):
    """A job at a terminal, a detached one and one of the queue: the new collector reads what the old reapers wrote."""
    chroot.run("dpkg", "--install", "/mnt/mxq.deb")
    job = "while [ ! -e /mnt/gate ]; do sleep 0.02; done; exit "
    chroot.run("mxq-sub", "-d", BASE, "--", "sh", "-c", job + "3")
    chroot.run("mxq-run", "-d", BASE)
    chroot.run("mxq-reap", "-d", BASE, "-b", "--", "sh", "-c", job + "4")
    front = chroot.spawn("mxq-reap", "-d", BASE, "--", "sh", "-c", job + "5")
    sandbox.wait_for(lambda: len(chroot.run("ls", BASE + "/spool/runs").stdout.split()) == 3)
    chroot.run("dpkg", *between)
    (chroot.mnt / "gate").touch()
    assert front.wait(20) == 5
    sandbox.wait_for(lambda: '"running"' not in chroot.run("sh", "-c", "cat %s/spool/runs/*.json" % BASE).stdout)
    chroot.run("dpkg", "--install", "/mnt/newer.deb")
    assert chroot.run("mxq-collect", "--version").stdout == "mxq-collect (MXQ) %s\n" % NEWER
    chroot.run("mxq-collect", "-d", BASE)
    assert sorted(states(chroot).values()) == [("failed", 3), ("failed", 4), ("failed", 5)]
    assert chroot.run("ls", BASE + "/spool/runs").stdout == ""
