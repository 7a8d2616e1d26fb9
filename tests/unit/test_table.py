"""table: rows for terminals and for programs; nothing is lost, nothing moves the cursor."""

import io
import json
import shlex

import pytest

from mxqlib import table
from mxqlib.table import Column

COLUMNS = (Column("job", lambda row: row["job"], right=True), Column("name", lambda row: row["name"], 6),
           Column("command", lambda row: row["command"]))


def write(function, *argv):
    out = io.BytesIO()
    function(out, *argv)
    return out.getvalue()


def rows(*names):
    return [{"job": str(at), "name": name, "command": "true"} for at, name in enumerate(names, 1)]


@pytest.mark.parametrize("name", ["plain", "a\tb", "a\nb", "a\\nb", "\\", "\r", "", "ü", "\udcff", "-"])
def test_lines_for_programs_can_be_read_back(name):
    text = write(table.write_lines, COLUMNS, rows(name)).decode("utf-8", "surrogateescape")
    assert text.count("\n") == 2 and text.count("\t") == 4
    cell = text.split("\n")[1].split("\t")[1]
    back, at = "", 0
    while at < len(cell):
        if cell[at] == "\\":
            back += {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}[cell[at + 1]]
            at += 2
        else:
            back, at = back + cell[at], at + 1
    assert back == name


def test_what_there_is_not_is_a_dash():
    assert write(table.write_lines, COLUMNS, rows(None)) == b"job\tname\tcommand\n1\t-\ttrue\n"


def test_json_is_one_object_a_line_in_ascii():
    text = write(table.write_json, rows("ü\n\udcff", None))
    assert text.isascii()
    assert [json.loads(line)["name"] for line in text.splitlines()] == ["ü\n\udcff", None]


def test_columns_are_aligned_and_cut():
    text = write(table.write_table, COLUMNS, rows("a", "abcdefgh", "日本語日本語"), 30).decode()
    assert text.splitlines() == ["JOB  NAME    COMMAND", "  1  a       true", "  2  abcde+  true", "  3  日本+   true"]
    assert [table.width_of(line) for line in text.splitlines()[1:]] == [17] * 3


@pytest.mark.parametrize("width", range(1, 30))
def test_no_line_is_wider_than_the_terminal(width):
    text = write(table.write_table, COLUMNS, rows("日本語日本語", "e\u0301" * 9, "\x1b[2J\n\udcff"), width).decode()
    assert all(table.width_of(line) <= width for line in text.split("\n"))
    assert len(text.splitlines()) == 4


def test_a_terminal_gets_no_control_character():
    text = write(table.write_table, COLUMNS, rows("\x1b]0;x\x07", "\u202e", "\r\n"), 80).decode()
    assert all(char.isprintable() for line in text.split("\n") for char in line)
    assert len(text.splitlines()) == 4


def test_rows_beyond_those_the_widths_come_from_are_written_too():
    many = ({"job": str(at), "name": "x" * (at % 9), "command": "c"} for at in range(3000))
    assert len(write(table.write_table, COLUMNS, many, 80).splitlines()) == 3001


@pytest.mark.parametrize("argv", [["make", "-j4"], ["a b", ""], ["'", '"'], ["$x", "`x`", "a\nb", "*", "~", "#"],
                                  ["ü"], ["\udcff"], []])
def test_a_command_is_quoted_as_a_shell_takes_it(argv):
    assert shlex.split(table.quote(argv)) == argv


def test_a_pipe_is_no_terminal(tmp_path):
    with open(tmp_path / "x", "wb") as file:
        assert table.width_of_terminal(file.fileno()) is None
