"""The dashboard's own web server, for the command line: uvicorn, which is optional."""

from __future__ import annotations

from collections.abc import Callable
from socket import AF_INET, AF_INET6, create_server, socket
from time import monotonic
from typing import Any, Final

import uvicorn

from taskbull.dashboard.asgi import Dashboard
from taskbull.observability.logs import set_up_logging

_PATIENCE: Final = 3
"""Seconds that open requests have at the end; streams end immediately."""

_SLOWEST: Final = 15.0
"""Seconds within which the header of a request must arrive: uvicorn itself waits forever."""

_MOST_CONNECTIONS: Final = 1000
"""How many connections are served at the same time; others get 503."""


def serve(dashboard: Dashboard, host: str, port: int, ready: Callable[[str], object]) -> None:
    """Serve until SIGINT or SIGTERM; `ready` is told the address. `OSError`: it is another's.

    There is no access log: addresses have no payload, but tell what somebody looked at. What people
    do, and wrong passwords, are logged to standard error.
    """
    set_up_logging("info", "text")
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
    """Says where it listens, and ends the streams before it waits for requests to end."""

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
        """Close connections on which no request has arrived for a while, or only a part of one."""
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
