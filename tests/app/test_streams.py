"""Tasks that yield: items, results, retries, endings, limits, and readers that are slow or cut."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest
import redis
from anyio import create_task_group, fail_after, to_thread

from taskbull import App, Keep, current_job
from taskbull.core.keys import JobState
from taskbull.errors import (
    BlockingCallWarning,
    ConfigurationError,
    JobCancelled,
    JobFailed,
    JobNotFound,
    SerializationError,
    TaskbullError,
)
from taskbull.queue.handle import JobHandle
from taskbull.store.address import parse
from taskbull.testing import recorded
from tests.servers.kinds import Reachable
from tests.servers.proxy import Proxy
from tests.worker.bed import until

LIMIT = 60.0
TEXT = [f"word{number} " for number in range(30)]


class Bed:
    """An app with tasks that yield, and gates that tests open."""

    def __init__(self, url: str, prefix: str) -> None:  # noqa: C901 - it declares tasks
        self.prefix = prefix
        self.app = App("streams", redis=url, prefix=prefix, queue="q", attempts=1)
        self.gate = anyio.Event()
        self.thread_gate = threading.Event()
        self.closed: list[str] = []
        self.yielded = 0

        @self.app.task(reduce="".join)
        async def speak(words: list[str]) -> AsyncIterator[str]:
            for word in words:
                yield word

        @self.app.task
        async def speak_slowly(words: list[str]) -> AsyncIterator[str]:
            try:
                for word in words:
                    yield word
                    await anyio.sleep(0.002)
                await self.gate.wait()
            finally:
                self.closed.append("async")

        @self.app.task
        def count(to: int, *, wait: bool = False) -> Iterator[int]:
            try:
                for number in range(to):
                    yield number
                    self.yielded = number + 1
                while wait:
                    yield -1
                    self.thread_gate.wait(0.01)
            finally:
                self.closed.append("plain")

        @self.app.task(attempts=2, backoff=None)
        async def stumble(days: int) -> AsyncIterator[datetime]:
            for day in range(days):
                yield datetime(2026, 1, day + 1, tzinfo=UTC)
                if day == 1 and current_job().attempt == 1:
                    raise ValueError("no luck")

        @self.app.task
        async def ask(question: str) -> AsyncIterator[str]:
            yield question
            yield await current_job().await_signal("answer", str)

        self.speak, self.speak_slowly, self.count, self.stumble, self.ask = (
            speak,
            speak_slowly,
            count,
            stumble,
            ask,
        )


@pytest.fixture
def bed(server: Reachable, prefix: str) -> Iterator[Bed]:
    made = Bed(server.url, prefix)
    yield made
    made.thread_gate.set()
    made.app.close()


def target(server: Reachable) -> tuple[str, int]:
    endpoint = parse(server.url).endpoints[0]
    return endpoint.host, endpoint.port


def key_of(bed: Bed, job: JobHandle[Any]) -> str:
    return f"{bed.prefix}:q:{job.id}:tb:items"


def entries_of(admin: redis.Redis, key: str) -> list[tuple[bytes, dict[bytes, bytes]]]:
    found: Any = admin.xrange(key)
    return list(found)


async def collect(items: AsyncIterator[Any]) -> list[Any]:
    with fail_after(LIMIT):
        return [item async for item in items]


# Items and results


@pytest.mark.everywhere
async def test_readers_get_what_a_task_yields(bed: Bed) -> None:
    async with bed.app.worker().running():
        assert await collect(bed.speak.astream(TEXT)) == TEXT
        job = await bed.speak.adelay(TEXT)
        async with create_task_group() as tasks:

            async def read() -> None:
                assert await collect(job.astream()) == TEXT

            for _ in range(10):
                tasks.start_soon(read)
        assert await job.aresult() == "".join(TEXT)
        assert await collect(bed.app.job("q", job.id).astream()) == TEXT
        numbers = await bed.count.adelay(1500)  # More than one call, and more than one page.
        assert await collect(numbers.astream()) == list(range(1500))
        assert await numbers.aresult() == list(range(1500))


async def test_code_without_an_event_loop_follows_a_job(bed: Bed) -> None:
    def read() -> None:
        assert list(bed.speak.stream(TEXT)) == TEXT
        assert list(bed.count.options(priority=1).stream(250)) == list(range(250))

    async with bed.app.worker().running():
        with fail_after(LIMIT):
            await to_thread.run_sync(read)


async def test_a_reader_may_be_made_in_a_thread_and_used_in_an_event_loop(bed: Bed) -> None:
    async with bed.app.worker().running():
        job = await bed.speak.adelay(TEXT)
        items = await to_thread.run_sync(job.astream)  # As FastAPI calls a sync function.
        events = await to_thread.run_sync(job.sse)
        assert await collect(items) == TEXT
        assert "event: end" in "".join(await collect(events))


def test_on_restart_must_be_callable(bed: Bed) -> None:
    async def restarted() -> None: ...

    wrong: Any = "clear"
    job = bed.app.job("q", "1")
    with pytest.raises(ConfigurationError, match="on_restart must be a sync function"):
        job.stream(on_restart=restarted)
    for read in (job.stream, job.astream):
        with pytest.raises(ConfigurationError, match="on_restart must be a function"):
            read(on_restart=wrong)


async def test_a_task_that_yields_nothing_has_an_empty_stream(bed: Bed, admin: redis.Redis) -> None:
    async with bed.app.worker().running():
        job = await bed.speak.adelay([])
        assert await collect(job.astream()) == []
        assert await job.aresult() == ""
    [(entry_id, fields)] = entries_of(admin, key_of(bed, job))
    assert entry_id == b"1-18446744073709551615"
    assert fields == {b"event": b"end", b"state": b"completed"}


async def test_the_result_is_what_reduce_makes(server: Reachable, prefix: str) -> None:
    app = App("reduce", redis=server.url, prefix=prefix, queue="q", attempts=1)

    @app.task(reduce=None)
    async def forget(to: int) -> AsyncIterator[int]:
        for number in range(to):
            yield number

    @app.task(reduce=sum)
    def add_up(to: int) -> Iterator[int]:
        yield from range(to)

    @app.task
    def fill() -> Iterator[str]:
        for _ in range(11):
            yield "x" * 1_000_000

    async with app.worker().running():
        with fail_after(LIMIT):
            job = await forget.adelay(3)
            assert await collect(job.astream()) == [0, 1, 2]
            assert (await job.ainfo()).returnvalue is None
            assert await (await add_up.adelay(5)).aresult() == 10
            with pytest.raises(JobFailed, match="reduce="):
                await (await fill.adelay()).aresult()
    app.close()


async def test_the_events_of_the_queue_have_no_items(bed: Bed, admin: redis.Redis) -> None:
    async with bed.app.worker().running():
        await collect(bed.count.astream(100))
    events = entries_of(admin, f"{bed.prefix}:q:events")
    assert [fields[b"event"] for _, fields in events] == [
        b"added",
        b"waiting",
        b"active",
        b"completed",
        b"drained",
    ][: len(events)]


# Retries, failures and cancelled jobs


async def test_a_retry_restarts_the_stream(bed: Bed) -> None:
    days = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3)]
    seen: list[Any] = []

    async def restarted() -> None:
        seen.append("restart")

    async with bed.app.worker().running():
        job = await bed.stumble.adelay(3)
        with fail_after(LIMIT):
            async for day in job.astream(on_restart=restarted):
                seen.append(day)  # noqa: PERF401 - `restarted` also appends
        assert seen == [*days[:2], "restart", *days]
        assert await job.aresult() == days
        again: list[Any] = []
        items = await to_thread.run_sync(
            lambda: list(job.stream(on_restart=lambda: again.append("restart")))
        )
        assert (items, again) == ([*days[:2], *days], ["restart"])


async def test_a_failure_is_raised_after_the_last_item(bed: Bed) -> None:
    seen: list[Any] = []

    async def read(job: JobHandle[Any]) -> None:
        async for day in job.astream():
            seen.append(day)  # noqa: PERF401 - the iteration ends with an error

    async with bed.app.worker().running():
        job = await bed.stumble.options(attempts=1).adelay(3)
        with fail_after(LIMIT), pytest.raises(JobFailed, match="no luck") as caught:
            await read(job)
        assert len(seen) == 2
        assert caught.value.stacktrace
        with pytest.raises(JobFailed, match="no luck"):
            await to_thread.run_sync(lambda: list(job.stream()))


@pytest.mark.everywhere
async def test_cancelling_closes_the_generator(bed: Bed) -> None:
    async def read(job: JobHandle[Any]) -> None:
        seen: list[Any] = []
        async for item in job.astream():
            seen.append(item)
            if len(seen) == 3:
                await job.acancel("enough")

    async with bed.app.worker().running():
        with fail_after(LIMIT):
            with pytest.raises(JobCancelled):
                await read(await bed.speak_slowly.adelay(TEXT))
            with pytest.raises(JobCancelled):
                await read(await bed.count.adelay(3, wait=True))
    assert bed.closed == ["async", "plain"]


async def test_a_reader_stops_if_the_job_never_runs(bed: Bed) -> None:
    job = await bed.speak.adelay(TEXT)
    async with create_task_group() as tasks:

        async def read() -> None:
            with pytest.raises(JobCancelled):
                await collect(job.astream())

        tasks.start_soon(read)
        tasks.start_soon(to_thread.run_sync, lambda: list_failing(job))
        await job.acancel()
    with pytest.raises(JobNotFound):
        await collect(bed.app.job("q", "none").astream())


def list_failing(job: JobHandle[Any]) -> None:
    with pytest.raises(JobCancelled):
        list(job.stream())


async def test_a_job_that_lost_its_lock_writes_no_items(bed: Bed, admin: redis.Redis) -> None:
    base = f"{bed.prefix}:q:"
    async with bed.app.worker(shutdown_timeout=1).running():
        job = await bed.count.adelay(1, wait=True)
        with fail_after(LIMIT):
            async with aclosing(job.astream()) as items:
                await anext(items)
            admin.set(f"{base}{job.id}:lock", "another")
            await until(lambda: bool(bed.closed))
        entries = admin.xlen(key_of(bed, job))
        assert entries == admin.xlen(key_of(bed, job))
        assert (await job.astate()) is JobState.ACTIVE


# Limits and removal


async def test_a_stream_has_a_limit_and_expires(
    server: Reachable, prefix: str, admin: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("limits", redis=server.url, prefix=prefix, queue="q", attempts=1)

    @app.task(stream_limit=10, stream_ttl=100)
    async def count(to: int) -> AsyncIterator[int]:
        for number in range(to):
            yield number

    async with app.worker().running():
        job = await count.adelay(100)
        with fail_after(LIMIT):
            assert await job.aresult() == list(range(100))
            assert await collect(job.astream()) == list(range(91, 100))
    key = f"{prefix}:q:{job.id}:tb:items"
    assert admin.xlen(key) == 10
    assert 0 < admin.pttl(key) <= 100_000
    assert "missed items" in caplog.text
    app.close()


async def test_a_stream_goes_with_its_job(bed: Bed, admin: redis.Redis) -> None:
    queue = bed.app.queue("q")
    async with bed.app.worker().running():
        removed = await bed.speak.adelay(TEXT)
        await collect(removed.astream())
        assert admin.exists(key_of(bed, removed))
        await queue.remove(removed.id)
        assert not admin.exists(key_of(bed, removed))
        cleaned = await bed.speak.adelay(TEXT)
        await collect(cleaned.astream())
        await queue.clean(0, 10, "completed")
        assert not admin.exists(key_of(bed, cleaned))
        # Readers of a job that is not kept still get everything.
        job = await bed.speak.options(keep_completed=Keep.none()).adelay(TEXT)
        assert await collect(job.astream()) == TEXT
        assert await collect(job.astream()) == TEXT
        assert 0 < admin.pttl(key_of(bed, job)) <= 3_600_000


async def test_a_job_that_reuses_an_id_does_not_reuse_its_items(
    bed: Bed, admin: redis.Redis
) -> None:
    variant = bed.speak.options(job_id="again", keep_completed=Keep.none())
    async with bed.app.worker().running():
        for words in (["a", "b", "c"], ["d"], ["e", "f"]):
            job = await variant.adelay(words)
            assert await collect(job.astream()) == words
            first, _ = entries_of(admin, key_of(bed, job))[0]
            assert first == b"1-1"


@pytest.mark.parametrize("left", ["stream", "text"])
async def test_items_left_by_another_job_do_not_stop_a_job(
    bed: Bed, admin: redis.Redis, left: str
) -> None:
    job = await bed.speak.adelay(["new"])  # Node may have added it, and does not remove items.
    key = key_of(bed, job)
    if left == "stream":
        admin.xadd(key, {"item": '"old"'}, id="4-1")
        admin.xadd(key, {"event": "end", "state": "completed"}, id="4-18446744073709551615")
    else:
        admin.set(key, "x")
    seen: list[str] = []
    with fail_after(LIMIT):
        if left == "stream":
            async for word in job.astream(on_restart=seen.clear):
                seen.append(word)
                if word == "old":
                    async with bed.app.worker().running():
                        assert await job.aresult() == "new"
            assert seen == ["new"]
        async with bed.app.worker().running():
            assert await job.aresult() == "new"
            assert await collect(job.astream()) == ["new"]


async def test_a_reader_of_large_items_holds_few_of_them(bed: Bed, admin: redis.Redis) -> None:
    job = await bed.app.queue("q").add("other", {}, delay=86_400)
    for number in range(1, 61):
        admin.xadd(key_of(bed, job), {"item": f'"{"x" * 1_000_000}"'}, id=f"1-{number}")

    async def read() -> None:
        count = 0
        async with aclosing(bed.app.job("q", job.id).astream()) as items:
            async for _ in items:
                count += 1
                if count == 60:
                    break

    tracemalloc.start()
    try:
        with fail_after(LIMIT):
            await read()
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


# Trouble


@pytest.mark.everywhere
@pytest.mark.parametrize("how", ["text", "later"])
async def test_a_broken_stream_affects_only_its_own_job(
    bed: Bed, admin: redis.Redis, how: str
) -> None:
    async with bed.app.worker(concurrency=5).running():
        bad, *good = [await bed.speak_slowly.adelay(TEXT) for _ in range(4)]
        with fail_after(LIMIT):
            await until(lambda: bool(admin.exists(key_of(bed, bad))))
            if how == "text":
                admin.set(key_of(bed, bad), "x")
            else:
                admin.xadd(key_of(bed, bad), {"item": "0"}, id="99-0")
            with pytest.raises(JobFailed, match="another program has changed the key"):
                await bad.aresult()
            bed.gate.set()
            for job in good:
                assert await collect(job.astream()) == TEXT
                assert await job.aresult() == TEXT


@pytest.mark.everywhere
async def test_a_disconnected_reader_misses_and_repeats_no_item(
    bed: Bed, server: Reachable, prefix: str
) -> None:
    with Proxy(target(server)) as proxy:
        app = App("reader", redis=proxy.url, prefix=prefix)
        async with bed.app.worker().running():
            job = await bed.speak_slowly.adelay(TEXT)
            seen: list[str] = []
            with fail_after(LIMIT):
                async for word in app.job("q", job.id).astream():
                    seen.append(word)
                    proxy.cut()
                    if len(seen) == len(TEXT):
                        bed.gate.set()
            assert seen == TEXT

            def read() -> list[str]:
                found: list[str] = []
                for word in app.job("q", job.id).stream():
                    found.append(word)
                    proxy.cut()
                return found

            assert await to_thread.run_sync(read) == TEXT
        app.close()


async def test_items_are_written_once_if_the_reply_is_lost(
    server: Reachable, prefix: str, admin: redis.Redis
) -> None:
    with Proxy(target(server)) as proxy:
        bed = Bed(proxy.url, prefix)
        async with bed.app.worker().running():
            for cut in (proxy.cut_before_reply, proxy.cut_before_request):
                cut(b"word0 ")
                job = await bed.speak_slowly.adelay(TEXT)
                seen: list[str] = []
                with fail_after(LIMIT):
                    async with aclosing(job.astream()) as items:
                        async for word in items:
                            seen.append(word)
                            if len(seen) == len(TEXT):
                                await job.acancel()
                                break
                assert seen == TEXT
                numbers = [
                    each for each, _ in entries_of(admin, key_of(bed, job)) if len(each) < 10
                ]
                assert numbers == [f"1-{number}".encode() for number in range(1, len(TEXT) + 1)]
        bed.app.close()


async def test_a_generator_faster_than_redis_waits(
    server: Reachable, prefix: str, admin: redis.Redis
) -> None:
    backlog = [0]
    with Proxy(target(server)) as proxy:
        app = App("flood", redis=proxy.url, prefix=prefix, queue="q", attempts=1)

        @app.task
        def flood(to: int) -> Iterator[int]:
            if to > 1:
                proxy.hold_requests()
            key = f"{prefix}:q:{current_job().id}:tb:items"
            for number in range(to):
                backlog.append(number - int(admin.xlen(key)))
                yield number

        async with app.worker().running():
            job = await flood.adelay(3000)
            await until(lambda: max(backlog) >= 499)
            proxy.deliver()
            proxy.heal()
            with fail_after(LIMIT):
                assert await job.aresult() == list(range(3000))
        assert max(backlog) <= 501
        app.close()


async def test_a_slow_reader_gets_everything(bed: Bed) -> None:
    async with bed.app.worker().running():
        job = await bed.count.adelay(700)
        seen: list[int] = []
        with fail_after(LIMIT):
            async for number in job.astream():
                seen.append(number)
                if number % 100 == 0:
                    await job.astate()
        assert seen == list(range(700))


async def test_a_killed_worker_causes_a_restart_event(server: Reachable, prefix: str) -> None:
    words = [sys.executable, "-m", "tests.app.killed_stream", server.url, prefix]
    app = App("killed", redis=server.url, prefix=prefix)
    job = await app.queue("q").add("half", {"name": "first"}, attempts=3)
    seen: list[Any] = []
    first = subprocess.Popen(words)  # noqa: ASYNC220 - it does not wait
    second: subprocess.Popen[bytes] | None = None
    try:
        with fail_after(LIMIT):
            async for item in job.astream(on_restart=lambda: seen.append("restart")):
                seen.append(item)
                if item == 2 and second is None:
                    first.kill()
                    second = subprocess.Popen([*words, "finish"])  # noqa: ASYNC220
        assert seen == [0, 1, 2, "restart", 0, 1, 2, 3]
    finally:
        for process in (first, second):
            if process is not None:
                process.kill()
                process.wait()
    app.close()


# Server-sent events


def events_of(text: str) -> list[dict[str, str]]:
    blocks = [block.splitlines() for block in text.split("\n\n") if block]
    return [dict(line.split(": ", 1) for line in lines) for lines in blocks]


async def test_server_sent_events_resume(bed: Bed) -> None:
    async with bed.app.worker().running():
        job = await bed.stumble.adelay(2 + 1)
        with fail_after(LIMIT):
            whole = events_of("".join([chunk async for chunk in job.sse()]))
            assert whole[0] == {"retry": "1000"}
            assert [event.get("event", "item") for event in whole[1:]] == [
                *["item"] * 2,
                "restart",
                *["item"] * 3,
                "end",
            ]
            assert json.loads(whole[3]["data"]) == {"attempt": 2}
            assert json.loads(whole[-1]["data"]) == {"state": "completed"}
            assert json.loads(whole[1]["data"]) == "2026-01-01T00:00:00Z"
            for place in range(1, len(whole) - 1):
                rest = events_of("".join([chunk async for chunk in job.sse(whole[place]["id"])]))
                assert rest[1:] == whole[place + 1 :]
            ended = events_of("".join([chunk async for chunk in job.sse(whole[-1]["id"])]))
            assert ended[1:] == whole[-1:]
            failed = await bed.stumble.options(attempts=1).adelay(3)
            last = events_of("".join([chunk async for chunk in failed.sse()]))[-2:]
            assert [event["event"] for event in last] == ["error", "end"]
            assert json.loads(last[0]["data"]) == {
                "type": "JobFailed",
                "reason": "ValueError: no luck",
            }
        for wrong in ("x", "1", "1-2-3", "1-99999999999999999999", "\uff11-1"):
            with pytest.raises(ConfigurationError, match="last_event_id"):
                job.sse(wrong)


async def test_an_item_of_another_program_forges_no_event(bed: Bed, admin: Any) -> None:  # S19
    job = await bed.app.queue("q").add("other", {}, delay=86_400)
    key = f"{bed.prefix}:q:{job.id}:tb:items"
    forged = ("[1,\n2]", '1\n\nevent: end\ndata: {"state":"completed"}', "1\r\rid: 9-9", b"\xff")
    for raw in forged:
        admin.xadd(key, {"item": raw})
    chunks: Any = bed.app.job("q", job.id).sse()
    with fail_after(LIMIT):
        assert await anext(chunks) == "retry: 1000\n\n"
        text = await anext(chunks)
    await chunks.aclose()
    assert text.count("\n\n") == text.count("id: ") - text.count("data: id: ") == len(forged)
    assert "\r" not in text
    lines = {line.partition(": ")[0] for line in text.splitlines() if line}
    assert lines == {"id", "data"}


# Declarations and tests of tasks


@pytest.mark.everywhere
async def test_a_stream_of_another_type_ends_only_its_own_reader(bed: Bed, admin: Any) -> None:
    jobs = [await bed.speak.adelay(TEXT) for _ in range(3)]
    good, bad, late = jobs
    seen: dict[str, list[str]] = {job.id: [] for job in jobs}
    errors: dict[str, Exception] = {}

    async def read(job: JobHandle[Any]) -> None:
        try:
            async for item in job.astream():
                seen[job.id].append(item)
        except TaskbullError as error:
            errors[job.id] = error

    for job in jobs:
        admin.xadd(key_of(bed, job), {"item": '"one"'}, id="1-1")
    with fail_after(LIMIT):
        async with create_task_group() as tasks:
            tasks.start_soon(read, good)
            tasks.start_soon(read, bad)
            await until(lambda: seen[good.id] == seen[bad.id] == ["one"])
            admin.set(key_of(bed, bad), "text")
            tasks.start_soon(read, late)  # It interrupts the read that the others share.
            await until(lambda: bad.id in errors)
            admin.xadd(key_of(bed, good), {"item": '"two"'}, id="1-2")
            admin.xadd(key_of(bed, late), {"item": '"two"'}, id="1-2")
            await until(lambda: seen[good.id] == seen[late.id] == ["one", "two"])
            await good.acancel()
            await late.acancel()
    assert isinstance(errors[good.id], JobCancelled)
    assert isinstance(errors[late.id], JobCancelled)
    for error in (errors[bad.id], await error_of(bad), await sync_error_of(bad)):
        assert f"job '{bad.id}' in queue 'q'" in str(error)
        assert "not a stream" in str(error)


async def error_of(job: JobHandle[Any]) -> TaskbullError:
    with pytest.raises(TaskbullError) as caught:
        await collect(job.astream())
    return caught.value


async def sync_error_of(job: JobHandle[Any]) -> TaskbullError:
    with pytest.raises(TaskbullError) as caught:
        await to_thread.run_sync(lambda: list(job.stream()))
    return caught.value


@pytest.mark.parametrize("how", ["obliterate", "delete"])
async def test_readers_end_soon_after_their_job_is_gone(
    bed: Bed, admin: Any, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only what readers of streams do themselves is tested, not the search for missed events.
    monkeypatch.setattr("taskbull.queue.event_loops.CHECK_INTERVAL", 3600.0)
    monkeypatch.setattr("taskbull.queue.stores.CHECK_INTERVAL", 3600.0)
    queue = bed.app.queue("q")
    async with bed.app.worker().running():
        job = await bed.speak_slowly.adelay(TEXT)
        seen: list[str] = []
        note = seen.append
        errors: list[TaskbullError] = []

        async def read() -> None:
            try:
                async for item in job.astream():
                    note(item)
            except JobNotFound as error:
                errors.append(error)

        async def read_events() -> None:
            events: list[str] = []
            async for event in job.sse():
                events.append(event)
                seen.extend(word for word in TEXT if word in event)
            assert "JobNotFound" in events[-2]
            assert "event: end" in events[-1]

        def read_in_thread() -> None:
            try:
                seen.extend(job.stream())
            except JobNotFound as error:
                errors.append(error)

        with fail_after(LIMIT):
            async with create_task_group() as tasks:
                tasks.start_soon(read)
                tasks.start_soon(read_events)
                tasks.start_soon(to_thread.run_sync, read_in_thread)
                await until(lambda: seen.count(TEXT[-1]) == 3)
                if how == "obliterate":
                    await queue.obliterate(force=True)
                else:  # As another program could.
                    admin.delete(f"{bed.prefix}:q:{job.id}", key_of(bed, job))
        assert len(errors) == 2
        bed.gate.set()


def test_wrong_declarations_are_refused() -> None:
    app = App("wrong", redis="redis://localhost:1")

    def items(names: list[str]) -> Iterator[str]:
        yield from names

    async def aitems() -> AsyncIterator[str]:
        yield ""

    def nothing() -> None: ...

    with pytest.raises(ConfigurationError, match="cannot be a batch task: it yields"):
        app.batch_task(size=2)(items)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="process=True needs a sync function"):
        app.task(process=True)(aitems)
    with pytest.raises(ConfigurationError, match="reduce needs a function that yields"):
        app.task(reduce=sum)(nothing)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="stream_limit needs a function that yields"):
        app.task(stream_limit=5)(nothing)
    with pytest.raises(ConfigurationError, match="stream_limit must be an integer"):
        app.task(stream_limit=0)(items)
    with pytest.raises(ConfigurationError, match="stream_ttl"):
        app.task(stream_ttl=0)(items)
    with pytest.raises(ConfigurationError, match="reduce must be a sync function"):
        app.task(reduce="join")(items)  # type: ignore[call-overload]
    assert not app.tasks


def test_a_box_collects_items() -> None:
    bed = Bed("redis://localhost:1", "bull")
    with recorded(bed.app) as box:
        job = bed.speak.delay(["a", "b"])
        assert box.stream(job) == ["a", "b"]
        assert job.result() == "ab"
        days = box.stream(bed.stumble.delay(2 + 1))
        assert [day.day for day in days] == [1, 2, 1, 2, 3]
        with pytest.raises(JobFailed, match="no luck"):
            box.stream(bed.stumble.options(attempts=1).delay(3))
        asking = bed.ask.delay("who?")
        assert box.stream(asking) == ["who?"]
        box.signal(asking, "answer", "me")
        assert box.stream(asking) == ["who?", "who?", "me"]
        waiting = bed.count.delay(1)
        with pytest.raises(TimeoutError, match="has not run yet"):
            list(waiting.stream())
    with recorded(bed.app, inline=True):
        assert list(bed.count.stream(3)) == [0, 1, 2]
    inline = App("inline", redis="redis://localhost:1", inline=True)

    @inline.task
    async def twice(text: str) -> AsyncIterator[str]:
        yield text
        yield text

    assert list(twice.stream("a")) == ["a", "a"]


async def test_a_box_keeps_as_many_items_as_redis() -> None:
    app = App("x", redis="redis://localhost:1")

    @app.task(stream_limit=3)
    def count() -> Iterator[int]:
        yield from range(10)

    with recorded(app) as box:
        job = await count.adelay()
        await box.arun()
        assert box.stream(job) == [8, 9]  # The end is the third entry.
        assert [event async for event in job.sse()][-1] == (
            'id: 1-18446744073709551615\nevent: end\ndata: {"state":"completed"}\n\n'
        )


async def test_a_blocking_stream_in_an_event_loop_warns(bed: Bed) -> None:
    async with bed.app.worker().running():
        job = await bed.speak.adelay(TEXT)
        await job.aresult()
        with pytest.warns(BlockingCallWarning, match=r"job\.stream\(\) .* use job\.astream\(\)"):
            assert list(job.stream()) == TEXT
    with pytest.warns(BlockingCallWarning, match=r"speak\.stream\(\) .* use speak\.astream\(\)"):
        bed.speak.stream(TEXT)


async def test_inline_jobs_stream_in_an_event_loop() -> None:
    bed = Bed("redis://localhost:1", "bull")
    with recorded(bed.app, inline=True):
        assert [word async for word in bed.speak.astream(["a", "b"])] == ["a", "b"]
        job = await bed.speak.adelay(["a"])
        assert "event: end" in "".join([chunk async for chunk in job.sse()])


async def test_items_before_an_exit_reach_readers(server: Reachable, prefix: str) -> None:
    app = App("exit", redis=server.url, prefix=prefix, queue="q", attempts=1)

    @app.task
    def leave() -> Iterator[int]:
        yield 1
        yield 2
        raise SystemExit(3)

    async with app.worker().running():
        job = await leave.adelay()
        with fail_after(LIMIT), pytest.raises(JobFailed, match="SystemExit"):
            await job.aresult()
        chunks = "".join([chunk async for chunk in job.sse()])
    assert [event["data"] for event in events_of(chunks)[1:3]] == ["1", "2"]
    app.close()


async def test_an_item_that_is_not_json_fails_the_job(server: Reachable, prefix: str) -> None:
    app = App("odd", redis=server.url, prefix=prefix, queue="q", attempts=1)

    @app.task
    async def odd() -> AsyncIterator[object]:
        yield object()

    @app.task(name="wrong")
    async def wrong() -> AsyncIterator[int]:
        yield "text"  # type: ignore[misc]

    async with app.worker().running():
        with fail_after(LIMIT):
            with pytest.raises(JobFailed, match="item"):
                await (await odd.adelay()).aresult()
            with pytest.raises(SerializationError, match="item 1-1 of job"):
                await collect(wrong.astream())
    app.close()


async def test_calling_a_task_runs_the_function(bed: Bed) -> None:
    assert [word async for word in bed.speak(["a"])] == ["a"]
    assert list(bed.count(2)) == [0, 1]
