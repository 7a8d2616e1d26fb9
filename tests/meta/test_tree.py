"""The tree as a whole: wrappers, sizes, old grammar, release notes, no trace of one machine."""

import ast
import configparser
import os
import re
import subprocess
from pathlib import Path

import pytest

import mxqlib
from tests.harness.sandbox import TREE
from tests.meta.source import list_modules, parse

MODULES = list_modules()
WRAPPERS = sorted((TREE / "bin").glob("mxq-*"))
WRAPPER = re.compile(r"""#!/usr/bin/python3 -IS
\"\"\"(mxq-[a-z]+): [^\n]+\.\"\"\"
import os, sys
sys\.path\.insert\(0, os\.path\.dirname\(os\.path\.dirname\(os\.path\.realpath\(__file__\)\)\)\)(  # [^\n]+)?
from mxqlib\.(cli import run|[a-z]+ import main)
from mxqlib\.(cli import run|[a-z]+ import main)
run\(main\)
""")


def list_files():
    """The files of the tree; those git would take, where git knows the tree."""
    done = subprocess.run(["git", "-C", str(TREE), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    if done.returncode == 0 and done.stdout:
        paths = [TREE / os.fsdecode(name) for name in done.stdout.split(b"\0") if name]
        return [path for path in paths if path.is_file()]
    return [path for path in TREE.rglob("*") if path.is_file()
            and not {".git", ".venv", "__pycache__", "build"} & set(path.relative_to(TREE).parts)]


@pytest.mark.parametrize("path", WRAPPERS, ids=lambda path: path.name)
def test_wrappers_are_all_alike_and_executable(path):
    match = WRAPPER.fullmatch(path.read_text())
    assert match, "not of the form of the others"
    assert match.group(1) == path.name
    assert path.stat().st_mode & 0o777 == 0o755


def test_scripts_can_be_run():
    for name in (".ci/run", "tools/setup-tests", "tools/run-tests"):
        assert os.access(TREE / name, os.X_OK), name


@pytest.mark.parametrize("module", sorted(MODULES))
def test_modules_say_what_they_are_and_are_short(module):
    path = MODULES[module]
    assert ast.get_docstring(parse(path)), "no docstring"
    assert len(path.read_text().splitlines()) <= 400


def test_the_grammar_is_the_oldest_that_is_promised():
    config = configparser.ConfigParser()
    config.read(TREE / "setup.cfg")
    promised = re.fullmatch(r">= (\d+)\.(\d+)", config["options"]["python_requires"]).groups()
    oldest = tuple(int(part) for part in promised)
    assert oldest == (3, 9)
    for path in list(MODULES.values()) + WRAPPERS:
        ast.parse(path.read_text(), str(path), feature_version=oldest)
        # CPython 3.9 takes a parenthesised with, its grammar does not.
        assert not re.search(r"(?m)^\s*(async )?with \($", path.read_text()), path


def test_news_has_this_version_first():
    news = (TREE / "NEWS.md").read_text()
    versions = re.findall(r"(?m)^## (\d+\.\d+\.\d+)", news)
    assert versions[0] == mxqlib.__version__
    numbers = [tuple(map(int, version.split("."))) for version in versions]
    assert numbers == sorted(numbers, reverse=True)
    headings = re.findall(r"(?m)^### (.+)$", news)
    assert set(headings) <= {"Needs attention", "New", "Fixed", "Under the hood"}


def test_every_command_says_the_one_version(sandbox):
    for path in WRAPPERS:
        shown = sandbox.run(path, "--version", check=True).stdout
        assert shown == "%s (MXQ) %s\n" % (path.name, mxqlib.__version__)


def test_nothing_tells_of_one_machine():
    """No path of the machine it was written on, and no host that packages come from."""
    words = [r"/home/(?!user\b|USER\b|alice\b|bob\b|joe\b|\$)\w", r"/root/\w", r"/Users/",
             r"\bpy" + r"pi\.org", r"\bpython" + r"hosted\.org", r"\bnpm" + r"js\.org", r"\bdeb\." + r"debian\.org"]
    for folder in (Path.home(), TREE, TREE.parent):
        if len(folder.parts) > 2:
            words.append(r"(?<![\w.})])" + re.escape(str(folder)) + "/")
    found = []
    for path in list_files():
        if path == Path(__file__):
            continue
        text = path.read_bytes().decode("utf-8", "replace")
        found += ["%s: %s" % (path.relative_to(TREE), match.group())
                  for word in words for match in re.finditer(word, text)]
    assert found == []
