"""Callers see a single error with only a few of taskbull's frames. # users-4"""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from anyio import fail_after, to_thread

from taskbull import App, ConnectionLost, EnqueueError, JobNotFound
from taskbull.core.outcome import is_ours

LIMIT = 60.0
AWAY = "redis://127.0.0.1:1/0"  # No server listens there.

Ask = Callable[[App], Awaitable[Any]]


def in_thread(function: Callable[[App], Any]) -> Ask:
    async def ask(app: App) -> Any:
        return await to_thread.run_sync(function, app)

    return ask


async def _add(app: App) -> None:
    await app.queue("q").add("n")


async def _add_many(app: App) -> None:
    await app.queue("q").add_bulk([("n", {}), ("n", {})])


async def _count(app: App) -> None:
    await app.queue("q").counts()


async def _state(app: App) -> None:
    await app.job("q", "1").astate()


async def _result(app: App) -> None:
    await app.job("q", "1").aresult(timeout=0.1)


NO_ANSWER: list[tuple[str, Ask, type[Exception]]] = [
    ("add", _add, EnqueueError),
    ("add_bulk", _add_many, EnqueueError),
    ("counts", _count, ConnectionLost),
    ("astate", _state, ConnectionLost),
    ("aresult", _result, TimeoutError),
    ("sync add", in_thread(lambda app: app.sync_queue("q").add("n")), EnqueueError),
    ("sync counts", in_thread(lambda app: app.sync_queue("q").counts()), ConnectionLost),
    ("sync pause", in_thread(lambda app: app.sync_queue("q").pause()), ConnectionLost),
    ("state", in_thread(lambda app: app.job("q", "1").state()), ConnectionLost),
    ("result", in_thread(lambda app: app.job("q", "1").result(timeout=0.1)), TimeoutError),
]


def check_alone(error: BaseException) -> None:
    told = "".join(traceback.format_exception(error))
    assert told.count("Traceback (most recent call last)") == 1, told
    frames = traceback.extract_tb(error.__traceback__)
    assert len([one for one in frames if is_ours(one.filename)]) <= 4, told


@pytest.mark.parametrize(
    ("ask", "kind"), [case[1:] for case in NO_ANSWER], ids=[case[0] for case in NO_ANSWER]
)
async def test_a_redis_that_is_away_is_one_error(ask: Ask, kind: type[Exception]) -> None:
    app = App("shop", redis=AWAY, enqueue_timeout=0.1, call_timeout=0.1)
    with fail_after(LIMIT):
        with pytest.raises(kind) as raised:
            await ask(app)
    app.close()
    check_alone(raised.value)


async def _patiently(app: App) -> None:
    await app.job("q", "1").aresult(timeout=LIMIT)


_PATIENTLY = in_thread(lambda app: app.job("q", "1").result(timeout=LIMIT))


@pytest.mark.parametrize(
    ("ask", "patiently"),
    [(_result, _patiently), (NO_ANSWER[-1][1], _PATIENTLY)],
    ids=["aresult", "result"],
)
async def test_a_result_that_does_not_come_or_is_gone_is_one_error(
    app: App, ask: Ask, patiently: Ask
) -> None:
    with fail_after(LIMIT):
        with pytest.raises(JobNotFound) as gone:
            await patiently(app)  # to connect may take longer than the shortest timeout
        await app.queue("q").add("n")
        with pytest.raises(TimeoutError) as late:
            await ask(app)
    check_alone(gone.value)
    check_alone(late.value)
