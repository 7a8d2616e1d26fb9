"""Deliveries: telling the world what the queue has committed.

A delivery is tried until it succeeds, at most 20 times by itself; each is made at least once, and carries the stable id
of its event, so that who reads may drop doubles. `deliverer` is the loop; `log`, `recordline` and `mail` write the
texts; `file`, `stream` and `command` hand them over.
"""

LIMIT_S = 60.0          # the longest time for one delivery
PATIENCE_S = 0.2        # how often who waits looks whether it is to stop


class Undelivered(Exception):
    """A delivery failed; the text says why. `done`: how many of the texts of a batch were delivered all the same."""

    def __init__(self, text, done=0):
        Exception.__init__(self, text)
        self.done = done


class Stopped(Exception):
    """Who delivers was told to stop: nothing has failed, nothing is lost, and what is owed stays owed."""


def never():
    """What asks whether to stop, where nothing stops."""
    return False
