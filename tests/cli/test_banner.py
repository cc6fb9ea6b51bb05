"""What a worker shows when it starts."""

from __future__ import annotations

import pytest

from taskbull.app.app import App
from taskbull.cli.worker.banner import show_banner


def test_names_in_the_queue_that_the_app_lacks_are_shown(  # D8
    url: str, prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    app = App("shop", redis=url, prefix=prefix)

    @app.task
    def greet() -> None: ...

    greet.delay()
    show_banner(app, app.worker(), "asyncio")
    assert "not here" not in capsys.readouterr().out
    app.sync_queue("default").add_bulk([("of_another\x1b[2J", {}), ("greeet", {})])
    show_banner(app, app.worker(), "asyncio")
    [line] = [line for line in capsys.readouterr().out.splitlines() if "not here" in line]
    assert "greeet, of_another\\x1b[2J in default: jobs wait for tasks that this app" in line
    app.close()
