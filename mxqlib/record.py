"""The record of a run: one JSON object on one line, the same from the reaper to the queue.

Encoding is written out here, as the reaper must not pay for `json` (5 ms) and the output must not depend on
the locale: ASCII only, bytes that are not UTF-8 as the lone surrogates of PEP 383, which every JSON reader
hands back. Decoding checks each field: a record is a claim until it has passed. mxq-spool(5) has the fields.
"""

from mxqlib import units

FORMAT = 1
LIMIT_B = 64 << 20          # larger files are not read: argv is at most 6 MiB, 36 MiB when all of it is escaped
RUNNING, ENDED = "running", "ended"
REASONS = ("exec", "kill", "kill-now", "time", "memory", "lost", "reboot")


class Damaged(Exception):
    """The bytes are no record; the text says why."""


class _Escapes(dict):
    def __missing__(self, code):
        if code > 0xffff:
            code -= 0x10000
            shown = "\\u%04x\\u%04x" % (0xd800 | code >> 10, 0xdc00 | code & 0x3ff)
        elif 0x20 <= code < 0x7f:
            shown = chr(code)
        else:
            shown = "\\u%04x" % code
        self[code] = shown
        return shown


_ESCAPES = _Escapes({0x22: '\\"', 0x5c: "\\\\", 0x0a: "\\n", 0x09: "\\t", 0x0d: "\\r"})


def to_json(value):
    """JSON text, ASCII only, of None, bool, int, float, str, list, tuple or dict with str keys."""
    kind = value.__class__
    if kind is str:
        if value.isascii() and value.isprintable() and '"' not in value and "\\" not in value:
            return '"' + value + '"'
        return '"' + value.translate(_ESCAPES) + '"'
    if value is None:
        return "null"
    if kind is bool:
        return "true" if value else "false"
    if kind is int:
        return str(value)
    if kind is float:
        return repr(value) if value == value and abs(value) != float("inf") else "null"
    if kind is dict:
        return "{" + ",".join([('"' + k + '":' if k.isidentifier() and k.isascii() else to_json(k) + ":") + to_json(v)
                               for k, v in value.items()]) + "}"
    return "[" + ",".join([to_json(item) for item in value]) + "]"


def encode(record):
    """The line of a record, newline included."""
    return (to_json(record) + "\n").encode("ascii")


def valid_run(run):
    """True when `run` can be a run id, and so a file name: letters, digits, `. _ -`, not starting with a dot."""
    return 0 < len(run) <= 200 and run[0] != "." and not run.strip(_OF_RUNS)


_OF_RUNS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"


def job_and_attempt(run):
    """(job, attempt) of a run id `JOB.ATTEMPT`, or None for the id of a run that no queue knew."""
    job, _, attempt = run.partition(".")
    if _is_counted(job) and _is_counted(attempt):
        return int(job), int(attempt)
    return None


def _is_counted(text):
    return text.isdigit() and text.isascii() and text[0] != "0" and len(text) < 19


# What an outcome may be that no later one changes: a lost run may turn out to have ended otherwise.
FINAL = ("finished", "failed", "killed")


def state_of(record):
    """The job state an ended record tells: finished, failed, killed or lost."""
    if record["reason"] in ("kill", "kill-now", "time", "memory"):
        return "killed"
    if record["status"] is None or record["reason"] in ("lost", "reboot"):
        return "lost"
    return "finished" if record["status"] == 0 and record["reason"] is None else "failed"


def split_status(status):
    """(exit, signal, core) of a raw wait status (wait(2)); None where they do not apply."""
    if status is None:
        return None, None, None
    if status & 0x7f:
        return None, status & 0x7f, bool(status & 0x80)
    return status >> 8 & 0xff, None, None


# ---- reading ----

def skim(data):
    """(state, host) of a record in `data` (bytes) that has the form encode() gives it, or None; nothing is checked.

    For those who look for their own among thousands: a fiftieth of decode().
    """
    if not data.startswith(_START) or not data.endswith(b"}\n"):
        return None
    state, _, rest = data[len(_START):].partition(b'"')
    host, quote, _ = rest.partition(b'"host":"')[2].partition(b'"')     # a quote within a text is escaped
    return (state.decode("ascii"), host.decode("ascii")) if quote and state.isalpha() and b"\\" not in host else None


_START = b'{"format":1,"state":"'


def _text(value):
    return value.__class__ is str and "\0" not in value and (value.isascii() or _is_bytes(value))


def _is_bytes(value):
    # JSON can write surrogates that stand for no byte: no file, argument or column can hold them.
    try:
        value.encode("utf-8", "surrogateescape")
        return True
    except UnicodeEncodeError:
        return False


def _whole(value):
    return value.__class__ is int and -(1 << 63) <= value < 1 << 63


def _natural(value):
    return _whole(value) and value >= 0


def _real(value):
    return (value.__class__ is float or _whole(value)) and -1e15 < value < 1e15     # 1e999 is read as infinity


def _flag(value):
    return value.__class__ is bool


def _object(value):
    return value.__class__ is dict


def _texts(value):
    return value.__class__ is list and all(map(_text, value))


def _numbers(value):
    return value.__class__ is list and all(map(_natural, value))


def _objects(value):
    return value.__class__ is list and all(map(_object, value))


def _run(value):
    return _text(value) and valid_run(value)


def _date(value):
    # Compared as text in the queue, so the form counts; clock.epoch_s would cost more than the rest together.
    return (value.__class__ is str and len(value) == 27 and value[4] == value[7] == "-" and value[10] == "T"
            and value[19] == "." and value[26] == "Z" and value[:4].isdigit() and value.isascii())


def _reference(value):
    return _object(value) and _natural(value.get("pid")) and _text(value.get("host"))


def _reason(value):
    return value in REASONS


def _status(value):
    return _natural(value) and value <= 0xffff


# (name, check, required, may be null): what a running record holds, and what an ended one adds.
_RUNNING = (
    ("run", _run, True, False), ("job", _natural, False, True), ("attempt", _natural, True, False),
    ("name", _text, True, False), ("group", _text, True, False), ("user", _text, True, False),
    ("uid", _natural, True, False), ("gid", _natural, True, False), ("host", _text, True, False),
    ("reaper", _reference, True, False), ("front", _reference, False, True), ("main", _reference, True, True),
    ("argv", _texts, True, False), ("cwd", _text, True, False), ("umask", _natural, True, False),
    ("stdout", _text, False, True), ("stderr", _text, False, True), ("threads", _natural, True, False),
    ("memory", _natural, False, True), ("cpus", _numbers, False, True), ("runtime", _natural, False, True),
    ("priority", _whole, False, True), ("restart", _text, False, True), ("date_submit", _date, False, True),
    ("date_start", _date, True, True), ("fallback", _text, False, True), ("deliveries", _objects, False, True),
    ("grace", _natural, False, True), ("linger", _flag, False, True),
    ("outer", _object, False, True),
)
_ENDED = (
    ("date_end", _date, True, True), ("date_done", _date, True, False), ("real", _real, True, True),
    ("status", _status, True, True), ("exit", _natural, False, True), ("signal", _natural, False, True),
    ("core", _flag, False, True), ("reason", _reason, True, True), ("error", _text, False, True),
    ("signals", _objects, False, True), ("rusage", _object, False, True), ("maxrss_floor", _natural, False, True),
    ("max_sumrss", _natural, False, True), ("children", _objects, False, True),
    ("children_more", _natural, False, True), ("leftovers", _natural, False, True),
    ("survivors", _objects, False, True), ("adopted", _flag, False, True),
)


def _with_classes(fields, plain):
    # The class that alone makes a value fit, where there is one: most fields are then done with one comparison.
    alone = {_flag: bool, _object: dict, _natural: int}
    if plain:
        alone[_text] = str
    return tuple((name, alone.get(fits), fits, required, nullable) for name, fits, required, nullable in fields)


# Whether the texts of a record are known to hold no NUL and no surrogate -> the fields of running and of ended ones.
_TABLES = {plain: (_with_classes(_RUNNING, plain), _with_classes(_ENDED, plain)) for plain in (False, True)}
_decoder = None


def decode(data, run=None):
    """The record in `data` (bytes), checked; `run` is the id that the file's name claims. Raises Damaged."""
    return decode_line(data, run)[0]


def decode_line(data, run=None):
    """(record, its text) as decode()."""
    global _decoder
    if _decoder is None:
        import json             # readers only; a reaper never decodes
        _decoder = json.JSONDecoder(parse_constant=_no_constant)
    if not data:
        raise Damaged("empty")
    if data[-1:] != b"\n":
        raise Damaged("cut off: no newline at the end")
    if data.count(b"\n") > 1:
        raise Damaged("more than one line")
    try:
        text = data[:-1].decode("utf-8")
        record = _decoder.decode(text)
    except (ValueError, RecursionError) as failure:
        raise Damaged("not JSON: %s" % failure) from None
    if not _object(record):
        raise Damaged("not a JSON object")
    check(record, b"\\u" not in data)
    if run is not None and record["run"] != run:
        raise Damaged("is the record of another run, %s" % record["run"])
    return record, text


def _no_constant(name):
    raise ValueError("%s is not JSON" % name)


def check(record, plain=False):
    """Raise Damaged unless `record` (a dict) has the fields of its state with values that make sense; those that may be
    missing, and are, become None.

    `plain`: its texts are known to hold no NUL and no surrogate.
    """
    version = record.get("format")
    if not _whole(version) or version < 1:
        raise Damaged("no format number")
    if version > FORMAT:
        raise Damaged("format %d is newer than this program" % version)
    if record.get("state") not in (RUNNING, ENDED):
        raise Damaged("unknown state")
    running, ended = _TABLES[plain]
    _check_fields(record, running)
    known = job_and_attempt(record["run"])
    if known is not None and known != (record.get("job"), record["attempt"]):
        raise Damaged("job and attempt contradict the run id")
    if record["state"] == ENDED:
        _check_fields(record, ended)
        if split_status(record["status"]) != (record.get("exit"), record.get("signal"), record.get("core")):
            raise Damaged("exit, signal and core contradict the status")


def _check_fields(record, fields):
    for name, kind, fits, required, nullable in fields:
        value = record.get(name)
        if value is None:
            if required and (name not in record or not nullable):
                raise Damaged("no %s" % name)
            record[name] = None         # a reader need not know which fields an earlier version had
        elif value.__class__ is kind:
            if kind is int and not 0 <= value < 1 << 63:
                raise Damaged("%s makes no sense" % name)
        elif not fits(value):
            raise Damaged("%s makes no sense" % name)


def mebibytes(size_b):
    """Bytes as MiB, rounded up, as MXQ_MEMORY gives them to a job."""
    return -(-size_b // units.MIB)
