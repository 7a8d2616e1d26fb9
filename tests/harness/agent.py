"""Runs in a machine of uml.py: does what comes as lines of JSON on /dev/ttyS0, and says there how it ended."""

import json
import os
import subprocess
import threading

LINE = "/dev/ttyS0"


class Agent:
    """The serial line, and commands at once on it."""

    def __init__(self):
        self.fd = os.open(LINE, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        # While this is open the modes of the other line, on which the jobs speak, are kept.
        self.words = os.open("/dev/ttyS1", os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
        self.lock = threading.Lock()

    def say(self, **said):
        """One line to the other side, whole."""
        data = json.dumps(said).encode("ascii") + b"\n"
        with self.lock:
            while data:
                data = data[os.write(self.fd, data):]

    def serve(self):
        """Until the order to switch off."""
        self.say(ready=True)
        with open(self.fd, "rb", buffering=0, closefd=False) as line:
            rest = b""
            while True:
                *orders, rest = (rest + line.read(4096)).split(b"\n")
                for order in map(json.loads, orders):
                    if "off" in order:
                        return
                    threading.Thread(target=self.run, args=(order,), daemon=True).start()

    def run(self, order):
        """Run one command to its end."""
        number, text = order["number"], dict(encoding="utf-8", errors="backslashreplace")
        try:
            done = subprocess.run(order["argv"], input=order["input"], cwd=order["cwd"], env=order["env"],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False, **text)
        except OSError as error:
            self.say(number=number, status=127, stdout="", stderr=str(error))
        else:
            self.say(number=number, status=done.returncode, stdout=done.stdout, stderr=done.stderr)


Agent().serve()
