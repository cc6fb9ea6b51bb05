"""Web server of `taskbull dashboard`, based on uvicorn (an optional dependency)."""

from __future__ import annotations

from collections.abc import Callable
from socket import AF_INET, AF_INET6, create_server, socket
from time import monotonic
from typing import Any, Final

import uvicorn

from taskbull.dashboard.asgi import Dashboard
from taskbull.observability.logs import LogOptions, set_up_logging

_PATIENCE: Final = 3
"""Seconds that open requests get to finish at shutdown. Streams close immediately."""

_SLOWEST: Final = 15.0
"""Seconds within which a request header must arrive. Uvicorn itself waits forever."""

_MOST_CONNECTIONS: Final = 1000
"""Maximum number of concurrent connections. Further ones get status 503."""


def serve(dashboard: Dashboard, host: str, port: int, ready: Callable[[str], object]) -> None:
    """Serve until SIGINT or SIGTERM, and call `ready` with the URL once listening.

    There is no access log: URLs contain no payload, but show which pages a user viewed. Actions
    and wrong passwords are logged to standard error.

    Raises:
        OSError: If the address cannot be used, for example because it is taken.
    """
    set_up_logging(LogOptions())
    config = uvicorn.Config(
        dashboard,
        access_log=False,
        log_level="warning",
        proxy_headers=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=_PATIENCE,
        limit_concurrency=_MOST_CONNECTIONS,
        log_config=None,
    )
    family = AF_INET6 if ":" in host else AF_INET
    with create_server((host, port), family=family) as listener:
        _WebServer(config, dashboard, ready).run([listener])


class _WebServer(uvicorn.Server):
    """Uvicorn server that reports its URL and closes streams before it waits for requests."""

    def __init__(
        self, config: uvicorn.Config, dashboard: Dashboard, ready: Callable[[str], object]
    ) -> None:
        super().__init__(config)
        self._dashboard = dashboard
        self._ready = ready
        self._idle_since: dict[Any, float] = {}

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        if not sockets:
            return
        host, port = sockets[0].getsockname()[:2]
        self._ready(f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/")

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:  # every second
            self._close_slow_connections()
        return await super().on_tick(counter)

    def _close_slow_connections(self) -> None:
        """Close connections that have sent no complete request header for a while."""
        now, idle = monotonic(), dict[Any, float]()
        for connection in list(self.server_state.connections):
            cycle = getattr(connection, "cycle", None)
            if cycle is None or cycle.response_complete:
                idle[connection] = self._idle_since.get(connection, now)
                if now - idle[connection] > _SLOWEST:
                    connection.transport.abort()
        self._idle_since = idle

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        self._dashboard.close()
        await super().shutdown(sockets)
