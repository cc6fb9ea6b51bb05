"""Figures that may not grow: what is found, beside what it was when the bound was set."""

from __future__ import annotations

from collections.abc import Mapping


def check_not_grown(
    found: Mapping[str, float], were: Mapping[str, float], slack: float = 0.0
) -> None:
    """Fail if a figure has grown by more than `slack`, as a share of its limit.

    All figures are printed: `pytest tests/speed -rP` shows the values to record after a decrease.
    """
    told: list[str] = []
    for name, was in were.items():
        print(f"{name}: {found[name]:,.10g} found, was {was:,.10g}")
        most = was * (1 + slack)
        if found[name] > most:
            told.append(
                f"{name}: {found[name]:,.10g} found, at most {most:,.10g} allowed;"
                f" it was {was:,.10g} when the bound was set"
            )
    assert not told, "\n".join(told)
