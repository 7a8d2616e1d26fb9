# fish completion for the commands of MXQ. Written by tools/completions.py: change the option tables instead.

# All commands are completed from here, and this file has a name for each of them.
functions -q __mxq_operands; and exit

# The options of each command that take a value.
set -g __mxq_takes_mxq_adopt -d --host
set -g __mxq_takes_mxq_collect -d --forget
set -g __mxq_takes_mxq_ctl -d -r --reason --grace -g --group
set -g __mxq_takes_mxq_ls -d -s -g -N -n -l --report
set -g __mxq_takes_mxq_reap -d -w --workdir -o --stdout -e --stderr -u --umask -p --priority -j --threads -m --memory -t --runtime -N --name -g --group -r --restart --cpus --grace --mail --mail-on --log --record --hook
set -g __mxq_takes_mxq_run -d -j --threads -m --memory --max --grace
set -g __mxq_takes_mxq_sub -d -w --workdir -o --stdout -e --stderr -u --umask -p --priority -j --threads -m --memory -t --runtime -N --name -g --group -r --restart -f --file --after --retries --mail --mail-on --log --record --hook
set -g __mxq_takes_mxq_wait -d -g --group --timeout

# The operands on the command line so far.
function __mxq_operands
    set -l words (commandline -opc)
    set -l takes (string replace -a - _ -- __mxq_takes_(string replace -r '.*/' '' -- $words[1]))
    set -e words[1]
    while set -q words[1]
        if contains -- $words[1] $$takes
            set -e words[1]
        else if test "$words[1]" = --
            set -e words[1]
            string join \n -- $words
            return
        else if not string match -q -- '-*' $words[1]
            # mxq-ctl takes options after its verb.
            echo $words[1]
            if not string match -q '*ctl' $takes
                string join \n -- $words[2..-1]
                return
            end
        end
        set -e words[1]
    end
end

function __mxq_no_operand
    test -z "$(__mxq_operands)"
end

# What completes the command that is run.
function __mxq_command
    complete -C (string join ' ' -- (string escape -- (__mxq_operands)) (commandline -ct))
end

function __mxq_verb
    contains -- (__mxq_operands)[1] $argv
end

# What mxq-ls says of the first jobs, for programs; with the base directory that is typed.
function __mxq_rows
    set -l words (commandline -opc)
    set -l dir
    if set -l at (contains -i -- -d $words)
        set dir -d (string replace -r '^~' ~ -- $words[(math $at + 1)])
    end
    mxq-ls $dir -n 500 (test -n "$argv[1]"; and printf '%s\n' -s $argv[1]) 2>/dev/null
end

function __mxq_jobs
    __mxq_rows $argv | awk -F '\t' 'NR > 1 { print ($1 == "-" ? $3 : $1) "\t" $2 " " $5 }'
end

function __mxq_groups
    __mxq_rows | awk -F '\t' 'NR > 1 { print $6 }' | sort -u
end

complete -c mxq-adopt -f
complete -c mxq-adopt -s d -xa '(__fish_complete_directories)' -d 'base directory (default: $MXQ_DIR)'
complete -c mxq-adopt -s n -l dry-run -d 'say what would be done, and do nothing'
complete -c mxq-adopt -l host -x -d 'HOST is dead: declare its runs lost; more than once for several'
complete -c mxq-adopt -s q -d 'no warnings'
complete -c mxq-adopt -s v -d 'tell the steps taken'
complete -c mxq-adopt -s h -l help -d 'show this help and exit'
complete -c mxq-adopt -s V -l version -d 'show the version and exit'

complete -c mxq-collect -f
complete -c mxq-collect -s d -xa '(__fish_complete_directories)' -d 'base directory (default: $MXQ_DIR)'
complete -c mxq-collect -l no-deliver -d 'commit only, deliver nothing'
complete -c mxq-collect -l deliver -d 'deliver only, commit nothing'
complete -c mxq-collect -l retry -d 'deliver all that is owed now, also what is parked'
complete -c mxq-collect -l forget -x -d 'then drop the jobs that ended at least AGE ago'
complete -c mxq-collect -l vacuum -d 'then make the database smaller'
complete -c mxq-collect -s q -d 'no warnings'
complete -c mxq-collect -s v -d 'tell the steps taken'
complete -c mxq-collect -s h -l help -d 'show this help and exit'
complete -c mxq-collect -s V -l version -d 'show the version and exit'

complete -c mxq-ctl -f
complete -c mxq-ctl -n __mxq_no_operand -xa 'drain resume kill detach stop cont hold release retry'
complete -c mxq-ctl -n '__mxq_verb kill' -xka '(__mxq_jobs running,loaded,queued,held)'
complete -c mxq-ctl -n '__mxq_verb detach' -xka '(__mxq_jobs running)'
complete -c mxq-ctl -n '__mxq_verb stop' -xka '(__mxq_jobs running)'
complete -c mxq-ctl -n '__mxq_verb cont' -xka '(__mxq_jobs running)'
complete -c mxq-ctl -n '__mxq_verb hold' -xka '(__mxq_jobs queued)'
complete -c mxq-ctl -n '__mxq_verb release' -xka '(__mxq_jobs held)'
complete -c mxq-ctl -n '__mxq_verb retry' -xka '(__mxq_jobs finished,failed,killed,lost,cancelled)'
complete -c mxq-ctl -s d -xa '(__fish_complete_directories)' -d 'base directory (default: $MXQ_DIR)'
complete -c mxq-ctl -s r -l reason -x -d 'drain: why, for others to read'
complete -c mxq-ctl -l now -d 'kill: KILL at once'
complete -c mxq-ctl -l grace -x -d 'kill: from TERM to KILL (that of the run)'
complete -c mxq-ctl -s g -l group -xa '(__mxq_groups)' -d 'all jobs of GROUP'
complete -c mxq-ctl -l all -d 'all jobs, runs of mxq-reap included'
complete -c mxq-ctl -s q -d 'no warnings'
complete -c mxq-ctl -s v -d 'tell the steps taken'
complete -c mxq-ctl -s h -l help -d 'show this help and exit'
complete -c mxq-ctl -s V -l version -d 'show the version and exit'

complete -c mxq-ls -f
complete -c mxq-ls -s d -xa '(__fish_complete_directories)' -d 'base directory (default: $MXQ_DIR)'
complete -c mxq-ls -s s -xa '(__fish_append , running loaded queued held finished failed killed lost cancelled)' -d 'jobs in these states only'
complete -c mxq-ls -s g -xa '(__mxq_groups)' -d 'jobs of this group only'
complete -c mxq-ls -s N -x -d 'jobs of this name only'
complete -c mxq-ls -s n -x -d 'the first N of the list only; 0: all'
complete -c mxq-ls -s l -xka '(__mxq_jobs)' -d 'all about one job or run'
complete -c mxq-ls -l events -d 'the events of the jobs'
complete -c mxq-ls -l owed -d 'what is owed: log, record, mail, hook'
complete -c mxq-ls -l check -d 'what is wrong, and which command mends it'
complete -c mxq-ls -l report -rF -d 'write an HTML page about the jobs to FILE; -: standard output'
complete -c mxq-ls -l json -d 'one JSON object a line'
complete -c mxq-ls -l joblog -d 'ended jobs, in the columns of parallel --joblog'
complete -c mxq-ls -s q -d 'no warnings'
complete -c mxq-ls -s v -d 'tell the steps taken'
complete -c mxq-ls -s h -l help -d 'show this help and exit'
complete -c mxq-ls -s V -l version -d 'show the version and exit'

complete -c mxq-reap -xa '(__mxq_command)'
complete -c mxq-reap -n __mxq_no_operand -s d -xa '(__fish_complete_directories)' -d 'base directory (default: $MXQ_DIR)'
complete -c mxq-reap -n __mxq_no_operand -s w -l workdir -xa '(__fish_complete_directories)' -d 'working directory of the job'
complete -c mxq-reap -n __mxq_no_operand -s o -l stdout -rF -d 'append standard output to FILE (%j %r %a %h %u %n)'
complete -c mxq-reap -n __mxq_no_operand -s e -l stderr -rF -d 'append standard error to FILE'
complete -c mxq-reap -n __mxq_no_operand -s u -l umask -x -d 'umask of the job'
complete -c mxq-reap -n __mxq_no_operand -s p -l priority -x -d 'priority, higher first (127)'
complete -c mxq-reap -n __mxq_no_operand -s j -l threads -x -d 'threads the job uses (1)'
complete -c mxq-reap -n __mxq_no_operand -s m -l memory -x -d 'memory limit; K M G T, MiB without suffix'
complete -c mxq-reap -n __mxq_no_operand -s t -l runtime -x -d 'time limit; y w d h m s, minutes without suffix'
complete -c mxq-reap -n __mxq_no_operand -s N -l name -x -d 'name of the job'
complete -c mxq-reap -n __mxq_no_operand -s g -l group -xa '(__mxq_groups)' -d 'group of the job (default)'
complete -c mxq-reap -n __mxq_no_operand -s r -l restart -xa 'never samehost always' -d 'restart a lost run: never, samehost, always'
complete -c mxq-reap -n __mxq_no_operand -s b -l detach -d 'print the run id and return once the job is executed'
complete -c mxq-reap -n __mxq_no_operand -l cpus -x -d 'run on these CPUs, like 0,2-3'
complete -c mxq-reap -n __mxq_no_operand -l grace -x -d 'time from TERM to KILL (10s)'
complete -c mxq-reap -n __mxq_no_operand -l linger -d 'wait for what the job leaves behind, do not end it'
complete -c mxq-reap -n __mxq_no_operand -l mail -x -d 'mail ADDR when the job ends ($MXQ_MAIL)'
complete -c mxq-reap -n __mxq_no_operand -l mail-on -xa 'always failure never' -d 'always, failure or never (failure; $MXQ_MAIL_ON)'
complete -c mxq-reap -n __mxq_no_operand -l log -rF -d 'append events to FILE in HTCondor\'s format ($MXQ_LOG)'
complete -c mxq-reap -n __mxq_no_operand -l record -rF -d 'append the record to FILE; - is mxq-collect\'s output'
complete -c mxq-reap -n __mxq_no_operand -l hook -xa '(__fish_complete_command)' -d 'run CMD with the record on its standard input'
complete -c mxq-reap -n __mxq_no_operand -s q -d 'no warnings'
complete -c mxq-reap -n __mxq_no_operand -s v -d 'tell the steps taken'
complete -c mxq-reap -n __mxq_no_operand -s h -l help -d 'show this help and exit'
complete -c mxq-reap -n __mxq_no_operand -s V -l version -d 'show the version and exit'

complete -c mxq-run -f
complete -c mxq-run -s d -xa '(__fish_complete_directories)' -d 'base directory (default: $MXQ_DIR)'
complete -c mxq-run -s j -l threads -x -d 'threads to use at once (default: the CPUs we may use)'
complete -c mxq-run -s m -l memory -x -d 'memory to use at once (default: all of this machine)'
complete -c mxq-run -l max -x -d 'jobs to run at once (default: any number)'
complete -c mxq-run -l wait -d 'stay until the queue is empty; TERM drains, INT kills, QUIT detaches'
complete -c mxq-run -l grace -x -d 'with --wait, after INT: from TERM to KILL (10s)'
complete -c mxq-run -s q -d 'no warnings'
complete -c mxq-run -s v -d 'tell the steps taken'
complete -c mxq-run -s h -l help -d 'show this help and exit'
complete -c mxq-run -s V -l version -d 'show the version and exit'

complete -c mxq-sub -xa '(__mxq_command)'
complete -c mxq-sub -n __mxq_no_operand -s d -xa '(__fish_complete_directories)' -d 'base directory (default: $MXQ_DIR)'
complete -c mxq-sub -n __mxq_no_operand -s w -l workdir -xa '(__fish_complete_directories)' -d 'working directory of the job'
complete -c mxq-sub -n __mxq_no_operand -s o -l stdout -rF -d 'append standard output to FILE (%j %r %a %h %u %n)'
complete -c mxq-sub -n __mxq_no_operand -s e -l stderr -rF -d 'append standard error to FILE'
complete -c mxq-sub -n __mxq_no_operand -s u -l umask -x -d 'umask of the job'
complete -c mxq-sub -n __mxq_no_operand -s p -l priority -x -d 'priority, higher first (127)'
complete -c mxq-sub -n __mxq_no_operand -s j -l threads -x -d 'threads the job uses (1)'
complete -c mxq-sub -n __mxq_no_operand -s m -l memory -x -d 'memory limit; K M G T, MiB without suffix'
complete -c mxq-sub -n __mxq_no_operand -s t -l runtime -x -d 'time limit; y w d h m s, minutes without suffix'
complete -c mxq-sub -n __mxq_no_operand -s N -l name -x -d 'name of the job'
complete -c mxq-sub -n __mxq_no_operand -s g -l group -xa '(__mxq_groups)' -d 'group of the job (default)'
complete -c mxq-sub -n __mxq_no_operand -s r -l restart -xa 'never samehost always' -d 'restart a lost run: never, samehost, always'
complete -c mxq-sub -n __mxq_no_operand -s f -l file -rF -d 'a job for each line of FILE, run by sh -c; - is standard input'
complete -c mxq-sub -n __mxq_no_operand -s 0 -l null -d 'the commands in FILE end with NUL instead of a newline'
complete -c mxq-sub -n __mxq_no_operand -l after -xka '(__mxq_jobs)' -d 'start when these jobs have finished'
complete -c mxq-sub -n __mxq_no_operand -l retries -x -d 'run a failed job again, up to N times (0)'
complete -c mxq-sub -n __mxq_no_operand -l hold -d 'do not start before mxq-ctl release'
complete -c mxq-sub -n __mxq_no_operand -l clean-env -d 'only HOME LOGNAME USER SHELL PATH in the job\'s environment'
complete -c mxq-sub -n __mxq_no_operand -l mail -x -d 'mail ADDR when the job ends ($MXQ_MAIL)'
complete -c mxq-sub -n __mxq_no_operand -l mail-on -xa 'always failure never' -d 'always, failure or never (failure; $MXQ_MAIL_ON)'
complete -c mxq-sub -n __mxq_no_operand -l log -rF -d 'append events to FILE in HTCondor\'s format ($MXQ_LOG)'
complete -c mxq-sub -n __mxq_no_operand -l record -rF -d 'append the record to FILE; - is mxq-collect\'s output'
complete -c mxq-sub -n __mxq_no_operand -l hook -xa '(__fish_complete_command)' -d 'run CMD with the record on its standard input'
complete -c mxq-sub -n __mxq_no_operand -s q -d 'no warnings'
complete -c mxq-sub -n __mxq_no_operand -s v -d 'tell the steps taken'
complete -c mxq-sub -n __mxq_no_operand -s h -l help -d 'show this help and exit'
complete -c mxq-sub -n __mxq_no_operand -s V -l version -d 'show the version and exit'

complete -c mxq-wait -f
complete -c mxq-wait -xka '(__mxq_jobs running,loaded,queued,held)'
complete -c mxq-wait -s d -xa '(__fish_complete_directories)' -d 'base directory (default: $MXQ_DIR)'
complete -c mxq-wait -s g -l group -xa '(__mxq_groups)' -d 'all jobs of GROUP that are there now'
complete -c mxq-wait -l all -d 'all jobs that are there now, runs of mxq-reap included'
complete -c mxq-wait -l timeout -x -d 'wait no longer than TIME'
complete -c mxq-wait -s q -d 'no warnings'
complete -c mxq-wait -s v -d 'tell the steps taken'
complete -c mxq-wait -s h -l help -d 'show this help and exit'
complete -c mxq-wait -s V -l version -d 'show the version and exit'
