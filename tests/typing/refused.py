"""Code that type checkers must reject: both of them must report each marked error.

Never run, only checked.
"""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from taskbull import (
    App,
    Queue,
    RunningJob,
    Server,
    SyncQueue,
    SyncServer,
    TaskGroup,
    WorkerOptions,
    chain,
    from_child,
    from_children,
    from_lifespan,
    step,
)
from taskbull.testing import recorded
from tests.typing.accepted import app, charge, detect, embed, fetch, print_label, resize, translate


async def wrong_calls() -> None:
    resize.delay()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    resize.delay(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    resize.delay("a", 5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    resize.delay("a", hight=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    resize.delay("a", width="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    resize.job(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    resize(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await fetch.adelay(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await fetch(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    resize.options(delay=1).delay(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def forgotten_await() -> None:
    fetch.adelay("a")  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    fetch("a")  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]


async def wrong_results() -> None:
    number: int = resize.delay("a").result()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    text: str = await (await fetch.adelay("a")).aresult()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    print(number, text)


async def wrong_operations(queue: Queue, sync_queue: SyncQueue) -> None:
    await queue.drain(True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await queue.drain(delay=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await queue.get_job(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await queue.retry("1", "waiting")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await queue.clean(60)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await queue.cleen()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    queue.pause()  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    count: str = sync_queue.drain()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    sync_queue.drain(True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await sync_queue.is_paused()  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
    print(count)


async def wrong_questions(server: Server, sync_server: SyncServer) -> None:
    await server.jobs("a", "failed", limit="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await server.jobs("a")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    server.ping()  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    sync_server.info()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await sync_server.queues()  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
    sync_server.exist("a")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


@app.task
def wrong_child(text: str = from_child(fetch)) -> None: ...  # type: ignore[assignment]  # pyright: ignore[reportArgumentType]


@app.task
def wrong_children(text: list[str] = from_children(fetch)) -> None: ...  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class Resources:
    pool: list[int]


@app.task
def with_resources(number: int, resources: Resources = from_lifespan()) -> None:
    print(resources.pol)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]


def wrong_resources() -> None:
    with_resources("5", Resources())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with_resources(5, resources=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    from_lifespan(5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


@app.middleware  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportUntypedFunctionDecorator]
def layer_without_a_next(job: RunningJob) -> None: ...


@app.middleware  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportUntypedFunctionDecorator]
def layer_of_another_job(job: int, call_next: Callable[[int], object]) -> None: ...


@app.batch_task(size=2)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue, reportUntypedFunctionDecorator]
def no_list(text: str) -> list[int]:
    return [len(text)]


def wrong_batches() -> None:
    embed.delay(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    embed.delay(["a"])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    embed.job("a", "b")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    embed("a")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.batch_task()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    app.batch_task(size="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    number: int = embed.delay("a").result()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    print(number)


def wrong_groups() -> None:
    TaskGroup("a", redis="redis://localhost")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    app.include("a")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def wrong_flows() -> None:
    resize.after(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    resize.after(resize)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    resize.after(resize.job("a"), on_failure="perhaps")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    resize.after(resize.job("a")).delay(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    chain(resize.job("a"), 5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def wrong_options() -> None:
    resize.options(prioritty=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    resize.options(priority="1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.task(atempts=5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    app.task(attempts="5")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    app.enqueue(["a"])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def wrong_options_of_queues() -> None:
    queue, sync_queue = app.queue("pictures"), app.sync_queue("pictures")
    await queue.add("a", {}, prioritty=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await queue.add("a", {}, priority="1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    sync_queue.add("a", {}, queue="b")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    sync_queue.add("a", {}, delay="1m")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    sync_queue.job("a", {}, atempts=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    queue.job("a", {}, attempts=None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def wrong_options_of_the_app_and_its_workers() -> None:
    App("a", tiemout=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    App("a", timeout="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    App("a", priority=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    app.queue_options("a", concurency=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    app.queue_options("a", limiter=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.worker("a", concurency=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    app.worker("a", threads="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await app.run_worker("a", burts=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    app.run("a", on_lost_lock="stop")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    WorkerOptions(concurency=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    WorkerOptions(lock_duration="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    resize.options(job_id=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    resize.options(size_limit=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def remote_tasks() -> None:
    detect.delay(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    detect("a")  # type: ignore[operator]  # pyright: ignore[reportCallIssue]
    await translate.adelay()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    app.remote(process=True)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    wrong: int = detect.delay("a").result()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    with recorded(app) as box:
        box.answer(detect, lambda: "de")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        box.answer(resize, "a")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    print(wrong)


async def wrong_steps() -> None:
    await charge(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await charge()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    print_label("5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    step(attempts="3")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    count: int = print_label(5)  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    print(count)


@app.task
async def words(count: int) -> AsyncIterator[str]:
    yield str(count)


async def tasks_that_yield() -> None:
    words.stream("a")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    words.astream()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    async for word in words.astream(1):
        number: int = word  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        print(number)
    print(resize.stream)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]
