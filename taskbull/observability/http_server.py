"""The worker's HTTP server: `/metrics` for Prometheus, `/livez` and `/readyz` for probes.

It answers in separate threads, because probes need an answer even while the event loop hangs.
"""

from __future__ import annotations

import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from socket import AF_INET, AF_INET6, gethostname
from typing import Any

from taskbull.observability.exporters import MetricsSource, ThreadServer, render

_PATIENCE = 5.0
"""Seconds that a client has to send its request."""

_HOST = re.compile(r"(\[(?P<six>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+))(:[0-9]{0,5})?")


class MetricsServer(ThreadServer):
    """A context manager that serves metrics and probes in a background thread.

    The server has no authentication and shows no job data. The constructor raises `OSError` if the
    port is in use.
    """

    def __init__(self, source: MetricsSource, host: str, port: int) -> None:
        family = AF_INET6 if ":" in host else AF_INET

        class HttpServer(ThreadingHTTPServer):
            address_family = family
            daemon_threads = True

        class Answer(_Answer):
            metrics = source

        server = HttpServer((host, port), Answer)
        super().__init__(server, "taskbull-metrics")
        self._address = server.server_address

    @property
    def url(self) -> str:
        """The server's URL. With port 0 it contains the port that the system chose."""
        host, port = self._address[:2]
        name = host.decode() if isinstance(host, bytes) else str(host)
        return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


class _Answer(BaseHTTPRequestHandler):
    metrics: MetricsSource
    timeout = _PATIENCE
    server_version = "taskbull"
    sys_version = ""

    def do_GET(self) -> None:
        if not self._is_addressed():
            self._reply(403, b"This name is not known to be that of this machine\n")
            return
        match self.path.partition("?")[0]:
            case "/metrics":
                text, content_type = render(self.metrics.snapshot(), self.headers.get("Accept", ""))
                self._reply(200, text, content_type)
            case "/livez":
                health = self.metrics.health()
                self._probe(health.live, health.stuck)
            case "/readyz":
                health = self.metrics.health()
                self._probe(health.ready, health.stuck or health.idle)
            case _:
                self._reply(404, b"There are /metrics, /livez and /readyz\n")

    do_HEAD = do_GET  # noqa: N815 - named by the base class

    def _is_addressed(self) -> bool:
        """Return False if the request comes from another site through DNS rebinding.

        A browser sends the host name from its address bar. If the connection uses a loopback
        address but the name does not belong to this machine, another site has rebound its name.
        """
        own_end = ip_address(self.connection.getsockname()[0])
        if not (getattr(own_end, "ipv4_mapped", None) or own_end).is_loopback:
            return True
        given = self.headers.get_all("Host", [])
        return all(_is_own_name(host.strip().lower()) for host in given)

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
        """Log nothing, because probes arrive every few seconds."""


def _is_own_name(host: str) -> bool:
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    name = found["six"] or found["name"]
    try:
        return (ip_address(name)).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost") or name == gethostname().lower()
