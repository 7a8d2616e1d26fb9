"""Times: UTC dates as records hold them, and the clock that limits are measured with."""

import time


def boot_s():
    """Seconds on CLOCK_BOOTTIME, which counts suspension and ignores steps of the date (clock_gettime(2))."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def iso(when_s=None):
    """A UTC date as `2026-11-30T17:45:27.123456Z`; `when_s` is seconds since the epoch, now when None."""
    us = time.time_ns() // 1000 if when_s is None else int(when_s * 1000000)
    seconds, us = divmod(us, 1000000)
    return "%04d-%02d-%02dT%02d:%02d:%02d.%06dZ" % (time.gmtime(seconds)[:6] + (us,))


def epoch_s(date):
    """Seconds since the epoch of a date made by iso(); ValueError for anything else."""
    if len(date) != 27 or date[10] != "T" or date[19] != "." or date[26] != "Z":
        raise ValueError("not a date: %s" % date)
    fields = [int(date[a:b]) for a, b in ((0, 4), (5, 7), (8, 10), (11, 13), (14, 16), (17, 19))]
    year, month, day, hour, minute, second = fields
    # Days since 1970-01-01 in the Gregorian calendar; calendar.timegm would import datetime and locale.
    y = year - (month <= 2)
    days = 365 * y + y // 4 - y // 100 + y // 400 + (153 * ((month + 9) % 12) + 2) // 5 + day - 719469
    return days * 86400 + hour * 3600 + minute * 60 + second + int(date[20:26]) / 1e6
