"""Memory that a bulk uses in addition to the caller's jobs, counted, not timed."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from taskbull import App
from tests.servers.kinds import Reachable

JOBS = 5000


@pytest.mark.parametrize(
    ("kind", "most"),
    [(list, 700), (iter, 350)],  # bytes per job at the peak: it was 416 and 170
    ids=["a list, all encoded before the first is sent", "a stream"],
)
def test_a_bulk_takes_little_memory_for_each_job(
    kind: Callable[[Iterable[Any]], Iterable[Any]], most: int, server: Reachable, prefix: str
) -> None:
    app = App("memory", redis=server.url, prefix=prefix)

    @app.task(name="send")
    def send(to: str, number: int) -> None: ...

    send.delay("ann@example.org", 0)  # what is made once is there
    jobs = kind([send.job("ann@example.org", number) for number in range(JOBS)])
    tracemalloc.start()
    try:
        handles = app.enqueue(jobs)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(handles) == JOBS
    assert peak / JOBS < most
