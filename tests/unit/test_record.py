"""record: what is written can be read by everybody; what is none is refused, whatever byte is missing or wrong."""

import json
import random

import pytest

from mxqlib import record
from tests.harness import records

ODD = ["", " ", "a\tb", "line\nbreak", "\\", '"', "\x01\x1f\x7f", "über", "日本", "\U0001f4a9", "\udcff\udc80",
       "a" * 10000,
       "\u2028", "{}", "--", "\\u0000"]


def test_it_is_json_for_everybody_and_ascii_for_every_locale():
    entry = records.make_ended(argv=ODD, name="\udcff", cwd="/\udc80\n")
    line = record.encode(entry)
    assert line.isascii() and line.endswith(b"\n") and line.count(b"\n") == 1
    assert json.loads(line) == entry
    assert record.decode(line, entry["run"]) == entry


def test_what_an_earlier_version_did_not_write_is_none():
    entry = records.make_ended()
    older = {name: value for name, value in entry.items() if name not in ("grace", "linger")}
    assert record.decode(record.encode(older), entry["run"]) == dict(entry, grace=None, linger=None)


@pytest.mark.parametrize("value", [None, True, False, 0, -1, 1 << 70, 0.1, 1e-9, 1e300, "x", [], {},
                                   [[1], {"a": [None]}], (1, 2), {'a"': 1, "": 2, "\\": 3, "\u00e4": 4, "a b\n": 5}])
def test_values_are_written_as_json_writes_them(value):
    assert json.loads(record.to_json(value)) == (list(value) if isinstance(value, tuple) else value)


def test_numbers_that_json_does_not_have_are_null():
    assert [record.to_json(value) for value in (float("nan"), float("inf"), float("-inf"))] == ["null"] * 3


@pytest.mark.parametrize("make", [records.make_running, records.make_ended])
def test_a_record_that_is_cut_anywhere_is_refused(make):
    line = record.encode(make(argv=["a", "ü\udcff"]))
    for end in range(len(line)):
        with pytest.raises(record.Damaged):
            record.decode(line[:end])


def test_a_record_with_a_wrong_byte_is_refused_or_a_sound_one():
    """No byte makes the reader fail in any other way, or gives it a record that breaks its own rules."""
    seed = 7
    chance = random.Random(seed)
    line = record.encode(records.make_ended("17.1", deliveries=[{"sink": "log", "path": "/x"}]))
    refused = 0
    for at in range(len(line)):
        byte, flipped = bytes([chance.randrange(256)]), bytes([line[at] ^ 1 << chance.randrange(8)])
        for middle in (byte, flipped, b"", byte + line[at:at + 1], line[at:at + 1] * 2):
            bad = line[:at] + middle + line[at + 1:]
            try:
                record.check(record.decode(bad))
            except record.Damaged:
                refused += 1
    assert refused > 3 * len(line), seed


def test_each_field_that_a_reader_may_ask_for_is_there():
    for make, names in ((records.make_running, ("job", "front", "outer", "deliveries", "grace", "cpus")),
                        (records.make_ended, ("job", "error", "children", "adopted", "core", "grace"))):
        entry = record.decode(record.encode(make(**{name: records.MISSING for name in names})))
        assert [entry[name] for name in names] == [None] * len(names)


@pytest.mark.parametrize("data, why", [
    (b"", "empty"), (b"\n", "JSON"), (b"\0" * 100, "cut off"), (b"\0" * 100 + b"\n", "JSON"), (b"[]\n", "object"),
    (b"null\n", "object"), (b"{}\n", "format"), (b"{}\n{}\n", "one line"), (b"{\n}\n", "one line"), (b"\xff\n", "JSON"),
    (b'{"format":1}\n', "state"), (b'{"format":true,"state":"ended"}\n', "format"), (b"[" * 100000 + b"\n", "JSON"),
    (b'{"format":NaN}\n', "JSON"), (b'{"format":' + b"9" * 400 + b"}\n", "format"), (b'{"a":"\t"}\n', "JSON"),
])
def test_what_is_no_record(data, why):
    with pytest.raises(record.Damaged, match=why):
        record.decode(data)


@pytest.mark.parametrize("changes", [
    {"format": 2}, {"format": 0}, {"format": "1"}, {"state": "done"}, {"run": ""}, {"run": "../x"}, {"run": ".x"},
    {"run": "a/b"},
    {"run": 1}, {"run": records.MISSING}, {"run": "17.1"}, {"job": -1}, {"job": "17"}, {"attempt": None},
    {"attempt": 1.5},
    {"name": None}, {"name": 1}, {"name": "a\0b"}, {"name": "\ud800"}, {"uid": -1}, {"uid": True}, {"uid": 1 << 63},
    {"host": records.MISSING}, {"reaper": None}, {"reaper": {}}, {"reaper": {"pid": 1}}, {"reaper": []},
    {"main": records.MISSING},
    {"argv": None}, {"argv": "true"}, {"argv": [1]}, {"argv": ["a\0"]}, {"cwd": None}, {"umask": "22"},
    {"threads": None},
    {"memory": -1}, {"cpus": [-1]}, {"cpus": {}}, {"date_start": "yesterday"}, {"date_start": 0},
    {"date_start": "2026-11-30T17:45:27.123456"}, {"deliveries": {}}, {"deliveries": ["log"]}, {"outer": []},
    {"date_end": records.MISSING}, {"date_done": None}, {"real": "1"}, {"real": records.MISSING}, {"status": -1},
    {"status": 65536}, {"status": "0"}, {"status": records.MISSING}, {"exit": 1}, {"signal": 9}, {"core": False},
    {"core": "no"},
    {"reason": "because"}, {"reason": records.MISSING}, {"children": [1]}, {"adopted": 1},
    {"survivors": None, "leftovers": -1},
])
def test_fields_that_make_no_sense(changes):
    entry = dict(records.make_ended(), **changes)
    entry = {name: value for name, value in entry.items() if value is not records.MISSING}
    with pytest.raises(record.Damaged):
        record.decode(record.encode(entry))


def test_a_number_beyond_all_numbers():
    line = record.encode(records.make_ended()).replace(b'"real":60.0', b'"real":1e999')
    with pytest.raises(record.Damaged, match="real"):
        record.decode(line)


@pytest.mark.parametrize("changes", [
    {"new_field": {"of": ["a later", "version"]}}, {"front": None}, {"main": None}, {"stdout": None}, {"cpus": [0, 1]},
    {"date_start": None}, {"job": None}, {"outer": {"SLURM_JOB_ID": "7"}}, {"deliveries": None}, {"real": 1},
    {"front": records.MISSING}, {"outer": records.MISSING}, {"children_more": records.MISSING}, {"group": ""},
])
def test_fields_that_may_be_missing_or_unknown(changes):
    record.decode(record.encode(records.make_ended(**changes)))


def test_a_record_is_that_of_its_file():
    line = record.encode(records.make_ended("17.1"))
    assert record.decode(line, "17.1")["job"] == 17
    with pytest.raises(record.Damaged, match="another run, 17.1"):
        record.decode(line, "17.2")
    with pytest.raises(record.Damaged, match="job and attempt"):
        record.decode(record.encode(records.make_ended("17.1", job=18)))


@pytest.mark.parametrize("run, known", [
    ("17.1", (17, 1)), ("1.10", (1, 10)), ("17", None), ("17.0", None), ("017.1", None), ("17.1.1", None),
    ("-1.1", None),
    ("1" * 19 + ".1", None), ("²." + "1", None), ("20261130T174527.123456Z-node-1", None),
])
def test_job_and_attempt(run, known):
    assert record.job_and_attempt(run) == known


@pytest.mark.parametrize("run, valid", [
    ("17.1", True), ("20261130T174527.123456Z-node-1", True), ("a_b-c.d", True), ("x" * 200, True), ("x" * 201, False),
    ("", False), (".17", False), ("a b", False), ("a/b", False), ("ü", False), ("a\n", False), ("a\udcff", False),
    ("²", False),
])
def test_run_ids_are_good_names_of_files(run, valid):
    assert record.valid_run(run) is valid


@pytest.mark.parametrize("status, reason, state", [
    (0, None, "finished"), (256, None, "failed"), (9, None, "failed"), (127 << 8, "exec", "failed"),
    (0, "exec", "failed"),
    (0, "kill", "killed"), (15, "kill", "killed"), (9, "kill-now", "killed"), (24, "time", "killed"),
    (15, "memory", "killed"),
    (None, "lost", "lost"), (None, "reboot", "lost"), (None, None, "lost"), (None, "kill", "killed"),
    (0, "lost", "lost"),
])
def test_what_a_record_says_of_its_job(status, reason, state):
    assert record.state_of(records.make_ended(status=status, reason=reason)) == state


@pytest.mark.parametrize("status, parts", [
    (0, (0, None, None)), (255 << 8, (255, None, None)), (9, (None, 9, False)), (0x8b, (None, 11, True)),
    (None, (None, None, None)),
])
def test_exit_signal_and_core_of_a_status(status, parts):
    assert record.split_status(status) == parts


def test_skimming_sees_what_reading_sees():
    for entry in (records.make_running("17.1"), records.make_ended(host="a-b.example"),
                  records.make_ended(name='"host":"x"')):
        assert record.skim(record.encode(entry)) in ((entry["state"], entry["host"]), None)
    assert record.skim(record.encode(records.make_running())) == ("running", "node7")
    assert record.skim(b"") is None and record.skim(b"{}\n") is None
