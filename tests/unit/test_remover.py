"""remover: what is given to it goes, in other processes; when one is killed, the caller hears of it."""

import os
import signal

import pytest

from mxqlib import child, remover
from tests.harness.sandbox import wait_for


@pytest.fixture
def files(tmp_path):
    for n in range(600):
        (tmp_path / str(n)).touch()
    return tmp_path


def test_all_that_is_given_has_gone_when_it_is_finished(files):
    helpers = remover.Remover(str(files))
    names = sorted(os.listdir(files))
    for at in range(0, 600, 100):
        assert helpers.give(names[at:at + 100])
    assert helpers.give(names[:10])             # gone already
    assert helpers.finish()
    assert os.listdir(files) == []
    assert helpers.finish()


def test_nothing_given_is_no_process(files, monkeypatch):
    monkeypatch.setattr(child, "fork", None)
    assert remover.Remover(str(files)).finish()


def test_no_process_to_be_had(files, monkeypatch):
    def refuse():
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(child, "fork", refuse)
    helpers = remover.Remover(str(files))
    assert not helpers.give(["1"])
    assert helpers.finish()


def test_what_cannot_be_removed_is_named(files, capfd):
    (files / "folder").mkdir()
    helpers = remover.Remover(str(files))
    helpers.give(["folder", "1"])
    assert not helpers.finish()
    assert "folder" in capfd.readouterr().err and not (files / "1").exists()


def test_a_helper_that_is_killed(files):
    helpers = remover.Remover(str(files), helpers=1)
    helpers.give(["1"])
    pids = [pid for pid, _ in helpers._helpers]
    wait_for(lambda: not (files / "1").exists())
    os.kill(pids[0], signal.SIGKILL)
    wait_for(lambda: child.look_at(pids[0]) is not None)
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)      # as in a command
    try:
        assert not helpers.give(["2"])
        assert signal.getsignal(signal.SIGPIPE) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGPIPE, before)
    assert not helpers.finish()
