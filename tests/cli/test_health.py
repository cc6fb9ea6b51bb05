"""`taskbull health`: a probe that does not import the app."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from click.testing import CliRunner

from taskbull.cli.main import commands
from tests.servers.kinds import Reachable


def _health(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(commands, ["health", *words])
    return done.exit_code, done.output


@contextmanager
def _worker(status: int, text: str) -> Iterator[tuple[int, list[str]]]:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port, asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_worker_is_asked_on_its_port() -> None:
    with _worker(200, "ok\n") as (port, asked):
        assert _health("--port", str(port)) == (0, "ok\n")
        assert _health("--port", str(port), "--live") == (0, "ok\n")
    assert asked == ["/readyz", "/livez"]


def test_a_worker_that_is_not_ready_says_why() -> None:
    with _worker(503, "Redis cannot be reached\n") as (port, _):
        code, text = _health("--port", str(port))
    assert code == 1
    assert "Redis cannot be reached" in text


def test_redis_is_asked_without_a_port(server: Reachable, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _health("--redis", server.url) == (0, "ok\n")
    monkeypatch.setenv("TASKBULL_REDIS_URL", server.url)
    assert _health() == (0, "ok\n")


def test_what_does_not_answer_is_unhealthy() -> None:
    code, text = _health("--port", "1")
    assert code == 1
    assert "No worker answers at http://127.0.0.1:1/readyz" in text
    code, text = _health("--redis", "redis://127.0.0.1:1/0", "--timeout", "0.5")
    assert code == 1
    assert "127.0.0.1:1" in text
    assert _health("--live")[0] == 2
