"""mxq-ls --report: one page that is complete in itself, true, and safe whatever jobs are called and print."""

import html.parser
import os
import re
import stat
import time

import pytest

from mxqlib import timeline
from tests.harness import oracle, owing, records
from tests.harness.queueing import submit

HERE = os.uname().nodename
ODD = "<script>alert('x')</script>&\"\x1b[31m\x00\udcff\u202e"
VOID = {"meta", "br"}


class Page(html.parser.HTMLParser):
    """A page read strictly: every element is closed in its turn. `elements` counts tags, `text` is all text."""

    def __init__(self, source):
        html.parser.HTMLParser.__init__(self, convert_charrefs=True)
        self.elements, self.open, self.text, self.attributes = {}, [], "", []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements[tag] = self.elements.get(tag, 0) + 1
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements[tag] = self.elements.get(tag, 0) + 1
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data if self.open[-1:] != ["style"] else ""


def report(sandbox, *argv, **kw):
    done = sandbox.run("mxq-ls", "--report", "-", *argv, **kw)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return Page(done.stdout)


def collect(sandbox, *entries):
    owing.fill(sandbox, *entries)
    sandbox.run("mxq-collect", check=True)


def test_of_nothing(sandbox):
    page = report(sandbox)
    assert "There are no jobs." in page.text and not sandbox.mxq_dir.exists()


def test_what_is_on_it(sandbox):
    log = sandbox.work / "log"
    log.write_text("".join("line %d\n" % n for n in range(100)) + "the last one\n")
    collect(sandbox, records.make_ended("1.1", cpus=[0, 1], name="one"),
            records.make_ended("2.1", 768, name="two", host=HERE, stdout=str(log), stderr=str(log), cpus=[1]),
            records.make_ended("3.1", 9, reason="memory", memory=1 << 20, max_sumrss=3 << 19, name="three"),
            records.make_running("4.1", name="four"))
    owing.fill(sandbox, records.make_ended(status=11, name="five"))
    submit(sandbox, "--hold", "-N", "six", "true")
    page = report(sandbox)
    for words in ("1running", "1held", "1finished", "2failed", "1killed", "two: failed (exit 3)",
                  "three: killed (memory)", "five: failed (signal SEGV)", "the last one", "line 99", "150 %", "CPU 0"):
        assert words in page.text, words
    assert "line 70" not in page.text and page.text.count("the last one") == 1
    assert page.elements["rect"] == 2 + 1 + 1 + 1 + 1       # a run on two CPUs is drawn twice
    assert "node7 CPU 1" in page.text and "%s CPU 1" % HERE in page.text


def test_all_attempts_of_a_job_are_drawn(sandbox):
    collect(sandbox, records.make_ended("1.1", 256), records.make_ended("1.2"))
    assert report(sandbox).elements["rect"] == 2


def test_output_of_another_host_is_not_looked_for_here(sandbox):
    log = sandbox.work / "log"
    log.write_text("of somebody else\n")
    collect(sandbox, records.make_ended("1.1", 256, stdout=str(log)))
    assert "of somebody else" not in report(sandbox).text


@pytest.mark.parametrize("kind", ["missing", "folder", "fifo", "empty"])
def test_output_that_cannot_be_shown_stops_nothing(sandbox, kind):
    log = sandbox.work / "log"
    {"missing": lambda: None, "folder": log.mkdir, "fifo": lambda: os.mkfifo(log), "empty": log.touch}[kind]()
    collect(sandbox, records.make_ended("1.1", 256, host=HERE, stdout=str(log)))
    assert ("%s is empty." if kind == "empty" else "%s cannot be shown.") % log in report(sandbox).text


def test_no_job_can_write_into_the_page(sandbox):
    odd = ODD.replace("\0", "")
    log = sandbox.work / "log"
    log.write_bytes(ODD.encode("utf-8", "surrogateescape") + b"\n</pre></style><img src=x onerror=y>\n")
    collect(sandbox, records.make_ended("1.1", 256, host=HERE, name=odd, group=odd, argv=[odd, odd], error=odd,
                                        stdout=str(log), cwd="/" + odd),
            records.make_ended("2.1", 256, name="a", host=odd, argv=["a"], stderr="/" + odd))
    done = sandbox.run("mxq-ls", "--report", "-", check=True)
    page = Page(done.stdout)
    assert "script" not in page.elements and "img" not in page.elements
    assert not [value for name, value in page.attributes if name in ("src", "href") or name.startswith("on")]
    assert "<script>alert('x')</script>&\"\\x1b[31m\\xff\\u202e" in page.text
    assert "</pre></style><img src=x" in page.text
    assert all(char == "\n" or char.isprintable() for char in done.stdout)
    assert "://" not in done.stdout and "@import" not in done.stdout and "url(" not in done.stdout


def test_which_jobs(sandbox):
    collect(sandbox, *(records.make_ended("%d.1" % n, 256 * (n % 2), name="n%d" % n) for n in range(1, 31)))
    page = report(sandbox)
    assert "15failed" in page.text and "the last 1000 that ended" in page.text
    page = report(sandbox, "-N", "n3")
    assert "1failed" in page.text and "finished" not in page.text and "that were chosen" in page.text
    assert "And 5 more." not in page.text
    collect(sandbox, *(records.make_ended("%d.1" % n, 256) for n in range(31, 41)))
    assert "And 5 more." in report(sandbox).text


def test_many_at_once_are_not_all_drawn(sandbox):
    collect(sandbox, *(records.make_ended("%d.1" % n) for n in range(1, 101)))
    page = report(sandbox)
    assert "36 more rows are not drawn." in page.text and page.elements["rect"] == 64


# ---- the file ----

def test_the_file_is_replaced_whole_and_private(sandbox):
    collect(sandbox, records.make_ended("1.1"))
    before = oracle.snapshot(sandbox)
    path = sandbox.work / "page.html"
    path.write_text("old")
    old = os.open(path, os.O_RDONLY)
    done = sandbox.run("mxq-ls", "--report", "page.html", check=True)
    assert (done.stdout, done.stderr) == ("", "")
    assert os.read(old, 10) == b"old"           # who reads the old one goes on with it
    os.close(old)
    Page(path.read_text("utf-8"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and os.listdir(sandbox.work) == ["page.html"]
    assert oracle.snapshot(sandbox) == before


def test_a_link_stays_and_what_it_names_is_replaced(sandbox):
    (sandbox.work / "link").symlink_to("page.html")
    sandbox.run("mxq-ls", "--report", "link", check=True)
    assert (sandbox.work / "link").is_symlink() and "<html" in (sandbox.work / "page.html").read_text("utf-8")


@pytest.mark.parametrize("name, words", [("/dev/null", "not a regular file"), (".", "not a regular file"),
                                         ("missing/page", "No such file"), ("/proc/page", "")])
def test_what_cannot_be_written(sandbox, name, words):
    done = sandbox.run("mxq-ls", "--report", name)
    assert done.returncode == 73 and words in done.stderr and done.stderr.count("\n") == 1
    assert not stat.S_ISREG(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize("argv", [["--json"], ["-l", "1"], ["--events"], ["--check"], ["--joblog"], ["--owed"]])
def test_bad_usage(sandbox, argv):
    done = sandbox.run("mxq-ls", "--report", "-", *argv)
    assert (done.returncode, done.stdout) == (64, "") and "contradict" in done.stderr


# ---- the drawing ----

@pytest.mark.parametrize("span_s", [1, 7, 59, 61, 3600, 86400, 90000, 10 ** 6, 10 ** 7, 10 ** 8, 10 ** 10])
def test_marks_are_round_and_few(span_s):
    found = timeline.marks(1796060727.1, span_s)
    assert len(found) <= 8 and all(1796060727.1 <= at <= 1796060727.1 + span_s for at, _ in found)
    assert len({label for _, label in found}) == len(found) and (found or not 2 < span_s < 10 ** 10)
    step = found[1][0] - found[0][0] if len(found) > 1 else 1
    assert all((at + time.localtime(1796060727).tm_gmtoff) % step == 0 for at, _ in found)


def test_rows():
    line = timeline.Timeline()
    for cpus, start_s, end_s in (([1], 0, 5), ([0, 1], 5, 9), (None, 0, 4), (None, 2, 6), (None, 4, 9)):
        line.add("h", cpus, start_s, end_s, "finished", "t")
    assert [(label, [(bar.start_s, bar.end_s) for bar in bars]) for label, bars in line.rows()] == [
        ("CPU 0", [(5, 9)]), ("CPU 1", [(0, 5), (5, 9)]), ("any CPU", [(0, 4), (4, 9)]), ("any CPU", [(2, 6)])]
    xs = [float(x) for x in re.findall(r'<rect class="finished" x="([\d.]+)"', line.svg(str))]
    assert min(xs) == 130 and max(xs) < 1040
