"""Coming back after a lost connection: how long it waits, and what it says about it."""

from __future__ import annotations

import logging
from collections.abc import Callable

import anyio
import pytest
from anyio import create_task_group, fail_after
from hypothesis import given
from hypothesis import strategies as st

from taskbull.errors import ConfigurationError, ConnectionLost
from taskbull.store.address import parse
from taskbull.store.async_store import ambient_store, open_store
from taskbull.store.connection import (
    LONGEST_DELAY,
    Change,
    Connected,
    ConnectionOptions,
    DialFailed,
    LinkLost,
    log_change,
    reconnect_delay,
)
from tests.servers.kinds import PrivateServers
from tests.servers.proxy import Proxy
from tests.store.sample import count

LIMIT = 60.0

chances = st.floats(0, 1, exclude_max=True)


@pytest.mark.parametrize(
    ("failures", "least", "most"),
    [(1, 0.08, 0.12), (2, 0.16, 0.24), (3, 0.32, 0.48), (8, 10.24, 15.36)],
)
def test_each_failure_doubles_the_delay_with_a_fifth_of_chance(
    failures: int, least: float, most: float
) -> None:
    assert reconnect_delay(failures, LONGEST_DELAY, 0.0) == pytest.approx(least)
    assert reconnect_delay(failures, LONGEST_DELAY, 1.0) == pytest.approx(most)


@given(st.integers(1, 10_000), chances)
def test_a_delay_is_within_its_bounds_however_many_failures_there_were(
    failures: int, chance: float
) -> None:
    delay = reconnect_delay(failures, LONGEST_DELAY, chance)
    assert 0.08 <= delay <= LONGEST_DELAY == 30.0
    doubled = 0.1 * 2.0 ** min(failures - 1, 20)
    assert min(0.8 * doubled, 30.0) <= delay <= 1.2 * doubled


@given(st.integers(1, 100), chances, chances)
def test_a_delay_never_shrinks_from_one_failure_to_the_next(
    failures: int, chance: float, next_chance: float
) -> None:
    delay = reconnect_delay(failures, LONGEST_DELAY, chance)
    assert reconnect_delay(failures + 1, LONGEST_DELAY, next_chance) >= delay


@given(st.integers(1, 100), chances, st.floats(0, 60))
def test_the_longest_delay_can_be_chosen(failures: int, chance: float, longest: float) -> None:
    assert reconnect_delay(failures, longest, chance) <= longest


@pytest.mark.parametrize(
    ("change", "level", "line"),
    [
        (LinkLost("host:1", "it was closed"), "WARNING", "Redis at host:1: it was closed"),
        (
            DialFailed("refused", 3, 0.41),
            "WARNING",
            "Cannot connect to Redis, retrying in 0.4 s: refused",
        ),
        (Connected("host:1", 3), "INFO", "Reconnected to Redis at host:1 (failed attempts: 3)"),
    ],
)
def test_each_change_is_one_line(
    change: Change, level: str, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    log_change(change)
    [record] = caplog.records
    assert (record.levelname, record.getMessage()) == (level, line)
    assert record.name == "taskbull.store.connection"


def test_a_first_connection_is_not_worth_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    log_change(Connected("host:1", 0))
    assert caplog.records == []


class Watch:
    """Records the changes that a store reports, and waits for more of them."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self._news = anyio.Event()

    def __call__(self, change: Change) -> None:
        self.changes.append(change)
        log_change(change)
        self._news.set()
        self._news = anyio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._news.wait()

    @property
    def waits(self) -> list[DialFailed]:
        return [change for change in self.changes if isinstance(change, DialFailed)]

    @property
    def backs(self) -> list[Connected]:
        return [change for change in self.changes if isinstance(change, Connected)]


async def test_each_failed_try_is_one_line_without_traceback_or_password(
    private_server: PrivateServers, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "taskbull")
    server = private_server({"requirepass": "hush"})
    with Proxy(("127.0.0.1", server.port)) as proxy, fail_after(LIMIT):
        url = f"redis://:hush@127.0.0.1:{proxy.port}/0"
        watch = Watch()
        options = ConnectionOptions(longest_delay=0.15)
        async with open_store(parse(url), options, watch) as store, create_task_group() as callers:
            assert await store.run(count(prefix)) == 1
            await anyio.to_thread.run_sync(proxy.refuse)
            await anyio.to_thread.run_sync(proxy.cut)
            await watch.until(lambda: any(isinstance(change, LinkLost) for change in watch.changes))
            callers.start_soon(store.run, count(prefix))
            await watch.until(lambda: len(watch.waits) == 3)
            await anyio.to_thread.run_sync(proxy.accept)
            await watch.until(lambda: len(watch.backs) == 2)
    lines = [record.getMessage() for record in caplog.records]
    tries = [line for line in lines if "retrying in" in line]
    assert len(tries) == len(watch.waits) >= 3
    told = f"cannot connect to 127.0.0.1:{proxy.port}: Connection refused"
    assert all(line.endswith(told) for line in tries)
    assert (
        lines[-1]
        == f"Reconnected to Redis at 127.0.0.1:{proxy.port} (failed attempts: {len(tries)})"
    )
    assert len(lines) == len(watch.changes) - 1  # all but the first connection
    assert not any(record.exc_info or record.stack_info for record in caplog.records)
    assert "hush" not in caplog.text


async def test_the_delays_grow_and_start_again_after_a_success(
    private_server: PrivateServers, prefix: str
) -> None:
    server = private_server()
    with Proxy(("127.0.0.1", server.port)) as proxy, fail_after(LIMIT):
        watch = Watch()
        async with open_store(parse(proxy.url), notify=watch) as store:
            for outage in range(2):
                await anyio.to_thread.run_sync(proxy.refuse)
                await anyio.to_thread.run_sync(proxy.cut)
                async with create_task_group() as callers:
                    callers.start_soon(store.run, count(prefix, str(outage)))
                    await watch.until(lambda: len(watch.waits) == 2)
                    await anyio.to_thread.run_sync(proxy.accept)
                first, second, *_ = watch.waits
                assert [first.attempts, second.attempts] == [1, 2]
                assert 0.08 <= first.delay <= 0.12
                assert 0.16 <= second.delay <= 0.24
                assert watch.backs[-1].attempts == len(watch.waits)
                watch.changes.clear()


async def test_used_up_attempts_are_reported_with_the_last_reason(prefix: str) -> None:
    with Proxy(("127.0.0.1", 1)) as proxy:
        proxy.refuse()
        url = proxy.url
    watch = Watch()
    options = ConnectionOptions(max_reconnect_attempts=3, longest_delay=0.01)
    with fail_after(LIMIT), pytest.raises(ConnectionLost, match="Connection refused"):
        async with open_store(parse(url), options, watch) as store:
            await store.run(count(prefix))
    assert [wait.attempts for wait in watch.waits] == [1, 2]


async def test_nothing_is_tried_without_waiting_callers(prefix: str) -> None:
    with Proxy(("127.0.0.1", 1)) as proxy:
        url = proxy.url
    watch = Watch()
    async with open_store(parse(url), ConnectionOptions(longest_delay=0.02), watch) as store:
        with fail_after(LIMIT), pytest.raises(ConnectionLost):
            await store.run(count(prefix), timeout=1.0)
        tried = len(watch.waits)
        assert tried >= 3
        await anyio.sleep(0.2)  # long enough for ten tries more, if it went on
        assert len(watch.waits) <= tried + 1


async def test_a_password_is_not_shown_when_it_is_refused(
    private_server: PrivateServers, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "taskbull")
    server = private_server({"requirepass": "right"})
    url = f"redis://:hush@127.0.0.1:{server.port}"
    with pytest.raises(Exception, match="WRONGPASS") as caught:
        async with open_store(parse(url)) as store:
            await store.run(count(prefix))
    assert "hush" not in str(caught.value) + caplog.text


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("ambient", [True, False])
def test_an_unusable_folder_raises_an_error(loop: str, ambient: bool, prefix: str) -> None:
    address = parse("embedded:///proc/nowhere")

    async def call() -> None:
        if ambient:
            await ambient_store(address).run(count(prefix))
        else:
            async with open_store(address) as store:
                await store.run(count(prefix))

    # In a separate event loop, because an error in the loop's task would end it.
    with pytest.raises(ConfigurationError, match="cannot use the folder /proc/nowhere"):
        anyio.run(call, backend=loop)
