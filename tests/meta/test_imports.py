"""What is imported: the standard library only, and little of it where a job waits for it."""

import ast
import re
import subprocess
import sys

import pytest

from tests.harness.sandbox import BIN, TREE
from tests.meta.source import PACKAGE, closure, list_imports, list_modules, parse

# Each costs milliseconds before the job starts, or would make a job depend on the database.
FORBIDDEN = set("""sqlite3 _sqlite3 argparse json re subprocess logging pathlib tempfile typing dataclasses enum
    signal ctypes socket getopt threading random shutil datetime gettext locale selectors asyncio inspect""".split())
# In their one home each, as a fallback for a Python that has no such C module.
FALLBACKS = {"signals": {"signal"}, "process": {"ctypes"}, "record": {"json"}}
# Inside a function: what is called before the job starts and rarely needed, by readers only (json), or for a bug.
LAZY = {"cli": {"traceback"}, "place": {"pwd"}, "request": {"pwd"}, "process": {"_ctypes", "ctypes"},
        "record": {"json"}}
MODULES = list_modules()
PYTHON = "/usr/bin/python3"


def run_python(*argv):
    return subprocess.run([PYTHON, "-IS", *argv], cwd=TREE, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, encoding="utf-8", check=True).stdout


def is_inside(tree, kinds):
    """The imports that stand below a node of one of these kinds."""
    inside = set()
    for node in ast.walk(tree):
        if isinstance(node, kinds):
            inside.update(inner for inner in ast.walk(node) if isinstance(inner, (ast.Import, ast.ImportFrom)))
    return inside


def names_of(node):
    return {alias.name for alias in node.names} if isinstance(node, ast.Import) else {node.module}


def test_standard_library_only():
    if not hasattr(sys, "stdlib_module_names"):
        pytest.skip("machine cannot: this Python has no list of its modules")
    for path in list(MODULES.values()) + sorted((TREE / "bin").glob("mxq-*")):
        for line, name in list_imports(path, MODULES):
            top = name.partition(".")[0]
            assert top == PACKAGE or top in sys.stdlib_module_names, "%s:%d imports %s" % (path, line, name)


def test_every_module_can_be_imported_without_site_packages():
    names = [PACKAGE + "." + name if name else PACKAGE for name in MODULES]
    code = "import sys; sys.path.insert(0, %r); import %s; print([n for n in sys.modules if n == 'site'])"
    assert run_python("-c", code % (str(TREE), ", ".join(names))) == "[]\n"


def test_the_reaper_imports_little():
    code = "import sys; sys.path.insert(0, %r); import mxqlib.reap; print('\\n'.join(sys.modules))"
    loaded = set(run_python("-c", code % str(TREE)).split())
    assert "mxqlib.reap" in loaded
    assert loaded & FORBIDDEN == set()


def test_what_the_reaper_imports_is_imported_before_the_job_starts():
    """It may outlive an upgrade of the package, and a full disk or a dead file server."""
    for name in sorted(closure("reap", MODULES)):
        tree = parse(MODULES[name])
        for node in is_inside(tree, (ast.FunctionDef, ast.Lambda)):
            assert names_of(node) <= LAZY.get(name, set()), "%s:%d: inside a function" % (MODULES[name], node.lineno)
        for node in is_inside(tree, ast.ExceptHandler):
            assert names_of(node) & FORBIDDEN <= FALLBACKS.get(name, set()), "%s:%d" % (MODULES[name], node.lineno)


@pytest.mark.parametrize("job", [
    "sleep 0.3 & sleep 0.1; echo JOB >&2; exit 3",
    "echo JOB >&2; kill -9 $PPID; sleep 0.1; exit 3",
], ids=["reaper", "front that takes over"])
def test_a_real_run_imports_nothing_forbidden_and_nothing_after_the_start(sandbox, job):
    done = sandbox.run(PYTHON, "-IS", "-X", "importtime", BIN / "mxq-reap", "-t", "1", "-m", "100", "--",
                       "sh", "-c", job)
    assert done.returncode == 3, done.stderr
    assert sandbox.record()["state"] == "ended"
    before, mark, after = done.stderr.partition("JOB\n")
    assert mark
    loaded = set(re.findall(r"(?m)^import time:.*\| +([\w.]+)$", before))
    assert "mxqlib.reap" in loaded
    assert loaded & FORBIDDEN == set()
    assert re.findall(r"(?m)^import time:.*\| +([\w.]+)$", after) == []
