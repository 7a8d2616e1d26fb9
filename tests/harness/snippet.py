"""Lines of Python that use mxqlib in a process of their own: pytest's signals, limits and descriptors stay as they are.

    done = run_snippet(sandbox, '''
        from mxqlib import signals
        signals.block([signals.TERM])
        ''')
    assert done.stdout == ""
"""

import sys
import textwrap

from tests.harness.sandbox import TREE

# The interpreter as bin/ starts it: isolated, no site.
START = "import os, sys; sys.path.insert(0, %r)\n" % str(TREE)


def run_snippet(sandbox, code, *argv, check=True, **kw):
    """Run the lines (dedented) with the interpreter of the tests and return a CompletedProcess."""
    return sandbox.run(sys.executable, "-IS", "-c", START + textwrap.dedent(code), *argv, check=check, **kw)


def spawn_snippet(sandbox, code, *argv, **kw):
    """Start the lines and return the Popen."""
    return sandbox.spawn(sys.executable, "-IS", "-c", START + textwrap.dedent(code), *argv, **kw)
