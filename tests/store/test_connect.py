"""Hosts are found by their names, whatever tasks do with the event loop's threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from anyio import fail_after, to_thread

from taskbull.errors import ConnectionLost
from taskbull.store.address import parse
from taskbull.store.async_store import open_store
from taskbull.store.backend import addresses_of, on_trio
from tests.servers.kinds import VALKEY_9, Reachable
from tests.store.sample import count

pytestmark = pytest.mark.parametrize("server", [VALKEY_9], indirect=True)


@contextmanager
def no_free_threads() -> Iterator[None]:
    """Occupy all threads that the event loop shares."""
    with ExitStack() as stack:
        if on_trio():
            limiter = to_thread.current_default_thread_limiter()
            for holder in range(int(limiter.total_tokens)):
                limiter.acquire_on_behalf_of_nowait(holder)
                stack.callback(limiter.release_on_behalf_of, holder)
        else:
            over = threading.Event()
            stack.callback(over.set)
            for _ in range(100):
                asyncio.get_running_loop().run_in_executor(None, over.wait)
        yield


async def test_a_host_is_found_although_tasks_hold_all_threads(
    server: Reachable, prefix: str
) -> None:  # F14
    """At `localhost`, which has two addresses, where the server listens at one."""
    url = server.url.replace("127.0.0.1", "localhost")
    with fail_after(60), no_free_threads():
        async with open_store(parse(url)) as store:
            assert await store.run(count(prefix)) == 1


async def test_an_address_is_its_own(server: Reachable) -> None:
    assert await addresses_of("127.0.0.1", 6379) == ["127.0.0.1"]
    assert await addresses_of("::1", 6379) == ["::1"]
    assert "127.0.0.1" in await addresses_of("localhost", 6379)


async def test_a_host_that_nobody_knows_is_reported(server: Reachable, prefix: str) -> None:
    async with open_store(parse("redis://nobody.invalid:6379")) as store:
        with pytest.raises(ConnectionLost, match=r"nobody\.invalid"):
            await store.run(count(prefix), timeout=2.0)
