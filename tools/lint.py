"""lint.py [FILE...]: what a machine can see in the source, the pages and the shell scripts.

Without operands all files that git knows or would add are looked at. Python: compiles without a
warning and with the grammar of 3.9, undefined and unused names, unused and repeated definitions,
docstrings, line length, tabs, trailing space, size of modules and functions. Pages: mandoc -T lint.
Shell: shellcheck. A program that is missing is named, and an error when MXQ_TEST_STRICT=1. One line
per finding; exit 1 when there is any.
"""

import ast
import builtins
import os
import re
import shutil
import subprocess
import symtable
import sys
import warnings

TREE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OLDEST = (3, 9)
LINE_MAX = 120
MODULE_MAX = 400
FUNCTION_MAX = 60       # the aim is 40
DOCUMENTED = ("mxqlib/", "tests/harness/", "tools/", "bench/")
MODULE_NAMES = {"__file__", "__name__", "__doc__", "__path__", "__spec__", "__package__", "__loader__",
                "__class__", "__module__", "__qualname__", "__builtins__"} | set(dir(builtins))


class Module:
    """One Python file: its text, tree and symbols, and what was found in it."""

    def __init__(self, name, text):
        self.name = name
        self.lines = text.split("\n")
        self.text = text
        self.tree = None
        self.found = []

    def say(self, line, what):
        """Note a finding."""
        self.found.append((line, what))

    def check(self):
        """Run every check and return the findings as lines of text."""
        if self.compiles():
            for check in (check_imports, check_names, check_definitions, check_habits, check_docstrings, check_sizes):
                check(self)
        check_layout(self)
        return ["%s:%d: %s" % (self.name, line, what) for line, what in sorted(set(self.found))]

    def compiles(self):
        """Parse; False when that fails. Warnings of the compiler (`is` with a literal, odd escapes) are findings."""
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                self.tree = ast.parse(self.text, self.name, feature_version=OLDEST)
                compile(self.text, self.name, "exec", dont_inherit=True)
            for warning in caught:
                self.say(warning.lineno, str(warning.message))
        except SyntaxError as error:
            self.say(error.lineno or 0, "does not compile as Python %d.%d: %s" % (OLDEST + (error.msg,)))
            return False
        return True

    def mentions(self):
        """All names that are read somewhere, also as roots of attributes, in `__all__` or in a `global`."""
        used = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
                used.add(node.id)
            elif isinstance(node, ast.Global):
                used.update(node.names)
            elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                used.update(ast.literal_eval(node.value))
        return used


def check_imports(module):
    """Imports that nobody uses, that are repeated, or that take everything."""
    used = module.mentions()
    seen = {}
    for node in ast.walk(module.tree):
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            if alias.name == "*":
                module.say(node.lineno, "import of everything: %s" % node.module)
            elif name not in used and not module.name.endswith("__init__.py"):
                module.say(node.lineno, "imported and not used: %s" % name)
            full = (getattr(node, "module", None), alias.name, node.col_offset)
            if full in seen and node.col_offset == 0:
                module.say(node.lineno, "imported again: %s (line %d)" % (name, seen[full]))
            seen[full] = node.lineno


def check_names(module):
    """Names that exist nowhere, and locals that are set and never read."""
    top = symtable.symtable(module.text, module.name, "exec")
    known = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    known |= {symbol.get_name() for symbol in top.get_symbols() if symbol.is_namespace()} | MODULE_NAMES
    lines, unpacked = {}, set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Name):
            lines.setdefault(node.id, node.lineno)
        elif isinstance(node, ast.Global):
            known.update(node.names)
        unpacked.update(_unpacked_names(node))
    tables = [top]
    for table in tables:
        tables.extend(table.get_children())
        for symbol in table.get_symbols():
            name = symbol.get_name()
            if symbol.is_global() or table is top:
                if symbol.is_referenced() and name not in known:
                    module.say(lines.get(name, table.get_lineno()), "undefined name: %s" % name)
            elif table.get_type() == "function" and name not in unpacked and _is_unread(symbol):
                module.say(_line_of_store(module, table, name), "set and never read: %s" % name)


def _unpacked_names(node):
    # What a loop or an unpacking must name and may well not need.
    targets = [node.target] if isinstance(node, (ast.For, ast.comprehension)) else \
        [node] if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Store) else []
    return [inner.id for target in targets for inner in ast.walk(target) if isinstance(inner, ast.Name)]


def _is_unread(symbol):
    return not symbol.get_name().startswith("_") and symbol.is_local() and symbol.is_assigned() and not (
        symbol.is_referenced() or symbol.is_parameter() or symbol.is_imported() or symbol.is_namespace()
        or symbol.is_free() or _is_cell(symbol))


def _is_cell(symbol):
    # symtable has no public question for "an inner function reads it" (scope CELL is 5).
    return getattr(symbol, "_Symbol__scope", None) == 5


def _line_of_store(module, table, name):
    for node in ast.walk(module.tree):
        line = getattr(node, "lineno", 0)
        if line >= table.get_lineno() and isinstance(node, (ast.Name, ast.ExceptHandler)) \
                and name in (getattr(node, "id", None), getattr(node, "name", None)):
            return line
    return table.get_lineno()


def check_definitions(module):
    """A function or class that replaces one of the same name, and a private one that nobody calls."""
    used = module.mentions() | {node.attr for node in ast.walk(module.tree) if isinstance(node, ast.Attribute)}
    for scope in ast.walk(module.tree):
        if not isinstance(scope, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            continue
        seen = {}
        for node in scope.body:
            if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                continue
            if node.name in seen and not node.decorator_list:
                module.say(node.lineno, "defined again: %s (line %d)" % (node.name, seen[node.name]))
            seen[node.name] = node.lineno
            if node.name.startswith("_") and not node.name.endswith("__") and node.name not in used \
                    and not node.decorator_list:
                module.say(node.lineno, "defined and not used: %s" % node.name)


def check_habits(module):
    """Forms that hide errors."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            module.say(node.lineno, "except without a class catches SystemExit too: say BaseException if meant")
        elif isinstance(node, ast.JoinedStr) and not any(isinstance(v, ast.FormattedValue) for v in node.values):
            module.say(node.lineno, "f-string without a field")
        elif isinstance(node, ast.Compare) and any(
                isinstance(op, (ast.Eq, ast.NotEq)) and isinstance(right, ast.Constant) and right.value is None
                for op, right in zip(node.ops, node.comparators)):
            module.say(node.lineno, "comparison with None: use `is`")
        elif isinstance(node, (ast.FunctionDef, ast.Lambda)):
            for default in node.args.defaults + node.args.kw_defaults:
                if isinstance(default, (ast.List, ast.Dict, ast.Set)):
                    module.say(default.lineno, "default value that all calls share")
        elif isinstance(node, ast.Dict):
            keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
            for key in {key for key in keys if keys.count(key) > 1}:
                module.say(node.lineno, "key twice in one dict: %r" % (key,))
        elif isinstance(node, ast.Raise) and getattr(node.exc, "id", "") == "NotImplemented":
            module.say(node.lineno, "raise NotImplemented: NotImplementedError is meant")
        _check_dead(module, node)


def _check_dead(module, node):
    for block in (getattr(node, "body", None), getattr(node, "orelse", None), getattr(node, "finalbody", None)):
        for statement, after in zip(block or (), (block or ())[1:]) if isinstance(block, list) else ():
            if isinstance(statement, (ast.Return, ast.Raise, ast.Continue, ast.Break)):
                module.say(after.lineno, "never reached")


def check_docstrings(module):
    """A module says what it is; so does each public function and class of the program itself."""
    if module.text.strip() and ast.get_docstring(module.tree) is None:
        module.say(1, "module without a docstring")
    if not module.name.startswith(DOCUMENTED):
        return
    for scope in [module.tree] + [node for node in module.tree.body if isinstance(node, ast.ClassDef)]:
        for node in scope.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_") \
                    and ast.get_docstring(node) is None:
                module.say(node.lineno, "public and without a docstring: %s" % node.name)


def check_sizes(module):
    """Long modules and functions; a file of many small tests may be long."""
    if len(module.lines) - 1 > MODULE_MAX and not os.path.basename(module.name).startswith("test_"):
        module.say(MODULE_MAX, "more than %d lines: is there a natural seam?" % MODULE_MAX)
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= FUNCTION_MAX:
            module.say(node.lineno, "function of more than %d lines: %s" % (FUNCTION_MAX, node.name))


def check_layout(module):
    """Long lines, tabs, trailing space, the end of the file."""
    for number, line in enumerate(module.lines, 1):
        if len(line) > LINE_MAX:
            module.say(number, "longer than %d characters" % LINE_MAX)
        if "\t" in line:
            module.say(number, "tab")
        if line != line.rstrip():
            module.say(number, "trailing space")
    if module.text and (not module.text.endswith("\n") or module.text.endswith("\n\n")):
        module.say(len(module.lines), "the file does not end with exactly one newline")


def run_tool(argv, files):
    """What a program says about `files`; its absence is an error in strict mode only."""
    if not files:
        return []
    if shutil.which(argv[0]) is None:
        if os.environ.get("MXQ_TEST_STRICT") == "1":
            return ["%s is missing" % argv[0]]
        print("lint.py: warning: %s is missing, not looked at: %s" % (argv[0], " ".join(files)), file=sys.stderr)
        return []
    done = subprocess.run(argv + files, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
                          check=False)
    lines = [line for line in done.stdout.split("\n") if line.strip()]
    if done.returncode and not lines:
        lines = ["%s: exit %d" % (argv[0], done.returncode)]
    return lines


def list_files():
    """The files of the tree: git's, or all but hidden ones where there is no git."""
    try:
        done = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8", check=False)
        if done.returncode == 0 and done.stdout:
            return sorted(name for name in done.stdout.split("\0") if name and os.path.isfile(name))
    except FileNotFoundError:
        pass
    found = []
    for folder, folders, names in os.walk("."):
        folders[:] = [name for name in folders if name == ".ci" or not name.startswith((".", "__pycache__", "build"))]
        found += [os.path.relpath(os.path.join(folder, name)) for name in names]
    return sorted(found)


def kind_of(name):
    """`python`, `shell`, `page` or None, by name or first line."""
    if name.endswith(".py"):
        return "python"
    if name.endswith((".sh", ".bash")):
        return "shell"
    if re.fullmatch(r"man/.+\.[1-8]", name):
        return "page"
    if os.path.islink(name):
        return None
    with open(name, "rb") as file:
        first = file.readline(200)
    if not first.startswith(b"#!"):
        return None
    return "python" if b"python" in first else "shell" if re.search(rb"[ /](ba|da|)sh\b", first) else None


def main(argv):
    """Look at the files named, or at all; print the findings and return 1 when there are any."""
    if not argv:
        os.chdir(TREE)
    kinds = {"python": [], "shell": [], "page": []}
    for name in argv or list_files():
        kinds.get(kind_of(name), []).append(name)
    found = []
    for name in kinds["python"]:
        with open(name, encoding="utf-8") as file:
            found += Module(name, file.read()).check()
    found += run_tool(["mandoc", "-T", "lint", "-W", "warning"], kinds["page"])
    found += run_tool(["shellcheck"], kinds["shell"])
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
