"""make install and pip install: what is installed behaves like the tree, and uninstall leaves nothing."""

import os
import re
import subprocess
import sys

import pytest

from tests.harness.sandbox import TREE

COMMANDS = sorted(path.name for path in (TREE / "bin").glob("mxq-*"))


def make(*argv, umask=0o022):
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(["make", "-C", str(TREE), *argv], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, encoding="utf-8", preexec_fn=lambda: os.umask(umask), check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


def list_tree(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def pip(venv, *argv):
    """Run the pip of a virtual environment, without a package index and without the user's settings."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
    done = subprocess.run([str(venv / "bin/python"), "-m", "pip", *argv], env=dict(env, PIP_CONFIG_FILE=os.devnull),
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
                          check=False)
    assert done.returncode == 0, done.stdout


def make_venv(folder):
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    return folder


@pytest.fixture(scope="module", params=["make", pytest.param("pip", marks=pytest.mark.slow)])
def prefix(request, tmp_path_factory):
    """A prefix with characters that sed and make take for theirs, made by make under a tight umask; and a venv."""
    folder = tmp_path_factory.mktemp("installed")
    if request.param == "pip":
        pip(make_venv(folder / "venv"), "install", "--no-index", str(TREE))
        return folder / "venv"
    make("install", "PREFIX=%s" % (folder / "a b&c|d"), umask=0o077)
    return folder / "a b&c|d"


def list_ours(prefix):
    """What was put below the prefix, which a venv has other things in."""
    return ([prefix / "bin" / name for name in COMMANDS] + list((prefix / "lib/mxq").rglob("*"))
            + list((prefix / "share").rglob("*")))


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("option", ["--version", "--help", "--no-such-option"])
def test_the_installed_command_says_what_the_one_of_the_tree_says(sandbox, prefix, command, option):
    here = sandbox.run(TREE / "bin" / command, option)
    there = sandbox.run(prefix / "bin" / command, option)
    assert (there.returncode, there.stdout, there.stderr) == (here.returncode, here.stdout, here.stderr)
    assert here.returncode == (0 if option != "--no-such-option" else 125 if command == "mxq-reap" else 64)


def test_the_installed_commands_run_a_job_to_its_record(sandbox, prefix):
    sandbox.env["PATH"] = "%s:%s" % (prefix / "bin", sandbox.env["PATH"])
    done = sandbox.run("mxq-reap", "--", "sh", "-c", "echo out; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "")
    assert sandbox.record()["exit"] == 7
    sandbox.run("mxq-collect", check=True)
    assert sandbox.records() == []
    assert "failed" in sandbox.run("mxq-ls", check=True).stdout


@pytest.mark.needs("strace")
def test_the_installed_commands_need_nothing_of_the_tree(sandbox, prefix):
    done = sandbox.run("strace", "-f", "-e", "trace=%file", "-o", "trace", prefix / "bin" / "mxq-reap", "--version")
    assert done.returncode == 0, done.stderr
    assert str(TREE) + "/" not in (sandbox.work / "trace").read_text()


@pytest.mark.parametrize("command", COMMANDS)
def test_the_installed_command_starts_isolated(sandbox, prefix, command):
    """Nothing of the caller's Python gets in, as in the tree; also by a link from elsewhere."""
    for name in ("os", "signal", "sitecustomize", "mxqlib"):
        (sandbox.work / (name + ".py")).write_text("raise SystemExit(99)\n")
    (sandbox.work / "link").symlink_to(prefix / "bin" / command)
    done = sandbox.run("./link", "--version", env={"PYTHONPATH": sandbox.work, "PYTHONHOME": sandbox.work})
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_everybody_may_read_what_root_installed(prefix):
    for path in list_ours(prefix):
        executable = path.is_dir() or path.parent.name == "bin"
        assert path.stat().st_mode & 0o777 == (0o755 if executable else 0o644), path


def test_nothing_is_compiled_at_the_start(prefix):
    for source in (prefix / "lib/mxq/mxqlib").rglob("*.py"):
        assert list(source.parent.glob("__pycache__/%s.*.pyc" % source.stem)), source


def test_pages_and_documents_are_installed(prefix):
    pages = {path.name for path in (TREE / "man").glob("*.[1-8]")}
    assert pages == {path.name for path in (prefix / "share/man").rglob("*.*")}
    for path in (prefix / "share/man").rglob("*.*"):
        assert path.parent.name == "man" + path.name[-1]
    assert (prefix / "share/doc/mxq/LICENSE").exists()
    assert (prefix / "share/doc/mxq/examples/systemd/mxq.timer").exists()


def test_each_command_is_completed_by_a_file_of_its_name(prefix):
    for place, name, source in (("bash-completion/completions", "%s", "mxq.bash"),
                                ("fish/vendor_completions.d", "%s.fish", "mxq.fish")):
        for command in COMMANDS:
            text = (prefix / "share" / place / (name % command)).read_text()
            assert text == (TREE / "contrib/completions" / source).read_text()
    assert (prefix / "share/zsh/site-functions/_mxq").read_text().startswith("#compdef " + " ".join(COMMANDS))


def test_destdir_is_written_nowhere(tmp_path):
    make("install", "PREFIX=/opt/mxq", "DESTDIR=%s" % tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    for path in files:
        data = path.read_bytes()
        assert str(tmp_path).encode() not in data, path
        assert str(TREE).encode() + b"/" not in data, path
        if path.suffix == ".pyc":
            assert b"/opt/mxq/lib/mxq/mxqlib/" in data, path


def test_uninstall_removes_what_was_installed_and_nothing_else(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "other").write_text("not ours")
    (tmp_path / "lib").mkdir()
    before = list_tree(tmp_path)
    make("install", "PREFIX=%s" % tmp_path)
    assert len(list_tree(tmp_path)) > len(before)
    (tmp_path / "lib/mxq/mxqlib/__pycache__/cli.cpython-399.pyc").write_text("from a later Python")
    make("uninstall", "PREFIX=%s" % tmp_path)
    assert list_tree(tmp_path) == before


@pytest.mark.slow
def test_pip_uninstall_removes_what_was_installed(tmp_path):
    venv = make_venv(tmp_path / "venv")

    def list_files():
        return sorted(str(path) for path in venv.rglob("*") if not path.is_dir() and path.suffix != ".pyc")

    before = list_files()
    pip(venv, "install", "--no-index", str(TREE))
    assert len(list_files()) > len(before)
    pip(venv, "uninstall", "-y", "mxq")
    assert list_files() == before
    assert not list((venv / "lib/mxq").rglob("*"))


def test_uninstall_after_two_installs_leaves_nothing(tmp_path):
    prefix = tmp_path / "prefix"
    make("install", "PREFIX=%s" % prefix)
    make("install", "PREFIX=%s" % prefix)
    make("uninstall", "PREFIX=%s" % prefix)
    assert list_tree(tmp_path) == []


def test_a_newer_version_removes_what_it_no_longer_has(tmp_path):
    make("install", "PREFIX=%s" % tmp_path)
    old = tmp_path / "lib/mxq/mxqlib/old.py"
    old.write_text("")
    with open(tmp_path / "lib/mxq/installed", "a", encoding="utf-8") as file:
        file.write("lib/mxq/mxqlib/old.py\n")
    make("install", "PREFIX=%s" % tmp_path)
    assert not old.exists()
    assert (tmp_path / "lib/mxq/mxqlib/cli.py").exists()


def test_the_interpreter_asked_for_is_written_into_the_commands(tmp_path):
    python = tmp_path / "python"
    python.symlink_to(os.path.realpath(sys.executable))
    make("install", "PREFIX=%s" % (tmp_path / "prefix"), "PYTHON=%s" % python)
    for command in COMMANDS:
        first = (tmp_path / "prefix" / "bin" / command).read_text().splitlines()[0]
        assert first == "#!%s -IS" % python


def test_an_interpreter_that_cannot_do_is_refused(tmp_path):
    done = subprocess.run([sys.executable, str(TREE / "tools/install.py"), "--prefix", str(tmp_path / "prefix"),
                           "--python", "/bin/false", "install"], stderr=subprocess.PIPE, encoding="utf-8", check=False)
    assert done.returncode == 1 and "not a Python" in done.stderr
    assert list_tree(tmp_path) == []


@pytest.mark.needs("setpriv")
def test_who_may_not_write_there_is_told_what_to_do(tmp_path):
    tmp_path.chmod(0o555)
    powerless = ["setpriv", "--bounding-set=-all"] if os.geteuid() == 0 else []
    done = subprocess.run([*powerless, sys.executable, str(TREE / "tools/install.py"), "--prefix",
                           str(tmp_path / "prefix"), "install"], stderr=subprocess.PIPE, encoding="utf-8", check=False)
    tmp_path.chmod(0o755)
    assert done.returncode == 1
    assert done.stderr.endswith(": Permission denied: as root, or with PREFIX=$HOME/.local\n")
    assert list_tree(tmp_path) == []


def test_make_help_lists_what_make_does():
    listed = set(re.findall(r"(?m)^  make ([\w-]+)", make("help", "--no-print-directory")))
    phony = re.search(r"(?ms)^\.PHONY:(.*)", (TREE / "Makefile").read_text("utf-8")).group(1).replace("\\", " ").split()
    # What is left out: the default, a step of the others, and the target that help shows in a line of its own.
    assert set(phony) - {"all", "setup-tests", "test"} == listed
