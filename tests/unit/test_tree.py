"""tree: every process of a job is hit, nested runs in their own way, and nobody else."""

import pytest

from tests.harness.snippet import run_snippet

# Children of the snippet that tell on `told` what they got, under a name of their own.
START = """
    import time
    from mxqlib import process, signals
    from mxqlib.tree import Tree
    process.become_subreaper()
    heard, told = os.pipe()

    def start(name, below=None):
        ready, go = os.pipe()
        pid = os.fork()
        if pid == 0:
            process.set_name(name)
            signals.block(signals.CATCHABLE)
            inner = start(*below) if below else None
            os.write(go, b"x")
            while True:
                info = signals.wait(signals.CATCHABLE)
                os.write(told, b"%s %s\\n" % (name.encode(), signals.name(info.si_signo).encode()))
        os.read(ready, 1)
        return pid

    def listen(count):
        lines = b""
        while lines.count(b"\\n") < count:
            lines += os.read(heard, 1000)
        os.set_blocking(heard, False)
        try:
            lines += os.read(heard, 1000)
        except BlockingIOError:
            pass
        os.set_blocking(heard, True)
        return sorted(lines.decode().splitlines())

    def end():
        for seen in process.descendants(os.getpid()):
            process.send(seen, 9)

    tree = Tree(os.getpid())
    """


@pytest.mark.parametrize("number, wanted", [
    ("TERM", ["job CONT", "job TERM", "mxq-reaper USR1"]),
    ("CONT", ["job CONT", "mxq-reaper CONT"]),
    ("XCPU", ["job CONT", "job XCPU", "mxq-front XCPU"])])
def test_each_is_told_in_its_own_way(sandbox, number, wanted):
    done = run_snippet(sandbox, START + """
    start("job")
    start("mxq-front", ("mxq-reaper", ("hidden",)))
    tree.hit(signals.%s)
    print(listen(%d))
    end()
    """ % (number, len(wanted)))
    assert done.stdout == "%r\n" % wanted


def test_what_is_below_an_inner_reaper_is_its_own_business(sandbox):
    done = run_snippet(sandbox, START + """
    start("job", ("child",))
    start("mxq-front", ("mxq-reaper", ("hidden",)))
    print(sorted(each.comm for each in tree.members()))
    end()
    """)
    assert done.stdout == "['child', 'job', 'mxq-front', 'mxq-reaper']\n"


def test_stop_and_kill(sandbox):
    done = run_snippet(sandbox, START + """
    job, front = start("job"), start("mxq-front", ("mxq-reaper",))
    tree.hit(signals.STOP)
    while process.look(job).state != "T":
        pass
    print(listen(1))
    tree.kill()
    tree.kill()                 # the inner reaper is not told again at once: a second USR2 gives its record up
    print(listen(1))
    os.waitpid(job, 0)
    print(sorted(each.comm for each in tree.members()))
    end()
    """)
    assert done.stdout == "['mxq-reaper TSTP']\n['mxq-reaper USR2']\n['mxq-front', 'mxq-reaper']\n"


def test_strangers_and_what_is_below_them_are_spared(sandbox):
    done = run_snippet(sandbox, START + """
    stranger = start("stranger", ("child",))
    job = start("job")
    tree = Tree(os.getpid(), {stranger})
    print([each.comm for each in tree.members()])
    tree.kill()
    print(os.waitpid(-1, 0) == (job, 9))
    end()
    """)
    assert done.stdout == "['job']\nTrue\n"


def test_only_what_term_or_kill_was_meant_for_is_left_over(sandbox):
    done = run_snippet(sandbox, START + """
    start("job")
    tree.hit(signals.TERM)
    tree.leftovers = set()
    tree.hit(signals.CONT)
    print(len(tree.leftovers))
    tree.hit(signals.TERM)
    tree.hit(signals.TERM)
    print(len(tree.leftovers))
    end()
    """)
    assert done.stdout == "0\n1\n"


def test_those_that_fork_while_they_are_killed_are_stopped_first(sandbox):
    done = run_snippet(sandbox, START + """
    def fork_on():
        while True:
            if os.fork():
                os._exit(0)
    for _ in range(4):
        if os.fork() == 0:
            fork_on()
    deadline = time.monotonic() + 10
    rounds = 0
    while time.monotonic() < deadline:
        tree.kill()
        rounds += 1
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            print("all gone")
            break
    end()
    """)
    assert done.stdout == "all gone\n"
