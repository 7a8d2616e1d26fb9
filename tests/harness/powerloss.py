"""Disk states that a power cut may leave, rebuilt from the trace of one run.

    trace = powerloss.record(workload, promise=told_the_front)
    for state in powerloss.states(trace):
        state.materialise(folder)
        check(folder, state.promises)

The model is a file system as weak as POSIX allows, after ALICE (OSDI 2014), in
small. What a run did below the root folder is cut after each of its calls. Of
the data of a file, what was fsynced is kept; of what came later each prefix may
be on the disk, its last write torn in the middle, or nothing. Of the entries of
a directory, what was done before the last fsync of that directory is kept; of
what came later each prefix (strict: each subset). Files and directories are
independent of each other: a name may be there without its data. A rename inside
one directory is atomic; between two directories both ends are on their own.

A promise is a call that tells somebody else that the outcome is safe. What was
promised must be there, what was not may be missing, but must not be half-there.

Not modelled: mmap (so no SQLite files: they are checked by order lint and
integrity_check), links to inodes that were there before the run, O_TMPFILE,
mode and owner, bits that rot.
"""

import itertools
import os
import shutil

from tests.harness import strace
from tests.harness.calls import FORKS
from tests.harness.disk import Disk, reachable


class State:
    """A tree ({path: bytes, or None of a directory}), the promises made before it, and where the run was cut."""

    def __init__(self, tree, promises, after):
        self.tree, self.promises, self.after = tree, promises, after

    def materialise(self, folder):
        """Write the tree into `folder`, replacing what is there."""
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder, 0o700)
        for path, content in sorted(self.tree.items()):
            target = os.path.join(folder, path)
            if content is None:
                os.makedirs(target, 0o700, exist_ok=True)
            else:
                with open(os.open(target, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
                    file.write(content)

    def __str__(self):
        files = {path: content if content is None else "%d bytes" % len(content)
                 for path, content in sorted(self.tree.items())}
        return "power cut after %s; promised: %s; on the disk: %s" % (self.after, self.promises, files)


class Trace:
    """root as it was before the run, and the calls in the order in which they took effect."""

    def __init__(self, disk, calls, promises):
        self.disk, self.calls, self.promises = disk, calls, promises


def record(workload, root, promise=lambda call: None, **options):
    """Record one run; root: Sandbox -> folder; promise: Call -> a name for what it promises, or None."""
    held = []

    def prepare(sandbox):
        argv = workload(sandbox)
        held[:] = [Disk(str(root(sandbox)))]
        return argv

    calls = strace.record(prepare, again=False, **options)
    return Trace(held[0], [call for call in calls if call.ended is not None],
                 {id(call): promise(call) for call in calls if promise(call)})


def states(trace, strict=False):
    """Yield each distinct State once, with the promises made before the last cut that may leave it."""
    disk = trace.disk
    disk.parents = {call.ret: call.pid for call in trace.calls if call.name in FORKS and call.ret}
    found, promises = {}, []
    collect(disk, found, promises, "nothing", strict)
    for call in sorted(trace.calls, key=lambda call: call.ended):
        changed = disk.replay(call)
        if id(call) in trace.promises and not call.error:
            promises.append(trace.promises[id(call)])
            changed = True
        if changed:
            collect(disk, found, promises, call, strict)
    for state in found.values():
        yield state


def collect(disk, found, promises, after, strict):
    """Add all states of this instant; of equal trees the one with most promises is the hardest to satisfy."""
    for tree in trees(disk.top, strict):
        key = tuple(sorted(tree.items(), key=lambda item: item[0]))
        if key not in found or len(promises) > len(found[key].promises):
            found[key] = State(tree, tuple(promises), after)


def trees(top, strict):
    """All combinations of what the inodes may have become, as {path: content}."""
    inodes = [inode for inode in reachable(top) if inode.pending]
    for chosen in itertools.product(*(inode.variants(strict) for inode in inodes)):
        content = {id(inode): variant for inode, variant in zip(inodes, chosen)}
        yield flatten(top, content, "")


def flatten(inode, content, prefix):
    """{path: bytes or None} of a tree, with `content` in place of the bases."""
    tree = {}
    for name, child in content.get(id(inode), inode.base).items():
        path = prefix + name
        if child.is_folder:
            tree[path] = None
            tree.update(flatten(child, content, path + "/"))
        else:
            tree[path] = content.get(id(child), child.base)
    return tree
