"""The HTTP server of a worker: `/metrics` for Prometheus, `/livez` and `/readyz` for probes.

It answers in threads of its own: a probe must get its answer while the event loop hangs.
"""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6
from threading import Thread
from typing import Any, Self

from taskbull.observability.metrics_source import MetricsSource
from taskbull.observability.prometheus import render

_PATIENCE = 5.0
"""Seconds that a client has to send its request."""


class MetricsServer:
    """Serves metrics and probes during its block. It has no password, and shows no payloads."""

    def __init__(self, source: MetricsSource, host: str, port: int) -> None:
        family = AF_INET6 if ":" in host else AF_INET

        class HttpServer(ThreadingHTTPServer):
            address_family = family
            daemon_threads = True

        class Answer(_Answer):
            told = source

        self._server = HttpServer((host, port), Answer)  # OSError: the port is another's
        self._thread = Thread(
            target=self._server.serve_forever, name="taskbull-metrics", daemon=True
        )

    @property
    def url(self) -> str:
        """Its URL; with port 0, the port is the one that the system chose."""
        host, port = self._server.server_address[:2]
        name = host.decode() if isinstance(host, bytes) else str(host)
        return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_PATIENCE)


class _Answer(BaseHTTPRequestHandler):
    told: MetricsSource
    timeout = _PATIENCE
    server_version = "taskbull"
    sys_version = ""

    def do_GET(self) -> None:
        match self.path.partition("?")[0]:
            case "/metrics":
                text, content_type = render(self.told.snapshot(), self.headers.get("Accept", ""))
                self._reply(200, text, content_type)
            case "/livez":
                health = self.told.health()
                self._probe(health.live, health.stuck)
            case "/readyz":
                health = self.told.health()
                self._probe(health.ready, health.stuck or health.idle)
            case _:
                self._reply(404, b"There are /metrics, /livez and /readyz\n")

    do_HEAD = do_GET  # noqa: N815 - named by the base class

    def _probe(self, fine: bool, reason: str) -> None:
        self._reply(200 if fine else 503, b"ok\n" if fine else f"{reason}\n".encode())

    def _reply(
        self, status: int, body: bytes, content_type: str = "text/plain; charset=utf-8"
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log nothing: probes come every few seconds."""
