"""What somebody has chosen to see in `top`, key by key. No IO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from taskbull.cli.top.rows import SORTS

HELP = (
    "q quit   s sort by name, waiting, failed, rate   ↑ ↓ choose   ↵ look into a queue   "
    "p freeze   ? this help"
)


class Chosen(Struct, frozen=True):
    """The state of the screen."""

    sort: str = SORTS[0]
    queue: str | None = None
    """The queue that is marked."""
    inside: bool = False
    """Whether it fills the screen."""
    frozen: bool = False
    help: bool = False
    over: bool = False

    def after(self, key: str, names: Sequence[str]) -> Chosen:
        """Return the state after a key was pressed; `names` are the queues as they are shown."""
        changes: dict[str, Any] = {}
        match key:
            case "q":
                changes = {"over": True}
            case "s":
                changes = {"sort": SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]}
            case "up" | "down" if names:
                changes = {"queue": self._beside(names, 1 if key == "down" else -1)}
            case "enter" if names:
                changes = {"queue": self.queue or names[0], "inside": not self.inside}
            case "escape":
                changes = {"inside": False, "help": False}
            case "p":
                changes = {"frozen": not self.frozen}
            case "?":
                changes = {"help": not self.help}
            case _:
                pass
        return replace(self, **changes)

    def _beside(self, names: Sequence[str], step: int) -> str:
        if self.queue not in names:
            return names[0] if step > 0 else names[-1]
        place = names.index(self.queue) + step
        return names[min(max(place, 0), len(names) - 1)]
