"""A root directory of one's own: that of the machine with an overlay, which takes all that is changed and goes with it.

    root = Chroot(sandbox)
    root.run("dpkg", "--install", "/mnt/some.deb")

/mnt is `root.mnt` outside. Processes, users and network are those of the machine.
"""

import pytest

from tests.harness.sandbox import SYSTEM_PATH, read_until

# In a mount namespace of its own: the mounts go when the last process in it has ended.
START = """
mount -t tmpfs tmpfs "$1" && mkdir "$1/upper" "$1/work" "$1/merged" &&
mount -t overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" overlay "$1/merged" || { echo no; exit; }
mount -t proc proc "$1/merged/proc" && mount --rbind /dev "$1/merged/dev" && mount --bind "$2" "$1/merged/mnt" &&
echo yes && exec cat
"""


class Chroot:
    """The overlay, and commands in it; `mnt` is the folder that is its /mnt. Only root can have one."""

    def __init__(self, sandbox):
        """Mount it; skips the test where the kernel cannot, or a container may not."""
        if sandbox.run("unshare", "--mount", "true").returncode:
            pytest.skip("machine cannot: make a mount namespace")
        self.sandbox = sandbox
        self.mnt = sandbox.work / "mnt"
        self.place = sandbox.work / "chroot"
        self.mnt.mkdir()
        self.place.mkdir()
        self.holder = sandbox.spawn("unshare", "--mount", "sh", "-c", START, "sh", self.place, self.mnt,
                                    stdin=-1, text=False)
        if b"yes" not in read_until(self.holder.stdout, b"\n"):
            pytest.skip("machine cannot: mount an overlay over its root directory")

    def argv(self, *argv):
        """The command that runs `argv` in there, from /."""
        return ("nsenter", "--target", str(self.holder.pid), "--mount", "chroot", self.place / "merged", *argv)

    def run(self, *argv, **kw):
        """Run a command to its end, as Sandbox.run; a status other than 0 fails the test."""
        return self.sandbox.run(*self.argv(*argv), **self._ours(kw), check=True)

    def spawn(self, *argv, **kw):
        """Start a command, as Sandbox.spawn."""
        return self.sandbox.spawn(*self.argv(*argv), **self._ours(kw))

    @staticmethod
    def _ours(kw):
        # What is installed is tried, not the tree.
        return dict(kw, env=dict({"PATH": SYSTEM_PATH, "HOME": "/root"}, **kw.get("env", {})))
