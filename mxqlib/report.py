"""The report: one HTML page about jobs and their runs, complete in itself, without a script.

All that jobs say (names, commands, output) is escaped, and bytes that are no text are shown as escapes. The page asks
the browser for nothing: no file, no font, no address.
"""

import heapq
import os
import time
from html import escape

from mxqlib import clock, detail, listing, signals, table, timeline, units
from mxqlib.delivery import mail

_LONGEST, _FAILURES, _LARGEST = 10, 20, 10
_FAILED = ("failed", "killed", "lost")
_COMMAND = 120          # characters of a command that are shown

_STYLE = """
:root { color-scheme: light dark; --page: #fbfbfa; --card: #fff; --ink: #1d2126; --soft: #5c6570; --line: #dcdfe3;
  --finished: #2f6db3; --running: #16897b; --failed: #c23b34; --killed: #b96a00; --lost: #7d4bab; --other: #7b848e; }
@media (prefers-color-scheme: dark) { :root { --page: #14171a; --card: #1d2125; --ink: #e7eaed; --soft: #a0a9b3;
  --line: #363c43; --finished: #6ba3e5; --running: #45bfae; --failed: #f0746c; --killed: #e8a045; --lost: #b78ae0;
  --other: #8b949e; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.2rem 1rem 3rem; max-width: 68rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { margin: 0; font-size: 1.5rem; } h2 { margin: 2.2rem 0 .6rem; font-size: 1.1rem; }
h3 { margin: 0; font-size: 1rem; overflow-wrap: anywhere; }
p { margin: .2rem 0; } .soft { color: var(--soft); font-size: .87rem; overflow-wrap: anywhere; }
.tiles { display: flex; flex-wrap: wrap; gap: .6rem; margin: 1rem 0 0; padding: 0; list-style: none; }
.tiles li, article, .scroll { background: var(--card); border: 1px solid var(--line); border-radius: 6px; }
.tiles li { padding: .5rem .9rem; min-width: 6.2rem; border-top: 4px solid var(--mark); }
.tiles b { display: block; font-size: 1.4rem; line-height: 1.2; font-variant-numeric: tabular-nums; }
article { padding: .7rem .9rem; margin: 0 0 .7rem; border-left: 4px solid var(--mark); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { padding: .35rem .7rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 500; font-size: .85rem; } tr:last-child td { border-bottom: 0; }
td.number, th.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
td.command { min-width: 12rem; overflow-wrap: anywhere; } code, pre { font: 13px/1.45 ui-monospace, monospace; }
pre { margin: .6rem 0 0; padding: .5rem .7rem; overflow-x: auto; background: var(--page); border: 1px solid var(--line);
  border-radius: 4px; }
.meter { display: block; width: 9rem; height: .7rem; margin-top: .35rem; background: var(--line); border-radius: 3px;
  overflow: hidden; } .meter i { display: block; height: 100%; background: var(--mark); }
@media (max-width: 40rem) { .meter { width: 3.5rem; } th, td { padding: .35rem .45rem; }
  td.command { min-width: 9rem; } }
.key { display: inline-block; margin-right: 1rem; white-space: nowrap; }
.key i { display: inline-block; width: .8rem; height: .8rem; margin-right: .35rem; border-radius: 2px;
  background: var(--mark); vertical-align: -.05rem; }
svg { display: block; } svg text { font: 12px system-ui, sans-serif; fill: var(--soft); }
svg line { stroke: var(--line); } svg rect { fill: var(--mark); stroke: var(--card); stroke-width: .5; }
""" + "".join(".%s { --mark: var(--%s); }\n" % (state, state if state in (
    "finished", "running", "failed", "killed", "lost") else "other") for state in listing.ORDER)


def text(value):
    """Any text of a job, safe to stand in the page."""
    return escape(mail.printable(str(value)))


class Report:
    """The page about the jobs `rows` (see listing.rows), which are read once, with the runs that `queue` (or None) and
    `records` have of them. `choice`: in words, which jobs these are; `base`: whose."""

    def __init__(self, queue, records, rows, choice, base):
        self.choice, self.base, self.now_s = choice, base, time.time()
        self.states, self.runs, self.failures = dict.fromkeys(listing.ORDER, 0), 0, []
        self.timeline = timeline.Timeline()
        self._longest, self._largest = [], []
        of_job = listing.by_job(queue, records)
        for row in rows:
            self._take(queue, row, of_job)

    def _take(self, queue, row, of_job):
        number = row["job"]
        self.states[row["state"]] += 1
        last = None
        entries = of_job.get(row["run"] if number is None else number, ())
        for run in detail.runs_of(queue, entries, number if queue is not None else None, number,
                                  row["run"] if number is None else None).values():
            self._take_run(row, run)
            last = run
        if row["state"] in _FAILED and len(self.failures) < _FAILURES:
            self.failures.append((row, last))

    def _take_run(self, row, run):
        entry = run["record"] or {}
        start_s = _epoch_s(run["date_start"])
        if start_s is None or run["state"] in ("loaded", "cancelled"):
            return
        end_s = self.now_s if run["state"] == "running" else _epoch_s(run["date_end"]) or start_s
        self.runs += 1
        took_s = end_s - start_s if run["real"] is None else run["real"]
        self.timeline.add(run["host"], entry.get("cpus"), start_s, end_s, run["state"], "%s %s: %s, %s, %s" % (
            run["run"], row["name"], run["state"], _clock(start_s), _time(took_s)))
        _keep(self._longest, _LONGEST, took_s, self.runs, (row, run))
        peak, limit = entry.get("max_sumrss"), entry.get("memory")
        if peak:
            _keep(self._largest, _LARGEST, (peak / limit if limit else 0, peak), self.runs, (row, run, peak, limit))

    # ---- the page ----

    def parts(self):
        """The texts that the page consists of."""
        yield ("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<title>MXQ: jobs of %s</title>\n"
               "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta http-equiv=\""
               "Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
               "<style>%s</style></head><body>\n" % (text(self.base), _STYLE))
        yield "<h1>Jobs and runs</h1>\n<p class=\"soft\">%s on %s, %s (%s). %s</p>\n" % (
            text(self.base), text(os.uname().nodename), _clock(self.now_s), text(time.strftime("%Z")),
            text(self.choice))
        yield self._tiles()
        yield "<h2>Runs over time</h2>\n" + self._timeline()
        yield "<h2>Failures, the last first</h2>\n"
        yield from map(self._failure, self.failures)
        count = sum(self.states[state] for state in _FAILED)
        if count > len(self.failures):
            yield "<p class=\"soft\">And %d more.</p>\n" % (count - len(self.failures))
        if not count:
            yield "<p class=\"soft\">None.</p>\n"
        yield "<h2>Longest runs</h2>\n" + self._longest_table()
        yield "<h2>Memory</h2>\n" + self._memory_table()
        yield "</body></html>\n"

    def _tiles(self):
        shown = ["<li class=\"%s\"><b>%d</b>%s</li>" % (state, count, state)
                 for state, count in self.states.items() if count]
        return "<ul class=\"tiles\">%s</ul>\n" % "".join(shown) if shown else "<p>There are no jobs.</p>\n"

    def _timeline(self):
        if not self.timeline.bars:
            return "<p class=\"soft\">None of these jobs has run.</p>\n"
        states = [state for state in listing.ORDER if state in {bar.state for bar in self.timeline.bars}]
        keys = "".join("<span class=\"key %s\"><i></i>%s</span>" % (state, state) for state in states)
        left_out = self.timeline.left_out()
        return "<p class=\"soft\">%s</p>\n<div class=\"scroll\">%s</div>\n%s" % (
            keys, self.timeline.svg(text), "<p class=\"soft\">%d more rows are not drawn.</p>\n" % left_out
            if left_out else "")

    def _longest_table(self):
        if not self._longest:
            return "<p class=\"soft\">None.</p>\n"
        best = sorted(self._longest, reverse=True)
        lines = [_line(run["state"], _cell(_number(row)), _command_cell(row), "<td>%s</td>" % run["state"],
                       _cell(_time(took_s)), _meter_cell(took_s / best[0][0] if best[0][0] else 0))
                 for took_s, _, (row, run) in best]
        return _table(("number", "job"), ("", "command"), ("", "state"), ("number", "time"), ("", ""), lines=lines)

    def _memory_table(self):
        if not self._largest:
            return "<p class=\"soft\">Nothing is known.</p>\n"
        lines = []
        for _, _, (row, run, peak, limit) in sorted(self._largest, key=lambda each: each[:2], reverse=True):
            share = peak / limit if limit else None
            shown = "-" if share is None else "%.0f %%" % (100 * share)
            lines.append(_line(run["state"], _cell(_number(row)), _command_cell(row), _cell(_size(peak)),
                               _cell(units.show_size(limit)), _cell(shown), _meter_cell(share)))
        return _table(("number", "job"), ("", "command"), ("number", "most"), ("number", "limit"), ("number", "share"),
                      ("", ""), lines=lines) + "<p class=\"soft\">Resident sizes of all processes of a run, added " \
            "up; pages that are shared count in each.</p>\n"

    def _failure(self, item):
        row, run = item
        entry = (run or {}).get("record") or {}
        said = ["job %s" % _number(row)]
        if row["run"]:
            said.append("run %s on %s" % (row["run"], row["host"]))
        if row["date_start"]:
            said.append("started %s" % detail.local_date(row["date_start"]))
        if row["real"] is not None:
            said.append("ran %s" % _time(row["real"]))
        if entry.get("error"):
            said.append(entry["error"])
        return ("<article class=\"%s\"><h3>%s: %s</h3>\n<p><code>%s</code></p>\n<p class=\"soft\">%s</p>%s</article>\n"
                % (row["state"], text(row["name"]), text(_ending(row)), text(_command(row)), text(", ".join(said)),
                   "".join(map(self._output, _files(entry)))))

    def _output(self, path):
        found = mail.last_lines(path)
        if found is None:
            return "<p class=\"soft\">%s cannot be shown.</p>" % text(path)
        lines, is_cut = found
        if not lines:
            return "<p class=\"soft\">%s is empty.</p>" % text(path)
        return "<p class=\"soft\">%s%s</p><pre>%s</pre>" % (
            "the last lines of " if is_cut else "", text(path), "\n".join(map(text, lines)))


def _files(entry):
    # A path of another host may mean another file here.
    if entry.get("host") != os.uname().nodename:
        return []
    return list(dict.fromkeys(path for path in (entry.get("stdout"), entry.get("stderr")) if path))


def _keep(heap, most, value, order, what):
    """Keep the `most` largest values; `order` tells equal ones apart."""
    item = value, order, what
    if len(heap) < most:
        heapq.heappush(heap, item)
    elif item[:2] > heap[0][:2]:
        heapq.heapreplace(heap, item)


def _ending(row):
    if row["reason"] not in (None, "exec"):
        return "%s (%s)" % (row["state"], row["reason"])
    if row["signal"] is not None:
        return "%s (signal %s)" % (row["state"], signals.name(row["signal"]))
    return row["state"] if row["exit"] is None else "%s (exit %d)" % (row["state"], row["exit"])


def _number(row):
    return "-" if row["job"] is None else "%d" % row["job"]


def _command(row):
    shown = table.quote(row["argv"])
    return shown if len(shown) <= _COMMAND else shown[:_COMMAND] + " ..."


def _command_cell(row):
    return "<td class=\"command\">%s<br><code class=\"soft\">%s</code></td>" % (text(row["name"]), text(_command(row)))


def _line(state, *cells):
    return "<tr class=\"%s\">%s</tr>" % (state, "".join(cells))


def _cell(number):
    return "<td class=\"number\">%s</td>" % number


def _meter_cell(share):
    if share is None:
        return "<td></td>"
    return "<td><span class=\"meter\"><i style=\"width: %.1f%%\"></i></span></td>" % (100 * min(1, max(0, share)))


def _time(seconds):
    return "%.1fs" % seconds if seconds < 60 else units.show_duration(seconds)


def _size(size_b):
    return "%.1fM" % (size_b / units.MIB) if size_b < 1 << 30 else "%.1fG" % (size_b / (1 << 30))


def _table(*columns, lines):
    head = "".join("<th class=\"%s\">%s</th>" % column for column in columns)
    return "<div class=\"scroll\"><table><tr>%s</tr>\n%s</table></div>\n" % (head, "\n".join(lines))


def _epoch_s(date):
    try:
        return None if date is None else clock.epoch_s(date)
    except ValueError:
        return None


def _clock(when_s):
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when_s))
