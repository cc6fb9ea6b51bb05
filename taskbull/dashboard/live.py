"""What keeps an open page up to date: fragments of its own HTML, sent when they change."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from secrets import token_hex
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from taskbull.dashboard.board import Board, LeftStream
from taskbull.dashboard.html import Drawn, Element, draw
from taskbull.dashboard.messages import Refused
from taskbull.dashboard.visit import Visit
from taskbull.errors import TaskbullError

STREAM_LIMIT: Final = 30.0
"""Seconds after which a stream is cut off, if Redis or the browser holds it up."""


class Parts(Struct, frozen=True):
    """The parts of a page that change, by their ids."""

    elements: Mapping[str, Element | Drawn] = {}
    lists: Mapping[str, Mapping[str, Element | Drawn]] = {}
    """Of each list, or body of a table: its rows, in order, by their ids."""
    problem: str | None = None

    def drawn(self) -> Parts:
        """Return the same, rendered: for all who look at the same page."""
        lists = {name: _drawn(rows) for name, rows in self.lists.items()}
        return Parts(_drawn(self.elements), lists, self.problem)


def _drawn(elements: Mapping[str, Element | Drawn]) -> dict[str, Element | Drawn]:
    return {name: draw(element) for name, element in elements.items()}


LivePage: TypeAlias = Callable[[Board, Visit], Awaitable[Parts]]


class Difference:
    """Remembers what one browser has, and tells what it lacks."""

    def __init__(self) -> None:
        self._sent: dict[str, str] = {}
        self._orders: dict[str, list[str]] = {}

    def of(self, parts: Parts) -> dict[str, Any]:
        """Return the message that brings a browser up to date."""
        elements = self._changed(parts.elements)
        lists: dict[str, Any] = {}
        for name, rows in parts.lists.items():
            order, items = list(rows), self._changed(rows)
            if items or order != self._orders.get(name):
                lists[name] = {"order": order, "items": items}
                self._orders[name] = order
        found = {"elements": elements, "lists": lists, "problem": parts.problem}
        return {key: value for key, value in found.items() if value}

    # What depends on the time alone is not sent: browsers count by themselves.
    def _changed(self, elements: Mapping[str, Element | Drawn]) -> dict[str, str]:
        changed: dict[str, str] = {}
        for name, element in elements.items():
            drawn = draw(element)
            if self._sent.get(name) != drawn.timeless:
                changed[name], self._sent[name] = drawn.markup, drawn.timeless
        return changed


async def _read(board: Board, visit: Visit, page: LivePage) -> Parts:
    try:
        return (await page(board, visit)).drawn()
    except (TaskbullError, Refused) as error:
        return Parts(problem=str(error))


async def follow(board: Board, visit: Visit, page: LivePage) -> AsyncGenerator[bytes, None]:
    """Send what changes on a page with each new sample, for a few seconds.

    Then the page opens another stream, which continues this one: its `Last-Event-ID` says what the
    page has.
    """
    end = time.monotonic() + board.stream_seconds
    view = (page, visit.query.pairs, visit.access.may)
    message_id = visit.request.headers.get("last-event-id", "")
    left = board.left_streams.take(message_id)
    difference, seen = Difference(), 0
    if left is not None and left.view == view:
        difference, seen = left.difference, left.seen
    try:
        yield b"retry: 1000\n\n"
        while True:
            sample = await board.sampler.next(seen)
            seen = sample.number
            parts = await board.live.read(seen, view, lambda: _read(board, visit, page))
            message_id = token_hex(8)
            data = msgspec.json.encode(difference.of(parts))
            yield b"id: " + message_id.encode() + b"\ndata: " + data + b"\n\n"
            await board.sampler.search()
            if time.monotonic() >= end:
                return
    finally:
        if seen:
            board.left_streams.put(LeftStream(view, seen, difference), message_id)
