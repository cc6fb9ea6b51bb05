"""A worker process to be killed in the middle of a stream.

`python -m tests.app.killed_stream <url> <prefix> [finish]`
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import anyio

from taskbull import App


def main(url: str, prefix: str, *, finishes: bool) -> None:
    app = App("killed", redis=url, prefix=prefix)

    @app.task(queue="q")
    async def half(name: str) -> AsyncIterator[int]:
        for number in range(3):
            yield number
        if not finishes:
            await anyio.sleep_forever()
        yield 3

    app.run(queues=["q"], lock_duration=2, heartbeat_interval=0.5, stalled_interval=0.5)


if __name__ == "__main__":
    main(*sys.argv[1:3], finishes=sys.argv[3:] == ["finish"])
