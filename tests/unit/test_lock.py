"""lock: a name in runners/ that one living process has."""

import fcntl
import os

from mxqlib import lock


def test_one_has_it_and_the_next_gets_it_after_that(tmp_path):
    held = lock.take(str(tmp_path), "name")
    assert lock.is_held(str(tmp_path), "name") and lock.take(str(tmp_path), "name") is None
    held.let_go()
    assert not lock.is_held(str(tmp_path), "name") and os.listdir(tmp_path) == []
    lock.take(str(tmp_path), "name").let_go()


def test_a_lock_whose_file_was_removed_meanwhile_is_taken_anew(tmp_path, monkeypatch):
    """Between our open and our flock its holder let go, and removed the file: that lock would keep nobody out."""
    before, flock = lock.take(str(tmp_path), "name"), fcntl.flock

    def let_go_first(fd, how):
        monkeypatch.undo()
        before.let_go()
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", let_go_first)
    held = lock.take(str(tmp_path), "name")
    assert lock.take(str(tmp_path), "name") is None and lock.is_held(str(tmp_path), "name")
    held.let_go()
