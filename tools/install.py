"""install.py [--prefix DIR] [--destdir DIR] [--python FILE] install|uninstall: what make calls.

Installs commands, library, pages and documents below PREFIX, and writes what it made to
PREFIX/lib/mxq/installed; uninstall removes exactly that. Every file is renamed into place: a command
that runs meanwhile has the old file or the new one. A newer version removes what the older one had
and it has not. The commands find the library from where they are themselves.

DESTDIR is put before every path and is written nowhere: packages are made that way.
"""

import os
import py_compile
import re
import shutil
import subprocess
import sys

TREE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIBRARY = "lib/mxq"
LIST = LIBRARY + "/installed"
DOCUMENTS = ("README.md", "NEWS.md", "LICENSE", "doc")
EXAMPLES = ("crontab", "logrotate", "systemd")      # of contrib
PATH_LINE = re.compile(r"^sys\.path\.insert\(0, (.*)\)$", re.MULTILINE)
OLDEST = (3, 9)


class Failure(Exception):
    """Nothing can be installed; the text says why."""


class Installation:
    """Files and folders below one prefix."""

    def __init__(self, prefix, destdir, python):
        self.prefix = prefix
        self.root = destdir + prefix if destdir else prefix
        self.python = python
        self.files = []
        self.folders = []

    def full(self, name):
        """Where a name relative to the prefix is put."""
        return os.path.join(self.root, name)

    def make_folder(self, name):
        """Make a folder below the prefix, and those above it; remember the new ones."""
        if not os.path.isdir(self.full(name)):
            if name:
                self.make_folder(os.path.dirname(name))
            else:
                os.makedirs(os.path.dirname(self.root), exist_ok=True)
            os.mkdir(self.full(name), 0o755)
            os.chmod(self.full(name), 0o755)
            self.folders.append(name)

    def put(self, name, data, mode=0o644):
        """Write a file whole and rename it into place, readable by all whatever the umask."""
        self.make_folder(os.path.dirname(name))
        part = self.full(name) + ".part"
        with open(part, "wb") as file:
            file.write(data)
        os.chmod(part, mode)
        os.rename(part, self.full(name))
        self.files.append(name)

    def put_link(self, name, target):
        """Make a symbolic link and rename it into place."""
        part = self.full(name) + ".part"
        try:
            os.unlink(part)
        except FileNotFoundError:
            pass
        os.symlink(target, part)
        os.rename(part, self.full(name))
        self.files.append(name)

    def put_tree(self, source, name):
        """Put a file, or all of a folder that is meant for users."""
        if os.path.isdir(source):
            for entry in sorted(os.listdir(source)):
                if not entry.startswith((".", "__pycache__")):
                    self.put_tree(os.path.join(source, entry), name + "/" + entry)
        elif os.path.exists(source):
            self.put(name, read(source), 0o755 if os.access(source, os.X_OK) else 0o644)

    def put_commands(self):
        """The wrappers, with the interpreter and the way from them to the library written into them."""
        for name in list_names("bin", "mxq-"):
            text = read(os.path.join(TREE, "bin", name)).decode("utf-8")
            body, found = PATH_LINE.subn(r'sys.path.insert(0, \1 + "/%s")' % LIBRARY, text)
            if found != 1 or not body.startswith("#!"):
                raise Failure("bin/%s is not a wrapper as all others are" % name)
            shebang = "#!%s -IS\n" % self.python
            self.put("bin/" + name, (shebang + body.partition("\n")[2]).encode("utf-8"), 0o755)

    def put_library(self):
        """The package, compiled: without byte code every start would compile it again."""
        for folder, folders, names in os.walk(os.path.join(TREE, "mxqlib")):
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            inner = os.path.relpath(folder, TREE)
            for name in sorted(names):
                if name.endswith(".py"):
                    self.put("/".join((LIBRARY, inner, name)), read(os.path.join(folder, name)))
        sources = [name for name in self.files if name.endswith(".py")]
        for name in sources:
            self.make_folder(os.path.dirname(name) + "/__pycache__")
        done = subprocess.run([self.python, "-IS", os.path.abspath(__file__), "compile"], encoding="utf-8",
                              input="".join("%s\0%s\n" % (self.full(name), self.prefix + "/" + name)
                                            for name in sources), stdout=subprocess.PIPE, check=False)
        if done.returncode:
            raise Failure("%s cannot compile the library" % self.python)
        for line in done.stdout.splitlines():
            os.chmod(line, 0o644)
            self.files.append(os.path.relpath(line, self.root))

    def put_documents(self):
        """Pages and documents."""
        for name in list_names("man", ""):
            if re.search(r"\.[1-8]$", name):
                self.put_tree(os.path.join(TREE, "man", name), "share/man/man%s/%s" % (name[-1], name))
        for name in DOCUMENTS:
            self.put_tree(os.path.join(TREE, name), "share/doc/mxq/" + os.path.basename(name))
        for name in EXAMPLES:
            self.put_tree(os.path.join(TREE, "contrib", name), "share/doc/mxq/examples/" + name)

    def put_completions(self):
        """For bash and fish a file with the name of each command: they load what a command needs by its name."""
        folder = os.path.join(TREE, "contrib/completions")
        commands = list_names("bin", "mxq-")
        for shell, place, ending in (("bash", "share/bash-completion/completions/", ""),
                                     ("fish", "share/fish/vendor_completions.d/", ".fish")):
            first = place + commands[0] + ending
            self.put_tree(os.path.join(folder, "mxq." + shell), first)
            for name in commands[1:]:
                self.put_link(place + name + ending, os.path.basename(first))
        self.put_tree(os.path.join(folder, "_mxq"), "share/zsh/site-functions/_mxq")

    def read_list(self):
        """Files and folders of the installation that is there."""
        try:
            names = read(self.full(LIST)).decode("utf-8", "surrogateescape").splitlines()
        except FileNotFoundError:
            return [], []
        return ([name for name in names if not name.endswith("/")],
                [name[:-1] for name in names if name.endswith("/")])

    def put_all(self):
        """Put everything; the commands last: what they need is there then."""
        self.put_library()
        self.put_documents()
        self.put_completions()
        self.put_commands()

    def install(self):
        """Put everything and the list of it; then remove what only the version before had."""
        old_files, old_folders = self.read_list()
        self.put_all()
        self.files.append(LIST)
        folders = set(self.folders) | set(old_folders)
        self.put(LIST, "".join(["%s\n" % name for name in sorted(set(self.files))]
                               + ["%s/\n" % name for name in sorted(folders)]).encode("utf-8", "surrogateescape"))
        self.remove(sorted(set(old_files) - set(self.files)), [])

    def uninstall(self):
        """Remove what the list names, the list last: an interrupted one can be run again."""
        files, folders = self.read_list()
        if not files:
            raise Failure("not installed: no %s" % self.full(LIST))
        self.remove([name for name in files if name != LIST], [])
        self.remove([LIST], folders)

    def remove(self, files, folders):
        """Remove files, and folders that are empty then, the inner ones first."""
        for name in files:
            try:
                os.unlink(self.full(name))
            except FileNotFoundError:
                pass
        for name in sorted(folders, key=len, reverse=True):
            if name.endswith("/__pycache__"):
                # What root's Python put there after an upgrade of Python is ours too.
                self.remove(["%s/%s" % (name, entry) for entry in os.listdir(self.full(name))], [])
            try:
                os.rmdir(self.full(name))
            except OSError:
                pass    # somebody else has something in it


def read(path):
    """The bytes of a file."""
    with open(path, "rb") as file:
        return file.read()


def list_names(folder, prefix):
    """The names in a folder of the tree that start with `prefix`; none when there is no such folder."""
    try:
        return sorted(name for name in os.listdir(os.path.join(TREE, folder)) if name.startswith(prefix))
    except FileNotFoundError:
        return []


def find_python(name):
    """The absolute path of the interpreter; it must be one that a #! line can name, and new enough."""
    path = shutil.which(name)
    if path is None:
        raise Failure("no such program: %s" % name)
    path = os.path.abspath(path)
    if re.search(r"\s", path) or len(path) > 120:
        raise Failure("a #! line cannot name this interpreter: %s" % path)
    code = "import sys, sqlite3; sys.exit(sys.version_info < %r)" % (OLDEST,)
    if subprocess.run([path, "-IS", "-c", code], check=False).returncode:
        raise Failure("not a Python %d.%d or newer with sqlite3: %s" % (OLDEST + (path,)))
    return path


def compile_all(stream):
    """Compile files, each given as its place and the name to show in tracebacks; print what was made."""
    for line in stream:
        place, _, shown = line.rstrip("\n").partition("\0")
        print(py_compile.compile(place, dfile=shown, doraise=True))
    return 0


def main(argv):
    """Do what is asked for and return the exit status."""
    options = {"--prefix": "/usr/local", "--destdir": "", "--python": "/usr/bin/python3"}
    while len(argv) > 1 and argv[0] in options:
        options[argv[0]] = argv[1]
        argv = argv[2:]
    if argv == ["compile"]:
        return compile_all(sys.stdin)
    if argv not in (["install"], ["uninstall"]):
        raise Failure("install or uninstall?")
    prefix = os.path.abspath(options["--prefix"] or "/")
    destdir = os.path.abspath(options["--destdir"]) if options["--destdir"] else ""
    if argv == ["install"]:
        Installation(prefix, destdir, find_python(options["--python"])).install()
    else:
        Installation(prefix, destdir, None).uninstall()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Failure as failure:
        print("install.py: error: %s" % failure, file=sys.stderr)
        sys.exit(1)
    except OSError as failure:
        advice = ": as root, or with PREFIX=$HOME/.local" if isinstance(failure, PermissionError) else ""
        print("install.py: error: cannot write %s: %s%s" % (failure.filename, failure.strerror, advice),
              file=sys.stderr)
        sys.exit(1)
