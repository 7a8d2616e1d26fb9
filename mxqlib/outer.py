"""The ids that an outer batch system shows to a job, so that its records and ours can be joined."""

import os
import stat

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
