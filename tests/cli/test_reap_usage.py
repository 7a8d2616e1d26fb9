"""Bad input of any kind: one clear line, status 125, nothing started."""

import os

import pytest

from tests.harness.reaping import nothing_was_started
from tests.harness.users import as_ordinary_user


def refused(sandbox, *argv, **kw):
    """The message with which a run of `touch ran` is refused."""
    done = sandbox.run(*argv, **kw)
    assert (done.returncode, done.stdout) == (125, ""), (argv, done)
    assert done.stderr.startswith("mxq-reap: error: ") and done.stderr.count("\n") == 1, (argv, done.stderr)
    assert nothing_was_started(sandbox), argv
    return done.stderr[len("mxq-reap: error: "):-1]


JOB = ["touch", "ran"]
OPTIONS = [
    ([], "no command (try --help)"),
    (["--"], "no command (try --help)"),
    (["-x"], "unknown option: -x (try --help)"),
    (["--no-such"], "unknown option: --no-such (try --help)"),
    (["--grac", "1"], "unknown option: --grac (try --help)"),
    (["-t"], "option needs a value: -t TIME"),
    (["-bt"], "option needs a value: -t TIME"),
    (["--linger=1"], "option takes no value: --linger"),
    (["-j", "0"], "option -j: not within 1..65535: 0"),
    (["-j", "-1"], "option -j: not a number: -1"),
    (["-j", "x"], "option -j: not a number: x"),
    (["-j", ""], "option -j: not a number: "),
    (["-j", "1.5"], "option -j: not a number: 1.5"),
    (["-j", "65536"], "option -j: not within 1..65535: 65536"),
    (["-p", "99999"], "option -p: not within 0..65535: 99999"),
    (["-m", "0"], "option -m: size out of range: 0"),
    (["-m", "-5"], "option -m: not a size (a number with K, M, G or T; MiB without): -5"),
    (["-m", "5X"], "option -m: not a size (a number with K, M, G or T; MiB without): 5X"),
    (["-m", "99999999999T"], "option -m: size out of range: 99999999999T"),
    (["-m", "M"], "option -m: not a size (a number with K, M, G or T; MiB without): M"),
    (["-t", "0"], "option -t: time out of range: 0"),
    (["-t", "1x"], "option -t: not a time (like 90, 1d12h or 36:00:00; minutes without a suffix): 1x"),
    (["-t", "1:2"], "option -t: not a time ([D-]HH:MM:SS): 1:2"),
    (["-t", "1:60:00"], "option -t: not a time (minutes and seconds end at 59): 1:60:00"),
    (["-t", "99999999999999"], "option -t: time out of range: 99999999999999"),
    (["-t", ""], "option -t: not a time (like 90, 1d12h or 36:00:00; minutes without a suffix): "),
    (["--grace", "never"], "option --grace: not a time (like 90, 1d12h or 36:00:00; minutes without a suffix): never"),
    (["-u", "8"], "option -u: not an octal mask: 8"),
    (["-u", "1777"], "option -u: not within 0..0777: 1777"),
    (["-u", ""], "option -u: not an octal mask: "),
    (["-r", "sometimes"], "option -r: not one of never samehost always: sometimes"),
    (["-N", ""], "option -N: empty, or with control characters"),
    (["-N", "a\nb"], "option -N: empty, or with control characters"),
    (["-g", "\x7f"], "option -g: empty, or with control characters"),
    (["--cpus", "x"], "option --cpus: not a list of CPUs (like 0,2-3): x"),
    (["--cpus", "3-1"], "option --cpus: CPU range out of order or out of range: 3-1"),
    (["--cpus", "65535"], "option --cpus: not all of these CPUs may be used here"),
    (["--mail-on", "monday"], "option --mail-on: not one of always failure never: monday"),
    (["--mail", ""], "option --mail: not a mail address: ''"),
    (["--mail", "-froot"], "option --mail: not a mail address: '-froot'"),
    (["--log", ""], "option --log: empty"),
    (["--record", ""], "option --record: empty"),
    (["--hook", ""], "option --hook: empty"),
    (["-w", "/no/such"], "no such directory: /no/such"),
    (["-w", "/etc/passwd"], "no such directory: /etc/passwd"),
    (["-o", "no/such/out"], "no such directory: {work}/no/such"),
    (["-e", "/no/err"], "no such directory: /no"),
    (["-o", "/etc"], "is a directory: /etc"),
    (["-o", "out%"], "unknown % in out% (known: %j %r %a %h %u %n %%)"),
    (["-o", "out%x"], "unknown %x in out%x (known: %j %r %a %h %u %n %%)"),
]


@pytest.mark.parametrize("options, message", OPTIONS, ids=[" ".join(options) for options, _ in OPTIONS])
def test_options(sandbox, options, message):
    with_job = [] if message.startswith(("no command", "option needs")) else JOB
    assert refused(sandbox, "mxq-reap", *options, *with_job) == message.replace("{work}", str(sandbox.work))


@pytest.mark.parametrize("name, value, message", [
    ("MXQ_MAIL", "no address", "MXQ_MAIL: not a mail address: 'no address'"),
    ("MXQ_MAIL_ON", "monday", "MXQ_MAIL_ON: not one of always failure never: monday")])
def test_the_environment(sandbox, name, value, message):
    env = {"MXQ_MAIL": "somebody", name: value}
    assert refused(sandbox, "mxq-reap", *JOB, env=env) == message


def test_a_name_that_is_too_long_for_its_output_file(sandbox):
    done = sandbox.run("mxq-reap", "-o", "x" * 300, *JOB)
    # open(2) tells; the job was not executed.
    assert done.returncode == 125
    assert "File name too long" in done.stderr and done.stderr.count("\n") == 1
    assert not (sandbox.work / "ran").exists()


def test_options_end_at_the_command(sandbox):
    done = sandbox.run("mxq-reap", "echo", "-x", "--help", "--")
    assert (done.returncode, done.stdout) == (0, "-x --help --\n")


@pytest.mark.parametrize("option", ["-h", "--help", "-V", "--version"])
def test_help_and_version_start_nothing(sandbox, option):
    done = sandbox.run("mxq-reap", option, *JOB)
    assert (done.returncode, done.stderr) == (0, "") and "mxq-reap" in done.stdout
    assert not sandbox.mxq_dir.exists() and nothing_was_started(sandbox)


def test_help_into_a_closed_or_full_output(sandbox):
    for where, why in ((">&-", "standard output is closed"), (">/dev/full", "No space left on device")):
        done = sandbox.run("sh", "-c", "mxq-reap --help " + where)
        assert done.returncode == 125
        assert why in done.stderr and done.stderr.count("\n") == 1


# ---- places ----

def test_a_spool_that_is_a_link(sandbox):
    (sandbox.path / "elsewhere").mkdir(mode=0o700)
    sandbox.mxq_dir.mkdir(mode=0o700)
    sandbox.spool.symlink_to(sandbox.path / "elsewhere")
    assert refused(sandbox, "mxq-reap", *JOB) == "%s is a symbolic link: name the directory itself" % sandbox.spool
    assert refused(sandbox, "mxq-reap", *JOB, env={"MXQ_SPOOL": sandbox.spool}) == (
        "%s is a symbolic link: name the directory itself" % sandbox.spool)
    assert os.listdir(sandbox.path / "elsewhere") == []


@pytest.mark.parametrize("folder", ["runs", "output", "corrupt"])
def test_a_link_in_the_spool(sandbox, folder):
    sandbox.run("mxq-reap", "true", check=True)
    for file in sandbox.runs.iterdir():
        file.unlink()
    (sandbox.spool / folder).rmdir()
    (sandbox.path / "elsewhere").mkdir(mode=0o700)
    (sandbox.spool / folder).symlink_to(sandbox.path / "elsewhere")
    assert "is a symbolic link" in refused(sandbox, "mxq-reap", *JOB)


def test_a_base_directory_that_is_a_link(sandbox):
    (sandbox.path / "elsewhere").mkdir(mode=0o700)
    sandbox.mxq_dir.symlink_to(sandbox.path / "elsewhere")
    assert "is a symbolic link" in refused(sandbox, "mxq-reap", *JOB)
    assert os.listdir(sandbox.path / "elsewhere") == []


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777, 0o720])
@pytest.mark.parametrize("where", ["base", "spool", "runs"])
def test_a_directory_that_others_can_write_to(sandbox, mode, where):
    sandbox.runs.mkdir(mode=0o700, parents=True)
    folder = {"base": sandbox.mxq_dir, "spool": sandbox.spool, "runs": sandbox.runs}[where]
    for each in (sandbox.mxq_dir, sandbox.spool, sandbox.runs):
        each.chmod(0o700)
    folder.chmod(mode)
    assert refused(sandbox, "mxq-reap", *JOB) == "%s can be written by others: chmod go-w it" % folder


def test_a_directory_that_others_can_only_read_will_do(sandbox):
    sandbox.runs.mkdir(mode=0o755, parents=True)
    for each in (sandbox.mxq_dir, sandbox.spool, sandbox.runs):
        each.chmod(0o755)
    assert sandbox.run("mxq-reap", "true").returncode == 0


@pytest.mark.as_root
@pytest.mark.parametrize("where", ["base", "spool", "runs"])
def test_somebody_elses_spool(sandbox, where):
    sandbox.runs.mkdir(mode=0o700, parents=True)
    for each in (sandbox.mxq_dir, sandbox.spool, sandbox.runs):
        each.chmod(0o700)
    folder = {"base": sandbox.mxq_dir, "spool": sandbox.spool, "runs": sandbox.runs}[where]
    os.chown(folder, 65534, 65534)
    assert refused(sandbox, "mxq-reap", *JOB) == "%s belongs to user 65534, not to you" % folder


@pytest.mark.as_root
def test_roots_spool_is_not_for_an_ordinary_user(sandbox):
    user = as_ordinary_user(sandbox)
    sandbox.runs.mkdir(mode=0o700, parents=True)
    sandbox.mxq_dir.chmod(0o755)
    message = refused(sandbox, *user, "mxq-reap", *JOB)
    assert message == "%s belongs to user 0, not to you" % sandbox.mxq_dir


@pytest.mark.parametrize("mode, message", [
    (0o000, "Permission denied"), (0o500, "Permission denied"), (0o600, "Permission denied")])
def test_a_spool_that_cannot_be_read_or_written(sandbox, mode, message):
    sandbox.runs.mkdir(mode=0o700, parents=True)
    for each in (sandbox.mxq_dir, sandbox.spool):
        each.chmod(0o700)
    user = as_ordinary_user(sandbox)
    sandbox.runs.chmod(mode)
    done = sandbox.run(*user, "mxq-reap", *JOB)
    assert done.returncode == 125
    assert message in done.stderr and done.stderr.count("\n") == 1
    sandbox.runs.chmod(0o700)
    assert nothing_was_started(sandbox)


def test_a_base_that_cannot_be_made(sandbox):
    user = as_ordinary_user(sandbox)
    assert refused(sandbox, *user, "mxq-reap", "-d", "/proc/mxq", *JOB).startswith("cannot create /proc/mxq")
    (sandbox.path / "file").write_text("")
    assert "Not a directory" in refused(sandbox, *user, "mxq-reap", "-d", sandbox.path / "file" / "mxq", *JOB)
    assert "is not a directory" in refused(sandbox, *user, "mxq-reap", "-d", sandbox.path / "file", *JOB)


def test_a_spool_of_ones_own_needs_no_base(sandbox):
    done = sandbox.run("mxq-reap", "-d", "/proc/mxq", "true", env={"MXQ_SPOOL": sandbox.path / "spool"})
    assert (done.returncode, done.stderr) == (0, "")
    assert len(os.listdir(sandbox.path / "spool" / "runs")) == 1


@pytest.mark.parametrize("mode", [0o000, 0o600])
def test_a_directory_that_may_not_be_entered(sandbox, mode):
    user = as_ordinary_user(sandbox)
    if not user:
        pytest.skip("machine cannot: needs root to make a directory of somebody else")
    (sandbox.work / "closed").mkdir(mode=mode)
    assert "Permission denied" in refused(sandbox, *user, "mxq-reap", "-w", "closed", *JOB)


def test_an_output_that_may_not_be_written(sandbox):
    user = as_ordinary_user(sandbox)
    (sandbox.work / "out").write_text("")
    (sandbox.work / "out").chmod(0o444)
    done = sandbox.run(*user, "mxq-reap", "-o", "out", *JOB)
    assert (done.returncode, done.stderr) == (
        125, "mxq-reap: error: cannot open %s/out: Permission denied\n" % sandbox.work)
    assert not (sandbox.work / "ran").exists()
    # MAIN was forked and has an outcome: it could not be executed.
    assert (sandbox.record()["exit"], sandbox.record()["reason"]) == (125, "exec")


def test_without_proc_nothing_is_started(sandbox):
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "-r", "--mount"]
    if sandbox.run(*unshare, "umount", "-l", "/proc").returncode:
        pytest.skip("machine cannot: /proc is not to be unmounted")
    done = sandbox.run(*unshare, "sh", "-c", "umount -l /proc; exec mxq-reap touch ran")
    assert done.returncode == 125 and done.stderr.count("\n") == 1
    assert nothing_was_started(sandbox)
