"""tools/setup-tests and run-tests: what is missing is installed by root, named to anybody else.

apt-get, id and the interpreter are impostors; nothing is installed.
"""

import os
import shutil
import subprocess
import sys

import pytest

from tests.harness.sandbox import TREE

TOOLS = "sh cat cksum flock tr rm mv mkdir touch".split()

# Knows nothing of venv and ensurepip until apt-get has "installed" them; makes a venv of one file.
PYTHON = """#!/bin/sh
case "$*" in
*version_info*) exit {too_old} ;;
*'import ensurepip, venv'*) [ -e venv-installed ]; exit ;;
*'import pytest'*) exit {no_pytest} ;;
-VV) echo 'Python 3.11.2' ;;
'-m venv'*) for last; do :; done; mkdir -p "$last/bin"; cp "$0" "$last/bin/python" ;;
'-m pip'*) echo "pip $*" >>log; exit {no_pip} ;;
*) echo "python: unexpected: $*" >&2; exit 99 ;;
esac
"""
APT_GET = """#!/bin/sh
echo "apt-get $*" >>log
case "$1 $*" in
update*) exit {no_lists} ;;
*python3-venv*) touch venv-installed ;;
*)
    for name; do
        case $name in
        -* | install) ;;
        *) printf '#!/bin/sh\\n' >"bin/$name"; chmod +x "bin/$name" ;;
        esac
    done
    ;;
esac
"""

PROGRAMS = ("strace", "mandoc", "less", "vim")


class Machine:
    """A PATH of impostors, a requirements file, and what they were asked for."""

    def __init__(self, folder):
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        for name in TOOLS + ["cp", "chmod"]:
            (self.bin / name).symlink_to(shutil.which(name))
        (folder / "tests").mkdir()
        (folder / "tests" / "requirements.txt").write_text("pytest\n")

    def put(self, name, text):
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def setup(self, uid=0, apt=True, programs=PROGRAMS, has_venv=True, **flaws):
        said = {"too_old": 0, "no_pytest": 0, "no_pip": 0, "no_lists": 0, **flaws}
        self.put("python3", PYTHON.format(**said))
        self.put("id", "#!/bin/sh\necho %d\n" % uid)
        if apt:
            self.put("apt-get", APT_GET.format(**said))
        for name in programs:
            self.put(name, "#!/bin/sh\n")
        if has_venv:
            (self.folder / "venv-installed").touch()
        done = subprocess.run([str(TREE / "tools/setup-tests"), "python3", ".venv"], cwd=self.folder,
                              env={"PATH": str(self.bin)}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, encoding="utf-8", check=False)
        return done.returncode, done.stdout

    def log(self):
        log = self.folder / "log"
        return log.read_text().splitlines() if log.exists() else []

    def is_ready(self):
        return (self.folder / ".venv/bin/python").exists()


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_all_there_is_silent_and_installs_pytest_once(machine):
    assert machine.setup() == (0, "")
    assert machine.is_ready()
    assert machine.log() == ["pip -m pip install -q -r tests/requirements.txt"]
    assert machine.setup() == (0, "")
    assert len(machine.log()) == 1


def test_changed_requirements_make_a_new_venv(machine):
    machine.setup()
    (machine.folder / "tests/requirements.txt").write_text("pytest\nother\n")
    assert machine.setup() == (0, "")
    assert len(machine.log()) == 2


def test_root_installs_what_is_missing_with_one_update(machine):
    status, said = machine.setup(programs=(), has_venv=False)
    assert status == 0 and machine.is_ready()
    assert "installing Debian packages: " + " ".join(PROGRAMS) in said
    calls = [line for line in machine.log() if line.startswith("apt-get")]
    assert [line.split()[1] for line in calls] == ["update", "install", "install"]
    assert calls[1].endswith(" python3-venv") and calls[2].endswith(" " + " ".join(PROGRAMS))


def test_lists_that_are_out_of_reach_do_not_stop_it(machine):
    status, said = machine.setup(programs=PROGRAMS[1:], no_lists=100)
    assert status == 0 and "apt-get update failed" in said
    assert os.access(machine.bin / "strace", os.X_OK)


@pytest.mark.parametrize("uid, apt", [(1000, True), (0, False)])
def test_who_may_not_install_is_told_what_is_missing(machine, uid, apt):
    status, said = machine.setup(uid=uid, apt=apt, programs=PROGRAMS[1:])
    assert status == 0 and machine.is_ready()
    assert "strace is missing (Debian package strace)" in said and "mandoc is missing" not in said
    assert not any(line.startswith("apt-get") for line in machine.log())


def test_without_venv_a_user_is_told_the_package(machine):
    status, said = machine.setup(uid=1000, has_venv=False)
    assert status == 69 and "install the Debian package python3-venv" in said
    assert not machine.is_ready()


def test_without_pip_the_pytest_of_the_system_does(machine):
    status, said = machine.setup(no_pip=1)
    assert status == 0 and "using the pytest of" in said and machine.is_ready()


def test_without_any_pytest_it_is_an_error(machine):
    status, said = machine.setup(no_pip=1, no_pytest=1)
    assert status == 69 and "install the Debian package python3-pytest, or let pip reach its index" in said
    assert not machine.is_ready()


def test_an_old_python_is_refused(machine):
    status, said = machine.setup(too_old=1)
    assert status == 69 and "Python 3.9 or newer" in said


def run_tests(tmp_path, pytest_status, *argv):
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\n[ "$1" = -c ] || echo "$@"\nexit %d\n' % pytest_status)
    python.chmod(0o755)
    done = subprocess.run([str(TREE / "tools/run-tests"), *argv], cwd=TREE,
                          env=dict(os.environ, VENV=str(tmp_path), JOBS="0"),
                          stdout=subprocess.PIPE, encoding="utf-8", check=False)
    return done.returncode, done.stdout


def test_folders_that_do_not_exist_are_left_out(tmp_path):
    assert run_tests(tmp_path, 0, "-m", "not a or (b and c)", "tests/meta", "tests/nowhere") == (
        0, "tools/as-init.py %s/bin/python -m pytest -m not a or (b and c) tests/meta\n" % tmp_path)


def test_nothing_to_run_is_no_failure(tmp_path):
    status, said = run_tests(tmp_path, 1, "tests/nowhere")
    assert status == 0 and "nothing to run" in said


def test_a_file_that_does_not_exist_is_for_pytest_to_refuse(tmp_path):
    assert run_tests(tmp_path, 4, "tests/meta/test_nowhere.py") == (
        4, "tools/as-init.py %s/bin/python -m pytest tests/meta/test_nowhere.py\n" % tmp_path)


@pytest.mark.parametrize("status, wanted", [(0, 0), (1, 1), (2, 2), (3, 3), (5, 0)])
def test_the_status_is_pytests_but_no_tests_are_fine(tmp_path, status, wanted):
    assert run_tests(tmp_path, status, "tests/meta")[0] == wanted


AS_INIT = [sys.executable, str(TREE / "tools/as-init.py")]


@pytest.mark.parametrize("script, status", [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)])
def test_as_init_ends_as_the_program_did(script, status):
    assert subprocess.run([*AS_INIT, "sh", "-c", script], check=False).returncode == status


def test_orphans_are_reaped_at_once(tmp_path):
    script = """
        (sh -c 'echo $$ >orphan.new; mv orphan.new orphan; exec sleep 0.1' &)
        until [ -e orphan ]; do sleep 0.01; done
        pid=$(cat orphan)
        for _ in $(seq 500); do
            [ -e /proc/$pid ] || exit 0
            sleep 0.01
        done
        cat /proc/$pid/stat
        exit 1
    """
    subprocess.run([*AS_INIT, "sh", "-c", script], cwd=tmp_path, check=True)


def test_a_program_that_is_not_there_is_an_error():
    assert subprocess.run([*AS_INIT, "/nonexistent"], stderr=subprocess.DEVNULL, check=False).returncode == 1
