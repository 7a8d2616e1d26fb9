"""A drawing of runs over time, a row for each CPU, as SVG to stand in a page."""

import time

_WIDTH, _LEFT, _ROW, _TOP = 1040, 130, 20, 26       # pixels
_ROWS = 64              # rows that are drawn
_TICKS = 8              # marks of time, at most
_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800,
            1209600, 2592000, 7776000, 31536000, 315360000, 31536000000)


class Bar:
    """A run: `host`, `cpus` (list or None), `start_s`, `end_s` (since the epoch), `state`, `title` for who points."""

    __slots__ = ("host", "cpus", "start_s", "end_s", "state", "title")

    def __init__(self, *values):
        self.host, self.cpus, self.start_s, self.end_s, self.state, self.title = values


class Timeline:
    """Bars, and where each goes: to the rows of its CPUs, or, when it was not given any, to the first row of its host
    that is free."""

    def __init__(self):
        self.bars = []

    def add(self, host, cpus, start_s, end_s, state, title):
        """Add a Bar."""
        self.bars.append(Bar(host or "-", cpus, start_s, max(start_s, end_s), state, title))

    def rows(self):
        """[(label, Bars)] in the order in which they are drawn."""
        found, free_s = {}, {}
        for bar in sorted(self.bars, key=lambda bar: bar.start_s):
            if bar.cpus:
                keys = [(bar.host, 0, cpu) for cpu in bar.cpus]
            else:
                ends = free_s.setdefault(bar.host, [])
                row = next((row for row, end_s in enumerate(ends) if end_s <= bar.start_s), len(ends))
                ends[row:row + 1] = [bar.end_s]
                keys = [(bar.host, 1, row)]
            for key in keys:
                found.setdefault(key, []).append(bar)
        hosts = {bar.host for bar in self.bars}
        return [(("" if len(hosts) == 1 else host + " ") + ("any CPU" if loose else "CPU %d" % number), bars)
                for (host, loose, number), bars in sorted(found.items())]

    def left_out(self):
        """How many rows are not drawn."""
        return max(0, len(self.rows()) - _ROWS)

    def svg(self, text):
        """The drawing; `text` makes any text safe. There must be bars."""
        rows = self.rows()[:_ROWS]
        first_s = min(bar.start_s for bar in self.bars)
        span_s = max(1.0, max(bar.end_s for bar in self.bars) - first_s)
        scale = (_WIDTH - _LEFT - 20) / span_s
        bottom = _TOP + _ROW * len(rows)
        out = ["<svg width=\"%d\" height=\"%d\" role=\"img\" aria-label=\"runs over time\">" % (_WIDTH, bottom + 8)]
        for when_s, label in marks(first_s, span_s):
            x = _LEFT + (when_s - first_s) * scale
            out.append("<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/><text x=\"%.1f\" y=\"16\"%s>%s</text>"
                       % (x, x, _TOP - 6, bottom, x, " text-anchor=\"end\"" if x > _WIDTH - 80 else "", label))
        for at, (label, bars) in enumerate(rows):
            y = _TOP + _ROW * at
            short = label if len(label) < 19 else label[:7] + ".." + label[-9:]
            out.append("<text x=\"8\" y=\"%d\">%s</text>" % (y + 14, text(short)))
            out += ["<rect class=\"%s\" x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\"><title>%s</title></rect>" % (
                bar.state, _LEFT + (bar.start_s - first_s) * scale, y + 3, max(1.5, (bar.end_s - bar.start_s) * scale),
                _ROW - 4, text(bar.title)) for bar in bars]
        return "\n".join(out + ["</svg>"])


def marks(first_s, span_s):
    """[(seconds since the epoch, label)]: round local times within `span_s` seconds from `first_s`."""
    step_s = next((step for step in _STEPS_S if span_s / step < _TICKS), _STEPS_S[-1])
    form = "%H:%M" if step_s >= 60 else "%H:%M:%S"
    if span_s > 86400:
        form = "%Y-%m-%d" if step_s >= 86400 else "%m-%d %H:%M"
    offset_s = time.localtime(first_s).tm_gmtoff
    at_s = -(-(first_s + offset_s) // step_s) * step_s - offset_s
    found = []
    while at_s <= first_s + span_s:
        found.append((at_s, time.strftime(form, time.localtime(at_s))))
        at_s += step_s
    return found
