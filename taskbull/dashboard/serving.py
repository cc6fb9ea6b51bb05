"""The dashboard's own web server, for the command line: uvicorn, which is optional."""

from __future__ import annotations

from collections.abc import Callable
from socket import AF_INET, AF_INET6, create_server, socket
from typing import Final

import uvicorn

from taskbull.dashboard.asgi import Dashboard

_PATIENCE: Final = 3
"""Seconds that open requests have at the end; streams end at once."""


def serve(dashboard: Dashboard, host: str, port: int, ready: Callable[[str], object]) -> None:
    """Serve until SIGINT or SIGTERM; `ready` is told the address. `OSError`: it is another's.

    There is no access log: addresses have no payload, but tell what somebody looked at.
    """
    config = uvicorn.Config(
        dashboard,
        access_log=False,
        log_level="warning",
        proxy_headers=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=_PATIENCE,
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

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        if not sockets:
            return
        host, port = sockets[0].getsockname()[:2]
        self._ready(f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/")

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        self._dashboard.close()
        await super().shutdown(sockets)
