"""The mxq-runs that live here: each holds a lock in runners/, whose file is one line of JSON, its process reference."""

import os
import time

from mxqlib import clock, exits, lock, place

_WRITE_S = 2.0          # how long one that just started may take to write its reference down


def living(base, complain):
    """The references of the mxq-runs of a base directory; `wait` is true for those with --wait.

    What cannot be read is told to `complain(status, text)`.
    """
    folder, found = place.runners(base), []
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return found
    for name in names:
        if name.startswith("mxq-run.") and name.endswith(".lock"):
            reference = _ask(folder, name, complain)
            if reference is not None:
                found.append(reference)
    return found


def _ask(folder, name, complain):
    until_s = clock.boot_s() + _WRITE_S
    while lock.is_held(folder, name):       # one that is not held was left by a dead process
        reference = _read(os.path.join(folder, name))
        if reference is not None:
            return reference
        if clock.boot_s() > until_s:
            complain(exits.DATA, "%s: held by somebody, and does not say by whom" % os.path.join(folder, name))
            return None
        time.sleep(0.01)                    # it is just being written
    return None


def _read(path):
    import json
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            found = json.loads(file.read(4096))
    except (OSError, ValueError):
        return None
    fits = found.__class__ is dict and found.get("pid").__class__ is int and found.get("host").__class__ is str
    return found if fits else None
