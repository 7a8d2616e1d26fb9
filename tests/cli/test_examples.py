"""The EXAMPLES of every page can be run as they stand, and print what they say.

The convention is in HACKING.md. Each page is one session of sh in a sandbox of its own.
"""

import re
import shutil

import pytest

from tests.harness.sandbox import TREE

PAGES = sorted((TREE / "man").glob("*.[1-8]"))
OWN_FAILURES = {64, 70, 126, 127}
MARK = "@@ example"


class Example:
    """A command as typed, and the lines it is to print; None: not compared."""

    def __init__(self, command, lines):
        self.command, self.lines = command, lines


def plain(line):
    """A line of a page as a reader sees it: roff's escapes resolved."""
    for escape, shown in (("\\&", ""), ("\\-", "-"), ("\\(aq", "'"), ("\\(dq", '"'), ("\\e", "\\")):
        line = line.replace(escape, shown)
    return line


def find_examples(text):
    """The examples of a page, in order."""
    section = re.search(r"(?ms)^\.Sh EXAMPLES\n(.*?)(?=^\.Sh |\Z)", text)
    found, display, fresh = [], False, True
    for line in section.group(1).splitlines() if section else ():
        if line.startswith(".Bd "):
            display, fresh = True, True
        elif line == ".Ed":
            display = False
        elif line.startswith(".Dl $ "):
            found.append(Example(plain(line[len(".Dl $ "):]), None))
        elif display and plain(line).startswith("$ "):
            found.append(Example(plain(line)[2:], []))
            fresh = False
        elif display and not fresh and plain(line).startswith("> "):
            found[-1].command += "\n" + plain(line)[2:]
        elif display and not fresh:
            found[-1].lines.append(plain(line))
    return found


def is_like(wanted, line):
    """True when a line printed is the one of the page, where `...` stands for anything."""
    return re.fullmatch(".*".join(map(re.escape, wanted.split("..."))), line) is not None


def run_session(sandbox, examples):
    """(status, lines printed) of each example; all run in one shell, errors among the output."""
    script = "exec 2>&1\n" + "".join("%s\nprintf '\\n%s %%d\\n' $?\n" % (example.command, MARK) for example in examples)
    printed = sandbox.run("sh", "-c", script).stdout
    results = []
    for part in re.split(r"(?m)^%s " % MARK, printed)[1:]:
        status, _, printed_later = part.partition("\n")
        results.append((int(status), printed_later))
    outputs = [re.split(r"(?m)^%s " % MARK, printed)[0]] + [later for _, later in results[:-1]]
    return [(status, output[:-1].splitlines()) for (status, _), output in zip(results, outputs)]


@pytest.mark.leaves_processes
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_examples_run_and_print_what_the_page_says(sandbox, page):
    examples = find_examples(page.read_text("utf-8"))
    results = run_session(sandbox, examples)
    assert len(results) == len(examples), results
    for example, (status, lines) in zip(examples, results):
        if not shutil.which(example.command.split()[0], path=sandbox.env["PATH"]) and status == 127 \
                and not example.command.startswith("mxq-"):
            continue        # jq and the like
        said = "%s\nstatus %d\n%s" % (example.command, status, "\n".join(lines))
        assert status not in OWN_FAILURES and "Traceback" not in said, said
        if example.lines is not None:
            assert len(lines) == len(example.lines) and all(map(is_like, example.lines, lines)), said


def test_every_command_has_examples():
    for page in PAGES:
        if page.name.endswith(".1"):
            assert find_examples(page.read_text("utf-8")), page.name


def test_a_wrong_example_is_found(sandbox):
    text = ".Sh EXAMPLES\n.Bd -literal\n$ echo a; echo b\na\n...\n$ false\n$ x=$(echo c\n> echo d); echo $x\nc d\n" \
           ".Ed\n.Dl $ exit\\-less \\e\\e\n.Bd -literal\n0 * * * * mxq-run\n.Ed\n.Sh NEXT\n.Dl $ no\n"
    examples = find_examples(text)
    assert [(example.command, example.lines) for example in examples] == [
        ("echo a; echo b", ["a", "..."]), ("false", []), ("x=$(echo c\necho d); echo $x", ["c d"]),
        ("exit-less \\\\", None)]
    results = run_session(sandbox, examples)
    assert results[:3] == [(0, ["a", "b"]), (1, []), (0, ["c d"])] and results[3][0] == 127
    assert is_like("a ... c", "a b c") and is_like("...", "") and not is_like("a...", "ba") and not is_like("a", "ab")
