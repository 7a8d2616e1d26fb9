"""Exit statuses: one constant each, the same numbers in every manual page.

The values from 64 on are those of sysexits.h; 124 to 127 follow timeout(1), env(1) and the shells.
1 and 2 are never used: they are what Python itself exits with.
"""

OK = 0              # done, or nothing to do
NO = 3              # a question was answered with no; not all jobs finished
UNKNOWN = 4         # lost, or cannot tell
USAGE = 64          # wrong options or operands
DATA = 65           # bad data was met and put aside
UNAVAILABLE = 69    # something needed is not there: a database, a program, a host
BUG = 70            # our own bug; a traceback is on standard error
CANTCREAT = 73      # a file or directory cannot be created
IOERR = 74          # reading or writing failed; from mxq-reap: the record could not be put where it belongs
TEMPFAIL = 75       # busy, try again; from mxq-reap: detached, the outcome is not known yet
NOPERM = 77         # permission denied, or a place that others may write to
CONFIG = 78         # a setting in the environment makes no sense
TIMEOUT = 124       # the time limit ended the job
FAILURE = 125       # mxq-reap failed before the job was started, usage included
NOEXEC = 126        # the command was found and could not be executed
NOTFOUND = 127      # the command was not found
SIGNALLED = 128     # 128 + n where signal n cannot kill us
