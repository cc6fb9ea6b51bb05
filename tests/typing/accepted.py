"""Code that type checkers must accept, with the types that they must infer. Never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from datetime import timedelta
from typing import Any, assert_type

from taskbull import (
    App,
    Backoff,
    CircuitBreaker,
    Dedup,
    JobFailed,
    JobHandle,
    JobState,
    JobStep,
    Keep,
    Limiter,
    Queue,
    RunningJob,
    Server,
    SyncQueue,
    SyncServer,
    TaskGroup,
    Worker,
    WorkerOptions,
    chain,
    current_batch,
    current_job,
    from_child,
    from_children,
    from_lifespan,
    step,
)
from taskbull.app.producer import JobSpec
from taskbull.app.task import AsyncTask, SyncTask, Variant
from taskbull.core.job import Job
from taskbull.monitor.browse import After, JobDetails, JobRows, QueueSample
from taskbull.monitor.inspect import Node
from taskbull.scripts.read import Logs
from taskbull.testing import recorded

app = App("typed")


@app.task
async def fetch(url: str, tries: int = 3) -> list[int]:
    return [len(url), tries]


@app.task(queue="pictures", attempts=5, backoff=Backoff.fixed(1))
def resize(path: str, *, width: int = 800) -> str:
    return f"{path}@{width}"


@app.remote(queue="translations", attempts=2, name="translate")
async def translate(text: str, *, to: str = "fr") -> list[str]: ...  # type: ignore[empty-body]


@app.remote
def detect(text: str) -> str: ...  # type: ignore[empty-body]


@app.task(circuit_breaker=CircuitBreaker(threshold=5, duration=30), timeout=20)
async def ping() -> None: ...


@app.task
def count(numbers: list[int] = from_child(fetch)) -> int:
    return len(numbers)


@app.task
async def report(
    title: str, counts: list[int] = from_children(count), other: str = from_child("other")
) -> str:
    assert_type(await current_job().achildren(count), list[int])
    assert_type(await current_job().achildren("other"), list[Any])
    assert_type(await current_job().afailed_children(), dict[tuple[str, str], str])
    return f"{title}{counts}{other}"


async def flows() -> None:
    tree = report.after([count.after(fetch.job("a")).job()], on_failure="ignore")
    assert_type(tree.delay("a"), JobHandle[str])
    assert_type(await tree.options(priority=1).adelay("a"), JobHandle[str])
    assert_type(tree.job("a"), JobSpec[str])
    assert_type(chain(fetch.job("a"), count.job()).delay(), JobHandle[int])
    assert_type(chain(app.queue("node").job("b"), count.job()).job(), JobSpec[int])
    app.enqueue([tree.job("a"), report.job("b")])
    report.after(fetch.options(on_failure="drop").job("a"), app.queue("node").job("b"))


def sync_code() -> None:
    assert_type(resize("a", width=5), str)
    coroutine: Coroutine[Any, Any, list[int]] = fetch("a")
    coroutine.close()
    assert_type(resize.delay("a", width=5), JobHandle[str])
    assert_type(resize.delay("a").result(), str)
    assert_type(fetch.delay("a", tries=1).result(timeout=5), list[int])
    assert_type(resize.options(delay=60, priority=1, job_id="a").delay("a").result(), str)
    assert_type(resize.job("a"), JobSpec[str])
    assert_type(app.enqueue([resize.job("a"), resize.job("b")]), list[JobHandle[str]])
    assert_type(app.gather(app.enqueue([resize.job("a")])), list[str])
    assert_type(app.gather([resize.delay("a")], return_failures=True), list[str | JobFailed])
    assert_type(app.job("pictures", "1"), JobHandle[Any])
    assert_type(ping.delay().result(), None)


async def async_code() -> None:
    assert_type(await fetch("a"), list[int])
    assert_type(await fetch.adelay("a", 5), JobHandle[list[int]])
    assert_type(await (await fetch.adelay("a")).aresult(), list[int])
    assert_type(await app.aenqueue([fetch.job("a")]), list[JobHandle[list[int]]])
    assert_type(await app.agather([await fetch.adelay("a")], timeout=5), list[list[int]])


def options_of_the_app_and_its_workers() -> None:
    half = timedelta(seconds=30)
    App("a", attempts=5, timeout=half, backoff=None, keep_failed=Keep(age=half), call_timeout=5)
    app.queue_options("pictures", concurrency=5, limiter=Limiter(5, half), global_concurrency=None)
    assert_type(app.worker(["a"], concurrency=5, lock_duration=half, threads=None), Worker)
    app.run({"a": 5}, backend="trio", burst=True, on_lost_lock="cancel")


async def running() -> None:
    await app.run_worker("a", burst=True, shutdown_timeout=5)


async def queues() -> None:
    queue, sync_queue = app.queue("pictures"), app.sync_queue("pictures")
    soon = timedelta(minutes=1)
    assert_type(await queue.add("resize", {"path": "a"}, delay=soon), JobHandle[Any])
    assert_type(sync_queue.add("resize", dedup="a", keep_logs=5), JobHandle[Any])
    sync_queue.add("resize", dedup=Dedup("a", ttl=soon), keep_failed=Keep(age=soon), timeout=20)
    await queue.add_bulk([queue.job("resize", None, priority=1, lifo=True), ("resize", {})])


class Resources:
    pool: list[int]


@app.task
async def with_resources(number: int, resources: Resources = from_lifespan()) -> int:
    assert_type(resources, Resources)
    assert_type(current_job().resources, Any)
    return resources.pool[number]


async def resources_are_not_given() -> None:
    assert_type(await with_resources.adelay(5), JobHandle[int])
    assert_type(await with_resources(5, Resources()), int)


group = TaskGroup("emails", queue="emails", timeout=timedelta(seconds=5))
app.include(group)
app.include(App("other"))


@group.task(attempts=5)
async def grouped(to: str) -> int:
    return len(to)


async def tasks_of_a_group_are_tasks() -> None:
    assert_type(await grouped.adelay("a"), JobHandle[int])


@app.batch_task(size=32, wait=timedelta(milliseconds=20), parallel=2, attempts=5)
def embed(texts: list[str]) -> list[list[float]]:
    return [[float(len(text))] for text in texts]


@app.batch_task(size=32)
async def score(items: Sequence[int], model: Resources = from_lifespan()) -> list[str | Exception]:
    assert_type(current_batch(), list[RunningJob])
    return [str(model.pool[item]) for item in items]


async def batch_tasks_take_one_item() -> None:
    assert_type(embed.delay("a"), JobHandle[list[float]])
    assert_type(await embed.adelay("a"), JobHandle[list[float]])
    assert_type(embed.job("a"), JobSpec[list[float]])
    assert_type(embed.options(delay=5).delay("a").result(), list[float])
    assert_type(await (await score.adelay(5)).aresult(), str)
    by_hand: Sequence[list[float] | Exception] = embed(["a", "b"])
    also: Sequence[str | Exception] = await score([1], Resources())
    print(by_hand, also, await score([1], model=Resources()))


@app.middleware
async def async_layer(
    job: RunningJob, call_next: Callable[[RunningJob], Awaitable[object]]
) -> object:
    return await call_next(job)


@app.middleware
def plain_layer(job: RunningJob, call_next: Callable[[RunningJob], object]) -> object:
    return call_next(job)


def durations_are_seconds_inside() -> None:
    options = WorkerOptions(lock_duration=timedelta(minutes=1), limiter=Limiter(5, timedelta(1)))
    assert_type(options.lock_duration, float)
    assert_type(Keep(age=timedelta(days=1)).age, float | None)
    assert_type(resize.job("a").options.timeout, float | None)
    assert_type(resize.job("a").options.dedup, Dedup | None)


async def async_queue(queue: Queue) -> None:
    assert_type(await queue.counts(), dict[str, int])
    assert_type(await queue.get_job("1"), Job | None)
    assert_type(await queue.get_jobs("failed", end=9), list[Job])
    assert_type(await queue.get_state(job_id="1"), JobState)
    assert_type(await queue.retry("1", "completed"), None)
    assert_type(await queue.clean(60, 0, JobState.FAILED), list[str])
    assert_type(await queue.drain(delayed=True), int)
    assert_type(await queue.logs("1", 0, 10), Logs)
    pausing: Coroutine[Any, Any, None] = queue.pause()
    pausing.close()
    assert_type(await Queue.drain(queue, delayed=True), int)


def sync_queue(queue: SyncQueue) -> None:
    assert_type(queue.counts(), dict[str, int])
    assert_type(queue.get_job("1"), Job | None)
    assert_type(queue.get_jobs("failed", end=9), list[Job])
    assert_type(queue.get_state(job_id="1"), JobState)
    assert_type(queue.clean(60, 0, JobState.FAILED), list[str])
    assert_type(queue.drain(delayed=True), int)
    assert_type(queue.logs("1", 0, 10), Logs)
    assert_type(queue.remove("1"), bool)
    assert_type(SyncQueue.drain(queue, delayed=True), int)


async def async_server(server: Server) -> None:
    [node, *_] = await server.servers()
    assert_type(node, Node)
    assert_type(await server.info(node), dict[str, str])
    assert_type(await server.exists("pictures"), bool)
    assert_type(await server.survey(["pictures"]), list[QueueSample])
    assert_type(await server.jobs("pictures", "waiting", limit=5), JobRows)
    assert_type(await server.inspect("pictures", "1", whole=True), JobDetails)
    assert_type(await Server.queues(server), list[str])
    pinging: Coroutine[Any, Any, None] = server.ping()
    pinging.close()


def sync_server(server: SyncServer) -> None:
    assert_type(server.servers(), list[Node])
    assert_type(server.survey(), list[QueueSample])
    assert_type(server.jobs("pictures", "failed", after=After(20)), JobRows)
    assert_type(server.inspect("pictures", "1"), JobDetails)
    assert_type(SyncServer.exists(server, queue="pictures"), bool)
    assert_type(server.ping(), None)


def kinds(
    one: AsyncTask[[str, int], list[int]], other: SyncTask[..., str], some: Variant[..., str]
) -> None: ...


async def answer(text: str, *, to: str = "fr") -> list[str]:
    return [text, to]


async def remote_tasks() -> None:
    assert_type(translate.delay("a", to="de"), JobHandle[list[str]])
    assert_type(await translate.adelay("a"), JobHandle[list[str]])
    assert_type(await (await translate.adelay("a")).aresult(), list[str])
    assert_type(detect.delay("a").result(), str)
    assert_type(translate.options(delay=5).delay("a").result(), list[str])
    assert_type(translate.after(detect.job("a")).delay("a").result(), list[str])
    assert_type(from_child(translate), list[str])
    assert_type(from_children(detect), list[str])
    with recorded(app) as box:
        box.answer(detect, "de")
        box.answer(detect, lambda text: text.upper())
        box.answer(translate, answer)


# Steps keep the types of their functions, and waits have the type that they name.


@step
async def charge(order: str, *, amount: int = 1) -> list[int]:
    return [amount]


@step(name="print", attempts=3, backoff=Backoff.fixed(1), timeout=60)
def print_label(number: int) -> str:
    return str(number)


async def steps() -> None:
    assert_type(await charge("a", amount=5), list[int])
    assert_type(print_label(5), str)
    job = current_job()
    assert_type(await job.await_signal("approval", bool, timeout=timedelta(days=2)), bool)
    assert_type(job.wait_signal("count", int), int)
    await job.asleep(5)
    job.sleep(timedelta(days=1))
    handle = app.job("default", "1")
    handle.signal("approval", True)
    await handle.asignal("approval")
    assert_type(handle.steps(), list[JobStep])
    await app.queue("default").signal("1", "approval", {"ok": True})
    app.sync_queue("default").retry("1", reset_steps=True)


@app.task(reduce="".join)
async def speak(words: list[str]) -> AsyncIterator[str]:
    for word in words:
        yield word


@app.task
def count_up(to: int) -> Iterator[int]:
    yield from range(to)


@app.task(queue="chat", stream_limit=100, stream_ttl=timedelta(hours=2))
async def squares(to: int) -> AsyncIterator[int]:
    for number in range(to):
        yield number**2


@app.task(reduce=None)
def forget(to: int) -> Iterator[float]:
    yield float(to)


async def streams() -> None:
    async for word in speak.astream(["a"]):
        assert_type(word, str)
    for number in count_up.stream(3):
        assert_type(number, int)
    job = await speak.adelay(["a"])
    assert_type(await job.aresult(), str)
    async for word in job.astream(on_restart=print):
        assert_type(word, str)
    assert_type(count_up.delay(3).result(), list[int])
    assert_type(await (await squares.adelay(3)).aresult(), list[int])
    async for square in squares.options(priority=1).astream(3):
        assert_type(square, int)
    for each in forget.delay(3).stream():
        assert_type(each, float)
    assert_type(forget.delay(3).result(), None)
    assert_type(speak(["a"]), AsyncIterator[str])
    assert_type(count_up(3), Iterator[int])
    async for event in app.job("chat", "1").sse("1-7"):
        assert_type(event, str)
    with recorded(app) as box:
        assert_type(box.stream(job), list[Any])
