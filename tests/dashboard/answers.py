"""A chunked response: the request of a browser that stays connected or disconnects."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

from taskbull.dashboard import Dashboard


class Answer:
    """A browser's response, and a way to disconnect."""

    def __init__(self, received: MemoryObjectReceiveStream[Any]) -> None:
        self._received = received
        self.gone = anyio.Event()

    async def chunk(self) -> bytes | None:
        """Return the next piece of the answer; None at its end."""
        try:
            message = await self._received.receive()
        except anyio.EndOfStream:
            return None
        body: bytes = message.get("body", b"")
        return body

    async def chunks(self) -> AsyncIterator[bytes]:
        """Return all pieces that are left."""
        while (chunk := await self.chunk()) is not None:
            yield chunk


_HOST_APP = """
from taskbull.dashboard import Dashboard

dashboard = Dashboard(redis={url!r}, prefix={prefix!r})
dashboard._dashboard.stream_seconds = {seconds}

async def app(scope, receive, send):
    if scope["type"] == "http":
        await dashboard({{**scope, "root_path": "/jobs"}}, receive, send)
"""


@contextmanager
def mounted(
    folder: Path, url: str, prefix: str, seconds: float = 0.5
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run an app with the dashboard at /jobs/ under uvicorn, as users do."""
    (folder / "host_app.py").write_text(_HOST_APP.format(url=url, prefix=prefix, seconds=seconds))
    process = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "host_app:app", "--port", "0", "--app-dir", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = ""
        while not (found := re.search(r"http://127\.0\.0\.1:\d+", said)):
            line = process.stdout.readline()
            assert line, f"uvicorn did not start: {said}"
            said += line
        yield process, f"{found[0]}/jobs/"
    finally:
        process.kill()
        process.communicate()


@asynccontextmanager
async def answering(
    dashboard: Dashboard,
    path: str,
    query: str = "",
    form: dict[str, str] | None = None,
    *,
    last_event_id: bytes = b"",
) -> AsyncIterator[Answer]:
    """Ask for a page, or send a form, for the time of a block; then the browser goes."""
    send, received = anyio.create_memory_object_stream[Any](1000)
    answer = Answer(received)
    sent = [] if form is None else [{"type": "http.request", "body": urlencode(form).encode()}]
    headers = [(b"host", b"localhost"), (b"sec-fetch-site", b"same-origin")]
    headers += [(b"content-type", b"application/x-www-form-urlencoded")] if sent else []
    headers += [(b"last-event-id", last_event_id)] if last_event_id else []
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
