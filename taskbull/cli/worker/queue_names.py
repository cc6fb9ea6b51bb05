"""`-q`: which queues a worker serves, as they are typed: `-q a -q b`, `-q a,b`, `-q a:5`."""

from __future__ import annotations

from collections.abc import Sequence

from taskbull.app.app import App
from taskbull.cli.errors import WrongUsage
from taskbull.core.checks import did_you_mean


def read_queues(words: Sequence[str]) -> dict[str, int | None]:
    """Read the queues; a number behind a colon is the concurrency of that queue."""
    queues: dict[str, int | None] = {}
    for part in (part.strip() for word in words for part in word.split(",")):
        name, colon, number = part.partition(":")
        if not name:
            raise WrongUsage(f"-q {','.join(words)}: the name of a queue is missing")
        if colon and not (number.isdecimal() and int(number) > 0):
            raise WrongUsage(
                f"-q {part}: after the colon comes the number of jobs at once, as in -q {name}:5"
            )
        queues[name] = int(number) if colon else queues.get(name)
    return queues


def check_known(queues: Sequence[str], app: App) -> None:
    """Refuse a queue that no task of the app is in, and that has no rules either."""
    known = app.known_queues
    for name in queues:
        if name not in known:
            raise WrongUsage(
                f"App {app.name} has no task in queue {name}{did_you_mean(name, known)}; its "
                f"queues are {', '.join(known) or 'none'}. --any-queue serves it anyway"
            )
