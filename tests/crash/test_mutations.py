"""The list of mutations is true: each breaks something, and the test that it names notices."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.crash import mutations
from tests.harness.sandbox import TREE


def test_the_table_is_that_of_the_list():
    with open(mutations.TABLE, encoding="utf-8") as file:
        assert file.read() == mutations.table(), "run tests/crash/mutations.py"


@pytest.mark.quick
@pytest.mark.parametrize("mutation", mutations.MUTATIONS, ids=lambda each: each.what.replace(" ", "-"))
def test_what_is_broken_is_there_once(mutation):
    text = (TREE / "mxqlib" / mutation.file).read_text("utf-8")
    assert text.count(mutation.old) == 1, "mutations.py is to follow a change of %s" % mutation.file
    compile(text.replace(mutation.old, mutation.new), mutation.file, "exec")


@pytest.mark.long
@pytest.mark.timeout_s(900)
@pytest.mark.needs("strace")
@pytest.mark.parametrize("mutation", mutations.MUTATIONS, ids=lambda each: each.what.replace(" ", "-"))
def test_what_is_broken_is_noticed(mutation, tmp_path):
    copy = tmp_path / "tree"
    copy.mkdir()
    for name in ("mxqlib", "bin", "tests", "man", "setup.cfg", "pyproject.toml"):
        source = TREE / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, copy / name)
    path = copy / "mxqlib" / mutation.file
    text = path.read_text("utf-8")
    assert text.count(mutation.old) == 1
    path.write_text(text.replace(mutation.old, mutation.new), "utf-8")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "MXQ"))}
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist",
                           "-m", "", "tests/" + mutation.tests], cwd=copy, env=environ, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    shutil.rmtree(copy)
    # 1: tests were run, and some failed (pytest's ExitCode). Its last lines name what is kept.
    for line in done.stdout.splitlines():
        folder = line.rpartition(" ")[2]
        if "folder" in line and folder.startswith("/") and os.path.basename(folder).startswith("mxq-test-"):
            shutil.rmtree(folder, ignore_errors=True)
    assert done.returncode == 1, done.stdout[-3000:]
