"""Imports go down only: bin -> command -> words -> system -> base, and no command imports another."""

import ast
import re

import pytest

from tests.harness.sandbox import TREE
from tests.meta.source import closure, list_imports, list_modules, list_own_imports, parse

# Every module has its place here. Within a layer imports may go either way, but never in a circle.
# Two layers are finer than in the drawing. `signals` lies at the bottom: it needs nobody, and `cli`
# ends by a signal. Words that know the database lie above those that a reaper needs.
LAYERS = (
    ("base", "exits units clock signals cli"),
    ("system", "durable process census child"),
    ("words of the spool", "place record spool outcome outer request lock remover "
                          "wire attempt reaper front tree kin watcher runners rollcall table progress timeline"),
    ("words of the queue", "jobqueue schema intake outbox delivery "
                          "capacity crew dispatch adoption targets control kill listing detail forget check report"),
    ("commands", "reap collect ls adopt sub run wait ctl"),
)
RANKS = {name: rank for rank, (_, names) in enumerate(LAYERS) for name in names.split()}
COMMANDS = LAYERS[-1][1].split()
MODULES = list_modules()


def rank_of(module):
    """A folder is one thing: delivery.mail has the rank of delivery."""
    return RANKS.get(module.partition(".")[0])


def test_every_module_has_one_layer():
    unknown = [name for name in MODULES if name and rank_of(name) is None]
    assert unknown == [], "give them a layer in this table, and in HACKING.md"
    names = [name for _, names in LAYERS for name in names.split()]
    assert sorted(names) == sorted({name.partition(".")[0] for name in MODULES if name}), "gone, or here twice"


def test_hacking_shows_the_same_table():
    rows = dict(re.findall(r"(?m)^\| ([a-z ]+) \| `([a-z/ ]+)` \|", (TREE / "HACKING.md").read_text()))
    assert {name: modules.replace("/", "").split() for name, modules in rows.items()} == {
        name: modules.split() for name, modules in LAYERS}


@pytest.mark.parametrize("module", sorted(name for name in MODULES if name))
def test_imports_go_down(module):
    for line, other in list_own_imports(MODULES[module], MODULES):
        where = "%s:%d imports %s" % (MODULES[module], line, other or "mxqlib")
        assert rank_of(other or "exits") <= rank_of(module), where
        assert other == module or module not in COMMANDS or other not in COMMANDS, where


def test_the_package_itself_imports_nothing():
    assert list_imports(MODULES[""], MODULES) == []


def test_no_circles():
    below = {name: {other for _, other in list_own_imports(MODULES[name], MODULES)} for name in MODULES}
    done = set()

    def visit(name, path):
        assert name not in path, "a circle: %s" % " -> ".join(path + [name])
        if name not in done:
            for other in sorted(below[name]):
                visit(other, path + [name])
            done.add(name)

    for name in sorted(MODULES):
        visit(name, [])


@pytest.mark.parametrize("module", ["reap"])
def test_the_reaper_does_not_reach_the_words_of_the_queue(module):
    above = LAYERS[3][1].split()
    assert {name.partition(".")[0] for name in closure(module, MODULES)} & set(above) == set()


def test_bin_imports_its_command_and_nothing_else():
    for path in sorted((TREE / "bin").glob("mxq-*")):
        command = path.name[len("mxq-"):]
        names = {name for _, name in list_imports(path, MODULES)}
        assert names == {"os", "sys", "mxqlib.cli", "mxqlib.%s" % command}, path.name


def test_every_command_has_a_program_and_every_program_a_command():
    commands = {name for name in COMMANDS if name in MODULES}
    assert {path.name for path in (TREE / "bin").iterdir()} == {"mxq-" + name for name in commands}


def test_a_command_has_a_main():
    for name in COMMANDS:
        if name in MODULES:
            functions = [node for node in parse(MODULES[name]).body if isinstance(node, ast.FunctionDef)]
            mains = [node for node in functions if node.name == "main"]
            assert len(mains) == 1 and [arg.arg for arg in mains[0].args.args] == ["argv"], name
