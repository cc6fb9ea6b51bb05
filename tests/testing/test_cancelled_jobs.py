"""Cancelling and expiring in a box, in virtual time."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from taskbull import (
    App,
    Cancelled,
    Cron,
    JobCancelled,
    JobExpired,
    JobHandle,
    JobNotFound,
    JobState,
    Retry,
    current_job,
)
from taskbull.testing import Box, recorded
from taskbull.testing.recorded_job import cancel


class Shop:
    """An app whose tasks cancel jobs."""

    def __init__(self) -> None:
        self.app = app = App("shop", redis="redis://127.0.0.1:1/0")
        self.ran: list[str] = []
        self.own: JobHandle[Any] | None = None
        self.answers: list[Cancelled] = []

        @app.task
        def plain(name: str, way: str = "return") -> str:
            self.ran.append(name)
            if self.own is not None and self.own.id == current_job().id:
                self.answers.append(self.own.cancel("enough"))
            if way == "check":
                current_job().check()
            if way == "ask":
                assert current_job().cancelled
            if way == "retry":
                raise Retry(after=60)
            return name

        @app.task
        async def sleeper() -> str:
            assert self.own is not None
            self.answers.append(await self.own.acancel("enough"))
            await anyio.sleep_forever()
            return "never"

        @app.task
        def top(title: str) -> str:
            self.ran.append(title)
            return title

        @app.task
        def spawner() -> None:
            assert self.own is not None
            current_job().spawn([plain.job("child"), plain.job("other")])
            self.answers.append(self.own.cancel("enough"))
            current_job().check()

        self.plain, self.sleeper, self.top, self.spawner = plain, sleeper, top, spawner


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.mark.parametrize("delay", [None, 60])
def test_a_job_that_has_not_run_is_cancelled(shop: Shop, delay: float | None) -> None:
    with recorded(shop.app) as box:
        job = shop.plain.options(delay=delay).delay("a")
        assert job.cancel() is Cancelled.BEFORE_START
        assert job.cancel() is Cancelled.TOO_LATE
        box.run()
        with pytest.raises(JobCancelled, match="cancelled: by request"):
            job.result()
    assert shop.ran == []
    assert job.state() is JobState.FAILED


WAYS = {"return": None, "check": JobCancelled, "ask": JobCancelled, "retry": JobCancelled}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("in_a_loop", [False, True])
def test_a_plain_function_may_ask(shop: Shop, way: str, in_a_loop: bool) -> None:
    with recorded(shop.app) as box:
        shop.own = job = shop.plain.delay("a", way)
        _run(box, in_a_loop=in_a_loop)
        if (error := WAYS[way]) is None:
            assert job.result() == "a"
        else:
            with pytest.raises(error, match="cancelled: enough"):
                job.result()
    assert shop.answers == [Cancelled.REQUESTED]
    assert shop.ran == ["a"]


@pytest.mark.parametrize("in_a_loop", [False, True])
def test_an_async_function_ends_at_its_next_await(shop: Shop, in_a_loop: bool) -> None:
    with recorded(shop.app) as box:
        shop.own = job = shop.sleeper.delay()
        _run(box, in_a_loop=in_a_loop)
        with pytest.raises(JobCancelled, match="cancelled: enough"):
            job.result()
    assert shop.answers == [Cancelled.REQUESTED]


def _run(box: Box, *, in_a_loop: bool) -> None:
    if in_a_loop:
        anyio.run(box.arun)
    else:
        box.run()


def test_children_that_have_not_run_go_with_their_parent(shop: Shop) -> None:
    with recorded(shop.app) as box:
        below = shop.plain.after(shop.plain.job("below")).job("middle")
        job = shop.top.after(below, shop.plain.options(delay=9).job("late")).delay("top")
        assert job.cancel() is Cancelled.BEFORE_START
        box.run()
        reasons = {one.data.get("name", "top"): one.failure for one in box.jobs}
    assert shop.ran == []
    told = {name: "" if one is None else one.reason for name, one in reasons.items()}
    assert told["top"] == "cancelled: by request"
    for name in ("middle", "late", "below"):
        assert told[name].startswith("cancelled: parent bull:default:")


def test_children_go_with_a_parent_that_was_running(shop: Shop) -> None:
    with recorded(shop.app) as box:
        shop.own = job = shop.spawner.delay()
        box.run()
        children = [one for one in box.jobs if one.name == "plain"]
        reasons = [one.failure.reason for one in children if one.failure is not None]
    assert shop.answers == [Cancelled.REQUESTED]
    assert job.state() is JobState.FAILED
    assert reasons == [f"cancelled: parent bull:default:{job.id}"] * 2
    assert shop.ran == []


def test_a_parent_learns_that_its_child_was_cancelled(shop: Shop) -> None:
    with recorded(shop.app) as box:
        shop.top.after(shop.plain.job("child")).delay("top")
        child = next(one for one in box.jobs if one.name == "plain")
        cancel(child, "cancelled: x", box.now)
        box.run(check=False)
        top = next(one for one in box.jobs if one.name == "top")
        assert top.failure is not None
        assert top.failure.reason == f"child {child.key} failed"


def test_a_child_that_was_dropped_is_not_found(shop: Shop) -> None:
    with recorded(shop.app) as box:
        job = shop.plain.delay("a")
        box.jobs[0].state = JobState.UNKNOWN
        with pytest.raises(JobNotFound):
            job.cancel()


def test_a_job_expires_by_the_time_of_the_box(shop: Shop) -> None:
    with recorded(shop.app) as box:
        late = shop.plain.options(expires=60).delay("late")
        box.jobs[0].due = 61  # the box was busy, or had no worker
        early = shop.plain.options(delay=30, expires=60).delay("early")
        with pytest.raises(JobExpired, match="expired: not started by "):
            box.run()
        assert early.result() == "early"
        with pytest.raises(JobExpired):
            late.result()
    assert shop.ran == ["early"]


def test_a_retry_that_would_begin_too_late_fails_immediately(shop: Shop) -> None:
    with recorded(shop.app) as box:
        job = shop.plain.options(expires=90, attempts=9).delay("a", "retry")
        box.run(check=False)
        with pytest.raises(JobExpired, match="expired: the next attempt would start after "):
            job.result()
    assert shop.ran == ["a", "a"]
    assert box.now == 60


def test_runs_of_a_schedule_expire_each_by_itself() -> None:
    app = App("shop", redis="redis://127.0.0.1:1/0")
    ran: list[int] = []

    @app.task(schedule=Cron("0 * * * *"), expires=60)
    def hourly() -> None:
        ran.append(1)

    with recorded(app) as box:
        box.advance(hours=5)
    assert len(ran) == 5
