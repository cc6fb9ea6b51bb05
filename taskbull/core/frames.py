"""Telling our own code from that of others, in stacks that are shown to people."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = str(Path(__file__).parent.parent)


def is_ours(filename: str) -> bool:
    """Tell whether a file belongs to taskbull itself."""
    return filename.startswith(_PACKAGE)
