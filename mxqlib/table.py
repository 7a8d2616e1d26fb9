"""Rows for people and for programs: an aligned table, tab-separated lines, JSON lines.

All write bytes: what is not UTF-8 comes out as it went in, whatever the locale.
"""

import os
import unicodedata

from mxqlib import record
from mxqlib.cli import printable

_ESCAPES = {ord("\\"): "\\\\", ord("\t"): "\\t", ord("\n"): "\\n", ord("\r"): "\\r"}
# ECMA-48, Select Graphic Rendition: the colours of the terminal's own palette.
RED, GREEN, YELLOW, CYAN, _PLAIN = "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[36m", "\x1b[m"
_SAMPLE = 1000          # rows that the widths of columns are taken from


class Column:
    """A column: `heading`, `value(row)` -> text or None, `most` columns wide on a terminal (None: what is left),
    `right` aligned, `colours` of its texts on a terminal (RED, ...)."""

    def __init__(self, heading, value, most=None, right=False, colours=None):
        self.heading, self.value, self.most, self.right, self.colours = heading, value, most, right, colours


def to_bytes(text):
    """Text as bytes, lone surrogates as the bytes they stand for (PEP 383)."""
    return text.encode("utf-8", "surrogateescape")


def write_json(out, rows):
    """One object a line, ASCII only."""
    for row in rows:
        out.write(record.to_json(row).encode("ascii") + b"\n")


def write_lines(out, columns, rows):
    """A heading, then a line for each row, separated by tabs; tabs, newlines and backslashes escaped, `-` for None."""
    out.write(to_bytes("\t".join(column.heading for column in columns)) + b"\n")
    for row in rows:
        cells = (column.value(row) for column in columns)
        out.write(to_bytes("\t".join("-" if cell is None else cell.translate(_ESCAPES) for cell in cells)) + b"\n")


def write_table(out, columns, rows, width, coloured=False):
    """A heading in capitals and aligned lines that are cut to `width`; nothing that would move the cursor."""
    rows = iter(rows)
    sample = [row for _, row in zip(range(_SAMPLE), rows)]
    cells = [[printable(column.heading.upper()) for column in columns]] + [_cells(columns, row) for row in sample]
    widths = [max(map(width_of, column)) for column in zip(*cells)]
    widths = [min(wide, column.most or wide) for wide, column in zip(widths, columns)]
    for line in cells:
        out.write(_align(columns, line, widths, width, coloured))
    for row in rows:
        out.write(_align(columns, _cells(columns, row), widths, width, coloured))


def _cells(columns, row):
    return ["-" if cell is None else printable(cell) for cell in (column.value(row) for column in columns)]


def _align(columns, cells, widths, width, coloured):
    line, paint = "", []
    for column, cell, wide in zip(columns, cells, widths):
        colour = column.colours.get(cell) if coloured and column.colours else None
        cell = cut(cell, wide)
        blank = " " * (wide - width_of(cell))
        line += blank if column.right else ""
        if colour:
            paint.append((len(line), len(line) + len(cell), colour))
        line += cell + ("" if column.right else blank) + "  "
    line = cut(line.rstrip(" "), width)
    for start, end, colour in reversed(paint):      # after the cut, which must count and cut nothing of it
        if start < len(line):
            line = line[:start] + colour + line[start:end] + _PLAIN + line[end:]
    return to_bytes(line) + b"\n"


def width_of(text):
    """Columns that printable `text` takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(map(_width_of_char, text))


def _width_of_char(char):
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut(text, width):
    """Text of at most `width` columns; one that was cut ends with a `+`."""
    if width_of(text) <= width:
        return text
    kept, taken = "", 0
    for char in text:
        taken += _width_of_char(char)
        if taken > width - 1:
            break
        kept += char
    return kept + "+"


def width_of_terminal(fd):
    """The width of the terminal `fd`, or None when it is none."""
    if not os.isatty(fd):
        return None
    try:
        return os.get_terminal_size(fd).columns or 80
    except OSError:
        return 80


def wants_colours(fd):
    """True when `fd` is a terminal that has colours and NO_COLOR (no-color.org) is not set."""
    return os.isatty(fd) and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


_UNQUOTED = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./-_")


def quote(argv):
    """A command as a shell would be given it; every argument comes back as it is."""
    return " ".join(word if word and _UNQUOTED.issuperset(word) else "'" + word.replace("'", "'\"'\"'") + "'"
                    for word in argv)
