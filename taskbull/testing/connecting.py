"""Letting an app use another server for a while."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from taskbull.app.app import App
from taskbull.store.clients import address_of


@contextmanager
def connected(app: App, redis: str) -> Generator[None]:
    """Let the app's tasks, queues and new workers use the Redis at this URL in the block.

    For apps that are made where their module is imported: `with connected(app, server.url): …`.
    """
    with app.producer.moved(address_of(redis)):
        yield
