"""Order lint: what must be on the disk before something else may happen.

Each rule reads a list of calls (strace.record) and returns the violations as
texts, none when the order is right. A crash test can miss these: after a
SIGKILL the page cache is still there.
"""

import os

WRITES = ("write", "writev", "pwrite64", "pwritev", "ftruncate", "fallocate")
SYNCS = ("fsync", "fdatasync")
ENTRIES = ("rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat", "mkdir", "mkdirat")


class Dirty:
    """What is not on the disk yet, by path: files with data, directories with changed entries."""

    def __init__(self):
        self.files, self.folders = {}, {}

    def see(self, call):
        """Take account of one call that succeeded."""
        if call.name in WRITES and call.paths:
            self.files[call.paths[0]] = call
        elif call.name in SYNCS and call.paths:
            self.files.pop(call.paths[0], None)
            self.folders.pop(call.paths[0], None)
        elif call.name in ENTRIES:
            for path in call.paths:
                self.folders[os.path.dirname(path)] = call
            if call.name.startswith("rename"):
                source, target = call.paths
                self.files.pop(target, None)
                if source in self.files:
                    self.files[target] = self.files.pop(source)
            elif call.name.startswith("unlink"):
                self.files.pop(call.paths[0], None)
        elif "O_CREAT" in call.flags() and call.paths:
            self.folders.setdefault(os.path.dirname(call.paths[0]), call)


def succeeded(calls):
    """The calls that had an effect, in the order in which they returned."""
    done = [call for call in calls if call.ended is not None and call.ret is not None and call.ret >= 0]
    return sorted(done, key=lambda call: call.ended)


def unsynced_renames(calls, root):
    """Renames below `root` of a file with data that is not on the disk."""
    dirty, found = Dirty(), []
    for call in succeeded(calls):
        if call.name.startswith("rename") and call.paths[1].startswith(root) and call.paths[0] in dirty.files:
            found.append("%s, but not synced: %s" % (call, dirty.files[call.paths[0]]))
        dirty.see(call)
    return found


def early_promises(calls, root, promise):
    """Promises (calls that `promise` is true of) before anything came under a name below `root`, or while something
    there is not on the disk. Names that begin with a dot do not count: readers pass them over.
    """
    dirty, found, named = Dirty(), [], False
    for call in succeeded(calls):
        if promise(call):
            if not named:
                found.append("%s, but nothing has a name yet" % call)
            owed = [owner for path, owner in dirty.files.items() if below(path, root) and not hidden(path)]
            owed += [owner for path, owner in dirty.folders.items()
                     if below(path, root) and not all(map(hidden, owner.paths))]
            found += ["%s, but not synced: %s" % (call, owner) for owner in owed]
        if call.name in ENTRIES and below(call.paths[-1], root) and not hidden(call.paths[-1]):
            named = True
        dirty.see(call)
    return found


def below(path, root):
    """True of the root and everything in it."""
    return (path + "/").startswith(root.rstrip("/") + "/")


def hidden(path):
    """True of names that readers pass over."""
    return os.path.basename(path).startswith(".")


def early_unlinks(calls, folder, database):
    """Files of `folder` that were removed or moved away while the database owes the disk something.

    database: path of its main file; its -wal and -journal count too, its -shm is no promise of anything.
    """
    dirty, found = Dirty(), []
    for call in succeeded(calls):
        gone = call.name.startswith("unlink") or (call.name.startswith("rename")
                                                  and not call.paths[1].startswith(folder))
        if gone and os.path.dirname(call.paths[0]) == folder:
            owed = [owner for path, owner in dirty.files.items()
                    if path.startswith(database) and not path.endswith("-shm")]
            found += ["%s, but not synced: %s" % (call, owner) for owner in owed]
        dirty.see(call)
    return found


def early_words(calls, database, promise):
    """Promises (calls that `promise` is true of) while the database owes the disk something; as early_unlinks()."""
    dirty, found = Dirty(), []
    for call in succeeded(calls):
        if promise(call):
            owed = [owner for path, owner in dirty.files.items()
                    if path.startswith(database) and not path.endswith("-shm")]
            found += ["%s, but not synced: %s" % (call, owner) for owner in owed]
        dirty.see(call)
    return found
