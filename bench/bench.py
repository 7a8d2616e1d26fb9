#!/usr/bin/python3
"""make bench: what MXQ costs, beside the floor and the peers of the same run; the table of doc/BENCHMARKS.md.

    bench/bench.py [--quick] [--write] [ROW...]

Only ratios within one run are compared, as machines differ. Every command is started with posix_spawn and waited
for with wait4, in turn with the floor `python3 -IS -c pass`; a figure is the median. Rows: start, memory, throughput,
collect, submit, million, kill. --quick takes smaller numbers, --write puts the table into doc/BENCHMARKS.md.
Peers that are not installed are left out.
"""

import os
import platform
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PYTHON = "/usr/bin/python3"
NULL = ((os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0))
FLOOR = [PYTHON, "-IS", "-c", "pass"]


def command(name):
    """The path of a command of this tree."""
    return os.path.join(HERE, "bin", name)


class Bench:
    """One run: a temporary installation, and the lines of the table."""

    def __init__(self, quick):
        self.quick, self.lines = quick, []
        self.folder = tempfile.mkdtemp(prefix="mxq-bench-", dir=os.environ.get("BENCH_DIR", "/var/tmp"))
        self.env = dict(os.environ, MXQ_DIR=os.path.join(self.folder, "mxq"), HOME=self.folder)
        for name in [name for name in self.env if name.startswith("MXQ_") and name != "MXQ_DIR"]:
            del self.env[name]

    def row(self, what, figure, target="", shown=""):
        """Add and print a line of the table."""
        self.lines.append((what, figure, target, shown))
        print("%-58s %-34s %s" % (what, figure, target), flush=True)

    def fresh(self):
        """An empty base directory."""
        shutil.rmtree(self.env["MXQ_DIR"], ignore_errors=True)

    def call(self, argv, **how):
        """Run a command that must succeed; seconds it took."""
        begin = time.perf_counter()
        subprocess.run(argv, check=True, env=self.env, stdout=subprocess.DEVNULL, **how)
        return time.perf_counter() - begin

    def spawn_s(self, argv):
        """Seconds from the spawn to the wait of one start."""
        begin = time.perf_counter()
        pid = os.posix_spawn(argv[0], argv, self.env, file_actions=NULL)
        os.wait4(pid, 0)
        return time.perf_counter() - begin

    def ratio(self, argv, count):
        """(median seconds, median ratio to the floor, lowest, highest), pair by pair."""
        times, ratios = [], []
        self.spawn_s(argv)
        for _ in range(count):
            floor = self.spawn_s(FLOOR)
            taken = self.spawn_s(argv)
            times.append(taken)
            ratios.append(taken / floor)
        ratios.sort()
        return sorted(times)[count // 2], ratios[count // 2], ratios[count // 10], ratios[-1 - count // 10]

    # ---- rows ----

    def start(self):
        """One `true`: the reaper, durable and not, beside what wraps a command elsewhere."""
        self.fresh()
        count = 40 if self.quick else 200
        peers = [("python3 -IS -c pass (floor)", FLOOR, ""),
                 ("mxq-reap -- true", [command("mxq-reap"), "--", "true"], "1.5"),
                 ("python3 -IS, subprocess.call(true)",
                  [PYTHON, "-IS", "-c", "import subprocess; subprocess.call('true')"], "")]
        for name in ("chronic", "timeout"):
            if shutil.which(name):
                limit = ["60"] if name == "timeout" else []
                peers.append((name + " true", [shutil.which(name)] + limit + ["true"], ""))
        for what, argv, target in peers:
            median, ratio, low, high = self.ratio(argv, count)
            self.row(what, "%.1f ms, ratio %.2f [%.2f-%.2f]" % (median * 1e3, ratio, low, high), target, " ".join(argv))
        self.env["MXQ_SYNC"] = "0"
        median, ratio, low, high = self.ratio([command("mxq-reap"), "--", "true"], count)
        del self.env["MXQ_SYNC"]
        self.row("mxq-reap -- true, MXQ_SYNC=0", "%.1f ms, ratio %.2f [%.2f-%.2f]" % (median * 1e3, ratio, low, high))
        self.call([command("mxq-collect")])
        empty, ratio, _, _ = self.ratio([command("mxq-collect")], count)
        self.row("mxq-collect, empty spool", "%.1f ms, ratio %.2f" % (empty * 1e3, ratio))

    def memory(self):
        """Proportional memory of waiting runs."""
        self.fresh()
        count = 40 if self.quick else 200
        self.call([command("mxq-sub"), "-f", "-"], input=b"sleep 1000\n" * count)
        self.call([command("mxq-run"), "-j", str(count)])
        reapers = self._processes(("mxq-reaper",))
        self.row("waiting run started by mxq-run, %d at once" % len(reapers),
                 "%.2f MiB" % (sum(map(pss_kib, reapers)) / 1024 / max(1, len(reapers))), "1 MiB")
        self._end(reapers)
        count = 20 if self.quick else 200
        fronts = [subprocess.Popen([command("mxq-reap"), "sleep", "1000"], env=self.env) for _ in range(count)]
        wait_for(lambda: len(self._processes(("mxq-reaper",))) == count)
        time.sleep(1)
        pids = self._processes(("mxq-reaper", "mxq-front"))
        self.row("waiting run in the foreground, %d at once" % count,
                 "%.2f MiB" % (sum(map(pss_kib, pids)) / 1024 / count), "4.5 MiB")
        self._end(self._processes(("mxq-reaper",)))
        for front in fronts:
            front.wait()

    def throughput(self):
        """Many short jobs, two at a time."""
        count = 300 if self.quick else 2000
        commands = b"true\n" * count
        self.fresh()
        self.call([command("mxq-sub"), "-f", "-"], input=commands)
        ours = self.call([command("mxq-run"), "-j", "2", "--wait"])
        self.row("mxq-run -j 2 --wait, %d x true, durable, collected" % count, per_job(ours, count))
        peers = []
        if shutil.which("parallel"):
            log = os.path.join(self.folder, "joblog")
            peers.append(("parallel -j2 --joblog", 3.0, self.call(
                ["parallel", "-j2", "--joblog", log], input=commands, stderr=subprocess.DEVNULL)))
        if shutil.which("nq"):
            peers.append(("nq, two queues", 1.0, self._nq(count)))
        if shutil.which("tsp"):
            peers.append(("tsp -S 2", None, self._tsp(count)))
        for what, target, taken in peers:
            self.row(what, "%s; MXQ is %.2f x as fast" % (per_job(taken, count), taken / ours),
                     "" if target is None else "%.1f x" % target)

    def _nq(self, count):
        script = "i=0; while [ $i -lt %d ]; do nq -q true; i=$((i+1)); done; nq -w" % (count // 2)
        begin = time.perf_counter()
        both = []
        for n in "12":
            folder = os.path.join(self.folder, "nq" + n)
            os.mkdir(folder)
            both.append(subprocess.Popen(["sh", "-c", script], env=dict(self.env, NQDIR=folder),
                                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        for each in both:
            each.wait()
        return time.perf_counter() - begin

    def _tsp(self, count):
        env = dict(self.env, TS_SOCKET=os.path.join(self.folder, "ts"), TS_MAXFINISHED="10000", TMPDIR=self.folder)
        subprocess.run(["tsp", "-S", "2"], env=env, check=True)
        begin = time.perf_counter()
        subprocess.run(["sh", "-c", "i=0; while [ $i -lt %d ]; do tsp -n true >/dev/null; i=$((i+1)); done;"
                        "tsp -w; while tsp | grep -Eq 'queued|running'; do :; done" % count], env=env, check=True)
        taken = time.perf_counter() - begin
        subprocess.run(["tsp", "-K"], env=env, check=True)
        return taken

    def collect(self):
        """Ended records into the queue."""
        self.fresh()
        count = 4000 if self.quick else 20000
        self._make_ended(count)
        begin = time.perf_counter()
        process = subprocess.Popen([command("mxq-collect")], env=self.env)
        _, status, used = os.wait4(process.pid, 0)
        taken = time.perf_counter() - begin
        process.returncode = status
        assert status == 0, status
        self.row("mxq-collect, %d ended records" % count, "%.0f a second, %.0f MiB" % (
            count / taken, used.ru_maxrss / 1024), "10000 a second")

    def _make_ended(self, count):
        """Ended records made of a real one."""
        self.call([command("mxq-reap"), "true"])
        runs = os.path.join(self.env["MXQ_DIR"], "spool", "runs")
        name = os.listdir(runs)[0]
        with open(os.path.join(runs, name), encoding="ascii") as file:
            text, run = file.read(), name[:-5]
        for n in range(count):
            other = "20200101T000000.%06dZ-bench-%d" % (n, n)
            with open(os.path.join(runs, other + ".json"), "w", encoding="ascii") as file:
                file.write(text.replace(run, other))

    def submit(self):
        """Many lines in one call."""
        self.fresh()
        count = 100000 if self.quick else 1000000
        path = os.path.join(self.folder, "commands")
        with open(path, "w", encoding="ascii") as file:
            for n in range(count):
                file.write("convert input-%d output-%d\n" % (n, n))
        begin = time.perf_counter()
        process = subprocess.Popen([command("mxq-sub"), "-f", path], env=self.env, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        taken = time.perf_counter() - begin
        process.returncode = status
        assert status == 0, status
        self.row("mxq-sub -f, %d lines" % count, "%.0f a second, %.0f MiB" % (count / taken, used.ru_maxrss / 1024),
                 "100000 a second")

    def million(self):
        """Does anything get slower with the number of ended jobs?"""
        figures = {}
        many = 100000 if self.quick else 1000000
        for count in (1000, many):
            self.fresh()
            self.call([command("mxq-sub"), "-f", "-"], input=b"true\n" * count)
            with sqlite3.connect(os.path.join(self.env["MXQ_DIR"], "queue.db")) as db:
                now = "2026-01-01T00:00:00.000000Z"
                db.execute("INSERT INTO run (run, job, attempt, state, host, date_end, status) "
                           "SELECT job || '.1', job, 1, 'finished', 'bench', ?, 0 FROM job", (now,))
                db.execute("UPDATE job SET state = 'finished', attempt = 1, date_end = ?", (now,))
            db.close()
            figures[count] = [self._median([command("mxq-ls")]), self._claim_and_collect()]
        for n, what in enumerate(("mxq-ls", "mxq-sub, mxq-run --wait: claim, run and collect one")):
            small, large = figures[1000][n], figures[many][n]
            self.row("%s with %d ended jobs" % (what, many), "%.1f ms, %.2f x that with 1000" % (
                large * 1e3, large / small), "1.3 x")

    def _median(self, argv, count=15):
        return sorted(self.spawn_s(argv) for _ in range(count))[count // 2]

    def _claim_and_collect(self):
        script = '"$1" true >/dev/null && "$2" --wait'
        return self._median(["/bin/sh", "-c", script, "sh", command("mxq-sub"), command("mxq-run")])

    def kill(self):
        """A job with many processes."""
        self.fresh()
        count = 300 if self.quick else 2000
        job = "i=0; while [ $i -lt %d ]; do sleep 1000 & i=$((i+1)); done; wait" % (count - 1)
        front = subprocess.Popen([command("mxq-reap"), "sh", "-c", job], env=self.env)
        wait_for(lambda: len(self._processes(("sleep",))) == count - 1, 60)
        reaper = self._processes(("mxq-reaper",))[0]
        begin = time.perf_counter()
        os.kill(reaper, signal.SIGUSR2)
        front.wait()
        self.row("kill of a job with %d processes" % count, "%.2f s, %d left" % (
            time.perf_counter() - begin, len(self._processes(("sleep",)))), "2 s, 0 left")

    # ---- processes ----

    def _processes(self, names):
        """Pids with one of these names whose environment has our base directory."""
        mark, found = ("MXQ_DIR=" + self.env["MXQ_DIR"]).encode() + b"\0", []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open("/proc/%s/comm" % pid, encoding="utf-8", errors="replace") as comm:
                    if comm.read().rstrip("\n") not in names:
                        continue
                with open("/proc/%s/environ" % pid, "rb") as environ:
                    if mark in environ.read():
                        found.append(int(pid))
            except OSError:
                continue
        return found

    def _end(self, reapers):
        for pid in reapers:
            os.kill(pid, signal.SIGUSR2)
        wait_for(lambda: not self._processes(("mxq-reaper",)))

    def close(self):
        """End what is left, remove the installation."""
        self._end(self._processes(("mxq-reaper",)))
        shutil.rmtree(self.folder, ignore_errors=True)

    def table(self):
        """The lines as Markdown."""
        return "".join("| %s | %s | %s |\n" % line[:3] for line in
                       [("what", "measured", "target"), ("---", "---", "---")] + self.lines)


def per_job(seconds, count):
    """Seconds for `count` jobs, for people."""
    return "%.2f ms a job" % (seconds * 1e3 / count)


def pss_kib(pid):
    """Proportional resident size of a process in KiB; 0 when it has gone."""
    try:
        with open("/proc/%d/smaps_rollup" % pid, encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    except OSError:
        return 0


def wait_for(condition, timeout_s=30):
    """Poll until `condition()` is true."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.05)


def machine():
    """What was measured on."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        model = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "unknown CPU")
    return "%d CPUs (%s), Linux %s, Python %s, SQLite %s" % (
        os.cpu_count(), model, platform.release(), subprocess.run(
            [PYTHON, "-c", "print(__import__('platform').python_version())"], capture_output=True, text=True,
            check=True).stdout.strip(), sqlite3.sqlite_version)


_INTRO = """# Benchmarks

Made by `make bench B=--write`. Ratios are to the floor or to the peer of the same run; absolute times are of one
machine: %s.

"""


def write(text):
    """Put the table into doc/BENCHMARKS.md; what stands below the line `## Notes` there is kept."""
    path = os.path.join(HERE, "doc", "BENCHMARKS.md")
    notes = ""
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            old = file.read()
        notes = old[old.index("\n## Notes"):] if "\n## Notes" in old else ""
    with open(path, "w", encoding="utf-8") as file:
        file.write(_INTRO % machine() + text + notes)


def main():
    """Measure the rows asked for, all by default."""
    rows = [word for word in sys.argv[1:] if not word.startswith("-")]
    rows = rows or "start memory throughput collect submit million kill".split()
    bench = Bench("--quick" in sys.argv)
    try:
        for row in rows:
            getattr(bench, row)()
    finally:
        bench.close()
    if "--write" in sys.argv:
        write(bench.table())


if __name__ == "__main__":
    main()
