"""Sizes, durations, numbers and masks as options take them, and the way back for people to read.

Every parser raises ValueError with a text that says what is wrong; nothing is guessed.
"""

_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_TIMES = {"y": 31536000, "w": 604800, "d": 86400, "h": 3600, "m": 60, "s": 1}
_MAX_S = 10 ** 10       # some 317 years: above it dates and timers stop making sense
MIB = 1 << 20


def _digits(text):
    # str.isdigit is true for digits of other scripts and int() takes signs, blanks and underscores.
    return text.isascii() and text.isdigit() and len(text) <= 20


def number(text, least=0, most=(1 << 63) - 1):
    """A decimal integer within least..most."""
    digits = text[1:] if text[:1] == "-" and least < 0 else text
    if not _digits(digits):
        raise ValueError("not a number: %s" % text)
    value = int(text)
    if not least <= value <= most:
        raise ValueError("not within %d..%d: %s" % (least, most, text))
    return value


def size(text):
    """Bytes of SIZE: a number with suffix K, M, G or T (powers of 1024); MiB without a suffix."""
    unit = _SIZES.get(text[-1:].upper())
    digits = text if unit is None else text[:-1]
    if not _digits(digits):
        raise ValueError("not a size (a number with K, M, G or T; MiB without): %s" % text)
    value = int(digits) * (unit or MIB)
    if not 0 < value < 1 << 62:
        raise ValueError("size out of range: %s" % text)
    return value


def duration(text, least=1):
    """Seconds of TIME: `1d12h`, with y w d h m s; minutes without a suffix; or `[D-]HH:MM:SS`."""
    value = _colons(text) if ":" in text else _suffixed(text)
    if not least <= value <= _MAX_S:
        raise ValueError("time out of range: %s" % text)
    return value


def _colons(text):
    days, dash, clock = text.rpartition("-")
    fields = clock.split(":")
    if len(fields) != 3 or not all(map(_digits, fields)) or (dash and not _digits(days)):
        raise ValueError("not a time ([D-]HH:MM:SS): %s" % text)
    hours, minutes, seconds = map(int, fields)
    if minutes > 59 or seconds > 59:
        raise ValueError("not a time (minutes and seconds end at 59): %s" % text)
    return int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds


def _suffixed(text):
    if _digits(text):
        return int(text) * 60
    total, digits = 0, ""
    for char in text:
        if char in _TIMES and _digits(digits):
            total += int(digits) * _TIMES[char]
            digits = ""
        else:
            digits += char
    if digits or not text:
        raise ValueError("not a time (like 90, 1d12h or 36:00:00; minutes without a suffix): %s" % text)
    return total


def mask(text):
    """A umask in octal, 0 to 0777."""
    if not 0 < len(text) <= 5 or text.strip("01234567"):
        raise ValueError("not an octal mask: %s" % text)
    value = int(text, 8)
    if value > 0o777:
        raise ValueError("not within 0..0777: %s" % text)
    return value


def cpus(text):
    """Sorted CPU numbers of a list like `0,2-3` (the format of taskset -c)."""
    found = set()
    for part in text.split(","):
        low, dash, high = part.partition("-")
        if not _digits(low) or (dash and not _digits(high)):
            raise ValueError("not a list of CPUs (like 0,2-3): %s" % text)
        first, last = int(low), int(high or low)
        if last < first or last > 65535:
            raise ValueError("CPU range out of order or out of range: %s" % text)
        found.update(range(first, last + 1))
    return sorted(found)


def label(text):
    """A job name or group: some text, no control characters (they would break tables and mail subjects)."""
    if not text or any(ord(c) < 32 or 127 <= ord(c) < 160 for c in text):
        raise ValueError("empty, or with control characters")
    return text


def show_size(size_b):
    """Bytes in the shortest exact form that -m takes; `-` when None."""
    if size_b is None:
        return "-"
    for suffix in "TGMK":
        if size_b >= _SIZES[suffix] and not size_b % _SIZES[suffix]:
            return "%d%s" % (size_b // _SIZES[suffix], suffix)
    for suffix in "TGMK":
        if size_b >= _SIZES[suffix]:
            return "%d%s" % (-(-size_b // _SIZES[suffix]), suffix)
    return "1K" if size_b else "0K"


def show_duration(seconds):
    """Whole seconds in the form that -t takes, like `1d12h`; `-` when None."""
    if seconds is None:
        return "-"
    rest, shown = int(seconds), ""
    for suffix in "dhms":
        count, rest = divmod(rest, _TIMES[suffix])
        if count:
            shown += "%d%s" % (count, suffix)
    return shown or "0s"
