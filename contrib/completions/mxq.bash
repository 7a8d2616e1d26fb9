# bash completion for the commands of MXQ. Written by tools/completions.py: change the option tables instead.

# _mxq_column N [STATE,...]: the Nth field of the jobs that mxq-ls shows first, the run id where there is no job number.
_mxq_column() {
    mxq-ls "${dir[@]}" -n 500 ${2:+-s "$2"} 2>/dev/null |
        awk -F '\t' -v n="$1" 'NR > 1 { print n == 1 && $1 == "-" ? $3 : $n }' | sort -u
}

# _mxq_offer [WORD...]: those that go on with what is typed after the last comma; without words, the lines of stdin.
_mxq_offer() {
    local head='' each
    if [[ $list && $word == *,* ]]; then
        head=${word%,*},
    fi
    if (($# == 0)); then
        mapfile -t
        set -- "${MAPFILE[@]}"
    fi
    for each; do
        if [[ $head$each == "$word"* ]]; then
            COMPREPLY+=("$(printf %q "$head$each" | sed 's/\\,/,/g')")
        fi
    done
}

# _mxq_kind OPTION: set `kind` to what its value is, to nothing where it takes none.
_mxq_kind() {
    kind=
    case "$command $1" in
        *\ -d | *\ -w | *\ --workdir)
            kind='directory' ;;
        mxq-ls\ -n | *\ --host | *\ --forget | mxq-ctl\ -r | *\ --reason | *\ --grace | *\ -N | *\ -u | *\ --umask | *\ -p | *\ --priority | *\ -j | *\ --threads | *\ -m | *\ --memory | *\ -t | *\ --runtime | *\ --name | *\ --cpus | *\ --mail | *\ --max | *\ --retries | *\ --timeout)
            kind='any' ;;
        mxq-reap\ -r | mxq-sub\ -r | *\ --restart)
            kind='never samehost always' ;;
        *\ -g | *\ --group)
            kind='group' ;;
        *\ -s)
            kind='running loaded queued held finished failed killed lost cancelled' ;;
        *\ -l | *\ --after)
            kind='jobs' ;;
        *\ --report | *\ -o | *\ --stdout | *\ -e | *\ --stderr | *\ --log | *\ --record | *\ -f | *\ --file)
            kind='file' ;;
        *\ --mail-on)
            kind='always failure never' ;;
        *\ --hook)
            kind='command' ;;
    esac
}

_mxq() {
    local command=${1##*/} word=$2 option='' kind='' verb='' list='' ended='' each at dir=()
    COMPREPLY=()
    # bash takes `--name=value` apart at the `=`.
    for ((at = 1; at < COMP_CWORD; at++)); do
        each=${COMP_WORDS[at]}
        if [[ $option ]]; then
            if [[ $each != = ]]; then
                if [[ $option == -d ]]; then
                    dir=(-d "${each/#\~/$HOME}")
                fi
                option=
            fi
        elif [[ $each == -- ]]; then
            ended=yes
            ((at++))
            break
        elif [[ $each == -?* ]]; then
            _mxq_kind "$each"
            option=${kind:+$each}
        elif [[ $command == mxq-ctl && ! $verb ]]; then
            verb=$each
        else
            ended=yes
            break
        fi
    done
    if [[ $option ]]; then
        _mxq_kind "$option"
        case $kind in
            file) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$word") ;;
            directory) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- "$word") ;;
            command) mapfile -t COMPREPLY < <(compgen -c -- "$word") ;;
            group) _mxq_offer < <(_mxq_column 6) ;;
            jobs) list=yes; _mxq_offer < <(_mxq_column 1) ;;
            any) ;;
            *)
                list=yes
                # shellcheck disable=SC2086 # a list of words
                _mxq_offer $kind
                ;;
        esac
    elif [[ ! $ended && $word == -* ]]; then
        case $command in
            mxq-adopt) _mxq_offer -d -n --dry-run --host -q -v -h --help -V --version ;;
            mxq-collect) _mxq_offer -d --no-deliver --deliver --retry --forget --vacuum -q -v -h --help -V --version ;;
            mxq-ctl) _mxq_offer -d -r --reason --now --grace -g --group --all -q -v -h --help -V --version ;;
            mxq-ls) _mxq_offer -d -s -g -N -n -l --events --owed --check --report --json --joblog -q -v -h --help -V --version ;;
            mxq-reap) _mxq_offer -d -w --workdir -o --stdout -e --stderr -u --umask -p --priority -j --threads -m --memory -t --runtime -N --name -g --group -r --restart -b --detach --cpus --grace --linger --mail --mail-on --log --record --hook -q -v -h --help -V --version ;;
            mxq-run) _mxq_offer -d -j --threads -m --memory --max --wait --grace -q -v -h --help -V --version ;;
            mxq-sub) _mxq_offer -d -w --workdir -o --stdout -e --stderr -u --umask -p --priority -j --threads -m --memory -t --runtime -N --name -g --group -r --restart -f --file -0 --null --after --retries --hold --clean-env --mail --mail-on --log --record --hook -q -v -h --help -V --version ;;
            mxq-wait) _mxq_offer -d -g --group --all --timeout -q -v -h --help -V --version ;;
        esac
    else
        case $command in
            mxq-reap | mxq-sub)
                if declare -F _command_offset >/dev/null; then
                    _command_offset "$at"
                elif ((at == COMP_CWORD)); then
                    mapfile -t COMPREPLY < <(compgen -c -- "$word")
                else
                    compopt -o filenames
                    mapfile -t COMPREPLY < <(compgen -f -- "$word")
                fi
                ;;
            mxq-wait) _mxq_offer < <(_mxq_column 1 running,loaded,queued,held) ;;
            mxq-ctl)
                case $verb in
                    '') _mxq_offer drain resume kill detach stop cont hold release retry ;;
                    kill) _mxq_offer < <(_mxq_column 1 running,loaded,queued,held) ;;
                    detach) _mxq_offer < <(_mxq_column 1 running) ;;
                    stop) _mxq_offer < <(_mxq_column 1 running) ;;
                    cont) _mxq_offer < <(_mxq_column 1 running) ;;
                    hold) _mxq_offer < <(_mxq_column 1 queued) ;;
                    release) _mxq_offer < <(_mxq_column 1 held) ;;
                    retry) _mxq_offer < <(_mxq_column 1 finished,failed,killed,lost,cancelled) ;;
                esac
                ;;
        esac
    fi
}

complete -F _mxq mxq-adopt mxq-collect mxq-ctl mxq-ls mxq-reap mxq-run mxq-sub mxq-wait
