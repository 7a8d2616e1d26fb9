"""mxq-collect: an outcome is in the queue exactly once before its file goes, whatever is killed or fails when.

Each test ends with one more, unharmed mxq-collect, the oracle, and yet another
one that must change nothing.
"""

import shutil
import tempfile
from pathlib import Path

import pytest

from tests.harness import oracle, order, records, sandbox as sandbox_module, strace
from tests.harness.faults import report

pytestmark = [pytest.mark.needs("strace"), pytest.mark.timeout_s(1800)]

FRONT = {"front": "-"}
WRAPPER, OTHER, SPARE = (records.make_run_id(n) for n in (1, 2, 3))
OLD, CONTRADICTED, LATE, RUNNING = "4.1", "5.1", "6.1", "7.1"
# Calls that change what others see, or by which something is locked or made safe.
EFFECTS = ("pwrite64", "write", "fsync", "fdatasync", "rename", "unlink", "ftruncate", "mkdir", "fcntl", "flock",
           "exit_group")


class Workload:
    """A spool, and perhaps a queue, prepared once and copied for each point.

    outcomes: what is acknowledged, by run; the rest as in oracle.findings.
    """

    def __init__(self, name, prepare, outcomes, **knowledge):
        self.name, self.prepare, self.outcomes, self.knowledge = name, prepare, outcomes, knowledge
        self.stored = None

    def __call__(self, sandbox):
        if self.stored is None:
            self.stored = Path(tempfile.mkdtemp(prefix="mxq-prepared-"))
            box = sandbox_module.Sandbox()
            try:
                self.prepare(box)
                shutil.copytree(box.mxq_dir, self.stored / "mxq", symlinks=True)
                if (box.path / "fallback").exists():
                    shutil.copytree(box.path / "fallback", self.stored / "fallback")
            finally:
                box.close()
        for name in ("mxq", "fallback"):
            if (self.stored / name).exists():
                shutil.copytree(self.stored / name, sandbox.path / name)
        for file in sandbox.runs.glob("*.json"):        # the fallback is named by its path
            text = file.read_text("utf-8", "surrogateescape")
            file.write_text(text.replace("/FALLBACK/", "%s/fallback/" % sandbox.path), "utf-8")
        return ["mxq-collect"]

    def remove(self):
        """Forget what was prepared."""
        if self.stored is not None:
            shutil.rmtree(self.stored)
            self.stored = None

    def check(self, sandbox, again=True, adopt=False):
        """Run unharmed; the oracle is content; running again changes nothing.

        adopt: room that was reserved for an outcome which is in the queue goes with the next mxq-collect that has
        something to do, or with mxq-adopt.
        """
        done = sandbox.run("mxq-collect")
        assert done.returncode in (0, 65), done.stderr
        if adopt:
            sandbox.run("mxq-adopt", check=True)
        oracle.check(sandbox, self.outcomes, **self.knowledge)
        if not again:
            return
        before = oracle.snapshot(sandbox)
        again = sandbox.run("mxq-collect")
        assert (again.returncode, again.stderr) == (0, ""), again.stderr
        assert oracle.snapshot(sandbox) == before


def prepare_new(sandbox):
    """Three outcomes, one of them owing something, and no queue yet."""
    runs = records.make_spool(sandbox.spool)
    records.put(runs, records.make_ended(WRAPPER, status=768))
    records.put(runs, records.make_ended(OTHER))
    records.put(runs, records.make_ended(SPARE, status=9, reason="kill"))


def prepare_mixed(sandbox):
    """A queue that knows some of them; a damaged file, a contradiction, an outcome in the fallback, a late one."""
    runs = records.make_spool(sandbox.spool)
    records.put(runs, records.make_ended(OLD))
    records.put(runs, records.make_ended(CONTRADICTED, status=256))
    records.put(runs, records.make_ended(LATE, status=None))
    records.put(runs, records.make_running(RUNNING, fallback="/FALLBACK/%s.json" % RUNNING))
    sandbox.run("mxq-collect", check=True)
    records.put(runs, records.make_ended(OLD))
    records.put(runs, records.make_ended(CONTRADICTED, status=512))
    records.put(runs, records.make_ended(LATE, status=0, adopted=True))
    (runs / ("." + LATE)).write_bytes(bytes(1000))
    records.put(runs, records.make_ended(WRAPPER, status=768))
    (runs / "8.1.json").write_bytes(b'{"format":1,"state":"ended"')
    fallback = sandbox.path / "fallback"
    fallback.mkdir(mode=0o700)
    records.put(fallback, records.make_ended(RUNNING, status=1024, fallback="/FALLBACK/%s.json" % RUNNING))


NEW = Workload("new", prepare_new, {WRAPPER: 768, OTHER: 0, SPARE: 9})
MIXED = Workload("mixed", prepare_mixed, {OLD: 0, CONTRADICTED: 256, LATE: 0, WRAPPER: 768, RUNNING: 1024},
                 corrupt=("8.1.json", CONTRADICTED + ".json"))
both = pytest.mark.parametrize("workload", [NEW, MIXED], ids=lambda workload: workload.name)


@pytest.fixture(scope="module", autouse=True)
def prepared():
    """Remove what the workloads prepared."""
    yield
    NEW.remove()
    MIXED.remove()


def files(sandbox):
    """The files of the installation, also those that will be made; temporary names are not known before."""
    made = ["", "queue.db", "queue.db-wal", "queue.db-shm", "queue.db-journal", "queue.db-owed", "spool", "spool/runs",
            "spool/corrupt", "spool/corrupt/8.1.json", "spool/corrupt/%s.json" % CONTRADICTED]
    found = [sandbox.mxq_dir / name for name in made] + list(sandbox.mxq_dir.glob("**/*"))
    return sorted(set(found + list((sandbox.path / "fallback").glob("*"))))


# --- kill -------------------------------------------------------------------------

def kill_each(workload, names, tally):
    """Kill mxq-collect before each of its calls."""
    failures = []
    for point in strace.crashpoints(workload, strace.kill_before, names=names, roles=FRONT):
        with point.strike(failures) as traced:
            traced.end()
            workload.check(traced.sandbox)
        tally["kill"] += point.fired[0]
    report(failures)
    assert tally["kill"] > 5


@pytest.mark.quick
def test_kill_before_each_commit_and_removal(tally):
    kill_each(NEW, ("fdatasync", "unlink"), tally)


@both
def test_kill_at_each_call(workload, tally):
    kill_each(workload, EFFECTS, tally)


def test_kill_of_the_recovery_from_a_kill(tally):
    """The second mxq-collect dies as well, at each step; the third makes it good."""
    steps = ("fdatasync", "unlink", "rename")
    for name, n in strace.numbered_calls(MIXED, "front", roles=FRONT):
        if name not in steps:
            continue

        def killed_once(sandbox, fault=strace.kill_before(name, n)):
            argv = MIXED(sandbox)
            strace.Traced(sandbox, argv, (fault,), roles=FRONT).end()
            return argv

        failures = []
        for point in strace.crashpoints(killed_once, strace.kill_before, names=steps, roles=FRONT):
            with point.strike(failures) as traced:
                traced.end()
                MIXED.check(traced.sandbox, again=False, adopt=True)
            tally["kill"] += point.fired[0]
        report(failures)


# --- order ------------------------------------------------------------------------

@pytest.mark.quick
@both
def test_no_file_goes_before_the_commit_is_durable(workload):
    calls = strace.record(workload, again=False, roles=FRONT)
    runs = next(path for call in calls for path in call.paths if path.endswith("/mxq/spool/runs"))
    assert [call for call in calls if call.name == "unlink" and call.paths[0].startswith(runs)]
    assert not order.early_unlinks(calls, runs, runs[:-len("spool/runs")] + "queue.db")
    assert not order.unsynced_renames(calls, runs[:-len("/runs")])


@pytest.mark.quick
def test_calls_are_the_same_each_time():
    assert len(strace.record(NEW, roles=FRONT)) > 50


# --- errors -----------------------------------------------------------------------

# To SQLite most errors are one and the same; the others are tried on the calls that are ours.
ERRORS = {
    "EIO": "openat read pread64 pwrite64 write fsync fdatasync rename unlink ftruncate mkdir newfstatat getdents64",
    "ENOSPC": "openat pwrite64 write fsync fdatasync rename mkdir ftruncate", "EROFS": "openat rename unlink mkdir",
    "ESTALE": "openat read rename unlink newfstatat getdents64", "EMFILE": "openat",
    "EACCES": "openat rename unlink mkdir", "EINTR": "openat read pwrite64 fsync fdatasync flock",
    "EAGAIN": "fcntl", "EDQUOT": "write mkdir",
}
# From then on: only what stays so; a lock that is never to be had is waited for for 30 s each time.
LASTING = ("EIO", "ENOSPC", "EROFS", "ESTALE", "EMFILE", "EACCES")


def fail_each(workload, errno, sticky, tally):
    """Have each call fail; what comes of it is one line and a status, and nothing is lost."""
    def make(call, n, role):
        return strace.fail(call, n, errno, sticky, role)

    called = {name for name, _n in strace.numbered_calls(workload, "front", roles=FRONT, paths=files)}
    names = [name for name in ERRORS[errno].split() if name in called]
    failures = []
    for point in strace.crashpoints(workload, make, names=names, roles=FRONT, paths=files):
        with point.strike(failures) as traced:
            traced.end(60)
            assert "Traceback" not in traced.stderr(), traced.stderr()
            assert traced.returncode in (0, 65, 69, 73, 74, 75, 77), "status %s" % traced.returncode
            told = [line for line in traced.stderr().splitlines() if line.startswith("mxq-collect: ")]
            assert told or traced.returncode == 0, "status %s without a word" % traced.returncode
            workload.check(traced.sandbox, again=False)
        tally["error"] += point.fired[0]
    report(failures)


ALL = [(NEW, errno) for errno in ERRORS] + [(MIXED, errno) for errno in ("EIO", "ENOSPC", "EROFS")]


def named(value):
    """For the ids of tests."""
    return value if isinstance(value, str) else value.name


@pytest.mark.parametrize("workload, errno", ALL, ids=named)
def test_error_at_each_call_once(workload, errno, tally):
    fail_each(workload, errno, False, tally)


@pytest.mark.parametrize("workload, errno", [case for case in ALL if case[1] in LASTING], ids=named)
def test_error_at_each_call_from_then_on(workload, errno, tally):
    fail_each(workload, errno, True, tally)


def test_number_that_a_restored_queue_gave_away(sandbox):
    """The queue is an older copy: it has not heard of job 7, whose run is in the spool beside one of a wrapper."""
    runs = records.make_spool(sandbox.spool)
    records.put(runs, records.make_ended("6.1"))
    sandbox.run("mxq-collect", check=True)
    records.put(runs, records.make_ended(WRAPPER, status=768))
    records.put(runs, records.make_ended("7.1", status=256))
    done = sandbox.run("mxq-collect")
    assert done.returncode in (0, 65) and "Traceback" not in done.stderr, done.stderr
    oracle.check(sandbox, {"6.1": 0, WRAPPER: 768, "7.1": 256})


# --- rivals -----------------------------------------------------------------------

@both
def test_freeze_at_each_call_and_run_a_rival(workload, tally):
    """The frozen one goes on when the rival has ended, or waits for what the frozen one holds."""
    failures = []
    for point in strace.crashpoints(workload, strace.freeze_after, roles=FRONT, paths=files,
                                    names=("getdents64", "openat", "fcntl", "fdatasync", "unlink", "rename", "flock")):
        with point.strike(failures) as traced:
            traced.wait_for(lambda: traced.frozen("front") or traced.ended())
            if traced.frozen("front"):
                rival = traced.sandbox.spawn("mxq-collect")
                try:
                    rival.wait(0.2)
                except strace.subprocess.TimeoutExpired:
                    pass
                traced.thaw("front")
                said = rival.communicate(timeout=30)[1]
                assert rival.returncode in (0, 65), said
            traced.end()
            assert traced.returncode in (0, 65), traced.stderr()
            workload.check(traced.sandbox)
        tally["freeze"] += point.fired[0]
    report(failures)
    assert tally["freeze"] > 10

# --- what the mutations need --------------------------------------------------------

@pytest.mark.quick
def test_what_is_put_aside_is_durable_in_both_directories():
    """The reason is on the disk before the file moves, and both directories before anything else is done."""
    calls = order.succeeded(strace.record(MIXED, again=False, roles=FRONT))
    dirty, moves = order.Dirty(), 0
    for at, call in enumerate(calls):
        if call.name == "rename" and "/corrupt/" in call.paths[1]:
            moves += 1
            assert call.paths[1] + ".reason" not in dirty.files
            synced = [following.paths[0] for following in calls[at + 1:] if following.name in order.SYNCS][:2]
            assert {path.rpartition("/")[2] for path in synced} == {"runs", "corrupt"}, synced
        dirty.see(call)
    assert moves == 2


@pytest.mark.quick
def test_a_file_that_is_replaced_meanwhile_stays():
    """`lost` is being committed when the true outcome comes."""
    def prepare(sandbox):
        records.put(records.make_spool(sandbox.spool), records.make_ended(WRAPPER, status=None, adopted=True))
        return ["mxq-collect"]

    replaced = 0
    for point in strace.crashpoints(prepare, strace.freeze_after, names=("fdatasync",), roles=FRONT):
        with point.strike() as traced:
            traced.wait_for(lambda: traced.frozen("front") or traced.ended())
            if traced.frozen("front"):
                replaced += (traced.sandbox.runs / (WRAPPER + ".json")).exists()
                records.put(traced.sandbox.runs, records.make_ended(WRAPPER, status=768, adopted=True))
                traced.thaw("front")
                traced.end()
                assert traced.returncode == 0, traced
                traced.sandbox.run("mxq-collect", check=True)
                oracle.check(traced.sandbox, {WRAPPER: 768})
            else:
                traced.end()
    assert replaced > 2
