"""The program's own source, parsed: what the tests of this folder look at."""

import ast
from pathlib import Path

from tests.harness.sandbox import TREE

PACKAGE = "mxqlib"


def list_modules(tree=TREE):
    """Name below mxqlib (`spool`, `delivery.mail`, "" for the package itself) -> path, of every module."""
    modules = {}
    for path in sorted((Path(tree) / PACKAGE).rglob("*.py")):
        parts = list(path.relative_to(Path(tree) / PACKAGE).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        modules[".".join(parts)] = path
    return modules


def parse(path):
    """The syntax tree of a file."""
    return ast.parse(path.read_text("utf-8"), str(path))


def list_imports(path, modules):
    """(line, dotted name) of every import in a file, wherever it stands; names of mxqlib's modules in full."""
    found = []
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "%s:%d: a relative import" % (path, node.lineno)
            if node.module.split(".")[0] != PACKAGE:
                found.append((node.lineno, node.module))
                continue
            for alias in node.names:
                inner = (node.module + "." + alias.name)[len(PACKAGE) + 1:]
                found.append((node.lineno, node.module + "." + alias.name if inner in modules else node.module))
    return found


def list_own_imports(path, modules):
    """(line, name below mxqlib) of every import of mxqlib's modules in a file."""
    return [(line, name[len(PACKAGE) + 1:]) for line, name in list_imports(path, modules)
            if name.split(".")[0] == PACKAGE]


def closure(name, modules):
    """All modules of mxqlib that importing one brings in, itself included."""
    found, waiting = set(), [name]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        if "." in name:
            waiting.append(name.rpartition(".")[0])
        waiting += [other for _, other in list_own_imports(modules[name], modules)]
    return found


def list_calls(path):
    """(line, `os.fsync`) of every use of an attribute of a plain name, called or not, through any alias."""
    tree = parse(path)
    aliases = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                aliases[alias.asname or alias.name] = alias.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                aliases[alias.asname or alias.name] = node.module + "." + alias.name
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
            found.append((node.lineno, "%s.%s" % (aliases[node.value.id], node.attr)))
        elif isinstance(node, ast.Name) and "." in aliases.get(node.id, ""):
            found.append((node.lineno, aliases[node.id]))
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [(node.lineno, "%s.%s" % (node.module, alias.name)) for alias in node.names]
    return found


def list_methods(path):
    """(line, name) of everything that is called as an attribute of something that is not an imported module."""
    tree = parse(path)
    imported = {alias.asname or alias.name for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))
                for alias in node.names}
    return [(node.lineno, node.func.attr) for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            and getattr(node.func.value, "id", None) not in imported]


def list_texts(path):
    """(line, text) of every string and bytes constant that is not a docstring."""
    tree = parse(path)
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                docstrings.add(first.value)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node not in docstrings:
            value = node.value.decode("latin-1") if isinstance(node.value, bytes) else node.value
            if isinstance(value, str):
                found.append((node.lineno, value))
    return found
