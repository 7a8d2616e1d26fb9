"""rollcall: a record that changes while its processes are looked at."""

import os

from mxqlib import rollcall, spool
from tests.harness import records


def test_an_outcome_that_comes_while_the_processes_are_looked_at_has_the_last_word(tmp_path, monkeypatch):
    runs, judge = records.make_spool(tmp_path), rollcall._judge
    entry = records.make_running("17.1", host=os.uname().nodename)
    for role in ("reaper", "front", "main"):
        entry[role] = dict(entry[role], host=entry["host"])
    records.put(runs, entry)
    assert [found.run for found in rollcall.RollCall(spool.Spool(str(tmp_path)), set(), None).found] == ["17.1"]

    def judge_late(*arguments):
        records.put(runs, records.make_ended("17.1", 256, host=entry["host"]))
        return judge(*arguments)

    monkeypatch.setattr(rollcall, "_judge", judge_late)
    assert rollcall.RollCall(spool.Spool(str(tmp_path)), set(), None).found == []
