"""The fixture `tally`: how many kills, errors, freezes and disk states were tried, printed at the end.

The numbers travel in the reports, so they are complete under pytest-xdist too.
"""

import collections
import contextlib
import glob
import os
import stat
import subprocess

import pytest

from tests.harness.adopting import parent_of_orphans, reap_all

TRIED = collections.Counter()


@pytest.fixture(scope="session", autouse=True)
def readable_byte_code():
    """An error or a kill while Python reads its own byte code has root write it again, with the umask of our commands:
    others could not read it any more."""
    yield
    if os.geteuid() != 0:
        return
    library = subprocess.run(["/usr/bin/python3", "-ISc", "import os; print(os.path.dirname(os.__file__))"],
                             capture_output=True, text=True, check=True).stdout.strip()
    for path in glob.glob(os.path.join(glob.escape(library), "**", "__pycache__", "*.pyc*"), recursive=True):
        with contextlib.suppress(FileNotFoundError):        # another worker does the same
            if not path.endswith(".pyc"):
                os.unlink(path)         # a kill left it half written
            elif not os.stat(path).st_mode & stat.S_IROTH:
                os.chmod(path, 0o644)


@pytest.fixture
def parent():
    """Orphans fall to us, and we reap none before the test does: whoever asks can know how they ended."""
    with parent_of_orphans():
        yield
        reap_all()


@pytest.fixture
def tally(record_property):
    """A Counter to add to: tally["kill"] += 1."""
    counter = collections.Counter()
    yield counter
    for what, count in counter.items():
        record_property("tried %s" % what, count)


def pytest_runtest_logreport(report):
    """Sum up; the properties come with the report of the teardown."""
    if report.when == "teardown":
        for name, count in report.user_properties:
            if name.startswith("tried "):
                TRIED[name[len("tried "):]] += count


def pytest_terminal_summary(terminalreporter):
    """One line, when something was tried."""
    if TRIED:
        terminalreporter.write_line("tried: " + ", ".join("%d %s" % (TRIED[what], what) for what in sorted(TRIED)))
