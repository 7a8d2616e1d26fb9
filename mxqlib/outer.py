"""The outer batch system that a run is inside of: the ids that it shows to its job, so that its records and ours can be
joined, and its supervisor."""

import os
import stat

from mxqlib import process

# The variables by which each system's own manual names a job, its array index, its attempt and its node.
_VARIABLES = (
    # Slurm: sbatch(1), srun(1)
    "SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_RESTART_COUNT",
    # Grid Engine: qsub(1); JOB_ID alone would be anybody's
    "SGE_TASK_ID", "SGE_CELL", "JOB_ID", "RESTARTED",
    # PBS: qsub(1B)
    "PBS_JOBID", "PBS_ARRAY_INDEX", "PBS_ARRAYID",
    # HTCondor: its manual, "Environment Variables"; the ids are in the job ad
    "_CONDOR_SLOT", "CONDOR_ID",
    # GNU parallel: parallel(1)
    "PARALLEL_SEQ", "PARALLEL_JOBSLOT", "PARALLEL_PID",
)
# Those of them that name a job of a system which may signal every process of it, ours too.
_JOBS = ("SLURM_JOB_ID", "JOB_ID", "PBS_JOBID")
# HTCondor's manual, "Job ClassAd Attributes". NumJobStarts counts the starts before this one.
_ATTRIBUTES = ("ClusterId", "ProcId", "GlobalJobId", "NumJobStarts")
_AD_LIMIT_B = 1 << 20


def ids(environ):
    """What names the job in `environ` (str to str) and in the job ad that it names; None when nothing does."""
    found = {name: environ[name] for name in _VARIABLES if environ.get(name)}
    if "JOB_ID" in found and "SGE_TASK_ID" not in found and "SGE_CELL" not in found:
        del found["JOB_ID"]
        found.pop("RESTARTED", None)
    if environ.get("_CONDOR_JOB_AD"):
        found.update(_read_ad(environ["_CONDOR_JOB_AD"]))
    return found or None


def is_supervisor(pid):
    """True when process `pid` supervises the job of an outer batch system that we are inside of.

    That is an ancestor of ours that is not in the job: what names the job is not in its environment, or that
    cannot be read, as it is another user's (proc(5)).
    """
    shown = ids(os.environ) or {}
    names = {os.fsencode("%s=%s" % (name, shown[name])) for name in _JOBS if name in shown}
    if not names or not _is_ancestor(pid):
        return False
    try:
        return names.isdisjoint(process.environ_data(pid).split(b"\0"))
    except OSError:
        return True


def _is_ancestor(pid):
    seen = process.look(os.getppid())
    while seen is not None and seen.pid != pid:
        seen = process.look(seen.ppid) if seen.ppid else None
    return seen is not None


def _read_ad(path):
    """_ATTRIBUTES of HTCondor's job ad, as text without quotation marks; what cannot be read is left out.

    The ad goes with the job: its path in a record would name nothing. One line each, `Name = value`.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return {}
    try:
        ad = os.read(fd, _AD_LIMIT_B) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    except OSError:
        return {}
    finally:
        os.close(fd)
    pairs = (line.partition(" = ") for line in ad.decode("utf-8", "surrogateescape").split("\n"))
    return {name: value.strip('"') for name, _, value in pairs if name in _ATTRIBUTES}
