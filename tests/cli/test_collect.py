"""mxq-collect: each outcome exactly once; a queue that cannot be used leaves the spool untouched; the rest goes on."""

import contextlib
import json
import os
import sqlite3
import stat
import subprocess
import time

import pytest

from mxqlib import record
from tests.harness import oracle, records


def collect(sandbox, *argv, status=0, **kw):
    done = sandbox.run("mxq-collect", *argv, **kw)
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    return done


def fill(sandbox, *entries):
    runs = records.make_spool(sandbox.spool)
    for entry in entries:
        records.put(runs, entry)
    return runs


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def states(sandbox):
    return {row["run"]: row["state"] for row in sandbox.queue("SELECT run, state FROM run")}


def snapshot(folder):
    """Every name below `folder` with type, size and content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) and status.st_size < 1 << 20 else None
        found[str(path.relative_to(folder))] = (stat.S_IFMT(status.st_mode), status.st_size, content)
    return found


@contextlib.contextmanager
def untouched(sandbox):
    before = snapshot(sandbox.spool)
    yield
    assert snapshot(sandbox.spool) == before


# ---- the plain case ----

def test_what_mxq_reap_spooled_is_committed_and_its_files_go(sandbox):
    assert sandbox.run("mxq-reap", "--", "sh", "-c", "exit 7").returncode == 7
    run = sandbox.record()["run"]
    done = collect(sandbox)
    assert done.stderr == ""
    assert states(sandbox) == {run: "failed"}
    assert names(sandbox.runs) == []
    oracle.check(sandbox, {run: 7 << 8})


def test_a_new_base_is_made_private_and_complete(sandbox):
    collect(sandbox, preexec_fn=lambda: os.umask(0))
    assert names(sandbox.mxq_dir) == ["queue.db", "spool"]
    for path in [sandbox.mxq_dir] + list(sandbox.mxq_dir.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path
    assert sandbox.queue("SELECT count(*) FROM job")[0][0] == 0


def test_an_empty_spool_is_not_touched_and_no_database_is_opened(sandbox):
    collect(sandbox)
    sandbox.queue_file.write_bytes(b"not opened")
    before = {path: path.stat() for path in sandbox.mxq_dir.rglob("*")}
    collect(sandbox)
    for path, was in before.items():
        now = path.stat()
        assert (now.st_mtime_ns, now.st_ino, now.st_size) == (was.st_mtime_ns, was.st_ino, was.st_size), path


@pytest.mark.needs("strace")
def test_an_empty_spool_costs_no_sqlite(sandbox):
    collect(sandbox)
    sandbox.run("strace", "-f", "-e", "trace=%file", "-o", "trace", "mxq-collect", check=True)
    trace = (sandbox.work / "trace").read_text()
    assert "sqlite" not in trace and "queue.db\", O_" not in trace


def test_again_changes_nothing(sandbox):
    fill(sandbox, records.make_ended("1.1"), records.make_running("2.1"))
    collect(sandbox)
    before = oracle.snapshot(sandbox)
    collect(sandbox)
    assert oracle.snapshot(sandbox) == before


def test_steps_are_told_when_asked_for(sandbox):
    fill(sandbox, records.make_ended("1.1"))
    assert "mxq-collect: info: 1.1: finished\n" in collect(sandbox, "-v").stderr


@pytest.mark.parametrize("argv", [["x"], ["--nonsense"], ["-d"]])
def test_bad_usage(sandbox, argv):
    done = collect(sandbox, *argv, status=64)
    assert done.stderr.count("\n") == 1 and not sandbox.mxq_dir.exists()


def test_the_base_is_where_the_option_says(sandbox):
    fill(sandbox, records.make_ended("1.1"))
    moved = sandbox.path / "elsewhere"
    sandbox.mxq_dir.rename(moved)
    moved.chmod(0o700)
    collect(sandbox, "-d", moved)
    assert names(moved / "spool" / "runs") == [] and not sandbox.mxq_dir.exists()


# ---- running records ----

def test_running_records_are_committed_and_stay(sandbox):
    fill(sandbox, records.make_running("1.1"), records.make_running())
    collect(sandbox)
    assert set(states(sandbox).values()) == {"running"} and len(names(sandbox.runs)) == 2
    changed = sandbox.queue_file.stat().st_mtime_ns
    collect(sandbox)
    assert sandbox.queue_file.stat().st_mtime_ns == changed     # nothing new: nothing written


def test_a_run_that_was_collected_while_it_ran_is_one_job(sandbox):
    entry = records.make_running()
    runs = fill(sandbox, entry)
    collect(sandbox)
    records.put(runs, records.make_ended(entry["run"], 256))
    collect(sandbox)
    assert [tuple(row) for row in sandbox.queue("SELECT job, state FROM job")] == [(1, "failed")]
    assert names(runs) == []


def test_room_that_was_reserved_goes_with_the_outcome_only(sandbox):
    runs = fill(sandbox, records.make_running("1.1"), records.make_ended("2.1", adopted=True))
    for run in ("1.1", "2.1", "3.1"):
        (runs / ("." + run)).write_bytes(bytes(100))
    collect(sandbox)
    assert names(runs) == [".1.1", ".3.1", "1.1.json"]


# ---- damaged files ----

def damage(sandbox, runs):
    """One file of each kind of damage that a spool can have; returns their names."""
    line = record.encode(records.make_ended("1000.1"))
    made = []

    def put(name, data=b""):
        (runs / name).write_bytes(data)
        made.append(name)

    put("1.1.json")
    put("2.1.json", bytes(1000))
    for n, end in enumerate(range(0, len(line), len(line) // 20)):
        put("%d.1.json" % (100 + n), line[:end])
    put("3.1.json", line)                                   # that of another run
    put("no-record")
    put(os.fsdecode(b"\xff\xfe.json"), line)
    put("a b.json", line)
    put("x" * 250, line)
    put("4.1.json", line.replace(b'"format":1', b'"format":99'))
    put("5.1.json", record.encode(dict(records.make_ended("5.1"), deliveries=[{"sink": "log"}])))
    put("6.1.json", record.encode(dict(records.make_ended("6.1"), deliveries=[{"sink": "log", "path": "relative"}])))
    put("7.1.json", record.encode(dict(records.make_ended("7.1"), name="\ud800")))
    put("8.1.json")
    with open(runs / "8.1.json", "wb") as file:
        file.truncate(1 << 40)
    (runs / "9.1.json").symlink_to("/etc/passwd")
    (runs / "10.1.json").symlink_to("nowhere")
    os.mkfifo(runs / "11.1.json")
    (runs / "12.1.json").mkdir()
    made += ["9.1.json", "10.1.json", "11.1.json", "12.1.json"]
    if os.geteuid() == 0:
        put("13.1.json", record.encode(records.make_ended("13.1")))
        os.chown(runs / "13.1.json", 4711, 4711)
    return made


def test_damaged_files_are_put_aside_each_with_its_reason_and_the_rest_goes_on(sandbox):
    runs = fill(sandbox, *[records.make_ended("%d.1" % n) for n in range(500, 520)])
    made = damage(sandbox, runs)
    done = collect(sandbox, status=65)
    assert len(states(sandbox)) == 20 and names(runs) == []
    kept = names(sandbox.spool / "corrupt")
    assert len(kept) == 2 * len(made)
    for name in made:
        name = name[:200]
        assert name in kept
        assert (sandbox.spool / "corrupt" / (name + ".reason")).read_text().strip()
    lines = done.stderr.splitlines()
    assert len(lines) == len(made)
    assert all(line.startswith("mxq-collect: error: runs/") and "corrupt/" in line for line in lines)
    collect(sandbox)


def test_a_damaged_file_among_no_others_needs_no_queue(sandbox):
    collect(sandbox)
    (sandbox.runs / "x").touch()
    sandbox.queue_file.write_bytes(b"broken")
    collect(sandbox, status=65)
    assert names(sandbox.spool / "corrupt") == ["x", "x.reason"]


@pytest.mark.slow
@pytest.mark.timeout_s(300)
def test_four_at_once_over_thousands_of_good_and_fifty_damaged_files(sandbox):
    entries = [records.make_ended(records.make_run_id(n), (n % 7) << 8) for n in range(4000)]
    entries += [records.make_ended("%d.1" % n) for n in range(10000, 11000)]
    runs = fill(sandbox, *entries)
    for n in range(50):
        (runs / ("%d.1.json" % (20000 + n))).write_bytes(b'{"format":1,"state":"end')
    done = [sandbox.spawn("mxq-collect") for _ in range(4)]
    told = ""
    for process in done:
        said = process.communicate(timeout=200)[1]
        told += said
        assert process.returncode == (65 if said else 0), said
    assert len(told.splitlines()) == 50
    oracle.check(sandbox, {entry["run"]: entry["status"] for entry in entries},
                 corrupt=["%d.1.json" % (20000 + n) for n in range(50)])
    numbers = [row[0] for row in sandbox.queue("SELECT job FROM job ORDER BY job")]
    assert len(numbers) == len(set(numbers)) == 5000


# ---- late and contradicting records ----

def test_an_equal_record_is_dropped_and_a_contradicting_one_put_aside(sandbox):
    runs = fill(sandbox, records.make_ended("1.1"), records.make_ended("2.1"), records.make_ended("3.1", None))
    collect(sandbox)
    records.put(runs, records.make_ended("1.1", date_done="2027-01-01T00:00:00.000000Z"))
    records.put(runs, records.make_ended("2.1", 256))
    records.put(runs, records.make_ended("3.1", 256))
    done = collect(sandbox, status=65)
    assert "contradicts" in done.stderr and "2.1" in done.stderr
    assert states(sandbox) == {"1.1": "finished", "2.1": "finished", "3.1": "failed"}
    assert names(runs) == [] and names(sandbox.spool / "corrupt") == ["2.1.json", "2.1.json.reason"]


# ---- the fallback ----

def give_up_place(sandbox, run="1.1", **changes):
    """A run whose reaper could not write to the spool: the running record is still there, the outcome elsewhere."""
    folder = sandbox.path / "fallback"
    folder.mkdir(mode=0o700)
    path = folder / (run + ".json")
    runs = fill(sandbox, records.make_running(run, fallback=str(path)))
    (runs / ("." + run)).write_bytes(bytes(100))
    records.put(folder, records.make_ended(run, 768, fallback=str(path), **changes))
    return runs, path


def test_an_outcome_in_the_fallback_is_found_committed_and_removed(sandbox):
    runs, path = give_up_place(sandbox)
    collect(sandbox)
    assert states(sandbox) == {"1.1": "failed"}
    assert names(runs) == [] and not path.exists()


def test_a_crash_between_the_two_removals_is_mended(sandbox):
    runs, path = give_up_place(sandbox)
    kept = (runs / "1.1.json").read_bytes()
    collect(sandbox)
    (runs / "1.1.json").write_bytes(kept)
    collect(sandbox)
    assert names(runs) == [] and states(sandbox) == {"1.1": "failed"}


def test_a_fallback_that_others_can_write_to_is_not_believed(sandbox):
    runs, path = give_up_place(sandbox)
    path.parent.chmod(0o777)
    done = collect(sandbox, status=77)
    assert "written by others" in done.stderr
    assert states(sandbox) == {"1.1": "running"} and path.exists() and "1.1.json" in names(runs)
    path.parent.chmod(0o700)
    collect(sandbox)
    assert states(sandbox) == {"1.1": "failed"}


def test_a_damaged_fallback_is_left_where_it_is(sandbox):
    runs, path = give_up_place(sandbox)
    path.write_bytes(b"{")
    done = collect(sandbox, status=65)
    assert str(path) in done.stderr and "left where it is" in done.stderr
    assert states(sandbox) == {"1.1": "running"} and path.exists()


def test_a_fallback_that_contradicts_is_put_aside(sandbox):
    runs, path = give_up_place(sandbox)
    kept = (runs / "1.1.json").read_bytes(), path.read_bytes()
    collect(sandbox)
    (runs / "1.1.json").write_bytes(kept[0])
    path.write_bytes(kept[1].replace(b'"status":768', b'"status":256').replace(b'"exit":3', b'"exit":1'))
    collect(sandbox, status=65)
    assert names(runs) == [] and not path.exists()
    assert json.loads((sandbox.spool / "corrupt" / "1.1.json").read_text())["exit"] == 1


# ---- a queue that cannot be used ----

@pytest.mark.slow
@pytest.mark.timeout_s(120)
def test_a_locked_queue_is_busy_after_thirty_seconds_and_others_are_waited_for(sandbox):
    fill(sandbox, records.make_ended("1.1"))
    collect(sandbox)
    records.put(sandbox.runs, records.make_ended("2.1"))
    other = sqlite3.connect(sandbox.queue_file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with untouched(sandbox):
        before = time.monotonic()
        done = collect(sandbox, status=75)
        assert 25 < time.monotonic() - before < 60
        assert done.stderr.count("\n") == 1 and "locked" in done.stderr
    waiting = sandbox.spawn("mxq-collect")
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(1)
    other.execute("COMMIT")
    other.close()
    assert waiting.wait(60) == 0
    assert states(sandbox) == {"1.1": "finished", "2.1": "finished"}


def refuse(sandbox, status, words, **kw):
    """With one outcome in the spool: one line on stderr that has `words`, the status, and nothing touched."""
    with untouched(sandbox):
        done = collect(sandbox, status=status, **kw)
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("mxq-collect: error: "), done.stderr
    assert words in done.stderr
    return done


@pytest.fixture
def loaded(sandbox):
    """A sandbox whose queue is made, with one more outcome in its spool."""
    fill(sandbox, records.make_ended("1.1"))
    collect(sandbox)
    records.put(sandbox.runs, records.make_ended("2.1"))
    return sandbox


@pytest.mark.parametrize("data, words", [
    (b"this is no database" * 100, "not a database"), (b"SQLite format 3\0" + bytes(4080), ""),
])
def test_what_is_no_database(loaded, data, words):
    loaded.queue_file.write_bytes(data)
    refuse(loaded, 69, words)
    assert loaded.queue_file.read_bytes() == data


def test_a_damaged_database(loaded):
    data = bytearray(loaded.queue_file.read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    loaded.queue_file.write_bytes(data)
    refuse(loaded, 69, "malformed")


@pytest.mark.parametrize("pragma, words", [("user_version = 99", "newer"),
                                           ("application_id = 1", "not a queue of MXQ")])
def test_a_database_of_somebody_else_or_of_the_future(loaded, pragma, words):
    with contextlib.closing(sqlite3.connect(loaded.queue_file)) as db:
        db.execute("PRAGMA " + pragma)
    refuse(loaded, 69, words)


def test_a_queue_in_a_directory_that_is_not_there(loaded):
    refuse(loaded, 73, "no such directory", env={"MXQ_QUEUE": loaded.path / "nowhere" / "q.db"})


def test_a_queue_that_is_a_directory_a_link_or_writable_by_others(loaded):
    refuse(loaded, 69, "not a regular file", env={"MXQ_QUEUE": loaded.work})
    (loaded.work / "link").symlink_to(loaded.queue_file)
    refuse(loaded, 69, "not a regular file", env={"MXQ_QUEUE": loaded.work / "link"})
    loaded.queue_file.chmod(0o666)
    refuse(loaded, 77, "written by others")


@pytest.mark.as_user
def test_a_queue_that_is_read_only(loaded):
    loaded.queue_file.chmod(0o400)
    refuse(loaded, 77, "readonly")
    loaded.queue_file.chmod(0)
    refuse(loaded, 77, "unable to open")


@pytest.mark.as_root
def test_somebody_elses_base_spool_and_queue(loaded):
    os.chown(loaded.queue_file, 4711, 4711)
    refuse(loaded, 77, "belongs to user 4711")
    os.chown(loaded.runs, 4711, 4711)
    refuse(loaded, 77, "belongs to user 4711")
    os.chown(loaded.mxq_dir, 4711, 4711)
    refuse(loaded, 77, "belongs to user 4711")


def test_a_spool_that_is_a_link_or_open_to_others(loaded):
    loaded.spool.chmod(0o777)
    refuse(loaded, 77, "written by others")
    loaded.spool.chmod(0o700)
    loaded.spool.rename(loaded.path / "real")
    loaded.spool.symlink_to(loaded.path / "real")
    done = collect(loaded, status=77)
    assert "symbolic link" in done.stderr


def test_a_limit_on_the_size_of_files(loaded):
    """RLIMIT_FSIZE gives a real short write and then EFBIG, as a full disk does."""
    import resource
    for n in range(100, 400):
        records.put(loaded.runs, records.make_ended("%d.1" % n, argv=["x" * 1000]))
    size = loaded.queue_file.stat().st_size
    with untouched(loaded):
        done = collect(loaded, status=74, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))
    assert done.stderr.count("\n") == 1
    collect(loaded)
    assert len(states(loaded)) == 302


# ---- any bytes ----

@pytest.mark.parametrize("locale", ["C.UTF-8", "C", "POSIX", None])
def test_any_bytes_in_any_locale(sandbox, locale):
    odd = os.fsdecode(b"\xff\xfe \n\t'\"\\")
    folder = sandbox.path / os.fsdecode(b"dir \xe9\n")
    folder.mkdir()
    env = {"LANG": locale, "LC_ALL": locale}
    done = sandbox.run("mxq-reap", "-N", os.fsdecode(b"n\xff"), "-w", folder, "--", "printf", "%s", odd, "", env=env)
    assert (done.returncode, done.stdout) == (0, odd)
    collect(sandbox, env=env)
    row = sandbox.queue("SELECT name, cwd, argv FROM job")[0]
    assert (row["name"], row["cwd"]) == (b"n\xff", os.fsencode(folder))
    assert json.loads(row["argv"]) == ["printf", "%s", odd, ""]


def test_a_mebibyte_of_arguments(sandbox):
    argv = ["x" * 100000] * 10 + ["\udcff" * 40000]
    fill(sandbox, *[records.make_ended("%d.1" % n, argv=["true"] + argv) for n in range(1, 40)])
    collect(sandbox)
    assert len(states(sandbox)) == 39
    assert json.loads(sandbox.queue("SELECT argv FROM job WHERE job = 7")[0][0])[1:] == argv
