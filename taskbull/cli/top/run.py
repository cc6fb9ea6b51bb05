"""`taskbull top` in a terminal: rounds of looks, and keys in between."""

from __future__ import annotations

from time import monotonic

from rich.console import Console
from rich.live import Live

from taskbull.cli.top.keys import next_keys, pressed_keys
from taskbull.cli.top.rows import ordered
from taskbull.cli.top.screen import draw
from taskbull.cli.top.state import Chosen
from taskbull.core.queue_facts import QueueFacts
from taskbull.errors import TaskbullError
from taskbull.queue.failures import Failures
from taskbull.queue.overview import Overview
from taskbull.queue.sync_server import SyncServer

_FAILED = 200
"""How many failed jobs are grouped for the queue that fills the screen."""


def run_top(server: SyncServer, interval: float) -> None:
    """Show all queues until somebody presses q."""
    overview, chosen, failures = Overview(), Chosen(), None
    facts: list[QueueFacts] = []
    title, due = server.address, 0.0
    console = Console(highlight=False, emoji=False, markup=False)
    with pressed_keys(), Live(console=console, screen=True, auto_refresh=False) as live:
        while not chosen.over:
            if monotonic() >= due and not chosen.frozen:
                due = monotonic() + interval
                try:
                    server.watch(overview)
                    failures = _failures(server, chosen, failures)
                    title = server.address
                except TaskbullError as error:
                    title = f"{server.address} does not answer: {error}"
                else:
                    facts = overview.facts()
            live.update(draw(facts, chosen, title, failures), refresh=True)
            for key in next_keys(interval if chosen.frozen else due - monotonic()):
                names = [queue.name for queue in ordered(facts, chosen.sort)]
                before, chosen = chosen, chosen.after(key, names)
                if chosen.inside and not before.inside:
                    failures, due = None, 0.0


def _failures(server: SyncServer, chosen: Chosen, before: Failures | None) -> Failures | None:
    if not chosen.inside or chosen.queue is None:
        return None
    return server.failures(chosen.queue, _FAILED, before=before)
