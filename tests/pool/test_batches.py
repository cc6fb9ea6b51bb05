"""Batch tasks in processes: one call for many jobs, in one process."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from taskbull import App, ConfigurationError, JobCancelled, JobExpired, JobFailed, JobHandle
from taskbull.core import events
from taskbull.core.keys import JobState
from taskbull.core.outcome import Category, Verdict
from taskbull.errors import ProcessDied, RaisedInProcess
from tests.pool.batches import BATCHES
from tests.pool.conftest import PoolBed, is_there
from tests.worker.bed import until


@pytest.fixture
def bed(make_bed: Callable[[str], PoolBed]) -> PoolBed:
    return make_bed(BATCHES)


async def added(bed: PoolBed, task: str, *items: Any, **options: Any) -> list[JobHandle[Any]]:
    """Add a job for each item, in one call."""
    found = bed.app.tasks[task]
    return await bed.app.aenqueue([found.options(**options).job(item) for item in items])


async def results(handles: list[JobHandle[Any]]) -> list[Any]:
    return [await handle.aresult(timeout=60) for handle in handles]


async def ends(bed: PoolBed, handles: list[JobHandle[Any]]) -> list[Any]:
    """Give the first end of each job, in the order of the jobs."""
    ids = [handle.id for handle in handles]
    found = await bed.record.wait_for(
        events.Ended, len(ids), lambda event: event.job.id in ids, limit=30
    )
    return sorted(found, key=lambda event: ids.index(event.job.id))


async def test_one_process_is_given_all_items_of_a_call(bed: PoolBed) -> None:
    async with bed.working() as worker:
        handles = await added(bed, "square", *range(4))
        found = await results(handles)
        [pid] = {pid for pid, _, _ in found}
        assert pid in worker.pids
        assert found == [[pid, 4, n * n + 100] for n in range(4)]
    layers = {path.name for path in bed.folder.glob("layer-*")}
    assert layers == {f"layer-{handles[0].id}"}


@pytest.mark.full
async def test_the_function_knows_its_jobs_and_writes_for_each(bed: PoolBed) -> None:
    words = ["one", "two", "three"]
    async with bed.working():
        handles = await added(bed, "describe_batch", *words)
        found = await results(handles)
        assert [each[:3] for each in found] == [
            [handle.id, word, 1] for handle, word in zip(handles, words, strict=True)
        ]
        assert all("current_batch(), which returns them" in each[3] for each in found)
        for handle, word in zip(handles, words, strict=True):
            job = await bed.app.queue("models").get_job(handle.id)
            assert job is not None
            assert job.progress == {"word": word}
            assert job.data == ({"changed": True} if word == "two" else {"words": word})
            assert (await handle.alogs()).lines == [f"first {word}", f"second {word}"]


async def test_each_item_has_its_own_end(bed: PoolBed) -> None:
    words = ["well", "nothing", "key", "retry", "snooze", "permanent", "transient", "deep"]
    async with bed.working():
        handles = await added(bed, "give_each", *words, "classified", "object", "long")
        [
            well,
            nothing,
            key,
            retry,
            snooze,
            permanent,
            transient,
            deep,
            classified,
            other,
            long,
        ] = await ends(bed, handles)
    assert (well.value, nothing.value) == ("well", None)
    assert key.failure.reason == "KeyError: 'customer'"
    assert isinstance(key.failure.error, RaisedInProcess)
    assert [each.delay for each in (key, retry, snooze, transient)] == [30, 50, 60, 30]
    assert deep.delay == 77
    assert (permanent.verdict, permanent.failure.reason) == (Verdict.PERMANENT, "no such card")
    assert (classified.verdict, classified.failure.reason) == (
        Verdict.PERMANENT,
        "LookupError: hopeless",
    )
    assert "object" in other.failure.reason
    assert "MB exceeds limit of 10 MB" in long.failure.reason
    assert transient.failure.category is Category.TRANSIENT


async def test_what_is_raised_counts_for_each_by_its_own_attempts(bed: PoolBed) -> None:
    async with bed.working() as worker:
        pids = worker.pids
        handles = await added(bed, "raise_for_all", "key", attempts=3)
        handles += await added(bed, "raise_for_all", "other", attempts=1)
        retried, failed = await ends(bed, handles)
        assert worker.pids == pids
    assert isinstance(retried, events.Retried)
    assert isinstance(failed, events.Failed)
    assert retried.delay == 30
    assert retried.failure.reason == failed.failure.reason == "KeyError: 'customer'"
    assert "in raise_for_all" in failed.failure.stack
    assert "taskbull/app" not in failed.failure.stack


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("list", "returned a list of 1 instead of 2 results"),
        ("text", "returned a value of type str, not a list of 2 results"),
    ],
)
async def test_a_wrong_number_of_results_fails_all_for_good(
    bed: PoolBed, word: str, told: str
) -> None:
    async with bed.working():
        for end in await ends(bed, await added(bed, "too_few", word, word)):
            assert isinstance(end, events.Failed)
            assert end.failure.reason == f"Batch task too_few {told}"


async def test_data_that_does_not_fit_fails_its_own_job(bed: PoolBed) -> None:
    async with bed.working():
        handles = await added(bed, "square", 1, 2, 3)
        wrong = await bed.app.queue("models").add("square", {"numbers": "many"})
        [failed] = await bed.record.wait_for(
            events.Failed, where=lambda event: event.job.id == wrong.id
        )
        assert failed.failure.reason == "square(): argument 'numbers' must be int, got str"
        assert [each[1:] for each in await results(handles)] == [[3, 101], [3, 104], [3, 109]]


async def test_a_crash_is_an_error_of_all_jobs_of_the_call(bed: PoolBed) -> None:
    async with bed.working(process_pool=1):
        handles = await added(bed, "act", "nothing", "exit")
        found = await ends(bed, handles)
        [ended] = await bed.record.wait_for(events.ProcessEnded)
        for end in found:
            assert isinstance(end.failure.error, ProcessDied)
            assert end.failure.reason == f"process {ended.pid} died: exit code 3"
        assert ended.job is not None
        assert ended.job.id == handles[0].id
        assert await results(await added(bed, "act", "nothing", "nothing")) == ["nothing"] * 2


@pytest.mark.full
async def test_on_its_last_attempt_a_job_dies_alone(bed: PoolBed) -> None:
    async with bed.working(process_pool=1):
        well, poison, too = await added(bed, "poisoned", "well", "poison", "well")
        assert await results([well, too]) == [1, 1]
        with pytest.raises(JobFailed, match="exit code 7"):
            await poison.aresult(timeout=60)
    assert len(bed.record.of(events.Retried)) == 3


async def test_the_shortest_timeout_ends_the_process(bed: PoolBed) -> None:
    async with bed.working(process_pool=1) as worker:
        [pid] = worker.pids
        handles = await added(bed, "act", "nothing", timeout=1)
        handles += await added(bed, "act", "spin", timeout=60)
        for end in await ends(bed, handles):
            assert end.failure.reason == (
                "TimeoutError: the batch took longer than 1 s, the shortest timeout of its jobs"
            )
            assert "Its process was ended here:" in end.failure.stack
            assert "in spin" in end.failure.stack
        await until(lambda: not is_there(pid))
        assert await results(await added(bed, "act", "nothing", "nothing")) == ["nothing"] * 2


@pytest.mark.full
async def test_a_job_that_is_cancelled_alone_leaves_its_neighbour_alone(bed: PoolBed) -> None:
    async with bed.working(process_pool=1) as worker:
        [pid] = pids = worker.pids
        first, second = await added(bed, "act", "wait_for_file", "nothing")
        await bed.file(f"acts-{pid}")
        await first.acancel("no longer wanted")
        with pytest.raises(JobCancelled, match="no longer wanted"):
            await first.aresult(timeout=60)
        (bed.folder / "open").touch()
        assert await second.aresult(timeout=60) == "nothing"
        assert worker.pids == pids


async def test_the_process_is_notified_of_a_cancelled_job(bed: PoolBed) -> None:
    async with bed.working(process_pool=1) as worker:
        pids = worker.pids
        first, second = await added(bed, "act", "watch_others", "nothing")
        await bed.file("watches")
        await second.acancel("no longer wanted")
        assert await first.aresult(timeout=60) == "watch_others"
        with pytest.raises(JobCancelled, match="no longer wanted"):
            await second.aresult(timeout=60)
        assert (bed.folder / "saw").read_text() == "[False, True]"
        assert await results(await added(bed, "act", "nothing", "nothing")) == ["nothing"] * 2
        assert worker.pids == pids  # and the next call knows nothing of it


@pytest.mark.full
async def test_the_process_is_notified_of_a_lost_lock(bed: PoolBed, admin: redis.Redis) -> None:
    async with bed.working(process_pool=1, lock_duration=30, heartbeat_interval=0.2) as worker:
        pids = worker.pids
        first, second = await added(bed, "act", "watch_locks", "nothing")
        await bed.file("watches")
        keys = bed.app.queue("models").keys
        admin.delete(keys.lock(second.id))
        assert await first.aresult(timeout=60) == "watch_locks"
        assert (bed.folder / "saw").read_text() == "[False, True]"
        assert worker.pids == pids


async def test_a_process_learns_of_cancellations_before_its_call(
    bed: PoolBed,
) -> None:
    async with bed.working(process_pool=1):
        holding = await added(bed, "see_cancelled", "hold", "it")
        await bed.file("holds-the-process")
        first, second = await added(bed, "see_cancelled", "a", "b")
        await bed.record.wait_for(events.Started, 4)
        await second.acancel()
        with pytest.raises(JobCancelled):
            await second.aresult(timeout=60)
        (bed.folder / "open").touch()
        assert await results(holding) == [["hold", [False, False]], ["it", [False, False]]]
        assert await first.aresult(timeout=60) == ["a", [False, True]]


@pytest.mark.full
@pytest.mark.parametrize("how", ["told_each", "deaf"])
async def test_when_all_are_cancelled_the_process_ends(bed: PoolBed, how: str) -> None:
    async with bed.working(process_pool=1) as worker:
        [pid] = worker.pids
        handles = await added(bed, "act", how, "nothing")
        await bed.file(how)
        for handle in handles:
            await handle.acancel()
        for end in await ends(bed, handles):
            assert end.verdict is Verdict.CANCELLED
        await until(lambda: not is_there(pid))
        assert await results(await added(bed, "act", "nothing", "nothing")) == ["nothing"] * 2
    if how == "told_each":
        assert (bed.folder / "told").read_text() == "[True, True]"


async def test_what_is_stopped_with_its_worker_is_given_back_when_it_has_ended(
    bed: PoolBed,
) -> None:
    tidied: list[bool] = []

    @bed.app.on(events.Released)
    def look(event: events.Released) -> None:
        tidied.append((bed.folder / "tidied").exists())

    async with bed.working(process_pool=1, shutdown_timeout=0):
        handles = await added(bed, "act", "tidy_batch", "nothing")
        await bed.file("tidies")
    assert [await handle.astate() for handle in handles] == [JobState.WAITING] * 2
    assert tidied == [True, True]


@pytest.mark.full
async def test_results_that_come_within_the_grace_at_a_stop_are_kept(bed: PoolBed) -> None:
    async with bed.working(process_pool=1, shutdown_timeout=0):
        handles = await added(bed, "act", "late", "nothing")
        await bed.file("late")
    assert [await handle.astate() for handle in handles] == [JobState.COMPLETED] * 2
    assert bed.record.of(events.Released) == []


@pytest.mark.full
async def test_a_job_that_waits_too_long_for_a_process_is_not_called(bed: PoolBed) -> None:
    async with bed.working(process_pool=1):
        await added(bed, "two_at_once", "hold")
        await bed.file("holds")
        [second] = await added(bed, "two_at_once", "late", expires=0.5)
        late = time.monotonic() + 0.6
        await bed.record.wait_for(events.Started, 2)
        await until(lambda: time.monotonic() > late)
        (bed.folder / "open").touch()
        with pytest.raises(JobExpired):
            await second.aresult(timeout=60)


@pytest.mark.full
async def test_each_item_counts_for_the_share_of_a_process(bed: PoolBed) -> None:
    async with bed.working(process_pool=1, process_max_jobs=4) as worker:
        [first] = worker.pids
        found = await results(await added(bed, "square", *range(4)))
        assert {pid for pid, _, _ in found} == {first}
        [recycled] = await bed.record.wait_for(events.ProcessRecycled)
        assert recycled.pid == first


@pytest.mark.full
async def test_awaited_middleware_surrounds_each_job_with_its_own_end(
    make_bed: Callable[[str], PoolBed],
) -> None:
    bed = make_bed(
        BATCHES
        + """
@app.middleware
async def tell(job, call_next):
    try:
        value = await call_next(job)
    except Exception as error:
        return [type(error).__name__, getattr(error, "kind", "")]
    return ["returned", value]
"""
    )
    async with bed.working():
        words = ["well", "nothing", "key", "retry"]
        handles = await added(bed, "give_each", *words, *["well"] * 7)
        assert (await results(handles))[:4] == [
            ["returned", "well"],
            ["returned", None],
            ["RaisedInProcess", "builtins.KeyError"],
            ["Retry", ""],
        ]


@pytest.fixture
def make_models(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], App]:
    """Make an app with a batch task, where a process would find it."""

    def make(parallel: int) -> App:
        app = App("models", redis="redis://localhost:1")

        @app.batch_task(size=32, parallel=parallel, queue="models", process=True)
        def embed(texts: list[str]) -> list[int]:
            return [len(text) for text in texts]

        monkeypatch.setattr(sys.modules[__name__], "app", app, raising=False)
        return app

    return make


@pytest.mark.parametrize(
    ("parallel", "pool", "concurrency", "slots"),
    [(1, 4, 100, 64), (3, 2, 100, 96), (1, 1, 40, 40), (1, 1, 32, 32)],
)
def test_a_queue_takes_what_runs_and_what_is_gathered_meanwhile(
    make_models: Callable[[int], App], parallel: int, pool: int, concurrency: int, slots: int
) -> None:
    worker = make_models(parallel).worker(process_pool=pool, concurrency=concurrency)
    assert worker.concurrency == {"models": slots}


def test_fewer_slots_than_a_batch_are_refused(make_models: Callable[[int], App]) -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"has size 32, but the concurrency .* is 31",
    ):
        make_models(1).worker(process_pool=1, concurrency=31)


def test_a_coroutine_function_is_refused(make_models: Callable[[int], App]) -> None:
    with pytest.raises(ConfigurationError, match="process=True needs a sync function"):

        @make_models(1).batch_task(size=2, process=True)
        async def summarise(texts: list[str]) -> list[int]:
            return [len(text) for text in texts]
