"""spool: files are claims; what is no record is told from what is gone, and put aside with the reason."""

import os
import socket

import pytest

from mxqlib import record, spool
from tests.harness import records


@pytest.fixture
def where(tmp_path):
    tmp_path.chmod(0o700)
    return spool.Spool(str(tmp_path / "spool")).open()


def test_it_is_made_private_and_only_then_exists(tmp_path):
    tmp_path.chmod(0o700)
    where = spool.Spool(str(tmp_path / "spool"))
    assert not where.exists() and where.names() == []
    where.open()
    assert where.exists()
    assert sorted(os.listdir(where.path)) == ["corrupt", "output", "runs"]
    assert all(os.stat(os.path.join(where.path, name)).st_mode & 0o777 == 0o700 for name in os.listdir(where.path))


def test_what_is_put_can_be_loaded(where):
    entry = records.make_ended("17.1", argv=["a", "\udcff\n"])
    where.put(entry)
    assert where.names() == ["17.1.json"]
    assert where.load("17.1.json") == entry
    assert where.load("17.2.json") is None


def test_the_text_of_a_record_is_the_line_as_it_was_read(where):
    line = record.encode(records.make_ended("17.1")).replace(b'"true"', '"trüe"'.encode(), 1)
    with open(where.record_path("17.1"), "wb") as file:
        file.write(line)
    entry, text, identity = spool.read(where.record_path("17.1"))
    assert text.encode() + b"\n" == line and entry["name"] == "trüe"
    assert identity == spool.identity(where.record_path("17.1"))
    where.put(entry)
    assert identity != spool.identity(where.record_path("17.1"))
    assert spool.identity(where.record_path("17.2")) is None


def make(where, kind):
    path = where.record_path("17.1")
    if kind == "directory":
        os.mkdir(path)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        where.put(records.make_ended("18.1"))
        os.symlink("18.1.json", path)
    elif kind == "broken link":
        os.symlink("nowhere", path)
    elif kind == "socket":
        folder = os.getcwd()
        os.chdir(where.runs)        # the name of a socket must be short
        try:
            with socket.socket(socket.AF_UNIX) as end:
                end.bind("17.1.json")
        finally:
            os.chdir(folder)
    elif kind == "huge":
        with open(path, "wb") as file:
            file.truncate(1 << 40)
    elif kind == "empty":
        open(path, "wb").close()
    elif kind == "of another run":
        os.rename(make_record(where, "18.1"), path)
    return path


def make_record(where, run):
    where.put(records.make_ended(run))
    return where.record_path(run)


KINDS = ["directory", "fifo", "link", "broken link", "socket", "huge", "empty", "of another run"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_regular_file_of_sane_size_is_damaged_and_can_be_put_aside(where, kind):
    make(where, kind)
    with pytest.raises(record.Damaged) as damage:
        where.load("17.1.json")
    assert where.quarantine("17.1.json", str(damage.value)) == "17.1.json"
    assert "17.1.json" not in where.names()
    assert sorted(os.listdir(where.corrupt)) == ["17.1.json", "17.1.json.reason"]
    with open(os.path.join(where.corrupt, "17.1.json.reason"), encoding="utf-8") as file:
        assert file.read() == str(damage.value) + "\n"


@pytest.mark.parametrize("name", ["x", "17.1", "17.1.JSON", "a b.json", "é.json", ".json", "17.1.json~"])
def test_names_that_no_record_has(where, name):
    with open(os.path.join(where.runs, name), "wb") as file:
        file.write(record.encode(records.make_ended("17.1")))
    with pytest.raises(record.Damaged, match="not named"):
        where.load(name)


@pytest.mark.as_root
def test_a_file_of_somebody_else_is_not_believed(where):
    os.chown(make_record(where, "17.1"), 4711, 4711)
    with pytest.raises(record.Damaged, match="belongs to user 4711"):
        where.load("17.1.json")


def test_names_that_are_taken_in_corrupt_are_left_alone(where):
    kept = []
    for _ in range(3):
        make_record(where, "17.1")
        kept.append(where.quarantine("17.1.json", "why"))
    assert kept == ["17.1.json", "17.1.json.1", "17.1.json.2"]
    assert len(os.listdir(where.corrupt)) == 6


@pytest.mark.parametrize("name", ["x" * 255, "\udcff" * 255, "é" * 127])
def test_a_long_name_can_be_put_aside(where, name):
    open(os.path.join(where.runs, name), "wb").close()
    kept = where.quarantine(name, "why")
    assert sorted(os.listdir(where.corrupt)) == sorted([kept, kept + ".reason"])
    assert where.names() == []


def test_what_has_gone_meanwhile_leaves_no_reason_behind(where):
    assert where.quarantine("17.1.json", "why") is None
    assert os.listdir(where.corrupt) == []


def test_hidden_files_are_no_records(where):
    room = where.reserve("17.1", 1000)
    assert where.names() == [] and os.path.getsize(where.embryo_path("17.1")) == 1000 + spool.EXTRA_B
    room.drop()
    assert os.listdir(where.runs) == []


def test_job_numbers_of_a_new_queue_start_above_those_of_the_records(where):
    assert where.next_job() == 1
    for run in ("17.1", "9.30", records.make_run_id()):
        where.put(records.make_ended(run))
    open(os.path.join(where.runs, "99.1"), "wb").close()
    assert where.next_job() == 18
    for name in ("23.1.log", "99.log", "notes"):
        open(os.path.join(where.output, name), "wb").close()
    assert where.next_job() == 24, "a new job 23 would write into its output"
