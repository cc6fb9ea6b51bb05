"""Keys as they are pressed, without waiting for the end of a line."""

from __future__ import annotations

import os
import re
import select
import sys
import termios
import tty
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

_ARROWS: Final = {"A": "up", "B": "down"}
_NAMES: Final = {"\r": "enter", "\n": "enter", "\x1b": "escape", "\x7f": "escape"}
_KEY: Final = re.compile(r"\x1b[\[O][0-9;]*([A-Za-z~])|(.)", re.DOTALL)


@contextmanager
def pressed_keys() -> Generator[None]:
    """Have keys at once, and not shown, during the block."""
    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    try:
        tty.setcbreak(file)
        yield
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)


def next_keys(seconds: float) -> list[str]:
    """Wait for keys so long; return their names."""
    file = sys.stdin.fileno()
    if not select.select([file], [], [], max(seconds, 0.0))[0]:
        return []
    return names_of(os.read(file, 256).decode("utf-8", "replace"))


def names_of(read: str) -> list[str]:
    """Return the names of keys by what the terminal sends; at the end of the input, that of q."""
    if not read:
        return ["q"]
    return [
        _ARROWS.get(found[1], "") if found[1] else _NAMES.get(found[2], found[2])
        for found in _KEY.finditer(read)
    ]
