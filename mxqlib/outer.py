"""The ids that an outer batch system shows in a job's environment, so that its records and ours can be joined."""

# The variables by which each system's own manual names a job, its array index, its attempt and its node.
_VARIABLES = (
    # Slurm: sbatch(1), srun(1)
    "SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_RESTART_COUNT",
    # Grid Engine: qsub(1); JOB_ID alone would be anybody's
    "SGE_TASK_ID", "SGE_CELL", "JOB_ID", "RESTARTED",
    # PBS: qsub(1B)
    "PBS_JOBID", "PBS_ARRAY_INDEX", "PBS_ARRAYID",
    # HTCondor: condor_submit(1); the scratch directory and the job ad name the job
    "_CONDOR_JOB_AD", "_CONDOR_SLOT", "_CONDOR_SCRATCH_DIR", "CONDOR_ID", "CONDOR_JOB_ID",
    # GNU parallel: parallel(1)
    "PARALLEL_SEQ", "PARALLEL_JOBSLOT", "PARALLEL_PID",
)


def ids(environ):
    """The variables of outer batch systems in `environ` (str to str); None when there are none."""
    found = {name: environ[name] for name in _VARIABLES if name in environ}
    if "JOB_ID" in found and "SGE_TASK_ID" not in found and "SGE_CELL" not in found:
        del found["JOB_ID"]
        found.pop("RESTARTED", None)
    return found or None
