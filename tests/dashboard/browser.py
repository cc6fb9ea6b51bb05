"""A real Chromium at a real dashboard. Anything that a browser complains about fails the test."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Locator,
    Page,
    Request,
    expect,
)

from tests.interop.install import require_node_modules
from tests.interop.node import HERE as NODE

FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--disable-dev-shm-usage",
)
PATIENCE_MS = 90_000
"""Longest wait for an element or a page. Other programs may keep all cores busy."""

expect.set_options(timeout=PATIENCE_MS)

NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> str:
    """Return where Chromium is; skip the test where there is none, or fail it under CI."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        reason = "Chromium is not installed (apt install chromium)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@contextmanager
def served(*options: str, **environment: str) -> Iterator[str]:
    """Run `taskbull dashboard` for the time of a block; give the address that it prints."""
    process = subprocess.Popen(
        [sys.executable, "-m", "taskbull", "dashboard", "--port", "0", *options],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = ""
        while not (found := re.search(r"http://\S+", said)):
            line = process.stdout.readline()
            assert line, f"the dashboard did not start: {said}"
            said += line
        yield found[0]
    finally:
        process.terminate()
        rest, _ = process.communicate(timeout=90)
    assert "Traceback" not in rest, rest


class Watch:
    """The browser's errors, and the addresses that it requested."""

    def __init__(self, context: BrowserContext, base: str) -> None:
        self._base = base
        self.complaints: list[str] = []
        context.on("console", self._console)
        context.on("weberror", lambda error: self.complaints.append(f"error: {error.error}"))
        context.on("request", self._request)

    def _console(self, message: ConsoleMessage) -> None:
        ignored = "Cross-Origin-Opener-Policy header has been ignored"  # said of plain HTTP
        if message.type in {"error", "warning"} and ignored not in message.text:
            self.complaints.append(f"{message.type}: {message.text}")

    def _request(self, request: Request) -> None:
        if not request.url.startswith(self._base):
            self.complaints.append(f"outside request: {request.url}")


@contextmanager
def visiting(browser: Browser, base: str, **settings: Any) -> Iterator[Page]:
    """Open a page for the time of a block; complaints fail the test at its end."""
    address, base = base, base.partition("?")[0]
    context = browser.new_context(
        **{"base_url": base, "viewport": {"width": 1440, "height": 900}, **settings}
    )
    context.set_default_timeout(PATIENCE_MS)
    watch = Watch(context, base)
    page = context.new_page()
    page.goto(address)
    assert page.url == base  # without the token, if there was one
    yield page
    context.close()
    assert not watch.complaints, watch.complaints


def follow(link: Locator) -> None:
    """Click what leads to another page, and wait until the scripts of that page have run."""
    with link.page.expect_navigation():
        link.click()


def stop_timers(page: Page) -> None:
    """Stop the timers of all pages from now on, so that a button that asks waits for its answer.

    `page.clock.fast_forward` runs those that are due.
    """
    page.clock.install()
    page.clock.pause_at(time.time() + 60)


def violations(page: Page) -> list[str]:
    """Return what axe finds against WCAG 2.2 AA on a page; it needs a context with `bypass_csp`."""
    require_node_modules()
    page.add_script_tag(path=NODE / "node_modules" / "axe-core" / "axe.min.js")
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
    found = page.evaluate("tags => axe.run({runOnly: {type: 'tag', values: tags}})", tags)
    return [
        f"{page.url}: {each['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
        for each in found["violations"]
        for node in each["nodes"]
    ]
