"""A folder as system calls change it: what is seen now, and what is on the disk for certain.

A file system as weak as POSIX allows (powerloss.py says how weak, and what is
left out). Descriptors are followed through dup, fork, append and seek.
"""

import itertools
import os


class Inode:
    """A file or directory; `base` is what is on the disk for certain.

    base of a file: bytes; of a directory: {name: Inode}. pending: operations
    since, in their order; doomed: those of them that a failed fsync has marked
    clean, so that no later one brings them to the disk for certain (fsync(2)).
    """

    def __init__(self, base):
        self.base, self.pending, self.doomed = base, [], []

    @property
    def is_folder(self):
        """True of a directory."""
        return isinstance(self.base, dict)

    def sync(self):
        """Everything pending that is not doomed is on the disk now."""
        self.base = apply(self.base, [each for each in self.pending if each not in self.doomed])
        self.pending = list(self.doomed)

    def fail_to_sync(self):
        """An fsync reported that what is pending may be lost."""
        self.doomed = list(self.pending)

    def now(self):
        """What a reader sees: base and all that is pending."""
        return apply(self.base, self.pending)

    def variants(self, strict):
        """What may be on the disk after a power cut, without doubles."""
        found = []
        count = len(self.pending)
        choices = [self.pending[:length] for length in range(count + 1)]
        if strict:
            choices = [list(some) for length in range(count + 1)
                       for some in itertools.combinations(self.pending, length)]
        for chosen in choices:
            found.append(apply(self.base, chosen))
            if chosen and chosen[-1][0] == "write" and len(chosen[-1][2]) > 1:
                _kind, offset, data = chosen[-1]
                found.append(apply(self.base, chosen[:-1] + [("write", offset, data[:len(data) // 2])]))
        distinct = []
        for content in found:
            if content not in distinct:
                distinct.append(content)
        return distinct


def apply(base, operations):
    """Content after operations: write, truncate, grow of a file; enter, leave of a directory."""
    if isinstance(base, dict):
        content = dict(base)
        for operation in operations:
            for kind, name, inode in operation[1]:
                if kind == "enter":
                    content[name] = inode
                else:
                    content.pop(name, None)
        return content
    content = bytearray(base)
    for operation in operations:
        if operation[0] == "write":
            _kind, offset, data = operation
            content.extend(bytes(max(0, offset - len(content))))
            content[offset:offset + len(data)] = data
        elif operation[0] == "truncate":
            del content[operation[1]:]
            content.extend(bytes(operation[1] - len(content)))
        elif operation[0] == "grow":
            content.extend(bytes(max(0, operation[1] - len(content))))
    return bytes(content)


class Description:
    """An open file description: forked and duplicated descriptors share it."""

    def __init__(self, inode, flags):
        self.inode, self.offset = inode, 0
        self.append = "O_APPEND" in flags
        self.synced = bool({"O_SYNC", "O_DSYNC"} & flags)


class Disk:
    """The folder `root` as the calls of a trace change it."""

    def __init__(self, root):
        self.root = os.path.normpath(root)
        self.top = load(self.root)
        self.tables = {}
        self.parents = {}

    # --- names ----------------------------------------------------------------

    def below(self, path):
        """Path relative to the root as a list of names; None when elsewhere."""
        if path == self.root:
            return []
        if path.startswith(self.root + "/"):
            return path[len(self.root) + 1:].split("/")
        return None

    def find(self, path):
        """Inode of a path as it is now, or None."""
        names = self.below(path)
        inode = self.top if names is not None else None
        for name in names or ():
            inode = inode.now().get(name) if inode is not None and inode.is_folder else None
        return inode

    def entry(self, path):
        """(directory inode, name) of a path, or (None, None) when it is outside."""
        if not self.below(path):
            return None, None
        return self.find(os.path.dirname(path)), os.path.basename(path)

    def descriptor(self, call, fd):
        """The open file description of a descriptor, or None."""
        if call.pid not in self.tables:
            parent = self.parents.get(call.pid)
            self.tables[call.pid] = dict(self.tables.get(parent, {}))
        return self.tables[call.pid].get(fd)

    # --- calls ----------------------------------------------------------------

    def replay(self, call):
        """Do what one call did; returns True when it changed the disk or made it safer."""
        method = getattr(self, "do_" + call.name, None)
        description = self.descriptor(call, call.fd)
        if call.name in ("fsync", "fdatasync") and call.error and description is not None:
            description.inode.fail_to_sync()
        if method is None or call.ret is None or call.ret < 0:
            return False
        return bool(method(call))

    def do_openat(self, call):
        """A new description; with O_CREAT perhaps a new file."""
        flags = call.flags()
        path = call.paths[0]
        inode, changed = self.find(path), False
        folder, name = self.entry(path)
        if inode is None and folder is not None and "O_CREAT" in flags:
            inode, changed = Inode(b""), True
            folder.pending.append(("entries", [("enter", name, inode)]))
        elif inode is not None and "O_TRUNC" in flags and inode.now():
            inode.pending.append(("truncate", 0))
            changed = True
        self.tables[call.pid].pop(call.ret, None)
        if inode is not None:
            self.tables[call.pid][call.ret] = Description(inode, flags)
        return changed

    do_open = do_creat = do_openat

    def do_close(self, call):
        """The number is free again."""
        self.tables[call.pid].pop(call.fd, None)

    def do_dup2(self, call):
        """Two numbers, one description."""
        description = self.descriptor(call, call.fd)
        self.tables[call.pid].pop(call.ret, None)
        if description is not None:
            self.tables[call.pid][call.ret] = description

    do_dup = do_dup3 = do_dup2

    def do_fcntl(self, call):
        """F_DUPFD and F_DUPFD_CLOEXEC."""
        if call.args[1].startswith("F_DUPFD"):
            self.do_dup2(call)

    def write_at(self, call, offset):
        """Data at an offset, or where the description stands."""
        description = self.descriptor(call, call.fd)
        data = call.data()
        if description is None or not data:
            return False
        if offset is None:
            offset = len(description.inode.now()) if description.append else description.offset
            description.offset = offset + len(data)
        description.inode.pending.append(("write", offset, data))
        if description.synced:
            description.inode.sync()
        return True

    def do_write(self, call):
        """At the offset of the description."""
        return self.write_at(call, None)

    do_writev = do_write

    def do_pwrite64(self, call):
        """At an offset of its own."""
        return self.write_at(call, int(call.args[3]))

    def do_lseek(self, call):
        """The result is the new offset, whatever it was counted from."""
        description = self.descriptor(call, call.fd)
        if description is not None:
            description.offset = call.ret

    def do_read(self, call):
        """Moves the offset."""
        description = self.descriptor(call, call.fd)
        if description is not None:
            description.offset += call.ret

    def do_ftruncate(self, call):
        """Cut or grow to a size."""
        return self.resize(call, "truncate", int(call.args[1]))

    def do_fallocate(self, call):
        """Grow; with KEEP_SIZE the content stays as it is."""
        if "KEEP_SIZE" in call.args[1]:
            return False
        return self.resize(call, "grow", int(call.args[2]) + int(call.args[3]))

    def resize(self, call, kind, size):
        """A pending change of the size of an open file."""
        description = self.descriptor(call, call.fd)
        if description is None:
            return False
        description.inode.pending.append((kind, size))
        return True

    def do_rename(self, call):
        """Atomic inside one directory."""
        source, target = call.paths
        inode = self.find(source)
        (old, old_name), (new, new_name) = self.entry(source), self.entry(target)
        leave, enter = [("leave", old_name, None)], [("enter", new_name, inode)]
        if old is not None and old is new:
            old.pending.append(("entries", leave + enter))
        else:
            if old is not None:
                old.pending.append(("entries", leave))
            if new is not None and inode is not None:
                new.pending.append(("entries", enter))
        return True

    do_renameat = do_renameat2 = do_rename

    def do_link(self, call):
        """A second name."""
        inode = self.find(call.paths[0])
        folder, name = self.entry(call.paths[1])
        if inode is None or folder is None:
            return False
        folder.pending.append(("entries", [("enter", name, inode)]))
        return True

    do_linkat = do_link

    def do_unlink(self, call):
        """One name less."""
        folder, name = self.entry(call.paths[0])
        if folder is None:
            return False
        folder.pending.append(("entries", [("leave", name, None)]))
        return True

    do_unlinkat = do_rmdir = do_unlink

    def do_mkdir(self, call):
        """A new, empty directory."""
        folder, name = self.entry(call.paths[0])
        if folder is None:
            return False
        folder.pending.append(("entries", [("enter", name, Inode({}))]))
        return True

    do_mkdirat = do_mkdir

    def do_fsync(self, call):
        """What this inode owed is on the disk."""
        description = self.descriptor(call, call.fd)
        if description is None:
            return False
        description.inode.sync()
        return True

    do_fdatasync = do_fsync

    def do_sync(self, _call):
        """Everything is on the disk."""
        for inode in reachable(self.top):
            inode.sync()
        return True

    do_syncfs = do_sync


def load(path):
    """A folder with all that is in it, taken for safe; links and FIFOs are left out."""
    content = {}
    if not os.path.isdir(path):
        return Inode(content)
    for entry in os.scandir(path):
        if entry.is_dir(follow_symlinks=False):
            content[entry.name] = load(entry.path)
        elif entry.is_file(follow_symlinks=False):
            with open(entry.path, "rb") as file:
                content[entry.name] = Inode(file.read())
    return Inode(content)


def reachable(top):
    """Every inode that some variant of the tree names, each once."""
    seen, todo = [], [top]
    while todo:
        inode = todo.pop()
        if any(inode is other for other in seen):
            continue
        seen.append(inode)
        if inode.is_folder:
            named = list(inode.base.values())
            for operation in inode.pending:
                named += [entry[2] for entry in operation[1] if entry[2] is not None]
            todo += named
    return seen
