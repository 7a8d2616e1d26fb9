"""Run a command of bin/ with gates where a tracer can step in.

    python3 -IS gate.py CONTROL SCRIPT ARGUMENT...

Every process that the command forks has an ordinal path: `-` is the process
started here, `0` the first one it forks, `0.0` the first one that one forks.
Those whose path is a FIFO in CONTROL stop at their gate: they tell path and
pid through CONTROL/hello and wait for one byte in CONTROL/PATH. Meanwhile
strace attaches to exactly this process, so that a fault strikes the reaper and
not the front, although strace counts calls per process and both make the same.

The program is not changed: the statements of SCRIPT are executed as they are.
The gate of `-` is before the last one (`run(main)`), after the imports, so
that the interpreter's start-up is not among the numbered calls. A gate is
readv(2), which nothing else here uses, and two close(2): OFFSETS in strace.py.
"""

import os
import posix
import sys

CONTROL = sys.argv[1]
SCRIPT = sys.argv[2]


def wait_at_gate(path):
    """Tell who we are and wait to be let in; no gate for this path: nothing."""
    try:
        go = os.open(os.path.join(CONTROL, path), os.O_RDONLY)
    except FileNotFoundError:
        return
    hello = os.open(os.path.join(CONTROL, "hello"), os.O_WRONLY)
    os.write(hello, b"%s %d\n" % (path.encode(), os.getpid()))
    os.readv(go, [bytearray(1)])
    os.close(go)
    os.close(hello)


class Fork:
    """os.fork() that knows which child of which process it makes."""

    def __init__(self):
        self.fork = os.fork
        self.path = ()
        self.forked = 0

    def __call__(self):
        ordinal = self.forked
        self.forked += 1
        pid = self.fork()
        if pid == 0:
            self.path += (str(ordinal),)
            self.forked = 0
            wait_at_gate(".".join(self.path))
        return pid


def main():
    """Execute SCRIPT as __main__, its last statement behind the gate."""
    sys.argv[:] = sys.argv[2:]
    os.fork = posix.fork = Fork()
    with open(SCRIPT, encoding="utf-8") as file:
        text = file.read()
    only_ast = 0x400    # ast.PyCF_ONLY_AST, without importing ast into the command
    tree = compile(text, SCRIPT, "exec", only_ast)
    last = tree.body.pop()
    names = {"__name__": "__main__", "__file__": SCRIPT, "__builtins__": __builtins__}
    exec(compile(tree, SCRIPT, "exec"), names)
    tree.body[:] = [last]
    code = compile(tree, SCRIPT, "exec")
    del tree, text
    wait_at_gate("-")
    exec(code, names)


main()
