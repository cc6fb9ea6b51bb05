"""The picture of the docs: bars, written by hand as SVG, readable in light and in dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from xml.sax.saxutils import escape

from msgspec import Struct

from benchmarks.catalogue import OWN
from benchmarks.rounds import Taken

PANELS = (
    ("drain", "100 at once", "A worker, 100 at once"),
    ("drain", "10 at once", "A worker, 10 at once"),
    ("drain", "1 at once", "A worker, 1 at once"),
    ("enqueue", "one by one", "A producer, one job after the other"),
)
LEFT_OUT = ("node-5", "taskbull-uvloop")
"""Near enough to others that they would say nothing new."""

WIDTH, MARGIN, GAP = 900, 16, 28
ROW, BAR, HEAD = 19, 12, 46
LABELS, NUMBERS = 118, 58
_STYLE = """
  svg { color: #1f2328; font: 12px system-ui, -apple-system, sans-serif; }
  text { fill: currentColor; }
  .title { font-weight: 600; font-size: 13px; }
  .own { fill: #d9480f; } .node { fill: #2f7d4f; } .other { fill: #8b949e; }
  @media (prefers-color-scheme: dark) {
    svg { color: #e6edf3; }
    .own { fill: #ff8a4c; } .node { fill: #5fbf86; } .other { fill: #6e7681; }
  }
"""


class Panel(Struct, frozen=True):
    """Some bars under a title, the longest first."""

    title: str
    bars: list[tuple[str, float]]

    @property
    def height(self) -> int:
        return HEAD + ROW * len(self.bars)


def panels(results: Mapping[str, Taken]) -> list[Panel]:
    """Take the medians that are drawn from the results of the parts."""
    made = []
    for part, setting, title in PANELS:
        taken = results.get(part, Taken()).samples
        bars = [
            (side, median(sample.values["rate"] for sample in samples))
            for (where, side), samples in taken.items()
            if where == setting and samples and side not in LEFT_OUT
        ]
        if bars:
            made.append(Panel(title, sorted(bars, key=lambda bar: -bar[1])))
    return made


def draw(drawn: Sequence[Panel]) -> str:
    """Draw the panels, two in a row."""
    width = (WIDTH - 2 * MARGIN - GAP) // 2
    lines: list[str] = []
    top = 0
    for at in range(0, len(drawn), 2):
        row = drawn[at : at + 2]
        for column, panel in enumerate(row):
            lines += _panel(panel, MARGIN + column * (width + GAP), top, width)
        top += max(panel.height for panel in row)
    height = top + MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img" aria-label="Jobs per second">'
    )
    return "\n".join([head, f"<style>{_STYLE}</style>", *lines, "</svg>", ""])


def _panel(panel: Panel, left: int, top: int, width: int) -> list[str]:
    longest = max(value for _, value in panel.bars)
    room = width - LABELS - NUMBERS
    lines = [f'<text class="title" x="{left}" y="{top + 30}">{escape(panel.title)}, jobs/s</text>']
    for number, (side, value) in enumerate(panel.bars):
        y = top + HEAD + ROW * number
        length = max(1.0, value / longest * room)
        end = left + LABELS + length + 6
        bar = f'x="{left + LABELS}" y="{y}" width="{length:.1f}" height="{BAR}"'
        kind = "own" if side.startswith(OWN) else side if side == "node" else "other"
        lines += [
            f'<text x="{left + LABELS - 8}" y="{y + 10}" text-anchor="end">{escape(side)}</text>',
            f'<rect class="{kind}" {bar}/>',
            f'<text x="{end:.1f}" y="{y + 10}">{value:,.0f}</text>',
        ]
    return lines
