"""The panel that a worker prints at startup."""

from __future__ import annotations

import socket
from contextlib import suppress
from threading import Thread

import pytest

from taskbull.app.app import App
from taskbull.cli.worker_process import show_banner


def test_names_in_the_queue_that_the_app_lacks_are_shown(  # D8
    url: str, prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    app = App("shop", redis=url, prefix=prefix)

    @app.task
    def greet() -> None: ...

    greet.delay()
    show_banner(app, app.worker(), "asyncio")
    assert "unregistered" not in capsys.readouterr().out
    app.sync_queue("default").add_bulk([("of_another\x1b[2J", {}), ("greeet", {})])
    show_banner(app, app.worker(), "asyncio")
    [line] = [line for line in capsys.readouterr().out.splitlines() if "unregistered" in line]
    assert "greeet, of_another\\x1b[2J in default: jobs are waiting for tasks that this app" in line
    app.close()


def test_nothing_in_it_drives_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:  # S21
    # A hostile server answers every command with an error that has escape codes in it.
    with socket.create_server(("127.0.0.1", 0)) as hostile:

        def answer() -> None:
            with suppress(OSError):
                while True:
                    line, _ = hostile.accept()
                    with line:
                        while line.recv(65536):
                            line.sendall(b"-ERR \x1b[2J\xc2\x9b\xe2\x80\xae gone\r\n" * 4)

        thread = Thread(target=answer, daemon=True)
        thread.start()
        app = App("shop\x1b[2J", redis=f"redis://127.0.0.1:{hostile.getsockname()[1]}")
        app.task(name="x\x1b[2J")(lambda: None)
        show_banner(app, app.worker(), "asyncio")
        app.close()
    shown = capsys.readouterr().out
    assert "\\x1b[2J" in shown
    assert "cannot be used" in shown
    assert [c for c in shown if not (c.isprintable() or c == "\n")] == []
