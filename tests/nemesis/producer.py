"""A process that adds jobs of all kinds until its input is closed.

`python -m tests.nemesis.producer <url> <folder> <who> sync|asyncio|trio <jobs/s> <seed> <kinds>`
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

import anyio
from anyio import create_task_group, sleep, to_thread
from msgspec import Struct

from taskbull import (
    App,
    ConnectionLost,
    EnqueueError,
    JobHandle,
    JobNotFound,
    ServerRefused,
    TaskbullError,
    WrongState,
)
from taskbull.app.producer import JobSpec
from taskbull.app.task import Variant
from tests.nemesis.kinds import KINDS, SIGNALS, Kind
from tests.nemesis.ledger import Answer, Called, Intent, Ledger, Said, Signalled, Streamed
from tests.nemesis.tasks import (
    CALL_TIMEOUT,
    ENQUEUE_TIMEOUT,
    make_app,
    note_intent,
    said,
)

AT_ONCE: Final = 4
"""Number of concurrent calls."""

BULK: Final = 20
RESULT_TIMEOUT: Final = 1.0


class Order(Struct, frozen=True):
    """One job, or several of a kind in one call."""

    kind: Kind
    intents: list[str]
    options: dict[str, Any]
    asks: bool
    """True to wait for its result."""
    tries: int
    """Maximum number of attempts to enqueue it."""
    signal_pause: float
    """Seconds before each signal to a waiting job."""


class Desk:
    """Shared part of the sync and async producers: choosing jobs, and recording them."""

    def __init__(self, app: App, ledger: Ledger, seed: str, kinds: list[Kind]) -> None:
        self.app = app
        self._ledger = ledger
        self._seed = seed
        self._kinds = kinds
        self._family: dict[str, list[str]] = {}

    def orders(self, lane: int) -> Iterator[Order]:
        """Draw orders. Each lane gets different ones."""
        random = Random(f"{self._seed}-{lane}")
        weights = [kind.weight for kind in self._kinds]
        number = 0
        while True:
            number += 1
            [kind] = random.choices(self._kinds, weights)
            options = kind.draw(random)
            intent = f"{self._ledger.who}-{lane}-{number}"
            count = BULK if kind.name == "plain" and random.random() < 0.05 else 1
            if kind.name in {"own_id", "family", "growing"}:  # Children name their parent.
                options["job_id"] = intent
            intents = [intent] if count == 1 else [f"{intent}-{n}" for n in range(count)]
            asks, tries = random.random() < 0.05, random.choice((1, 3))
            yield Order(kind, intents, options, asks, tries, random.choice((0.0, 1.0)))

    def begin(self, order: Order) -> tuple[Variant[..., Any], list[dict[str, str]]]:
        """Record the intents. Return the task and the arguments of each call."""
        for intent in order.intents:
            note_intent(self._ledger, intent, order.kind, order.options.get("delay", 0.0))
        filling = {"filling": "x" * order.kind.size} if order.kind.size else {}
        task = self.app.tasks[order.kind.name].options(**order.options)
        if order.kind.name == "family":
            task = task.after(self._children(order.intents[0]), on_failure="ignore")
        return task, [{"intent": intent, **filling} for intent in order.intents]

    def _children(self, parent: str) -> list[JobSpec[Any]]:
        """Create the children of a flow, and record their intents."""
        random = Random(parent)
        specs: list[JobSpec[Any]] = []
        self._family[parent] = names = [f"{parent}-{n}" for n in range(random.randint(1, 6))]
        for name in names:
            kind = "family_bad_child" if random.random() < 0.1 else "family_child"
            queue = KINDS[kind].queue
            self._ledger.note(Intent, intent=name, kind=kind, queue=queue, parent=parent)
            specs.append(self.app.tasks[kind].options(job_id=name).job(intent=name))
        return specs

    def _answered(self, intent: str, verdict: str, job: str = "", error: str = "") -> None:
        """Record a reply for a job and all its children."""
        self._ledger.note(Answer, intent=intent, said=verdict, job=job, error=error)
        for child in self._family.get(intent, ()):
            own = child if job else ""
            self._ledger.note(Answer, intent=child, said=verdict, job=own, error=error)

    def added(self, intents: list[str], handles: list[JobHandle[Any]], began: float) -> None:
        self._called("enqueue", ENQUEUE_TIMEOUT, began)
        for intent, handle in zip(intents, handles, strict=True):
            self._answered(intent, said(handle.deduplicated), handle.id)

    def refused(self, intents: list[str], error: EnqueueError, began: float) -> list[str]:
        """Record each result. Return the intents of the jobs that may be enqueued again."""
        self._called("enqueue", ENQUEUE_TIMEOUT, began, error)
        left = [str(spec.data["intent"]) for spec in error.spec]
        for intent in intents:
            if intent in left:
                self._answered(intent, "maybe" if error.may_be_added else "refused", "", str(error))
            else:  # It was added before the others were refused.
                self._answered(intent, "added")
        return left

    def signalled(self, order: Order, value: int, verdict: Said) -> None:
        """Record a signal to the job of an order."""
        self._ledger.note(Signalled, intent=order.intents[0], value=value, said=verdict)

    def streamed(self, order: Order, items: list[str]) -> None:
        """Record the items that a reader of the job's stream got."""
        self._ledger.note(Streamed, intent=order.intents[0], items=items)

    def failed(self, what: str, error: Exception) -> None:
        """Record that a call without a deadline raised an error."""
        self._called(what, 0.0, time.monotonic(), error)

    @contextmanager
    def called(self, what: str, deadline: float) -> Iterator[None]:
        """Record the duration of the call in the block."""
        began = time.monotonic()
        try:
            yield
        except (TimeoutError, TaskbullError) as error:
            self._called(what, deadline, began, error)
        else:
            self._called(what, deadline, began)

    def _called(
        self, what: str, deadline: float, began: float, error: Exception | None = None
    ) -> None:
        self._ledger.note(
            Called,
            what=what,
            deadline=deadline,
            took=time.monotonic() - began,
            error="" if error is None else f"{type(error).__name__}: {error}"[:200],
        )


def enqueue(desk: Desk, order: Order) -> list[JobHandle[Any]]:
    """Add jobs, and enqueue those again that could not be added, without duplicates."""
    task, calls = desk.begin(order)
    intents, specs = order.intents, [task.job(**call) for call in calls]
    for again in range(order.tries):
        began = time.monotonic()
        try:
            single = len(calls) == 1 and not again
            handles = [task.delay(**calls[0])] if single else desk.app.enqueue(specs)
        except EnqueueError as error:
            intents, specs = desk.refused(intents, error, began), error.spec
        else:
            desk.added(intents, handles, began)
            return handles
    return []


async def aenqueue(desk: Desk, order: Order) -> list[JobHandle[Any]]:
    """Add jobs, from an event loop; see `enqueue`."""
    task, calls = desk.begin(order)
    intents, specs = order.intents, [task.job(**call) for call in calls]
    for again in range(order.tries):
        began = time.monotonic()
        try:
            single = len(calls) == 1 and not again
            handles = [await task.adelay(**calls[0])] if single else await desk.app.aenqueue(specs)
        except EnqueueError as error:
            intents, specs = desk.refused(intents, error, began), error.spec
        else:
            desk.added(intents, handles, began)
            return handles
    return []


def verdict_of(error: Exception) -> Said | None:
    """Return what an error says about a signal, or None if it was not sent."""
    if isinstance(error, JobNotFound | WrongState):
        return "refused"
    return None if isinstance(error, ConnectionLost | ServerRefused) else "maybe"


def send_signals(desk: Desk, order: Order, job: JobHandle[Any]) -> None:
    """Send a waiting job its signals: before its waits, or later."""
    for value in range(SIGNALS):
        time.sleep(order.signal_pause)
        desk.signalled(order, value, "maybe")
        verdict: Said | None = None
        while verdict is None:
            try:
                job.signal("go", value)
                verdict = "added"
            except (TimeoutError, TaskbullError) as error:
                verdict = verdict_of(error)
                time.sleep(0.1)
        desk.signalled(order, value, verdict)


async def asend_signals(desk: Desk, order: Order, job: JobHandle[Any]) -> None:
    """Send a waiting job its signals, from an event loop; see `send_signals`."""
    for value in range(SIGNALS):
        await sleep(order.signal_pause)
        desk.signalled(order, value, "maybe")
        verdict: Said | None = None
        while verdict is None:
            try:
                await job.asignal("go", value)
                verdict = "added"
            except (TimeoutError, TaskbullError) as error:
                verdict = verdict_of(error)
                await sleep(0.1)
        desk.signalled(order, value, verdict)


def read_stream(desk: Desk, order: Order, job: Any) -> None:
    """Follow a job's stream to its end; after an error, from its start."""
    items: list[str] = []
    while True:
        items.clear()
        try:
            for item in job.stream(on_restart=items.clear):
                items.append(item)  # noqa: PERF402 - a restart clears the list
        except TaskbullError as error:
            desk.failed("stream", error)
            time.sleep(0.1)
        else:
            return desk.streamed(order, items)


async def aread_stream(desk: Desk, order: Order, job: Any) -> None:
    """Follow a job's stream from an event loop; see `read_stream`."""
    items: list[str] = []
    while True:
        items.clear()
        try:
            async for item in job.astream(on_restart=items.clear):
                items.append(item)  # noqa: PERF401 - a restart clears the list
        except TaskbullError as error:
            desk.failed("astream", error)
            await sleep(0.1)
        else:
            return desk.streamed(order, items)


def produce(desk: Desk, lane: int, pause: float, ended: threading.Event) -> None:
    """Add jobs from a thread."""
    for order in desk.orders(lane):
        if ended.wait(pause):
            return
        handles = enqueue(desk, order)
        if handles and order.kind.name == "waiting":
            send_signals(desk, order, handles[0])
        elif handles and order.kind.name.startswith("streaming"):
            read_stream(desk, order, handles[0])
        if order.asks and handles:
            with desk.called("result", RESULT_TIMEOUT):
                handles[0].result(timeout=RESULT_TIMEOUT)
            with desk.called("counts", CALL_TIMEOUT):
                desk.app.sync_queue(order.kind.queue).counts()


async def aproduce(desk: Desk, lane: int, pause: float, ended: threading.Event) -> None:
    """Add jobs from an event loop."""
    for order in desk.orders(lane):
        await sleep(pause)
        if ended.is_set():
            return
        handles = await aenqueue(desk, order)
        if handles and order.kind.name == "waiting":
            await asend_signals(desk, order, handles[0])
        elif handles and order.kind.name.startswith("streaming"):
            await aread_stream(desk, order, handles[0])
        if order.asks and handles:
            with desk.called("aresult", RESULT_TIMEOUT):
                await handles[0].aresult(timeout=RESULT_TIMEOUT)
            with desk.called("acounts", CALL_TIMEOUT):
                await desk.app.queue(order.kind.queue).counts()


def run_sync(desk: Desk, pause: float) -> None:
    ended = threading.Event()
    threading.excepthook = _end_process
    lanes = [
        threading.Thread(target=produce, args=(desk, lane, pause, ended)) for lane in range(AT_ONCE)
    ]
    for thread in lanes:
        thread.start()
    sys.stdin.read()
    ended.set()
    for thread in lanes:
        thread.join()


async def run_async(desk: Desk, pause: float) -> None:
    ended = threading.Event()
    async with create_task_group() as lanes:
        for lane in range(AT_ONCE):
            lanes.start_soon(aproduce, desk, lane, pause, ended)
        await to_thread.run_sync(sys.stdin.read)
        ended.set()


def _end_process(arguments: threading.ExceptHookArgs) -> None:
    """Exit the process if a thread fails, so that the failure is visible."""
    threading.__excepthook__(arguments)
    os._exit(1)


def main(url: str, folder: str, who: str, flavour: str, *words: str) -> None:
    rate, seed, names = words
    app, ledger = make_app(url, Path(folder), who)
    desk = Desk(app, ledger, f"{seed}-{who}", [KINDS[name] for name in names.split(",")])
    pause = AT_ONCE / float(rate)
    print("running", flush=True)
    if flavour == "sync":
        run_sync(desk, pause)
    else:
        anyio.run(run_async, desk, pause, backend=flavour)


if __name__ == "__main__":
    main(*sys.argv[1:])
