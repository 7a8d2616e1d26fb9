"""completions.py [--check]: write contrib/completions from the option tables of the commands.

The templates are in tools/completions. With --check nothing is written: each file that is not as it would be
written is named, and the status is 1. What a table cannot say is below: which jobs a verb is for, and what the value
of an option may be.
"""

import importlib
import os
import sys

TREE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, TREE)

from mxqlib import cli, listing, request    # noqa: E402
from mxqlib.jobqueue import changes         # noqa: E402

COMMANDS = sorted(name for name in os.listdir(os.path.join(TREE, "bin")) if name.startswith("mxq-"))
PRECOMMANDS = ("mxq-reap", "mxq-sub")       # their operands are a command

# What the value of an option is, by its placeholder; of any other nothing is known.
KINDS = {"FILE": "file", "DIR": "directory", "GROUP": "group", "JOB": "jobs", "JOB[,JOB]": "jobs",
         "CMD": "command"}
WORDS = {"restart": request.RESTARTS, "mail_on": request.MAIL_ON, "s": listing.ORDER}
LIVE = tuple(state for state in listing.ORDER if state in changes.LIVE)
VERBS = {       # of mxq-ctl: the states of the jobs it makes sense for; () where it takes none
    "drain": (), "resume": (), "kill": LIVE, "detach": ("running",), "stop": ("running",), "cont": ("running",),
    "hold": ("queued",), "release": ("held",), "retry": changes.OVER,
}


def list_options(command):
    """The cli.Options of a command, in the order of --help."""
    return tuple(importlib.import_module("mxqlib." + command[len("mxq-"):]).OPTIONS) + cli.COMMON


def spell(option):
    """The option as typed, the letter first: ["-g", "--group"]."""
    return (["-" + option.short] if option.short else []) + (["--" + option.long] if option.long else [])


def kind_of(option):
    """What its value is: words to choose from (a tuple), a name of KINDS, `any`, or None where it takes none."""
    if not option.arg:
        return None
    return WORDS.get(option.key) or KINDS.get(option.arg, "any")


def takes(command):
    """All spellings of options that take a value."""
    return [name for option in list_options(command) if option.arg for name in spell(option)]


# ---- bash ----

def _kinds_by_name():
    """Spelling -> command -> kind."""
    found = {}
    for command in COMMANDS:
        for option in list_options(command):
            for name in spell(option):
                found.setdefault(name, {})[command] = kind_of(option)
    return found


def fill_bash():
    """What goes into the template for bash."""
    kinds = {}
    for name, of_commands in _kinds_by_name().items():
        if len(set(of_commands.values())) == 1:
            of_commands = {"*": of_commands.popitem()[1]}
        for command, kind in of_commands.items():
            kinds.setdefault(kind, []).append("%s\\ %s" % (command, name))
    return {
        "kinds": "\n".join("        %s)\n            kind='%s' ;;" % (
            " | ".join(names), kind if isinstance(kind, str) else " ".join(kind))
            for kind, names in kinds.items() if kind),
        "options": "\n".join("            %s) _mxq_offer %s ;;" % (command, " ".join(
            name for option in list_options(command) for name in spell(option))) for command in COMMANDS),
        "precommands": " | ".join(PRECOMMANDS), "live": ",".join(LIVE),
        "states": "\n".join("                    %s) _mxq_offer < <(_mxq_column 1 %s) ;;" % (verb, ",".join(states))
                            for verb, states in VERBS.items() if states),
    }


# ---- zsh ----

ZSH_ACTIONS = {"file": "_files", "directory": "_files -/", "command": "_cmdstring", "group": " _mxq_groups",
               "jobs": " _mxq_jobs", "any": " "}


def _zsh_option(option):
    names = spell(option)
    text = option.help.replace("[", r"\[").replace("]", r"\]")
    kind = kind_of(option)
    if kind is None:
        shown = names
    else:
        shown = [name + ("=" if name.startswith("--") else "+") for name in names]
        if isinstance(kind, str):
            action = ZSH_ACTIONS[kind]
        elif option.arg.endswith(",..."):
            action = "_values -s , %s %s" % (option.arg.partition(",")[0], " ".join(kind))
        else:
            action = "(%s)" % " ".join(kind)
        text += "]:%s:%s" % (option.arg, action)
    text = "[" + text + ("]" if kind is None else "")
    before = "*" if option.many else "(%s)" % " ".join(names) if len(names) > 1 else ""
    quoted = "'" + text.replace("'", "'\\''") + "'"
    spelled = "{%s}" % ",".join(shown) if len(shown) > 1 else shown[0]
    return ("'%s'" % before if before else "") + spelled + quoted


def _zsh_operands(command):
    if command in PRECOMMANDS:
        return ["'(-)1:command: _command_names -e'", "'*::argument: _normal'"]
    return {"mxq-ctl": ["'1:verb: _mxq_verb'", "'*:job: _mxq_jobs_of_verb'"],
            "mxq-wait": ["'*:job: _mxq_jobs %s'" % ",".join(LIVE)]}.get(command, [])


def fill_zsh():
    """What goes into the template for zsh."""
    cases = []
    for command in COMMANDS:
        # Only mxq-ctl takes options after its first operand.
        flags = "-s -S" if command == "mxq-ctl" else "-s -S -A '-*'"
        specs = [_zsh_option(option) for option in list_options(command)] + _zsh_operands(command)
        cases.append("    %s)\n        _arguments %s : \\\n            %s\n        ;;" % (
            command, flags, " \\\n            ".join(specs)))
    return {
        "cases": "\n".join(cases),
        "states": "\n".join("        %s) _mxq_jobs %s ;;" % (verb, ",".join(states))
                            for verb, states in VERBS.items() if states),
    }


# ---- fish ----

FISH_VALUES = {"file": "-rF", "directory": "-xa '(__fish_complete_directories)'",
               "command": "-xa '(__fish_complete_command)'", "group": "-xa '(__mxq_groups)'",
               "jobs": "-xka '(__mxq_jobs)'", "any": "-x"}


def _fish_option(command, option):
    words = ["complete -c", command]
    if command in PRECOMMANDS:
        words.append("-n __mxq_no_operand")
    words += ["-s " + option.short] if option.short else []
    words += ["-l " + option.long] if option.long else []
    kind = kind_of(option)
    if isinstance(kind, tuple):
        choices = " ".join(kind)
        words.append("-xa '(__fish_append , %s)'" % choices if option.arg.endswith(",...") else "-xa '%s'" % choices)
    elif kind is not None:
        words.append(FISH_VALUES[kind])
    return " ".join(words + ["-d '%s'" % option.help.replace("\\", "\\\\").replace("'", "\\'")])


def _fish_operands(command):
    if command in PRECOMMANDS:
        return ["complete -c %s -xa '(__mxq_command)'" % command]
    lines = ["complete -c %s -f" % command]
    if command == "mxq-wait":
        lines.append("complete -c mxq-wait -xka '(__mxq_jobs %s)'" % ",".join(LIVE))
    elif command == "mxq-ctl":
        lines.append("complete -c mxq-ctl -n __mxq_no_operand -xa '%s'" % " ".join(VERBS))
        lines += ["complete -c mxq-ctl -n '__mxq_verb %s' -xka '(__mxq_jobs %s)'" % (verb, ",".join(states))
                  for verb, states in VERBS.items() if states]
    return lines


def fill_fish():
    """What goes into the template for fish."""
    return {
        "takes": "\n".join("set -g __mxq_takes_%s %s" % (command.replace("-", "_"), " ".join(takes(command)))
                           for command in COMMANDS),
        "completions": "\n\n".join("\n".join(_fish_operands(command) + [
            _fish_option(command, option) for option in list_options(command)]) for command in COMMANDS),
    }


def read(path):
    """The text of a file."""
    with open(path, encoding="utf-8") as file:
        return file.read()


def main(argv):
    """Write the files, or compare them; return the exit status."""
    status = 0
    for name, fill in (("mxq.bash", fill_bash), ("_mxq", fill_zsh), ("mxq.fish", fill_fish)):
        template = read(os.path.join(TREE, "tools/completions", name + ".in"))
        text = template % dict(fill(), commands=" ".join(COMMANDS), verbs=" ".join(VERBS))
        path = os.path.join(TREE, "contrib/completions", name)
        if argv != ["--check"]:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        elif not os.path.exists(path) or read(path) != text:
            print("contrib/completions/%s is not what the option tables say: run make completions" % name)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
