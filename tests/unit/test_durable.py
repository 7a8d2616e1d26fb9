"""durable: the old content or the new one, nothing between; and what a file system is."""

import errno
import os

import pytest

from mxqlib import durable


def test_replace_makes_and_replaces_and_leaves_nothing_beside(tmp_path):
    path = tmp_path / "file"
    durable.replace(str(path), b"one")
    assert path.stat().st_mode & 0o777 == 0o600
    durable.replace(str(path), b"two" * 100000)
    assert path.read_bytes() == b"two" * 100000
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("step", ["fsync", "rename", "write"])
def test_what_fails_leaves_the_old_content_and_nothing_beside(tmp_path, monkeypatch, step):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError):
        durable.replace(str(path), b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_short_writes_are_gone_on_with(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:3]))
    durable.replace(str(tmp_path / "file"), b"0123456789")
    monkeypatch.undo()
    assert (tmp_path / "file").read_bytes() == b"0123456789"


def test_a_link_that_lies_in_the_way_is_not_followed(tmp_path):
    target = tmp_path / "target"
    target.write_bytes(b"kept")
    (tmp_path / (".file.%d" % os.getpid())).symlink_to(target)
    durable.replace(str(tmp_path / "file"), b"new")
    assert target.read_bytes() == b"kept"
    assert (tmp_path / "file").read_bytes() == b"new"


def test_directories_are_private_whatever_the_umask(tmp_path):
    before = os.umask(0o777)
    try:
        durable.make_directory(str(tmp_path / "a" / "b"))
        durable.make_directory(str(tmp_path / "a" / "b"))
    finally:
        os.umask(before)
    for folder in (tmp_path / "a", tmp_path / "a" / "b"):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_room_that_was_reserved_takes_the_record_and_its_name_is_gone(tmp_path):
    room = durable.Reservation(str(tmp_path / ".run"), 100000)
    assert (tmp_path / ".run").stat().st_blocks * 512 >= 100000
    room.publish(str(tmp_path / "run.json"), b"record\n")
    assert (tmp_path / "run.json").read_bytes() == b"record\n"
    assert os.listdir(tmp_path) == ["run.json"]


def test_after_a_failed_fsync_a_fresh_file_is_written(tmp_path, monkeypatch):
    """The kernel reports a page that was lost once: a second fsync of the same file may lie (fsync(2))."""
    reservation = durable.Reservation(str(tmp_path / ".room"), 1000)
    kept, failed, synced, fsync = os.dup(reservation.fd), [], [], os.fsync

    def fail_once(fd):
        if not failed:
            failed.append(os.fstat(fd).st_ino)
            raise OSError(errno.EIO, "Input/output error")
        synced.append(os.fstat(fd).st_ino)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", fail_once)
    with pytest.raises(OSError):
        reservation.publish(str(tmp_path / "file"), b"outcome")
    reservation.publish(str(tmp_path / "file"), b"outcome")
    monkeypatch.undo()
    assert failed == [os.fstat(kept).st_ino] and failed[0] not in synced
    assert (tmp_path / "file").read_bytes() == b"outcome" and os.listdir(tmp_path) == ["file"]
    os.close(kept)


def test_room_that_was_taken_away_is_done_without(tmp_path):
    room = durable.Reservation(str(tmp_path / ".run"), 1000)
    (tmp_path / ".run").unlink()
    room.publish(str(tmp_path / "run.json"), b"record\n")
    assert (tmp_path / "run.json").read_bytes() == b"record\n"


def test_room_that_is_out_of_reach_for_a_while_is_not_left_behind(tmp_path):
    runs, away = tmp_path / "runs", tmp_path / "away"
    runs.mkdir()
    room = durable.Reservation(str(runs / ".run"), 1000)
    runs.rename(away)
    for there in (lambda: None, lambda: runs.write_text("in the way")):
        there()
        with pytest.raises(OSError):
            room.publish(str(runs / "run.json"), b"record\n")
    runs.unlink()
    away.rename(runs)
    room.publish(str(runs / "run.json"), b"record\n")
    assert (runs / "run.json").read_bytes() == b"record\n"
    assert os.listdir(runs) == ["run.json"]


def test_room_whose_descriptor_fails_for_ever_is_opened_again(tmp_path):
    """As on NFS when the server has restarted, and no longer knows what was open: EBADF or EIO, whatever is tried."""
    path = tmp_path / ".run"
    room = durable.Reservation(str(path), 100000)
    dead = os.open(str(path), os.O_RDONLY)
    os.dup2(dead, room.fd)
    os.close(dead)
    reserved = path.stat()
    with pytest.raises(OSError):
        room.publish(str(tmp_path / "run.json"), b"record\n")
    assert path.stat().st_blocks == reserved.st_blocks
    assert durable.is_in_use(str(path))
    room.publish(str(tmp_path / "run.json"), b"record\n")
    assert (tmp_path / "run.json").read_bytes() == b"record\n"
    assert (tmp_path / "run.json").stat().st_ino == reserved.st_ino
    assert os.listdir(tmp_path) == ["run.json"]


def test_room_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(OSError):
        durable.Reservation(str(tmp_path / ".run"), 1 << 60)
    assert os.listdir(tmp_path) == []


def test_move_and_discard(tmp_path):
    (tmp_path / "a").write_bytes(b"x")
    (tmp_path / "folder").mkdir()
    durable.move(str(tmp_path / "a"), str(tmp_path / "folder" / "b"))
    assert (tmp_path / "folder" / "b").read_bytes() == b"x"
    durable.discard(str(tmp_path / "folder" / "b"))
    durable.discard(str(tmp_path / "folder" / "b"))
    assert os.listdir(tmp_path / "folder") == []


MOUNTS = b"""/dev/vda / ext4 rw 0 0
proc /proc proc rw 0 0
server:/home /home nfs4 rw 0 0
tmpfs /home/user/tmp tmpfs rw 0 0
//server/share /mnt/a\\040b cifs rw 0 0
tmpfs /over tmpfs rw 0 0
server:/over /over nfs rw 0 0
sshfs /mnt/far fuse.sshfs rw 0 0
"""


@pytest.mark.parametrize("path, kind, far", [
    ("/var/lib/mxq/queue.db", "ext4", False), ("/home/user/queue.db", "nfs4", True),
    ("/home/user/tmp/q", "tmpfs", False),
    ("/homes/q", "ext4", False), ("/mnt/a b/q", "cifs", True), ("/over/q", "nfs", True),
    ("/mnt/far/q", "fuse.sshfs", True),
])
def test_the_type_of_a_file_system_is_that_of_the_mount_on_top(tmp_path, monkeypatch, path, kind, far):
    mounts = tmp_path / "mounts"
    mounts.write_bytes(MOUNTS)
    monkeypatch.setattr("builtins.open", lambda name, mode: os.fdopen(os.open(str(mounts), os.O_RDONLY), mode))
    monkeypatch.setattr(os.path, "realpath", lambda path: path)
    assert durable.filesystem_type(path) == kind
    assert durable.is_on_network(path) is far


def test_the_type_of_this_file_system_is_known(tmp_path):
    with open("/proc/self/mounts") as mounts:
        if "/" not in [line.split(" ")[1] for line in mounts]:
            pytest.skip("machine cannot: the root directory of a chroot is no mount point")
    assert durable.filesystem_type(str(tmp_path))
    assert durable.filesystem_type("/proc/self") == "proc"
