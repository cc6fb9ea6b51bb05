"""One client of the transport benchmark, in a process of its own: prints what it measured."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from hashlib import sha1
from typing import Any, TypeAlias

import anyio
import redis.asyncio
from msgspec import Struct

from taskbull.scripts.call import Call, Script
from taskbull.store.address import parse
from taskbull.store.async_store import open_store

SECONDS = 2.0
SOURCE = """
redis.call("HSET", KEYS[1], "name", ARGV[1], "data", ARGV[2])
redis.call("LPUSH", KEYS[2], ARGV[3])
redis.call("LTRIM", KEYS[2], 0, 99)
return redis.call("INCRBY", KEYS[3], ARGV[4])
"""
SHA = sha1(SOURCE.encode()).hexdigest()
ARGUMENTS = ("noop", '{"to":"ann@example.org"}', "42", 1)

CallOnce: TypeAlias = Callable[[int], Awaitable[Any]]


@asynccontextmanager
async def ours(url: str) -> AsyncGenerator[CallOnce, None]:
    script = Script("bench", SOURCE, SHA, (), ())
    async with open_store(parse(url)) as store:
        yield lambda caller: store.run(Call(script, (f"h{caller}", "l", "n"), ARGUMENTS, int))


@asynccontextmanager
async def redis_py(url: str) -> AsyncGenerator[CallOnce, None]:
    async with redis.asyncio.Redis.from_url(url) as client:
        await client.script_load(SOURCE)
        yield lambda caller: client.evalsha(SHA, 3, f"h{caller}", "l", "n", *ARGUMENTS)


class Client(Struct, frozen=True):
    """A way to call Redis, on an event loop."""

    connect: Callable[[str], AbstractAsyncContextManager[CallOnce]]
    backend: str
    uvloop: bool = False


CLIENTS = {
    "redis-py asyncio": Client(redis_py, "asyncio"),
    "redis-py uvloop": Client(redis_py, "asyncio", uvloop=True),
    "taskbull asyncio": Client(ours, "asyncio"),
    "taskbull uvloop": Client(ours, "asyncio", uvloop=True),
    "taskbull trio": Client(ours, "trio"),
}


async def measure(client: Client, url: str, callers: int) -> dict[str, float]:
    calls = 0
    async with client.connect(url) as call:
        await call(0)
        end = time.perf_counter() + SECONDS

        async def keep_calling(caller: int) -> None:
            nonlocal calls
            while time.perf_counter() < end:
                for _ in range(20):
                    await call(caller)
                calls += 20

        cpu, began = time.process_time(), time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for caller in range(callers):
                tasks.start_soon(keep_calling, caller)
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {"rate": calls / took, "cpu_us": cpu / calls * 1e6}


def main() -> None:
    name, url, callers = sys.argv[1:]
    client = CLIENTS[name]
    options = {"use_uvloop": True} if client.uvloop else {}
    result = anyio.run(
        measure, client, url, int(callers), backend=client.backend, backend_options=options
    )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
