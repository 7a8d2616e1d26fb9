"""Any bytes in command, directory and file names: executed byte for byte, and recorded."""

import json
import os
import shutil
import subprocess

import pytest

from mxqlib import record as records
from tests.harness.reaping import outcome

ODD = [b"", b" ", b"\n", b"\t", b"a\nb", b"\xff", b"\xe4", "\u00e4\u20ac\U0001f600".encode(), b"\xed\xb2\x80", b"'\"\\",
       b"$(x)`x`", b"%", b"*", b"-", b"--", b"-x", bytes(range(1, 256)), b"\xc3", b"\xf0\x9f\x98", b"\x1b[31m",
       b"\x7f\x80"]
LATIN = "de_DE.ISO-8859-1"


@pytest.fixture(scope="session")
def latin(tmp_path_factory):
    """A folder with a locale whose characters are single bytes; None where none can be made."""
    folder = tmp_path_factory.mktemp("locale")
    if shutil.which("localedef"):
        subprocess.run(["localedef", "-i", "de_DE", "-f", "ISO-8859-1", str(folder / LATIN)], check=False,
                       stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    seen = subprocess.run(["/usr/bin/python3", "-c", "import sys; print(sys.getfilesystemencoding())"], check=False,
                          env={"LOCPATH": str(folder), "LC_ALL": LATIN}, stdout=subprocess.PIPE).stdout
    return folder if b"8859" in seen else None


@pytest.fixture(params=["C.UTF-8", "C", "", LATIN, "no-such-locale"])
def locale(request, sandbox, latin):
    """Every command of the sandbox runs in this locale."""
    sandbox.env.pop("LANG")
    if request.param == LATIN:
        if latin is None:
            pytest.skip("machine cannot: no locale but UTF-8 and C (Debian package locales)")
        sandbox.env["LOCPATH"] = str(latin)
    if request.param:
        sandbox.env["LC_ALL"] = request.param
    return request.param


def fsdecoded(arguments):
    """As records and JSON have them."""
    return [argument.decode("utf-8", "surrogateescape") for argument in arguments]


def test_arguments_are_passed_on_and_recorded_byte_for_byte(sandbox, locale):
    show = ["/usr/bin/python3", "-IS", "-Xutf8", "-c",
            "import os, sys; os.write(1, b'\\0'.join(map(os.fsencode, sys.argv[1:])))"]
    done = sandbox.run("mxq-reap", *show, *ODD, text=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == b"\0".join(ODD)
    assert sandbox.record()["argv"] == show + fsdecoded(ODD)


NAMES = [b"with blank", b"new\nline", b"\xff\xfe", "\u00e4".encode(), b"tab\t", b"-o", b"%", b"\xe4"]


def test_commands_directories_and_files_may_have_any_name(sandbox, locale):
    for name in NAMES:
        check_name(sandbox, name)
        for file in sandbox.runs.iterdir():
            file.unlink()


def check_name(sandbox, name):
    """One name for everything."""
    folder = os.fsencode(sandbox.work) + b"/" + name
    os.mkdir(folder)
    with open(folder + b"/" + name, "wb") as file:
        file.write(b"#!/bin/sh\npwd; cat; echo err >&2; exit 4\n")
    os.chmod(folder + b"/" + name, 0o755)
    pattern = name.replace(b"%", b"%%")
    errors = folder.replace(b"%", b"%%") + b"/" + pattern + b".err"
    done = sandbox.run("mxq-reap", b"-w", folder, b"-o", pattern + b".out", b"-e", errors, b"./" + name,
                       input=b"in\n", text=False)
    assert (done.returncode, done.stdout, done.stderr) == (4, b"", b"")
    with open(folder + b"/" + name + b".out", "rb") as file:
        assert file.read() == folder + b"\nin\n"
    with open(folder + b"/" + name + b".err", "rb") as file:
        assert file.read() == b"err\n"
    record = sandbox.record()
    wanted = fsdecoded([folder, folder + b"/" + name + b".out", folder + b"/" + name + b".err", b"./" + name])
    assert [record["cwd"], record["stdout"], record["stderr"], record["argv"][0]] == wanted
    assert outcome(record) == (4, None, None)


def test_a_base_directory_may_have_any_name(sandbox, locale):
    for name in NAMES:
        base = os.fsencode(sandbox.path) + b"/base" + name
        done = sandbox.run("mxq-reap", b"-d", base, b"sh", b"-c", b'printf "%s" "$MXQ_DIR"', text=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, base, b"")
        runs = base + b"/spool/runs/"
        with open(runs + os.listdir(runs)[0], "rb") as file:
            assert outcome(records.decode(file.read())) == (0, None, None)


def test_messages_stay_on_one_line(sandbox, locale):
    done = sandbox.run("mxq-reap", b"no\nsuch\t\xff\x1b[31m", text=False)
    assert done.returncode == 127
    assert done.stderr == b"mxq-reap: error: cannot execute no\\nsuch\\t\\udcff\\x1b[31m: No such file or directory\n"


def test_a_megabyte_of_arguments(sandbox):
    # The longest there can be: one is at most 128 KiB (execve(2)), and all of it becomes sixfold in JSON.
    arguments = [b"\xff" * 131071] * 8 + [b"\1" * 60000]
    done = sandbox.run("mxq-reap", "sh", "-c", 'printf "%s" "$@" | cksum', "sh", *arguments, text=False)
    plain = sandbox.run("cksum", input=b"".join(arguments), text=False).stdout
    assert (done.returncode, done.stdout, done.stderr) == (0, plain, b"")
    assert sandbox.record()["argv"][4:] == fsdecoded(arguments)


def test_more_arguments_than_the_kernel_takes_are_an_error_of_the_exec(sandbox):
    # Its own options take less room than the variables it adds.
    size = os.sysconf("SC_ARG_MAX")
    left = size - 4096 - sum(len(name) + len(value) + 10 for name, value in sandbox.env.items())
    arguments = ["x" * 100000] * (left // 100010)
    for extra in range(0, 100000, 50000):
        try:
            done = sandbox.run("mxq-reap", "true", *arguments, "x" * extra)
        except OSError:
            break                       # mxq-reap itself could not be started
        assert done.returncode in (0, 126)
        assert len(sandbox.records()) == extra // 50000 + 1


def test_the_record_is_one_line_of_ascii(sandbox):
    sandbox.run("mxq-reap", "true", *ODD, check=True)
    file, = sandbox.runs.iterdir()
    data = file.read_bytes()
    assert data.isascii() and data.count(b"\n") == 1 and data.endswith(b"}\n")
    json.loads(data)
    assert records.decode(data, file.name[:-len(".json")])["argv"] == ["true"] + fsdecoded(ODD)


def test_the_name_of_a_run_without_one_is_fit_for_tables(sandbox):
    (sandbox.work / "new\nline\udcff").symlink_to("/bin/true")
    sandbox.run("mxq-reap", "./new\nline\udcff", check=True)
    assert sandbox.record()["name"] == "new?line?"
