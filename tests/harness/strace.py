"""Strike one chosen process of a command at one chosen system call.

    def workload(sandbox):
        return ["mxq-reap", "--", "sh", "-c", "exit 7"]

    for point in strace.crashpoints(workload, strace.kill_before, role="reaper"):
        with point.strike() as traced:
            traced.end()
            assert oracle says so

strace(1) does the striking: `signal=KILL` on entry, the call is not made;
`error=` instead of the call; `signal=STOP` after the call had its effect.
Calls are numbered per process and name. Which process is meant is decided by
gates (gate.py): it waits after its fork until strace has attached to it and to
nobody else, so numbers start there, and neither the interpreter's start-up nor
the calls of another process are among them. The job itself is let go at its
execve(2). `crashpoints` counts up until a fault no longer fires: no number of
calls is written into a test.

What cannot be done: strike between two calls, strike a process that was made
without os.fork() (subprocess, the job's own children), or two calls of one
name in one process.
"""

import collections
import contextlib
import errno as errors
import os
import re
import select
import signal
import subprocess
import time

from tests.harness import calls as strace_calls
from tests.harness import sandbox as sandbox_module

GATE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gate.py")
ROLES = {"front": "-", "reaper": "0", "main": "0.0"}

# What the gate itself calls after strace has attached.
OFFSETS = {"readv": 1, "close": 2}

# Without effect on anybody else, and endless in number.
NOISE = ("%memory,futex,rt_sigreturn,set_robust_list,rseq,getrandom,gettid,getpid,getppid,getuid,geteuid,"
         "getgid,getegid,clock_gettime,gettimeofday,sysinfo,uname,arch_prctl,set_tid_address,sigaltstack")

Fault = collections.namedtuple("Fault", "kind call n role errno sticky")


class Nondeterministic(AssertionError):
    """Two recordings of one workload differ: such a workload cannot be struck by numbers."""


def kill_before(call, n, role="front"):
    """The n-th call of this name is not made: the process is killed instead."""
    return Fault("kill", call, n, role, None, False)


def fail(call, n, errno, sticky=False, role="front"):
    """The n-th call, sticky: and each one after it, is not made and gives `errno` ("EIO")."""
    assert hasattr(errors, errno), errno
    return Fault("fail", call, n, role, errno, sticky)


def freeze_after(call, n, role="front"):
    """The process is stopped when its n-th call has taken effect."""
    return Fault("freeze", call, n, role, None, False)


class Traced:
    """A command that runs behind gates, and the faults laid out for it.

    pids: {role: pid} of those that came to their gate. `trace`: roles to
    trace without a fault. `paths` (or a function of the sandbox that gives
    them): only calls on these files are traced and numbered. `follow`: one
    strace follows all processes from the front on, in one log.
    """

    def __init__(self, sandbox, argv, faults=(), roles=None, paths=(), trace=(), follow=False, **spawn):
        self.sandbox, self.argv, self.follow = sandbox, argv, follow
        self.paths = paths(sandbox) if callable(paths) else paths
        self.faults = tuple(faults)
        self.roles = dict(roles or ROLES)
        self.traced = {fault.role for fault in self.faults} | set(trace)
        self.pids, self.tracers, self.go = {}, {}, {}
        self.control = sandbox.path / ("control%d" % len(sandbox.spawned))
        self.control.mkdir()
        for role, path in self.roles.items():
            os.mkfifo(self.control / path)
            self.go[role] = os.open(self.control / path, os.O_RDWR)
        os.mkfifo(self.control / "hello")
        self.hello = os.open(self.control / "hello", os.O_RDWR | os.O_NONBLOCK)
        with open(self.control / "stdout", "wb") as out, open(self.control / "stderr", "wb") as err:
            spawn.setdefault("stdout", out)
            spawn.setdefault("stderr", err)
            script = find_script(argv[0])
            self.process = sandbox.spawn(*interpreter(script), GATE, self.control, script, *argv[1:],
                                         text=False, **spawn)

    # --- gates ----------------------------------------------------------------

    def serve(self, timeout_s):
        """Let in those that came to a gate meanwhile, traced where that is wanted."""
        if not select.select([self.hello], [], [], timeout_s)[0]:
            return
        for line in os.read(self.hello, 4096).decode().splitlines():
            path, pid = line.split()
            role = next(name for name, wanted in self.roles.items() if wanted == path)
            self.pids[role] = int(pid)
            if role in self.traced or (self.follow and role == "front"):
                self.attach(role)
            os.write(self.go[role], b"x")

    def attach(self, role):
        """Start strace on a process that waits at its gate, and wait until it has it."""
        argv = ["strace", "-y", "-xx", "-ttt", "-s", "65536", "-b", "execve", "-o", self.log_file(role),
                "-e", "trace=!" + NOISE]
        if self.follow:
            argv.append("-f")
        for path in self.paths:
            argv += ["-P", os.fspath(path)]
        for fault in self.faults:
            if fault.role == role:
                argv += ["-e", self.injection(fault)]
        tracer = subprocess.Popen(argv + ["-p", str(self.pids[role])], env={"PATH": sandbox_module.SYSTEM_PATH},
                                  cwd="/", stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.tracers[role] = tracer
        said = tracer.stderr.readline()
        if b"attached" not in said and os.path.exists("/proc/%d" % self.pids[role]):
            raise AssertionError("strace cannot attach to the %s: %s" % (role, said.decode()))

    def injection(self, fault):
        """The fault in strace's words."""
        n = fault.n + (0 if self.paths else OFFSETS.get(fault.call, 0))
        what = {"kill": "signal=KILL", "freeze": "signal=STOP", "fail": "error=%s" % fault.errno}[fault.kind]
        return "inject=%s:%s:when=%d%s" % (fault.call, what, n, "+" if fault.sticky else "")

    def log_file(self, role):
        """Where strace writes about this role."""
        return str(self.control / ("%s.trace" % role))

    # --- waiting --------------------------------------------------------------

    def wait_for(self, predicate, timeout_s=20, what=None):
        """Poll `predicate` while gates are served, and return what it gave."""
        deadline = time.monotonic() + timeout_s
        while True:
            self.serve(0.002)
            value = predicate()
            if value:
                return value
            if time.monotonic() > deadline:
                raise AssertionError("%s: not so within %s s; %s" % (what or "the condition", timeout_s, self))

    def frozen(self, role):
        """True once strace said that the process is stopped (ptrace stops look alike in /proc)."""
        try:
            with open(self.log_file(role), encoding="ascii") as file:
                return "--- stopped by SIGSTOP ---" in file.read()
        except FileNotFoundError:
            return False

    def thaw(self, role):
        """Let a frozen process go on."""
        os.kill(self.pids[role], signal.SIGCONT)

    def ended(self):
        """True when the front has ended (and this one read its status)."""
        return self.process.poll() is not None

    def end(self, timeout_s=30):
        """Wait until every process of the sandbox has ended, the job included; return self."""
        self.wait_for(self.ended, timeout_s, "end of %s" % self.argv[0])
        # Looking for everybody means reading all of /proc: not before those that are known have gone.
        self.wait_for(lambda: not any(map(is_running, self.pids.values())), timeout_s, "end of the job and its reaper")
        self.wait_for(lambda: not self.sandbox.pids(), timeout_s, "end of what the job left")
        self.close()
        return self

    def close(self):
        """Wait for the tracers; their logs are complete then."""
        for tracer in self.tracers.values():
            try:
                tracer.wait(10)
            except subprocess.TimeoutExpired:
                tracer.terminate()
                tracer.wait()
            tracer.stderr.close()
        for fd in self.go.values():
            os.close(fd)
        self.go.clear()
        if self.hello is not None:
            os.close(self.hello)
            self.hello = None

    # --- looking --------------------------------------------------------------

    @property
    def returncode(self):
        """Status of the front as subprocess gives it; None while it runs."""
        return self.process.returncode

    def stdout(self):
        """What the command and its job printed, as bytes."""
        return (self.control / "stdout").read_bytes()

    def stderr(self):
        """What was said on stderr, as text."""
        return (self.control / "stderr").read_text("utf-8", "surrogateescape")

    def log(self, role):
        """The parsed trace of a role, without the calls of the gate."""
        try:
            with open(self.log_file(role), encoding="ascii") as file:
                text = file.read()
        except FileNotFoundError:
            text = ""
        log = strace_calls.Log(text, self.pids.get(role), str(self.sandbox.work))
        names = {pid: name for name, pid in self.pids.items()}
        gates = {str(self.control / name) for name in ["hello", *self.roles.values()]}
        log.calls = [call for call in log.calls if not gates.intersection(call.paths)]
        for call in log.calls:
            call.role = names.get(call.pid)
        return log

    def calls(self, role):
        """The calls of a role in their order."""
        return self.log(role).calls

    def fired(self, fault):
        """True when the fault has struck."""
        log = self.log(fault.role)
        if fault.kind == "freeze":
            return bool(log.stops)
        named = [call for call in log.calls if call.name == fault.call]
        if len(named) < fault.n:
            return False
        if fault.kind == "fail":
            return named[fault.n - 1].injected
        killed = "killed by SIGKILL" in log.ends.get(self.pids[fault.role], "")
        return killed and log.calls[-1] is named[fault.n - 1] and named[-1].ret is None

    def __str__(self):
        return "faults %s, pids %s, status %s, stderr %r, alive: %s" % (
            [describe(fault) for fault in self.faults], self.pids, self.returncode, self.stderr()[-2000:],
            sandbox_module.describe(self.sandbox.pids()))


def is_running(pid):
    """True while the process lives, and is no zombie."""
    try:
        with open("/proc/%d/stat" % pid, encoding="utf-8", errors="surrogateescape") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def describe(fault):
    """`kill reaper before rename 1`, for messages."""
    what = {"kill": "kill %s before %s %d", "freeze": "freeze %s after %s %d", "fail": "fail %s at %s %d"}[fault.kind]
    more = " with %s%s" % (fault.errno, " from then on" if fault.sticky else "") if fault.errno else ""
    return what % (fault.role, fault.call, fault.n) + more


def find_script(name):
    """Path of a command: as given when it has a slash, else in bin/."""
    return os.fspath(name) if "/" in os.fspath(name) else str(sandbox_module.BIN / name)


def interpreter(script):
    """The words of the script's first line: tested is what would run."""
    with open(script, "rb") as file:
        line = file.readline().decode()
    assert line.startswith("#!"), "%s is no script" % script
    return line[2:].split()


# --- many points --------------------------------------------------------------

class Point:
    """One fault, to be tried on a fresh sandbox."""

    def __init__(self, workload, faults, options):
        self.workload, self.faults, self.options = workload, faults, options
        self.fired = None

    @contextlib.contextmanager
    def strike(self, failures=None):
        """Prepare a sandbox and start the command with the faults laid out; the sandbox is removed, or kept and named.

        failures: a list that takes what went wrong, so that the next points are tried all the same.
        """
        sandbox = sandbox_module.Sandbox()
        wrong = None
        try:
            traced = Traced(sandbox, self.workload(sandbox), self.faults, **self.options)
            try:
                yield traced
            except Exception as error:
                wrong = "%s: %s: %s\n%s\nfolder: %s" % (self, type(error).__name__, error, traced, sandbox.path)
                if failures is None:
                    raise AssertionError(wrong) from error
                failures.append(wrong)
            finally:
                if traced.hello is not None:        # not ended yet
                    sandbox.kill_all()
                traced.close()
                self.fired = [traced.fired(fault) for fault in self.faults]
        finally:
            sandbox.close(keep=wrong is not None and len(failures or ()) < 4)

    def __str__(self):
        return " and ".join(map(describe, self.faults)) or "no fault"


def crashpoints(workload, make, role="front", names=None, also=(), **options):
    """Yield points until the fault no longer fires, name by name.

    workload: prepares a Sandbox and returns the command; make: (call, n, role)
    -> Fault; names: the system calls to strike, default all that an unharmed
    run makes; also: faults that strike in each point besides; options: of
    Traced. The consumer must strike each point.
    """
    if names is None:
        names = list(dict.fromkeys(name for name, _n in numbered_calls(workload, role, **options)))
    for name in names:
        n = 0
        while True:
            n += 1
            point = Point(workload, (make(name, n, role=role), *also), options)
            yield point
            assert point.fired is not None, "point not tried: %s" % point
            if not point.fired[0]:
                break


def numbered_calls(workload, role, **options):
    """(name, n) of each call that a role makes in an unharmed run, in their order."""
    point = Point(workload, (), dict(options, trace=(role,)))
    counted = collections.Counter()
    found = []
    with point.strike() as traced:
        traced.end()
        for call in traced.calls(role):
            counted[call.name] += 1
            found.append((call.name, counted[call.name]))
    return found


# --- recording ----------------------------------------------------------------

def record(workload, keep=None, again=True, faults=(), **options):
    """Trace a whole run, front, reaper and MAIN up to its execve, and return the list of calls.

    keep: predicate of the calls wanted. faults: of role front; they strike
    each process that makes such a call so often. Recorded twice and compared
    role by role (the order between two processes may differ):
    Nondeterministic when names, paths or outcomes differ.
    """
    first = record_once(workload, keep, faults, options)
    if again:
        compare(first, record_once(workload, keep, faults, options))
    return [call for call, _key in first]


def record_once(workload, keep, faults, options):
    """[(call, what must be equal in the next recording)]."""
    point = Point(workload, tuple(faults), dict(options, follow=True))
    with point.strike() as traced:
        traced.end()
        wanted = [call for call in traced.calls("front") if keep is None or keep(call)]
        return [(call, key(call, traced)) for call in wanted]


def key(call, traced):
    """What a call does, without the parts that are new in each run: folder, run id, pids."""
    paths = []
    for path in call.paths:
        path = path.replace(str(traced.sandbox.path), "SANDBOX")
        path = re.sub(r"\d{8}T\d{6}\.\d{6}Z-[^/]*?-\d+", "RUN", path)
        path = re.sub(r"(pipe|socket):\[\d+\]", r"\1", path)
        for role, pid in traced.pids.items():
            path = re.sub(r"\b%d\b" % pid, role, path)
        paths.append(path)
    return (call.role, call.name, tuple(paths), call.error)


def compare(first, second):
    """Raise Nondeterministic at the first difference of a role."""
    for role in sorted({str(found[0]) for _call, found in first + second}):
        one, two = ([found for _call, found in calls if str(found[0]) == role] for calls in (first, second))
        for number, (left, right) in enumerate(zip(one, two)):
            if left != right:
                raise Nondeterministic("call %d of %s differs between two recordings: %s, then %s"
                                       % (number + 1, role, left, right))
        if len(one) != len(two):
            longer = max(one, two, key=len)
            raise Nondeterministic("%s made %d calls, then %d; the first one more: %s"
                                   % (role, len(one), len(two), longer[min(len(one), len(two))]))
