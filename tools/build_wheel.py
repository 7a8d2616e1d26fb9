"""What pip calls to install MXQ: a build backend (PEP 517) that makes a wheel of what install.py installs.

setuptools cannot: pip writes the #! lines of its scripts anew and drops -IS, which keeps PYTHONPATH, PYTHONHOME and
the packages of others away from the commands. So the library is not in site-packages either, but in PREFIX/lib/mxq.
As nothing of the virtual environment is used, the #! line names the interpreter that it was made with: a wheel is
for this machine. There is no build_sdist and no build_editable: the tree runs as it is.
"""

import base64
import configparser
import hashlib
import os
import sys
import tempfile
import zipfile

import install

sys.path.insert(0, install.TREE)

from mxqlib import __version__      # noqa: E402

NAME = "mxq-" + __version__


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):    # the names are those of PEP 517
    """Make the wheel in a folder and return its file name."""
    python = install.find_python(os.path.join(sys.base_prefix, "bin", "python3"))
    # Byte code that is checked by content: pip does not keep the times of files (PEP 552, py_compile).
    os.environ.setdefault("SOURCE_DATE_EPOCH", "0")
    name = NAME + "-py3-none-any.whl"
    with tempfile.TemporaryDirectory() as folder:
        tree = install.Installation("", folder, python)
        tree.put_all()
        with zipfile.ZipFile(os.path.join(wheel_directory, name), "w") as wheel:
            write(wheel, [(place_of(path), install.read(tree.full(path))) for path in sorted(tree.files)])
    return name


def place_of(path):
    """Where a file below the prefix is in a wheel: pip puts `scripts` into bin, `data` below the prefix."""
    folder, _, rest = path.partition("/")
    return NAME + ".data/" + ("scripts/" + rest if folder == "bin" else "data/" + path)


def write(wheel, files):
    """Write (name, bytes) of the files, and what describes the wheel; the list of all comes last."""
    info = NAME + ".dist-info/"
    files = files + [
        (info + "METADATA", metadata().encode("utf-8")),
        (info + "WHEEL", b"Wheel-Version: 1.0\nGenerator: mxq\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
        (info + "LICENSE", install.read(os.path.join(install.TREE, "LICENSE")))]
    record = ["%s,sha256=%s,%d\n" % (
        name, base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode("ascii").rstrip("="), len(data))
        for name, data in files]
    for name, data in files + [(info + "RECORD", "".join(record + [info + "RECORD,,\n"]).encode("utf-8"))]:
        entry = zipfile.ZipInfo(name)           # of 1980-01-01: the same tree gives the same wheel
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.external_attr = (0o100755 if "/scripts/" in name else 0o100644) << 16
        wheel.writestr(entry, data)


def metadata():
    """The core metadata, from setup.cfg."""
    config = configparser.ConfigParser()
    config.read(os.path.join(install.TREE, "setup.cfg"), encoding="utf-8")
    about = config["metadata"]
    lines = ["Metadata-Version: 2.1", "Name: mxq", "Version: " + __version__, "Summary: " + about["description"],
             "Author: " + about["author"], "License: " + about["license"],
             "Requires-Python: " + config["options"]["python_requires"].replace(" ", "")]
    lines += ["Classifier: " + line for line in about["classifiers"].split("\n") if line]
    readme = install.read(os.path.join(install.TREE, "README.md")).decode("utf-8")
    return "\n".join(lines + ["Description-Content-Type: text/markdown", "", readme])
