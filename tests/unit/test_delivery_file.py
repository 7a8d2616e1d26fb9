"""delivery.file, delivery.stream: whole texts or nothing, in order, and what a crash left is mended."""

import fcntl
import os
import stat

import pytest

from mxqlib import durable
from mxqlib.delivery import Stopped, Undelivered, file, stream
from tests.harness.sandbox import TREE, wait_for
from tests.harness.snippet import run_snippet, spawn_snippet

TEXTS = [b"005 (%03d.000.000) 2026-11-30 17:45:27 Job terminated.\n\tMxqEvent %d\n...\n" % (n, n) for n in range(1, 6)]
ALL = b"".join(TEXTS)


def append(path, texts=TEXTS, **kw):
    return file.append(str(path), list(texts), kw.pop("umask", 0o022), **kw)


def test_a_file_is_made_with_the_permissions_the_umask_leaves(tmp_path):
    append(tmp_path / "log", umask=0o027)
    assert (tmp_path / "log").read_bytes() == ALL
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o640
    assert os.umask(0o022) is not None


def test_what_is_there_stays(tmp_path):
    (tmp_path / "log").write_bytes(TEXTS[0])
    append(tmp_path / "log", TEXTS[1:])
    assert (tmp_path / "log").read_bytes() == ALL


@pytest.mark.parametrize("before", [b"", b"000 (001.000.000) 2026-11-30 17:45:27 Job submitted from host: <a>\n...\n",
                                    b"a line\n"])
def test_what_a_crash_left_is_completed_wherever_it_was_cut(tmp_path, monkeypatch, before):
    log = tmp_path / "log"
    monkeypatch.setattr(durable, "_SYNC", False)
    for size in range(len(ALL) + 1):
        log.write_bytes(before + ALL[:size])
        append(log)
        assert log.read_bytes() == before + ALL, size


def test_texts_that_are_there_but_not_at_the_end_are_written_again(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(ALL + b"another\n")
    append(log)
    assert log.read_bytes() == ALL + b"another\n" + ALL


@pytest.mark.parametrize("left, mended", [
    (b"no newline", b"no newline\n"),
    (b"x...\n005 (003.000.000) 2026", b"x...\n005 (003.000.000) 2026\n"),
    (b"\n...\n005 (003.000.000) 2026", b"\n...\n005 (003.000.000) 2026\n...\n"),
    (b"005 (003.000.000) 2026-01-01 00:00:00 Job terminated.\n\t(1)", b"005 (003.000.000) 2026-01-01 00:00:00 Job"
     b" terminated.\n\t(1)\n...\n"),
    (b"text that ends with 0", b"text that ends with 0\n"),
])
def test_what_somebody_else_left_open_is_closed_and_kept(tmp_path, left, mended):
    log = tmp_path / "log"
    log.write_bytes(left)
    append(log)
    assert log.read_bytes() == mended + ALL


def test_a_short_write_is_taken_back(sandbox):
    """A limit on the size of files makes a real short write, and the room was there before it."""
    log = sandbox.path / "log"
    log.write_bytes(b"before\n")
    code = """
        import resource, signal
        from mxqlib.delivery import Undelivered, file
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
        try:
            file.append(sys.argv[1], [b"x" * 99 + b"\\n"] * 10, 0o022)
        except Undelivered as failure:
            print(failure)
        """
    for limit in (7, 8, 50, 107, 1006):
        assert run_snippet(sandbox, code, str(log), str(limit)).stdout == "File too large\n"
        assert log.read_bytes() == b"before\n"
    assert run_snippet(sandbox, code, str(log), "1007").stdout == ""
    assert log.read_bytes() == b"before\n" + (b"x" * 99 + b"\n") * 10


@pytest.mark.as_root
@pytest.mark.needs("unshare", "mount")
def test_a_full_disk_shows_no_part_and_takes_it_when_there_is_room(sandbox):
    done = sandbox.run("unshare", "-m", "sh", "-c", """
        mkdir full && mount -t tmpfs -o size=64k none full && cd full && printf 'before\\n' >log
        head -c 49152 /dev/zero >ballast
        deliver() { python3 -IS -c '
        import sys; sys.path.insert(0, "%s")
        from mxqlib.delivery import Undelivered, file
        try:
            file.append(sys.argv[1] + "/log", [b"x" * 999 + b"\\n"] * 20, 0o022)
        except Undelivered as failure:
            print(failure)
        ' "$PWD"; }
        deliver; cat log; rm ballast; deliver; wc -c <log
        """.replace("\n        ", "\n") % TREE, check=True)
    assert done.stdout.split("\n") == ["No space left on device", "before", "20007", ""]


def test_two_at_once_do_not_mix(sandbox):
    log = sandbox.path / "log"
    code = """
        from mxqlib.delivery import file
        for n in range(20):
            file.append(sys.argv[1], [b"%s %d %d\\n" % (sys.argv[2].encode(), n, k) for k in range(20)], 0o022)
        """
    both = [spawn_snippet(sandbox, code, str(log), name, env={"MXQ_SYNC": "0"}) for name in "ab"]
    assert [each.wait(60) for each in both] == [0, 0]
    lines = log.read_text().splitlines()
    for name in "ab":
        mine = [line for line in lines if line[0] == name]
        assert mine == ["%s %d %d" % (name, n, k) for n in range(20) for k in range(20)]
    for at in range(0, len(lines), 20):
        assert len({line[0] for line in lines[at:at + 20]}) == 1


def test_a_lock_that_is_held_is_waited_for_and_not_for_ever(sandbox):
    log = sandbox.path / "log"
    log.write_bytes(b"")
    holder = spawn_snippet(sandbox, """
        import fcntl
        fd = os.open(sys.argv[1], os.O_RDWR)
        fcntl.lockf(fd, fcntl.LOCK_EX)
        print("ready", flush=True)
        sys.stdin.read()
        """, str(log), stdin=-1)
    assert holder.stdout.readline() == "ready\n"
    with pytest.raises(Undelivered, match="locked by another process"):
        append(log, limit_s=0.2)
    with pytest.raises(Stopped):
        append(log, stop=lambda: True)
    assert log.read_bytes() == b""
    holder.stdin.close()
    append(log)
    assert log.read_bytes() == ALL


def test_a_file_that_was_rotated_away_between_open_and_lock_is_left_alone(tmp_path, monkeypatch):
    log, lockf, rotated = tmp_path / "log", fcntl.lockf, []

    def rotate(fd, what):
        if not rotated:
            rotated.append(os.rename(log, tmp_path / "log.1"))
        return lockf(fd, what)

    monkeypatch.setattr(file.fcntl, "lockf", rotate)
    append(log)
    assert log.read_bytes() == ALL
    assert (tmp_path / "log.1").read_bytes() == b""


@pytest.mark.parametrize("path, words", [
    ("missing/log", "No such file or directory"), (".", "Is a directory"), ("file/log", "Not a directory")])
def test_what_cannot_be_opened_is_said(tmp_path, path, words):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Undelivered, match=words):
        append(tmp_path / path)


@pytest.mark.as_user
def test_a_file_without_permission_to_write_is_said_and_one_without_permission_to_read_is_written(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"")
    log.chmod(0o400)
    with pytest.raises(Undelivered, match="Permission denied"):
        append(log)
    log.chmod(0o200)
    append(log)
    log.chmod(0o600)
    assert log.read_bytes() == ALL


def test_a_fifo_without_a_reader_and_a_full_device_fail(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(Undelivered, match="No such device or address"):
        append(tmp_path / "fifo")
    with pytest.raises(Undelivered, match="No space left on device"):
        append("/dev/full")
    append("/dev/null")


def test_a_fifo_with_a_reader_gets_all(sandbox):
    fifo, out = sandbox.path / "fifo", sandbox.path / "out"
    os.mkfifo(fifo)
    reader = sandbox.spawn("sh", "-c", 'exec cat <"$1" >"$2"', "sh", fifo, out)
    held = wait_for(lambda: open_writer(fifo))
    append(fifo, [b"x" * 999 + b"\n"] * 200)
    os.close(held)
    assert reader.wait(20) == 0
    assert out.read_bytes() == (b"x" * 999 + b"\n") * 200


def open_writer(path):
    """A descriptor once somebody reads the FIFO, who waits in open(2) until the first writer comes."""
    try:
        return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


# ---- streams ----

def test_a_pipe_that_nobody_reads_fails_in_time_and_counts_what_went_through():
    reading, writing = os.pipe()
    try:
        texts = [b"x" * 999 + b"\n"] * 100
        with pytest.raises(Undelivered, match="nobody reads it") as failed:
            stream.write(writing, texts, limit_s=0.3)
        assert 0 < failed.value.done < 100
        assert os.get_blocking(writing)
        assert len(os.read(reading, 1 << 20)) >= failed.value.done * 1000
    finally:
        os.close(reading)
        os.close(writing)


def test_a_pipe_that_was_closed_fails():
    reading, writing = os.pipe()
    os.close(reading)
    try:
        with pytest.raises(Undelivered, match="Broken pipe") as failed:
            stream.write(writing, [b"one\n"])
        assert failed.value.done == 0
    finally:
        os.close(writing)


def test_a_text_larger_than_a_pipe_goes_through_whole(sandbox):
    reader = sandbox.spawn("wc", "-c", stdin=-1)
    stream.write(reader.stdin.fileno(), [b"x" * 300000 + b"\n"] * 3)
    reader.stdin.close()
    assert reader.stdout.read().strip() == "900003"


def test_standard_output_that_is_a_file_gets_all_or_nothing(sandbox):
    code = """
        import resource
        from mxqlib.delivery import Undelivered, stream
        os.write(1, b"before\\n")
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, resource.RLIM_INFINITY))
        try:
            stream.write(1, [b"0123456789\\n"] * 3)
        except Undelivered as failure:
            sys.stderr.write(str(failure))
        stream.write(1, [b"after\\n"])
        """
    for mode in "wb", "ab":
        with open(sandbox.path / "out", mode) as out:
            done = run_snippet(sandbox, code, stdout=out)
        assert done.stderr == "File too large"
        assert (sandbox.path / "out").read_bytes() in (b"before\nafter\n", b"before\nafter\n" * 2)
        (sandbox.path / "out").write_bytes(b"")
