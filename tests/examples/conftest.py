"""Copies of the examples, on a private server or on the embedded one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import pytest

from taskbull.store import embedded
from tests.examples.programs import JobEnvironment, copy_of
from tests.servers.kinds import PrivateServers

OpenExample: TypeAlias = Callable[[str], JobEnvironment]


@pytest.fixture
def on_server(tmp_path: Path, private_server: PrivateServers) -> OpenExample:
    """Copy an example; it runs on a private server."""
    return lambda name: copy_of(name, tmp_path, private_server().url)


@pytest.fixture
def embedded_only(tmp_path: Path) -> Iterator[OpenExample]:
    """Copy an example, and run it without a server's address."""
    yield lambda name: copy_of(name, tmp_path, None)
    embedded.stop(tmp_path / ".taskbull")


@pytest.fixture
def in_a_clone() -> Iterator[OpenExample]:
    """Copy an example to a folder of a project; it runs without being told of a server.

    The path is short. With a long path, the embedded server's socket would be elsewhere, where
    Node does not find it.
    """
    with TemporaryDirectory(prefix="taskbull-") as name:
        clone = Path(name)
        (clone / ".git").mkdir()
        folder = clone / "example"
        yield lambda name: copy_of(name, folder, None)
        for place in (clone, folder):
            embedded.stop(place / ".taskbull")
