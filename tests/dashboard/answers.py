"""An answer that comes piece by piece: the request of a browser that stays, or goes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

from taskbull.dashboard import Dashboard


class Answer:
    """What a browser gets, and the way to go away."""

    def __init__(self, received: MemoryObjectReceiveStream[Any]) -> None:
        self._received = received
        self.gone = anyio.Event()

    async def piece(self) -> bytes | None:
        """Return the next piece of the answer; None at its end."""
        try:
            message = await self._received.receive()
        except anyio.EndOfStream:
            return None
        body: bytes = message.get("body", b"")
        return body


@asynccontextmanager
async def answering(
    dashboard: Dashboard, path: str, query: str = "", form: dict[str, str] | None = None
) -> AsyncIterator[Answer]:
    """Ask for a page, or send a form, for the time of a block; then the browser goes."""
    send, received = anyio.create_memory_object_stream[Any](1000)
    answer = Answer(received)
    sent = [] if form is None else [{"type": "http.request", "body": urlencode(form).encode()}]
    headers = [(b"host", b"localhost"), (b"sec-fetch-site", b"same-origin")]
    headers += [(b"content-type", b"application/x-www-form-urlencoded")] if sent else []
    scope = {
        "type": "http", "method": "POST" if sent else "GET", "path": path,
        "query_string": query.encode(), "headers": headers, "client": ("127.0.0.1", 1),
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        if sent:
            return sent.pop()
        await answer.gone.wait()
        return {"type": "http.disconnect"}

    async def pass_on(message: Any) -> None:
        await send.send(message)

    async def run() -> None:
        async with send:
            await dashboard(scope, receive, pass_on)

    with anyio.fail_after(120), received:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            yield answer
            answer.gone.set()
