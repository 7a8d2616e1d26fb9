"""Pages say what programs do: options, exit statuses, fields, variables, in both directions."""

import importlib
import re
import shutil
import subprocess

import pytest

from mxqlib import exits
from tests.harness.sandbox import TREE
from tests.meta.source import list_modules, list_texts

MODULES = list_modules()
COMMANDS = sorted(path.name for path in (TREE / "bin").glob("mxq-*"))
PAGES = {path.name: path for path in sorted((TREE / "man").glob("*.[1-8]"))}
WORDS = {"mxq.7", "mxq-spool.5", "mxq-queue.5"}
# Given to the job by every run, and read by nobody here (mxq(7)); or read by the tests only.
FOR_THE_JOB = {"MXQ_THREADS", "MXQ_MEMORY", "MXQ_TIME", "MXQ_JOBID"}


def read_page(name):
    return PAGES[name].read_text("utf-8")


def section(page, title):
    """The source of one `.Sh` section; empty where there is none."""
    match = re.search(r"(?ms)^\.Sh %s\n(.*?)(?=^\.Sh |\Z)" % re.escape(title), page)
    return match.group(1) if match else ""


def flags(line):
    """(option as typed, whether it takes a value) of each `Fl` in a line of mdoc: `.It Fl g Ar x , Fl -group Ar x`."""
    words = line.replace("Ns", " ").split()
    found = {}
    for at, word in enumerate(words[:-1]):
        if word == "Fl":
            rest = [other for other in words[at + 2:] if other not in ("Op", "No", "=")]
            found["-" + words[at + 1]] = rest[:1] in (["Ar"], ["Cm"])
    return found


def options_of_page(page):
    """All options that are the head of a list item."""
    found = {}
    for line in re.findall(r"(?m)^\.It (Fl .*)$", page):
        here = flags(line)
        # `-g, --group NAME`: the value may be written once, after the last.
        takes = any(here.values())
        found.update({name: takes for name in here})
    return found


def options_of_help(text):
    """All options that --help lists, and whether they take a value."""
    found = {}
    for spelled in re.findall(r"(?m)^  (-.*?)(?:  .*)?$", text):
        takes = bool(re.search(r" [^-]", spelled.replace(", ", "")))
        found.update({name: takes for name in re.findall(r"(?:^| )(--?[A-Za-z0-9][\w-]*)", spelled)})
    return found


def render(page):
    """(text without attributes, complaints) of groff at a terminal of 80 columns."""
    argv = ["groff", "-K", "utf-8", "-mdoc", "-Tutf8", "-rLL=80n", "-P-cbou"]
    done = subprocess.run(argv, input=page, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
                          check=True)
    return done.stdout, done.stderr


def without_literal(page):
    """A page without what is shown as it is typed, however long."""
    return re.sub(r"(?ms)^\.Bd -literal.*?^\.Ed\n|^\.Dl [^\n]*\n", "", page)


def test_every_command_has_a_page_and_every_page_a_command():
    assert set(PAGES) == {"%s.1" % name for name in COMMANDS} | WORDS


@pytest.mark.parametrize("command", COMMANDS)
def test_options_are_those_of_the_page(sandbox, command):
    shown = options_of_help(sandbox.run(command, "--help", check=True).stdout)
    assert {"-h", "--help", "-V", "--version"} <= set(shown)
    assert options_of_page(read_page(command + ".1")) == shown


@pytest.mark.parametrize("command", COMMANDS)
def test_options_are_those_of_the_table(sandbox, command):
    """OPTIONS of the module, with what all commands have, is what --help shows."""
    shown = options_of_help(sandbox.run(command, "--help", check=True).stdout)
    module = importlib.import_module("mxqlib.%s" % command[len("mxq-"):])
    own = {name: bool(option.arg) for option in module.OPTIONS
           for name in (option.short and "-" + option.short, option.long and "--" + option.long) if name}
    assert {name: takes for name, takes in shown.items() if name in own} == own
    assert set(shown) - set(own) <= {"-d", "-q", "-v", "-h", "--help", "-V", "--version"}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_synopsis_has_no_other_options(command):
    page = read_page(command + ".1")
    synopsis = {name for line in section(page, "SYNOPSIS").splitlines() for name in flags(line)}
    letters = {"-" + letter for name in synopsis if not name.startswith("--") for letter in name[1:]}
    assert letters | {name for name in synopsis if name.startswith("--")} <= set(options_of_page(page))


@pytest.mark.parametrize("command", COMMANDS)
def test_exit_statuses_are_those_of_the_page(command):
    module = importlib.import_module("mxqlib.%s" % command[len("mxq-"):])
    items = re.findall(r"(?m)^\.It (.*)$", section(read_page(command + ".1"), "EXIT STATUS"))
    numbers = [int(word) for item in items for word in re.findall(r"(?:^|[ ,])(\d+)(?=$|[ ,])", item)]
    assert sorted(set(numbers)) == sorted(set(module.EXITS))
    assert len(numbers) == len(set(numbers)), "a status twice"


@pytest.mark.parametrize("command", COMMANDS)
def test_exit_statuses_have_a_name_and_are_not_pythons(command):
    module = importlib.import_module("mxqlib.%s" % command[len("mxq-"):])
    constants = {value for name, value in vars(exits).items() if name.isupper()}
    assert set(module.EXITS) <= constants
    assert not {1, 2} & set(module.EXITS)


def test_the_statuses_of_one_name_are_one_number():
    constants = {name: value for name, value in vars(exits).items() if name.isupper()}
    assert len(set(constants.values())) == len(constants)
    assert constants["USAGE"] == 64 and constants["CONFIG"] == 78    # sysexits.h


@pytest.mark.parametrize("name", sorted(PAGES))
def test_references_to_our_pages_lead_somewhere(name):
    for other, number in re.findall(r"\bXr (mxq[\w-]*) (\d)", read_page(name)):
        assert "%s.%s" % (other, number) in PAGES, "%s refers to %s(%s)" % (name, other, number)


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_command_is_shown_with_its_quotes(name):
    # At the start of a word of a macro line a quote is roff's own (mdoc(7)) and not printed.
    assert not re.findall(r'(?m)^\.Dl .* "', read_page(name))


@pytest.mark.needs("groff")
@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_fits_a_terminal(name):
    """groff has nothing to say, and breaks every line at 80 columns; mandoc -T lint does not see either."""
    page = read_page(name)
    assert render(page)[1] == ""
    text, _ = render(without_literal(page))
    assert len(text.splitlines()) > 50
    assert [line for line in text.splitlines() if len(line) > 80] == []


@pytest.mark.needs("groff")
def test_a_table_wider_than_a_terminal_is_found():
    page = ".Dd May 1, 2026\n.Dt T 1\n.Os\n.Sh NAME\n.Nm t\n.Nd t\n%s"
    table = ".Bl -column %s\n.It a Ta b Ta some words\n.El\n" % " ".join(['"%s"' % ("x" * 40)] * 3)
    assert "can't break line" in render(page % table)[1]
    wide = ".Bd -literal\n%s\n.Ed\n" % ("x" * 90)
    assert max(map(len, render(page % wide)[0].splitlines())) > 80
    assert max(map(len, render(without_literal(page % wide))[0].splitlines())) <= 80


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_names_itself(name):
    page = read_page(name)
    title, number = name.rsplit(".", 1)
    assert re.search(r"(?m)^\.Dt %s %s$" % (title.upper(), number), page)
    assert re.search(r"(?m)^\.Nm %s\n\.Nd .*[^.]$" % title, page)


@pytest.mark.parametrize("index, ask", [
    pytest.param(["mandb", "--quiet", "--create"], ["man", "-k", "-M"], marks=pytest.mark.needs("mandb"), id="man-db"),
    pytest.param(["makewhatis"], ["mapropos", "-M"], marks=pytest.mark.needs("makewhatis", "mapropos"), id="mandoc"),
])
def test_apropos_finds_every_page(sandbox, index, ask):
    for name, path in PAGES.items():
        folder = sandbox.work / "man" / ("man" + name[-1])
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder)
    sandbox.run(*index, sandbox.work / "man", check=True)
    found = sandbox.run(*ask, sandbox.work / "man", "mxq", check=True).stdout
    assert {re.sub(r" ?\((\d)\) .*", r".\1", line) for line in found.splitlines()} == set(PAGES)
    # In 80 columns, and not cut.
    assert all(len(line) < 80 and not line.endswith("...") for line in found.splitlines()), found


def test_variables_of_the_environment_are_those_of_the_pages():
    used = {name for path in MODULES.values() for _, text in list_texts(path)
            for name in re.findall(r"\bMXQ_[A-Z]+\b", text)}
    written = {name for page in PAGES for name in re.findall(r"\bMXQ_[A-Z]+\b", read_page(page))}
    assert used == written
    assert FOR_THE_JOB <= used


def test_fields_of_a_record_are_those_of_the_page(sandbox):
    sandbox.run("mxq-reap", "--", "true", check=True)
    running = sandbox.run("mxq-reap", "--", "sh", "-c", 'cat "$MXQ_DIR/spool/runs/$MXQ_RUN.json"', check=True).stdout
    assert '"state":"running"' in running.replace(" ", "")
    page = read_page("mxq-spool.5")
    items = set(re.findall(r"(?m)^\.It (?:Va|Li|Cm|Sy|Em)? ?\"?(\w+)", page))
    for record in sandbox.records():
        assert set(record) <= items


def test_tables_and_columns_of_the_queue_are_those_of_the_page(sandbox):
    sandbox.run("mxq-reap", "--", "true", check=True)
    sandbox.run("mxq-collect", check=True)
    page = read_page("mxq-queue.5")
    tables = [row[0] for row in sandbox.queue("SELECT name FROM sqlite_master WHERE type = 'table'")
              if not row[0].startswith("sqlite_")]
    assert {"job", "run", "event", "delivery", "environment"} <= set(tables)
    for table in tables:
        for row in sandbox.queue("PRAGMA table_info(%s)" % table):
            assert re.search(r"\b%s\b" % row["name"], page), "mxq-queue(5) has no %s.%s" % (table, row["name"])
