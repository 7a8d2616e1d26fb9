"""SQL, fsync, fork, kill and /proc have one home each: there a fault is sought, and there it is mended."""

import re

import pytest

from tests.meta.source import list_calls, list_imports, list_methods, list_modules, list_texts

MODULES = list_modules()

# What a full name must match -> the modules that may use it.
CALLS = {
    r"os\.(fsync|fdatasync|sync)": "durable",
    r"os\.execv": "child cli",     # a command starts itself over where the locale is not UTF-8
    r"os\.(fork|forkpty|exec(?!v$)\w*|spawn\w*|posix_spawnp?|popen|system|wait\w*)": "child",
    r"(os\.(kill|killpg)|_?signal\.(pidfd_send_signal|pthread_kill|raise_signal|sigqueue))": "process signals child",
    r"os\.pidfd_open": "process child",
    r"(_?signal)\.\w+": "signals process child",
    r"_?ctypes\.\w+": "process child delivery",
    r"sqlite3\.\w+": "jobqueue schema",
}
IMPORTS = {
    r"_?ctypes|_posixsubprocess": "process child delivery",     # delivery: fallocate(2)
    r"_?signal": "signals process child",
    r"_?sqlite3": "jobqueue schema",
    r"subprocess": "delivery",                                  # mailers and hooks; jobs are children of `child`
    r"multiprocessing|pty|shutil|tempfile|threading|concurrent\..*|asyncio": "",
}
SQL = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|REPLACE|CREATE|DROP|ALTER|PRAGMA|BEGIN|COMMIT|ROLLBACK|SAVEPOINT"
                 r"|RELEASE|ATTACH|VACUUM|ANALYZE|WITH|VALUES)\b")
# How durable a place can be is a question of its file system; all else in /proc is about processes.
TEXTS = {
    r"(?!/proc/self/mount)/proc(/.*)?": "process census child",
    r"/proc/self/mount.*": "durable",
}


def violations(found, rules):
    """The lines of a module that break a rule, which maps a pattern to the names of its homes."""
    lines = []
    for module, line, what in found:
        for pattern, homes in rules.items():
            if re.fullmatch(pattern, what) and module.partition(".")[0] not in homes.split():
                lines.append("mxqlib/%s.py:%d: %s" % (module.replace(".", "/"), line, what))
    return lines


def gather(question):
    return [(module, line, what) for module, path in MODULES.items() for line, what in question(path)]


def test_system_calls_are_made_in_their_home():
    assert violations(gather(list_calls), CALLS) == []


def test_modules_are_imported_in_their_home():
    found = gather(lambda path: list_imports(path, MODULES))
    assert violations(found, IMPORTS) == []


def test_paths_of_proc_are_in_their_home():
    found = [(module, line, what.partition("\n")[0]) for module, line, what in gather(list_texts)]
    assert violations(found, TEXTS) == []


def test_sql_is_in_its_home():
    found = [(module, line, "sql") for module, line, what in gather(list_texts) if SQL.match(what)]
    assert violations(found, {"sql": "jobqueue schema"}) == []
    found = [(module, line, "." + what) for module, line, what in gather(list_methods)]
    assert violations(found, {r"\.execute(many|script)?": "jobqueue schema"}) == []


@pytest.mark.parametrize("text, is_sql", [
    ("SELECT 1", True), ("  INSERT INTO job VALUES (?)", True), ("BEGIN IMMEDIATE", True), ("COMMIT", True),
    ("PRAGMA user_version", True), ("UPDATE job SET x = 1", True), ("With that", False), ("select a job", False),
])
def test_what_counts_as_sql(text, is_sql):
    assert bool(SQL.match(text)) == is_sql
