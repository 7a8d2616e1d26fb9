"""The fixture `tally`: how many kills, errors, freezes and disk states were tried, printed at the end.

The numbers travel in the reports, so they are complete under pytest-xdist too.
"""

import collections

import pytest

TRIED = collections.Counter()


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
