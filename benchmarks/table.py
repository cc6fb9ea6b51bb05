"""Markdown tables: medians, spread, and ratios within the same rounds."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from benchmarks.rounds import MUCH, Metric, Sample, Taken


def number(value: float, digits: int = 1) -> str:
    """Write a figure with no more digits than it deserves."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.{digits}f}"


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Write the median, and the least and the most where there are several."""
    middle = number(median(values), digits)
    if len(values) == 1:
        return middle
    return f"{middle} [{number(min(values), digits)}-{number(max(values), digits)}]"


def percentile(values: Sequence[float], percent: float) -> float:
    """Give the value below which so many per cent of them are."""
    ordered = sorted(values)
    return ordered[round(percent / 100 * (len(ordered) - 1))]


def ratio(mine: Sequence[float], base: Sequence[float]) -> float | None:
    """Give the median of the ratios of each round."""
    pairs = [(one, other) for one, other in zip(mine, base, strict=False) if other]
    return median(one / other for one, other in pairs) if pairs else None


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]], rule: str = "---:") -> str:
    """Lay out a table; all but the first column are figures, unless told."""
    lines = [header, ["---"] + [rule] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


class Tables:
    """Writes the tables of a part; `baselines` names for each side whom it is compared with."""

    def __init__(
        self, taken: Taken, metrics: Sequence[Metric], baselines: dict[str, str | None]
    ) -> None:
        self._taken = taken
        self._metrics = metrics
        self._baselines = baselines

    def text(self) -> str:
        """Write a table per setting, and what there is to say below them."""
        parts = [self._table(setting) for setting in self._taken.settings()]
        return "\n\n".join([*parts, self._remarks()])

    def _table(self, setting: str) -> str:
        rows = {
            side: samples
            for (where, side), samples in self._taken.samples.items()
            if where == setting and samples
        }
        if not rows:
            return f"**{setting}**: nothing could be measured."
        first = next(iter(rows.values()))[0].values
        metrics = [metric for metric in self._metrics if metric.key in first]
        compared = bool({self._baselines.get(side) for side in rows} & rows.keys())
        header = [setting]
        for metric in metrics:
            header.append(metric.title)
            if metric.compared and compared:
                header.append("x")
        lines = [
            [f"{side}{_mark(samples)}", *self._cells(side, samples, rows, metrics, compared)]
            for side, samples in rows.items()
        ]
        return markdown(header, lines)

    def _cells(
        self,
        side: str,
        samples: list[Sample],
        rows: dict[str, list[Sample]],
        metrics: list[Metric],
        compared: bool,
    ) -> list[str]:
        cells = []
        base = rows.get(self._baselines.get(side) or "", [])
        for metric in metrics:
            mine = [sample.values[metric.key] for sample in samples if metric.key in sample.values]
            cells.append(spread(mine, metric.digits) if mine else "-")
            if metric.compared and compared:
                theirs = [sample.values[metric.key] for sample in base]
                times = ratio(mine, theirs)
                cells.append("-" if times is None else f"{times:.2f}")
        return cells

    def _remarks(self) -> str:
        failures = self._taken.failures.items()
        told = [f"{side} failed: {reason.splitlines()[0]}." for side, reason in failures]
        bases = {base for base in self._baselines.values() if base}
        if any(metric.compared for metric in self._metrics) and bases & set(self._baselines):
            told.insert(0, f"x: the ratio to {' or '.join(sorted(bases))} in the same round.")
        return " ".join([*told, *self._disturbance()])

    def _disturbance(self) -> list[str]:
        samples = self._taken.all()
        if not samples:
            return []
        stolen = [sample.stolen for sample in samples]
        others = [sample.others for sample in samples]
        told = [
            f"{len(samples)} measurements in {self._taken.seconds:.0f} s.",
            "Share of the CPU used by others at the time, median and maximum:",
            "other machines on the host",
            f"{median(stolen):.0%} and {max(stolen):.0%},",
            f"other programs {median(others):.0%} and {max(others):.0%}.",
        ]
        if marked := sum(sample.disturbed for sample in samples):
            told.append(f"In {marked} of them it was over {MUCH:.0%} in total; each has a *.")
        return told


def _mark(samples: Sequence[Sample]) -> str:
    """Give a star for each disturbed measurement."""
    return " " + "*" * marked if (marked := sum(one.disturbed for one in samples)) else ""
