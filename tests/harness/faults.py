"""Which error makes sense of which system call, and the points at which a workload meets one."""

from tests.harness import strace

# Errors of a disk that is full, broken, read-only, or on another host. They are believed of calls on it only.
DISK = {
    "EIO": "openat write fsync rename ftruncate lseek fallocate unlink close mkdir chmod newfstatat chdir execve",
    "ENOSPC": "openat write fsync rename fallocate close mkdir",
    "EDQUOT": "openat write fsync rename fallocate close mkdir",
    "ESTALE": "openat write fsync rename ftruncate fallocate newfstatat chdir",
    "EROFS": "openat rename fallocate unlink mkdir chmod", "EACCES": "openat rename unlink mkdir chdir execve",
}
# Errors of a kernel that has no room for one more of something, or was interrupted.
ROOM = {
    "EMFILE": "openat pipe2 memfd_create pidfd_open", "ENFILE": "openat pipe2 memfd_create", "EAGAIN": "clone",
    "ENOMEM": "clone openat", "EINTR": "openat write fsync fallocate read waitid wait4 rt_sigtimedwait",
}


def error_points(workload, role, errno, sticky, among=None, **options):
    """The points (strace.crashpoints) at which a call of a process fails for which this error makes sense.

    among: only these calls, separated by blanks; needed where the workload does not end by itself.
    """
    def make(call, n, role):
        return strace.fail(call, n, errno, sticky, role)

    called = {name for name, _n in strace.numbered_calls(workload, role, **options)} if among is None else among.split()
    names = [name for name in (DISK.get(errno) or ROOM[errno]).split() if name in called]
    return strace.crashpoints(workload, make, role=role, names=names, **options)


def is_meant(traced, point):
    """True when what failed could have: errors of a disk happen to calls on it, here: in the sandbox."""
    fault = point.faults[0]
    if fault.errno in ROOM and (fault.errno, fault.call) != ("EINTR", "openat"):
        return True
    struck = [call for call in traced.calls(fault.role) if call.injected][:1]
    return any(str(traced.sandbox.path) in path for call in struck for path in call.paths)


def report(failures):
    """Fail with all that went wrong, as strace's strike() noted it: the first three at length."""
    assert not failures, "%d failures\n%s\n%s" % (
        len(failures), "\n\n".join(failures[:3]), "\n".join(text.split("\n")[0][:300] for text in failures[3:40]))
