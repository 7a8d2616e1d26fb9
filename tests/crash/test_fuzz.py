"""Damaged records, damaged databases, senseless options: one clear line, the documented status, nothing invented.

Each case is made from a seed, which the message of a failure names.
"""

import importlib
import os
import random
import shutil

import pytest

from mxqlib import outbox, record
from tests.harness import oracle, records
from tests.harness.queueing import submit
from tests.harness.sandbox import BIN

pytestmark = pytest.mark.timeout_s(600)

COMMANDS = sorted(path.name for path in BIN.iterdir() if path.name.startswith("mxq-"))
TRACEBACK = "Traceback (most recent call last)"
HERE = os.uname().nodename
COUNT = 600             # records in a spool


def exits_of(command):
    """The statuses that a command documents, without that of a bug."""
    return set(importlib.import_module("mxqlib." + command[len("mxq-"):]).EXITS) - {70}


def judge(command, done, seed, may_succeed=True):
    """No traceback, a documented status, and a line for each that is not 0."""
    assert TRACEBACK not in done.stderr, "seed %s, %s: %s" % (seed, done.args, done.stderr[-1500:])
    assert done.returncode in exits_of(command), (seed, done.args, done.returncode, done.stderr)
    assert may_succeed or done.returncode, (seed, done.args, done.stdout)
    # What mxq-wait and mxq-reap tell by their status needs no words.
    if done.returncode and not (command == "mxq-wait" and done.returncode in (3, 4)):
        assert "%s: error: " % command in done.stderr or "%s: warning: " % command in done.stderr, (seed, done.args)


# ---- records ---------------------------------------------------------------------

ATOMS = [None, True, False, 0, 1, -1, 255, 256, 65535, 65536, 1 << 31, 1 << 62, 1 << 63, 1 << 64, -(1 << 63), 0.0, -0.5,
         1e-9, 1e14, 1e300, "", "x", "-", "/", "\0", "\n", "\t", "\u2028", "\udcff", "\ud800", "\U0001f4a9", "17.1",
         "ended", "lost", "kill", "exec", "never", "always", "log", "-0", "1e3", HERE, "2026-11-30T17:45:27.123456Z",
         "2026-02-31T25:61:61.000000Z", "0000-00-00T00:00:00.000000Z", "9999-99-99T99:99:99.999999Z", "a" * 5000]


def random_json(chance, depth=0):
    """Any value that JSON has, mostly small."""
    kind = chance.randrange(10) if depth < 3 else 0
    if kind == 8:
        return [random_json(chance, depth + 1) for _ in range(chance.randrange(4))]
    if kind == 9:
        return {str(chance.choice(ATOMS)): random_json(chance, depth + 1) for _ in range(chance.randrange(4))}
    return chance.choice(ATOMS)


def spoil(chance, value):
    """A copy of a record or a part of it, in which something, at any depth, has another value, has gone, or is new."""
    inner = value.keys() if value.__class__ is dict else range(len(value)) if value.__class__ is list else ()
    if not inner or (value.__class__ is list and chance.random() < 0.2):
        return random_json(chance)
    value = value.copy()
    at = chance.choice(list(inner))
    what = chance.randrange(8)
    if what == 0:
        del value[at]
    elif what == 1:
        value[at] = chance.choice([value[other] for other in inner])
    elif what == 2 and value.__class__ is dict:
        value[str(chance.choice(ATOMS))] = random_json(chance)
    elif what < 5:
        value[at] = random_json(chance)
    else:
        value[at] = spoil(chance, value[at])
    return value


def make(chance, n):
    """(run id, bytes): a record that was spoilt; one in ten is whole."""
    run = "%d.%d" % (n, chance.randrange(1, 4)) if n % 2 else records.make_run_id(n)
    asked = [{"sink": "log", "path": "/nowhere/log"}, {"sink": "record", "path": "/nowhere/lines"},
             {"sink": "mail", "to": "joe", "on": "always"}, {"sink": "hook", "command": "true"}]
    facts = {"host": chance.choice(["node7", HERE]), "deliveries": chance.sample(asked, chance.randrange(5)),
             "cpus": [0, 1], "argv": ["sh", "-c", "x\udcff"], "stdout": "/nowhere/out"}
    if n % 3:
        entry = records.make_ended(run, chance.choice([0, 256, 9, None]), survivors=[{"pid": 5, "comm": "x"}],
                                   signals=[{"signal": "TERM", "to": "reaper", "pid": 1, "uid": 0}], **facts)
    else:
        entry = records.make_running(run, **facts)
    for _ in range(chance.choice([0, 1, 1, 1, 1, 1, 2, 2, 3, 5])):
        entry = spoil(chance, entry) if entry.__class__ is dict and entry else entry
    return run, record.encode(entry)


def accepted(run, data):
    """The record when it is one, else None."""
    try:
        entry = record.decode(data, run)
        outbox.check(entry.get("deliveries"))
    except record.Damaged:
        return None
    return entry


def put(runs, run, data, good, bad):
    """Write `data` as the file of `run`, and note its record in `good`, or its name in `bad`."""
    (runs / (run + ".json")).write_bytes(data)
    entry = accepted(run, data)
    if entry is None:
        bad.add(run + ".json")
    else:
        good[run] = entry


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_spoilt_records_are_put_aside_or_do_no_harm(seed, sandbox, tally):
    """What passes the check can be committed, listed, shown, told and waited for; the rest is put aside."""
    chance = random.Random(seed)
    runs = records.make_spool(sandbox.spool)
    good, bad = {}, set()
    for n in range(1, COUNT):
        run, data = make(chance, n)
        put(runs, run, data, good, bad)
        tally["record"] += 1
    assert min(len(good), len(bad)) > COUNT / 6
    for words in (["mxq-ls"], ["mxq-ls", "--json"], ["mxq-ls", "--events"], ["mxq-adopt", "-n"],
                  ["mxq-collect"], ["mxq-ls"], ["mxq-ls", "--json", "-n", "0"], ["mxq-ls", "--events", "-n", "0"],
                  ["mxq-ls", "--owed"], ["mxq-ls", "--joblog"],
                  ["mxq-ls"] + [word for run in list(good)[:300] for word in ("-l", run)],
                  ["mxq-wait", "--timeout", "0s", "--all"], ["mxq-adopt"], ["mxq-ctl", "kill", "--now", "--all"],
                  ["mxq-collect", "--retry"], ["mxq-collect", "--forget", "0s"]):
        done = sandbox.run(*words, env={"MXQ_SENDMAIL": "cat >/dev/null"})
        judge(words[0], done, seed)
        if words == ["mxq-collect"]:
            assert done.returncode in (65, 75), (seed, done.stderr)
            check_intake(sandbox, good, bad, seed)


def check_intake(sandbox, good, bad, seed):
    """Each good record is in the queue as it is, each bad one in corrupt/ with a reason."""
    corrupt = sandbox.spool / "corrupt"
    kept = {path.name for path in corrupt.iterdir()}
    known = {row["run"]: row for row in sandbox.queue("SELECT * FROM run")}
    assert not oracle.findings(sandbox, settled=False, corrupt=bad | (kept & {run + ".json" for run in good})), seed
    for name in bad:
        assert name in kept and (corrupt / (name + ".reason")).read_text().strip(), (seed, name)
    for run, entry in good.items():
        assert run in known and run + ".json" not in kept, (seed, run)
        if entry["state"] == "ended":
            assert (known[run]["status"], known[run]["reason"]) == (entry["status"], entry["reason"]), (seed, run)
            assert not (sandbox.runs / (run + ".json")).exists()
    assert set(known) == set(good), seed


@pytest.mark.quick
def test_a_record_cut_or_changed_at_a_byte_is_put_aside(sandbox, tally):
    """Or says nothing that the queue does not keep. (tests/unit/test_record.py has every byte.)"""
    chance = random.Random(4)
    runs = records.make_spool(sandbox.spool)
    line = record.encode(records.make_ended("1.1", 256, argv=["a", "\udcff"], name="n"))
    good, bad = {}, set()
    for n in range(2, 400):
        at, byte = chance.randrange(len(line)), bytes([chance.randrange(256)])
        run = "%d.1" % n
        form = chance.choice([line[:at], line[:at] + byte + line[at + 1:], line[:at] + line[at + 1:],
                              line[:at] + byte + line[at:]])
        data = form.replace(b'"1.1","job":1,', b'"%s","job":%d,' % (run.encode(), n))
        put(runs, run, data, good, bad)
        tally["record"] += 1
    assert len(bad) > 200 and good
    judge("mxq-collect", sandbox.run("mxq-collect"), 4)
    check_intake(sandbox, good, bad, 4)


# ---- options ---------------------------------------------------------------------

WORDS = ["", " ", "-", "--", "-1", "0", "1", "9" * 400, "1e3", "0x1", "1.5", "+1", "٣", "1K", "1KK", "1T",
         "9" * 15 + "T", "1y", "1d12", "1:2:3", "1-1:00:00", "9" * 15 + ":00:00", "0,0", "1-", "5-3", "0-99999", "a,b",
         "\n", "\t", "\x1b[m", "\udcff", "ü", "/nonexistent/x", "/", ".", "%", "%%", "%q", "%j", "a" * 5000, "=",
         "queued", "never", "x" * 255, "17.1", "0.0", "-f", "--all", "\u2028", "\\", "'", "$(x)"]


def arguments(chance, options):
    """A command line of options with good and bad values, in all the ways they can be written."""
    words = []
    for _ in range(chance.choice([1, 1, 1, 2, 2, 3, 6])):
        option = chance.choice(options)
        value = chance.choice(WORDS)
        names = ["-%s" % option.short] * bool(option.short) + ["--%s" % option.long] * bool(option.long)
        name = chance.choice(names)
        kind = chance.randrange(12)
        if kind == 0:
            words.append(name + value)
        elif kind == 1:
            words.append(name[:-1] + chance.choice("xyzQ ") + name[-1:])
        elif kind == 2:
            words.append(value)
        elif kind < 6 and name.startswith("--"):
            words.append(name + "=" + value)
        elif option.arg:
            words += [name, value]
        else:
            words.append(name)
    return [word for word in words if "\0" not in word]


@pytest.mark.parametrize("command", COMMANDS)
def test_senseless_options_are_refused_in_one_line(command, sandbox, tally):
    """And whatever is accepted does what it can, or says in the same way why not."""
    submit(sandbox, "--hold", "true")
    sandbox.run("mxq-reap", "true", check=True)
    options = importlib.import_module("mxqlib." + command[len("mxq-"):]).OPTIONS
    # Directories are other installations; what waits, or stays, is not asked for.
    options = [option for option in options if option.key not in ("d", "detach", "wait", "vacuum")]
    verbs = ["drain", "resume", "kill", "detach", "stop", "cont", "hold", "release", "retry", "", "x"]
    refused = 0
    for seed in range(60):
        chance = random.Random(seed)
        words = arguments(chance, options)
        if command == "mxq-ctl":
            words.insert(chance.choice([0, 0, len(words)]), chance.choice(verbs))
        elif command == "mxq-wait":
            words = ["--timeout", "0s", *words, chance.choice(["1", *WORDS])]
        elif command in ("mxq-reap", "mxq-sub"):
            words += ["--", "true"]
        done = sandbox.run(command, *words)
        tally["option"] += 1
        assert TRACEBACK not in done.stderr, (seed, words, done.stderr)
        if command == "mxq-reap":
            if done.returncode not in (0, 126, 127):        # the value of one option may be the command
                assert done.returncode in exits_of(command), (seed, words, done)
                assert done.stderr.startswith("mxq-reap: "), (seed, words, done)
        else:
            judge(command, done, seed)
        if done.returncode == (125 if command == "mxq-reap" else 64):
            refused += 1
            # One line for the call; these two may have one for each operand.
            assert done.stderr.count("\n") == 1 or command in ("mxq-ctl", "mxq-wait"), (seed, words, done.stderr)
            assert done.stdout == "", (seed, words, done.stdout)
    assert refused > 15


# ---- the database ----------------------------------------------------------------

PAGE_B = 4096
NEW, STATUS = records.make_run_id(9), 5 << 8


def prepare(sandbox):
    """A queue with jobs of each kind in it, folded into one file; a spool with an outcome that it does not know."""
    runs = records.make_spool(sandbox.spool)
    for n in range(1, 120):
        status = (0, 256, 9, None)[n % 4]
        records.put(runs, records.make_ended("%d.1" % n, status, deliveries=[{"sink": "log", "path": "/nowhere/log"}],
                                             group="g%d" % (n % 3), name="job%d" % n))
    records.put(runs, records.make_running(records.make_run_id(3)))
    sandbox.run("mxq-collect")
    for path in runs.iterdir():
        path.unlink()
    lines = "".join("echo %d\n" % n for n in range(30))
    for words in (["-g", "a"], ["--hold"], ["--after", "1"], ["--retries", "2", "--hook", "true"]):
        sandbox.run("mxq-sub", *words, "-f", "-", input=lines, check=words[0] != "--after")
    records.put(runs, records.make_ended(NEW, STATUS))
    assert sandbox.queue_file.stat().st_size > 20 * PAGE_B


def damage(chance, data):
    """A database with something of it overwritten."""
    data = bytearray(data)
    pages = len(data) // PAGE_B
    for _ in range(chance.choice([1, 1, 1, 2, 4, pages])):
        start = chance.randrange(pages) * PAGE_B
        kind = chance.randrange(7)
        if kind == 0:
            data[start:start + PAGE_B] = chance.randbytes(PAGE_B)
        elif kind == 1:
            data[start:start + PAGE_B] = bytes(PAGE_B)
        elif kind == 2:
            other = chance.randrange(pages) * PAGE_B
            data[start:start + PAGE_B] = data[other:other + PAGE_B]
        elif kind == 3:
            at = start + chance.choice([0, 8, 100, 2000, 3500])
            data[at:at + 16] = chance.randbytes(16)
        else:
            for _ in range(chance.choice([1, 5, 50])):
                data[start + chance.randrange(PAGE_B)] ^= 1 << chance.randrange(8)
    if chance.random() < 0.1:
        del data[chance.randrange(len(data)):]
    return bytes(data)


def judge_queue(sandbox, seed):
    """The outcome is in the spool as it was, put aside as one that the queue contradicts, or read from the queue."""
    name, corrupt = NEW + ".json", sandbox.spool / "corrupt"
    kept = [path for path in (sandbox.runs / name, corrupt / name) if path.exists()]
    assert {path.name for path in corrupt.iterdir()} <= {name, name + ".reason"}, seed
    if kept:
        assert accepted(NEW, kept[0].read_bytes())["status"] == STATUS, seed
        return
    found = sandbox.queue("SELECT status, reason, record FROM run WHERE run = ?", NEW)
    if not found:
        assert sandbox.queue("SELECT 1 FROM forgotten WHERE run = ?", NEW), "seed %s: the outcome is nowhere" % seed
        return
    row, = found
    assert (row["status"], row["reason"]) == (STATUS, None), seed
    assert accepted(NEW, row["record"].encode() + b"\n")["status"] == STATUS, seed


LOOKS = [["mxq-ls", "-n", "0"], ["mxq-ls", "--json", "-n", "0"], ["mxq-ls", "--events", "-n", "0"],
         ["mxq-ls", "--owed"], ["mxq-ls", "--joblog", "-n", "0"], ["mxq-ls", "-l", "3", "-l", "125"],
         ["mxq-ls", "-g", "g1", "-n", "0"],
         ["mxq-wait", "--timeout", "0s", "3", "125"], ["mxq-wait", "--timeout", "0s", "--all"]]
CHANGES = [["mxq-collect"], ["mxq-collect", "--no-deliver"], ["mxq-collect", "--retry"],
           ["mxq-collect", "--forget", "0s"], ["mxq-sub", "true"], ["mxq-sub", "--after", "3", "true"],
           ["mxq-run", "--max", "1"],
           ["mxq-adopt"], ["mxq-ctl", "kill", "--all"], ["mxq-ctl", "hold", "--all"], ["mxq-ctl", "retry", "3"],
           ["mxq-ctl", "release", "150"], ["mxq-collect", "--vacuum"]]


def overwrite(seeds, looks, changes, sandbox, tally):
    """Each command on each damaged queue, then mxq-collect."""
    prepare(sandbox)
    whole = sandbox.queue_file.read_bytes()
    stored = sandbox.path / "stored"
    shutil.copytree(sandbox.spool, stored)
    refused = 0
    for seed in seeds:
        chance = random.Random(seed)
        broken = damage(chance, whole)
        for path in sandbox.mxq_dir.glob("queue.db*"):
            path.unlink()
        sandbox.queue_file.write_bytes(broken)
        sandbox.queue_file.chmod(0o600)
        shutil.rmtree(sandbox.spool)
        shutil.copytree(stored, sandbox.spool)
        new, committed = sandbox.runs / (NEW + ".json"), False
        for words in chance.sample(LOOKS, looks) + chance.sample(CHANGES, changes) + [["mxq-collect"]]:
            done = sandbox.run(*words, env={"MXQ_SENDMAIL": "cat >/dev/null"})
            if not committed and not new.exists():
                committed = True        # what a later command breaks in a damaged file is not asked for
                judge_queue(sandbox, seed)
            judge(words[0], done, seed)
            refused += "queue.db" in done.stderr
            tally["database"] += 1
        if not committed:
            judge_queue(sandbox, seed)
    assert refused > len(seeds)


def leaf(data, page, last):
    """The number of the first or last leaf of the table whose root is `page` (https://sqlite.org/fileformat2.html)."""
    start = (page - 1) * PAGE_B
    if data[start] == 13:
        return page
    if last:
        return leaf(data, int.from_bytes(data[start + 8:start + 12], "big"), last)
    cell = start + int.from_bytes(data[start + 12:start + 14], "big")
    return leaf(data, int.from_bytes(data[cell:cell + 4], "big"), last)


@pytest.mark.quick
def test_an_index_that_leads_to_another_row(sandbox):
    """The new row gets the number of another one, as the last page is a copy of the first: SQLite takes it."""
    prepare(sandbox)
    root, = sandbox.queue("SELECT rootpage FROM sqlite_master WHERE name = 'run'")[0]
    data = bytearray(sandbox.queue_file.read_bytes())
    first, last = ((leaf(data, root, last) - 1) * PAGE_B for last in (False, True))
    assert first != last
    data[last:last + PAGE_B] = data[first:first + PAGE_B]
    sandbox.queue_file.write_bytes(data)
    done = sandbox.run("mxq-collect", "--no-deliver")
    assert done.returncode == 69 and "does not give back run %s;" % NEW in done.stderr, done
    assert accepted(NEW, (sandbox.runs / (NEW + ".json")).read_bytes())["status"] == STATUS


def test_a_queue_with_a_few_damaged_pages(sandbox, tally):
    overwrite(range(8), 2, 2, sandbox, tally)


@pytest.mark.parametrize("first", range(1000, 1400, 100))
def test_a_queue_with_damaged_pages(first, sandbox, tally):
    overwrite(range(first, first + 16), 4, 4, sandbox, tally)
