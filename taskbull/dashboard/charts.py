"""Charts of a queue as SVG, with axes, values for each period, and a table as text alternative."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from math import ceil, floor, log10

from msgspec import Struct

from taskbull.core.queue_health import QueueFacts
from taskbull.dashboard import html as h
from taskbull.dashboard import layout as ui
from taskbull.monitor.overview import STEPS, Activity, Range

_svg, _g, _rect, _path, _line, _text, _title, _circle = (
    h.Tag(name) for name in ("svg", "g", "rect", "path", "line", "text", "title", "circle")
)
_figure, _figcaption = h.Tag("figure"), h.Tag("figcaption")

_WIDTH, _HEIGHT = 480, 150
_LEFT, _TOP, _BOTTOM = 46, 8, 20
_TICKS = {"hour": ("-60 min", "-30 min", "now"), "day": ("-24 h", "-12 h", "now")}
_RANGES: dict[Range, str] = {"hour": "Last hour", "day": "Last day"}


class Series(Struct, frozen=True):
    """One row of values of a chart. Unknown values are `None`."""

    name: str
    look: str
    values: Sequence[float | None]


class Backlog:
    """The highest number of waiting jobs that this dashboard has seen in each period."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, Range], dict[int, int]] = {}

    def record(self, facts: Sequence[QueueFacts]) -> None:
        """Add the current number of waiting jobs of each queue."""
        for one in facts:
            if one.problem is None:
                for over, (minutes, most) in STEPS.items():
                    seen = self._seen.setdefault((one.name, over), {})
                    period = int(one.now.timestamp()) // (60 * minutes)
                    seen[period] = max(seen.get(period, 0), one.waiting)
                    while len(seen) > most:
                        del seen[min(seen)]

    def keep(self, queues: set[str]) -> None:
        """Forget all other queues."""
        self._seen = {key: seen for key, seen in self._seen.items() if key[0] in queues}

    def of(self, queue: str, over: Range, starts: Sequence[datetime]) -> list[int | None]:
        """Return the numbers of a queue for the periods that start at these times."""
        seen, seconds = self._seen.get((queue, over), {}), 60 * STEPS[over][0]
        return [seen.get(int(start.timestamp()) // seconds) for start in starts]


def charts(queue: str, over: Range, found: Activity, backlog: Sequence[int | None]) -> h.Element:
    """Return the charts of a queue: jobs finished, their times, and jobs waiting."""
    starts = [period.start for period in found.periods]
    every = f"per {found.minutes} min"
    done = Series("completed", "done", [each.completed for each in found.periods])
    failed = Series("failed", "failed", [each.failed for each in found.periods])
    waited = Series("waiting time", "waited", [each.waited for each in found.periods])
    took = Series("run time", "took", [each.took for each in found.periods])
    waiting = Series("waiting", "waited", backlog)
    counted = "metrics" in {found.completed_from, found.failed_from}
    source = "BullMQ's metrics" if counted else "the finished jobs that are still stored"
    sampled = sum(period.sampled for period in found.periods)
    return h.section(
        h.div(
            h.h2("Activity"),
            h.nav(
                [
                    ui.link(name, "queue", q=queue, range=each)
                    if each != over
                    else h.span(name, aria_current="page")
                    for each, name in _RANGES.items()
                ],
                aria_label="Period of the charts",
                class_="ranges",
            ),
            class_="cardhead",
        ),
        h.div(
            _chart(
                f"Finished jobs {every}",
                over,
                starts,
                (done, failed),
                ui.number,
                bars=True,
                note=f"From {source}.",
                missing="No finished job is recorded. If jobs have finished, keep some, or set "
                "metrics_data_points in the workers (metrics: { maxDataPoints: 1440 } in Node).",
            ),
            _chart(
                "Waiting and run time",
                over,
                starts,
                (waited, took),
                ui.duration,
                note=f"Medians of {ui.plural(sampled, 'completed job')}, up to 9 per period.",
                missing="These times come from completed jobs, and none of this period is stored. "
                "If jobs have completed, keep some of them with keep_completed.",
            ),
            _chart(
                "Waiting jobs",
                over,
                starts,
                (waiting,),
                ui.number,
                note="Highest number seen while a dashboard page was open or /metrics was scraped.",
                missing="Not recorded yet. This dashboard records it while a page is open or "
                "/metrics is scraped.",
            ),
            class_="charts",
        ),
        _table(found, backlog),
        id="activity",
        class_="card",
        data_range=over,
    )


def _chart(  # noqa: PLR0913 - passed by keyword
    name: str,
    over: Range,
    starts: Sequence[datetime],
    series: Sequence[Series],
    write: Callable[[float | None], str],
    *,
    note: str,
    missing: str,
    bars: bool = False,
) -> h.Element:
    columns = list(zip(*(one.values for one in series), strict=True))
    known = [[value for value in column if value is not None] for column in columns]
    sums = [float(sum(found) if bars else max(found, default=0)) for found in known]
    caption = _figcaption(name, [h.span(one.name, class_=f"key {one.look}") for one in series])
    if not any(known):
        return _figure(caption, h.p(missing, class_="missing quiet"), class_="chart")
    top = _round_up(max(sums, default=0), in_seconds=write is ui.duration)
    step = (_WIDTH - _LEFT) / max(len(starts), 1)
    tall = _HEIGHT - _TOP - _BOTTOM

    def y_of(value: float) -> float:
        return _TOP + tall - value / top * tall

    drawn = _bars(series, step, y_of) if bars else _lines(series, step, y_of)
    words = [
        ", ".join(
            f"{one.name} {write(value)}"
            for one, value in zip(series, column, strict=True)
            if value is not None
        )
        or "not recorded"
        for column in columns
    ]
    return _figure(
        caption,
        _svg(
            [
                (
                    _line(x1=str(_LEFT), x2=str(_WIDTH), y1=_n(y_of(tick)), y2=_n(y_of(tick))),
                    _text(write(tick), x=str(_LEFT - 6), y=_n(y_of(tick) + 4), class_="y"),
                )
                for tick in (0.0, top / 2, top)
            ],
            [
                _text(label, x=_n(x), y=str(_HEIGHT - 4), class_=look)
                for label, x, look in zip(
                    _TICKS[over],
                    (_LEFT, (_LEFT + _WIDTH) / 2, _WIDTH),
                    ("start", "middle", "end"),
                    strict=True,
                )
            ],
            drawn,
            [
                _rect(
                    _title(f"{start:%H:%M} UTC: {said}"),
                    x=_n(_LEFT + place * step),
                    y=str(_TOP),
                    width=_n(step),
                    height=str(tall),
                    class_="period",
                    data_at=start.isoformat(timespec="seconds"),
                    data_said=said,
                )
                for place, (start, said) in enumerate(zip(starts, words, strict=True))
            ],
            viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
            role="img",
            tabindex="0",
            aria_label=f"{name}. Highest: {write(max(sums))}. Latest: {words[-1]}. "
            "Use the arrow keys to read the values; the table below has all of them.",
        ),
        h.p(note, class_="value quiet", data_note=note, aria_live="polite"),
        class_="chart",
    )


def _bars(series: Sequence[Series], step: float, y_of: Callable[[float], float]) -> h.Node:
    base: dict[int, float] = {}
    shapes: list[h.Element] = []
    for one in series:
        bars: list[str] = []
        for place, value in enumerate(one.values):
            if value:
                low, high = base.get(place, 0.0), base.get(place, 0.0) + value
                base[place] = high
                x, wide = _LEFT + place * step + 1, max(step - 2, 1.0)
                # A single job must not be invisible beside thousands.
                up = min(y_of(high), y_of(low) - 1.5)
                bars.append(f"M{_n(x)} {_n(y_of(low))}V{_n(up)}h{_n(wide)}V{_n(y_of(low))}z")
        shapes.append(_path(d="".join(bars), class_=f"bar {one.look}"))
    return shapes


def _lines(series: Sequence[Series], step: float, y_of: Callable[[float], float]) -> h.Node:
    shapes: list[h.Node] = []
    for one in series:
        way, alone, before = "", list[h.Element](), None
        values = [*one.values, None]
        for place, value in enumerate(values[:-1]):
            if value is not None:
                x, y = _n(_LEFT + (place + 0.5) * step), _n(y_of(value))
                way += f"{'M' if before is None else 'L'}{x} {y}"
                if before is None and values[place + 1] is None:
                    alone.append(_circle(cx=x, cy=y, r="2.5", class_=f"dot {one.look}"))
            before = value
        shapes += [_path(d=way, class_=f"curve {one.look}"), alone]
    return shapes


def _table(found: Activity, backlog: Sequence[int | None]) -> h.Element:
    rows = [
        h.tr(
            ui.cell("From", ui.clock(period.start), kind="nw"),
            ui.cell("Completed", ui.number(period.completed), kind="n"),
            ui.cell("Failed", ui.number(period.failed), kind="n"),
            ui.cell("Waiting time", ui.duration(period.waited), kind="n"),
            ui.cell("Run time", ui.duration(period.took), kind="n"),
            ui.cell("Longest", ui.duration(period.longest), kind="n"),
            ui.cell("Waiting", ui.number(waiting), kind="n"),
        )
        for period, waiting in reversed(list(zip(found.periods, backlog, strict=True)))
    ]
    columns = ("From", "Completed", "Failed", "Waiting time", "Run time", "Longest", "Waiting")
    return h.details(
        h.summary(f"Values as a table, {found.minutes} min per row"),
        ui.table_of("activity-values", columns, rows),
    )


def _round_up(value: float, *, in_seconds: bool) -> float:
    """Return the upper end of an axis: an even digit and zeros, or a round duration."""
    if in_seconds and value > 10:
        for end in (20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 43_200, 86_400):
            if value <= end:
                return float(end)
        return 86_400.0 * ceil(value / 86_400)
    if value <= 0 or (not in_seconds and value <= 2):
        return 1.0 if in_seconds else 2.0
    power = 10.0 ** floor(log10(value))
    return next(power * each for each in (1, 2, 4, 6, 8, 10) if value <= power * each * 1.0001)


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
