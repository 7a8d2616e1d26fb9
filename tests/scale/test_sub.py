"""A million lines into the queue: at the promised rate, and without more memory for more lines."""

import os
import re

import pytest

LINES = 1000000
PER_SECOND = 100000     # of processor time: the machine may be busy with other tests


@pytest.mark.timeout_s(600)
def test_a_million_lines(sandbox):
    few, many = sandbox.work / "few", sandbox.work / "many"
    few.write_text("".join("echo %d\n" % n for n in range(LINES // 4)))
    many.write_text("".join("echo %d\n" % n for n in range(LINES)))
    (_, few_kib), (seconds, many_kib) = submit(sandbox, few), submit(sandbox, many)
    assert sandbox.queue("SELECT count(*) FROM job")[0][0] == LINES // 4 + LINES
    assert many_kib < 1.25 * few_kib, (few_kib, many_kib)
    assert LINES / seconds > PER_SECOND, "%d lines a second" % (LINES / seconds)


@pytest.mark.timeout_s(600)
def test_a_pipe_costs_no_memory_either(sandbox):
    memory_kib = []
    for count in (LINES // 4, LINES):
        done = sandbox.run("sh", "-c", "seq %d | sed 's/^/echo /' | %s mxq-sub -f - >/dev/null" % (count, TIME),
                           timeout_s=300, check=True)
        memory_kib.append(int(re.search(r"kib (\d+)", done.stderr).group(1)))
    assert memory_kib[1] < 1.25 * memory_kib[0], memory_kib


# A process that runs another one and tells its processor time and largest resident size.
TIME = "python3 -c 'import resource, subprocess, sys; status = subprocess.call(sys.argv[1:]); " \
       "used = resource.getrusage(resource.RUSAGE_CHILDREN); print(\"seconds\", used.ru_utime + used.ru_stime, " \
       "\"kib\", used.ru_maxrss, file=sys.stderr); sys.exit(status)'"


def submit(sandbox, path):
    """(seconds of processor time, KiB of resident memory at most) of one mxq-sub -f."""
    done = sandbox.run("sh", "-c", "%s mxq-sub -f %s >numbers" % (TIME, path.name), timeout_s=300, check=True)
    with open(sandbox.work / "numbers", "rb") as file, open(path, "rb") as lines:
        assert sum(1 for _ in file) == sum(1 for _ in lines)
    os.unlink(sandbox.work / "numbers")
    seconds, kib = re.search(r"seconds ([\d.]+) kib (\d+)", done.stderr).groups()
    return float(seconds), int(kib)
