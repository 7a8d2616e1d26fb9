"""The linter sees what it is there to see, and does not complain of what is right."""

import os
import subprocess
import sys

import pytest

from tests.harness.sandbox import TREE

GOOD = '''"""A module."""

import os
import sys as system


def first(items, *, key=None):
    """Say the first."""
    for _index, (name, _value) in enumerate(items):
        if key is None:
            return f"{name} of {os.sep} {system.argv}"
    squares = [0 for number in items]

    def inner():
        return squares
    try:
        return inner()
    except (ValueError, OSError) as error:
        return str(error)


class Thing:
    """A thing."""

    size = 1
    sizes = [size]

    @property
    def value(self):
        """Its value."""
        return self._private() + len(self.sizes)

    def _private(self):
        global counter
        counter = 1
        return counter
'''

BAD = {
    "imported and not used: re": "import re",
    "import of everything": "from os import *",
    "undefined name: nothing": "def f():\n    return nothing",
    "undefined name: later": "print(later)",
    "set and never read: x": "def f():\n    x = 1",
    "set and never read: error": "def f():\n    try:\n        f()\n    except OSError as error:\n        pass",
    "defined again: f": "def f():\n    pass\n\n\ndef f():\n    pass",
    "defined and not used: _f": "def _f():\n    pass",
    "except without a class": "try:\n    pass\nexcept:\n    pass",
    "f-string without a field": "print(f'x')",
    "comparison with None": "print(print == None)",
    "default value that all calls share": "def f(a=[]):\n    return a",
    "key twice": "print({1: 2, 1: 3})",
    "never reached": "def f():\n    return 1\n    f()",
    "NotImplementedError is meant": "raise NotImplemented",
    "does not compile": "def f(:\n    pass",
    "as Python 3.9": "match 1:\n    case 1:\n        pass",
    "\"is\" with": "print(1 is 1)",
    "longer than 120": "x = %r" % ("x" * 120),
    "tab": "if True:\n\tpass",
    "trailing space": "x = 1 ",
    "exactly one newline": "x = 1\n\n",
    "function of more than": "def f():\n" + "    f()\n" * 60,
    "more than 400 lines": "\n".join(["print()"] * 400),
    "module without a docstring": None,
    "public and without a docstring: f": "def f():\n    pass",
}


def lint(folder, name, **changes):
    return subprocess.run([sys.executable, "-IS", str(TREE / "tools/lint.py"), name], env=dict(os.environ, **changes),
                          cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", check=False)


def test_what_is_right_passes(tmp_path):
    (tmp_path / "good.py").write_text(GOOD)
    done = lint(tmp_path, "good.py")
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("what", BAD)
def test_what_is_wrong_is_found(tmp_path, what):
    folder = tmp_path / "mxqlib"
    folder.mkdir()
    body = BAD[what]
    (folder / "bad.py").write_text("x = 1\n" if body is None else '"""Bad."""\n\n%s\n' % body)
    done = lint(tmp_path, "mxqlib/bad.py")
    assert done.returncode == 1
    assert what in done.stdout


@pytest.mark.needs("shellcheck")
def test_shell_is_looked_at_by_its_first_line(tmp_path):
    (tmp_path / "script").write_text("#!/bin/sh\necho $1\n")
    done = lint(tmp_path, "script")
    assert done.returncode == 1 and "SC2086" in done.stdout


@pytest.mark.needs("mandoc")
def test_pages_are_looked_at(tmp_path):
    (tmp_path / "man").mkdir()
    (tmp_path / "man" / "x.1").write_text(".Dd November 30, 2026\n.Dt X 1\n.Os\n.Sh NAME\n.Nm x\n.Nd y\n.Foo\n")
    done = lint(tmp_path, "man/x.1")
    assert done.returncode == 1 and "Foo" in done.stdout


@pytest.mark.parametrize("strict, status", [("0", 0), ("1", 1)])
def test_a_missing_tool_is_named_and_fails_in_strict_mode_only(tmp_path, strict, status):
    (tmp_path / "script").write_text("#!/bin/sh\n")
    done = lint(tmp_path, "script", PATH=str(tmp_path), MXQ_TEST_STRICT=strict)
    assert done.returncode == status and "shellcheck is missing" in done.stdout
