"""place: where things are, and that nobody else can write there."""

import os
import pwd

import pytest

from mxqlib import exits, place
from mxqlib.cli import Failure

HOME = pwd.getpwuid(os.geteuid()).pw_dir


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    for name in ("MXQ_DIR", "MXQ_QUEUE", "MXQ_SPOOL", "MXQ_FALLBACK", "XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("option, env, wanted", [
    ("/d", {"MXQ_DIR": "/e"}, "/d"), (None, {"MXQ_DIR": "/e"}, "/e"), (None, {"MXQ_DIR": ""}, None),
    (None, {"XDG_STATE_HOME": "/x"}, "/x/mxq"), (None, {"XDG_STATE_HOME": "x", "HOME": "/h"}, "/h/.local/state/mxq"),
    (None, {"HOME": "/h"}, "/h/.local/state/mxq"), (None, {}, None), (None, {"HOME": "h"}, None),
])
def test_the_base_of_an_ordinary_user(monkeypatch, option, env, wanted):
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() or 1)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: pwd.struct_passwd(("u", "x", uid, uid, "", "/pw", "/bin/sh")))
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert place.base(option) == (wanted or "/pw/.local/state/mxq")


def test_the_base_of_root_does_not_depend_on_whose_environment_it_has(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.setenv("XDG_STATE_HOME", "/x")
    assert place.base() == "/var/lib/mxq"
    monkeypatch.setenv("MXQ_DIR", "/e")
    assert place.base() == "/e"


def test_without_any_home_it_says_what_to_set(monkeypatch):
    def unknown(uid):
        raise KeyError(uid)

    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(Failure, match="MXQ_DIR") as failure:
        place.base()
    assert failure.value.status == exits.CONFIG


def test_paths_below_the_base_and_those_that_are_named(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert (place.queue("/b"), place.spool("/b"), place.runners("/b")) == ("/b/queue.db", "/b/spool", "/b/runners")
    assert place.fallback() == "/var/tmp/mxq-%d" % os.geteuid()
    for name in ("MXQ_QUEUE", "MXQ_SPOOL", "MXQ_FALLBACK", "MXQ_DIR"):
        monkeypatch.setenv(name, "here")
    here = str(tmp_path / "here")
    assert [place.queue("/b"), place.spool("/b"), place.fallback(), place.base()] == [here] * 4


def test_a_private_directory_is_taken_and_made(tmp_path):
    path = str(tmp_path / "a" / "b")
    assert place.check_private(path) is False
    place.make_private(path)
    place.make_private(path)
    assert place.check_private(path) is True


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777, 0o1777])
def test_one_that_others_can_write_to_is_refused(tmp_path, mode):
    tmp_path.chmod(mode)
    with pytest.raises(Failure, match="written by others") as failure:
        place.check_private(str(tmp_path))
    assert failure.value.status == exits.NOPERM
    tmp_path.chmod(0o755)
    assert place.check_private(str(tmp_path)) is True


def test_a_link_a_file_and_one_of_somebody_else_are_refused(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "file").touch()
    with pytest.raises(Failure, match="symbolic link"):
        place.make_private(str(tmp_path / "link"))
    with pytest.raises(Failure, match="not a directory"):
        place.make_private(str(tmp_path / "file"))
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(Failure, match="belongs to user"):
        place.make_private(str(tmp_path / "real"))


def test_what_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(Failure) as failure:
        place.make_private(str(tmp_path / "file" / "x"))
    assert failure.value.status in (exits.CANTCREAT, exits.NOPERM)
