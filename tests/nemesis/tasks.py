"""The tasks of all kinds, in one app that producers and workers share.

A run is named `<intent>/<number>`, where the number counts how often the job was fetched. Results
and errors contain that name, so Redis shows which run's outcome it accepted.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from anyio import sleep

from taskbull import (
    App,
    ConnectionLost,
    EnqueueError,
    Every,
    Groups,
    Keep,
    LockLost,
    MaybeExecuted,
    PermanentError,
    RateLimited,
    Retry,
    SignalTimeout,
    Snooze,
    TaskbullError,
    TransientError,
    WaitForChildren,
    current_job,
    events,
    from_children,
    step,
)
from taskbull.core.job import CallNext
from taskbull.worker.running_job import RunningJob
from tests.nemesis.kinds import (
    BEAT,
    GROUP_LIMIT,
    GROWN,
    ITEMS,
    KINDS,
    LIMITED,
    PREFIX,
    SIGNAL_TIMEOUT,
    SIGNALS,
    SLEEP,
    STEPS,
    Kind,
)
from tests.nemesis.ledger import Answer, Intent, Ledger, Run, StepNote, Told, Vitals

ENQUEUE_TIMEOUT: Final = 2.0
CALL_TIMEOUT: Final = 3.0
LINES: Final = 5
CLOSE_WAIT: Final = "08"
"""State in /proc/net/tcp of a socket whose other end is closed."""
"""Log lines of a chatty job."""


def run_name() -> str:
    """Return the name of the current run."""
    job = current_job()
    return f"{job.data['intent']}/{job.job.attempts_started}"


async def plain(intent: str, filling: str = "") -> str:
    return run_name()


def in_thread(intent: str) -> str:
    time.sleep(0.002)
    return run_name()


async def flaky(intent: str) -> str:
    if current_job().attempt == 1:
        raise TransientError(run_name())
    return run_name()


def flaky_thread(intent: str) -> str:
    if current_job().attempt == 1:
        raise TransientError(run_name())
    return run_name()


async def exhausted(intent: str) -> str:
    raise TransientError(run_name())


async def permanent(intent: str) -> str:
    raise PermanentError(run_name())


async def retry_later(intent: str) -> str:
    if current_job().attempt == 1:
        raise Retry(run_name(), after=0.1)
    return run_name()


async def late(intent: str) -> str:
    if current_job().attempt == 1:
        await sleep(60)
    return run_name()


async def snoozed(intent: str) -> str:
    if current_job().job.attempts_started == 1:
        raise Snooze(0.1)
    return run_name()


async def limited(intent: str) -> str:
    if current_job().job.attempts_started == 1:
        raise RateLimited(0.1)
    return run_name()


async def big(intent: str, filling: str) -> list[str]:
    return [run_name(), filling]


async def chatty(intent: str) -> str:
    job = current_job()
    for line in range(LINES):
        # Network errors are injected. The worker must handle errors of Redis itself.
        with suppress(ConnectionLost, MaybeExecuted, LockLost):
            await job.aprogress(line)
            await job.alog(f"{run_name()} {line}")
    return run_name()


def chatty_thread(intent: str) -> str:
    job = current_job()
    for line in range(LINES):
        with suppress(ConnectionLost, MaybeExecuted, LockLost):
            job.progress({"line": line})
            job.log(f"{run_name()} {line}")
    return run_name()


async def slow(intent: str) -> str:
    await sleep(4)  # Longer than a lock lives.
    return run_name()


async def blocking(intent: str) -> str:
    time.sleep(0.2)  # noqa: ASYNC251 - that is its kind
    return run_name()


async def family(intent: str, results: list[str] = from_children("family_child")) -> list[str]:
    return [run_name(), *results]


async def waiting(intent: str) -> list[str | int | None]:
    job = current_job()
    values = [await signal_or_none(job) for _ in range(SIGNALS)]
    await job.asleep(SLEEP)
    return [run_name(), *values]


async def signal_or_none(job: RunningJob) -> int | None:
    try:
        return await job.await_signal("go", int, timeout=SIGNAL_TIMEOUT)
    except SignalTimeout:
        return None


async def streaming(intent: str) -> AsyncIterator[str]:
    for item in streaming_thread(intent):
        yield item
        await sleep(0.005)


def streaming_thread(intent: str) -> Iterator[str]:
    for number in range(ITEMS):
        if number == ITEMS // 2 and current_job().attempt == 1:
            raise TransientError(run_name())
        yield f"{run_name()}:{number}"


FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "family": family,
    "family_bad_child": permanent,
    "thread": in_thread,
    "flaky": flaky,
    "grouped_flaky": flaky,
    "flaky_at_once": flaky,
    "flaky_thread": flaky_thread,
    "exhausted": exhausted,
    "permanent": permanent,
    "retry_later": retry_later,
    "late": late,
    "snoozed": snoozed,
    "limited": limited,
    "delayed_flaky": flaky,
    "prioritized_flaky": flaky,
    "big": big,
    "chatty": chatty,
    "chatty_thread": chatty_thread,
    "slow": slow,
    "blocking": blocking,
    "waiting": waiting,
    "streaming": streaming,
    "streaming_thread": streaming_thread,
    "forgotten_failure": exhausted,
    "flow_bad_child": permanent,
}
"""Options of tasks. Other tasks have none."""


def end_with_starter() -> None:
    """Exit when the parent process has exited, which closes stdin."""

    def wait() -> None:
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def make_app(url: str, folder: Path, who: str) -> tuple[App, Ledger]:
    """Create the app of one process, which records the jobs' events in its ledger."""
    ledger = Ledger(folder, who)
    app = App(
        "nemesis",
        redis=url,
        prefix=PREFIX,
        enqueue_timeout=ENQUEUE_TIMEOUT,
        call_timeout=CALL_TIMEOUT,
        keep_completed=Keep.all(),
        keep_failed=Keep.all(),
    )
    for kind in KINDS.values():
        function = FUNCTIONS.get(kind.name, plain)
        if kind.name == "spawning":
            function = _spawning(app, ledger)
        elif kind.name == "growing":
            function = _growing(app, ledger)
        elif kind.name == "steps":
            function = _steps(ledger)
        elif kind.name == "steps_thread":
            function = _steps_thread(ledger)
        app.task(name=kind.name, queue=kind.queue, **kind.declared)(function)
    app.queue_options(LIMITED, groups=Groups(concurrency=GROUP_LIMIT))
    app.schedule("beat", Every(BEAT), app.tasks["beat"].job(intent="beat"))
    app.task(name="probe")(_probe(ledger))
    app.middleware(_noting_runs(ledger))
    app.on(events.JobEvent)(_noting_events(ledger))
    return app, ledger


def _spawning(app: App, ledger: Ledger) -> Callable[..., Awaitable[str]]:
    async def spawning(intent: str) -> str:
        child, kind = f"{intent}-child", KINDS["spawned"]
        note_intent(ledger, child, kind)
        try:
            # A fixed id, so that a second run of this job adds no duplicate.
            handle = await app.tasks["spawned"].options(job_id=child).adelay(intent=child)
        except EnqueueError as error:
            note_refusal(ledger, child, error)
            raise Snooze(0.2) from error  # So that no attempt is used.
        ledger.note(Answer, intent=child, said=said(handle.deduplicated), job=handle.id)
        return run_name()

    return spawning


def _growing(app: App, ledger: Ledger) -> Callable[..., Awaitable[list[str]]]:
    async def growing(intent: str) -> list[str]:
        job, child = current_job(), app.tasks["family_child"]
        results: list[str] = await insistently(lambda: job.achildren("family_child"))
        if len(results) == GROWN:
            return [run_name(), *results]
        names = [f"{intent}-{number}" for number in range(GROWN)]
        for name in names:
            ledger.note(Intent, intent=name, kind="family_child", queue=child.queue, parent=intent)
        jobs = [child.options(job_id=name).job(intent=name) for name in names]
        await insistently(lambda: job.aspawn(jobs))
        for name in names:
            ledger.note(Answer, intent=name, said="added", job=name)
        raise WaitForChildren

    return growing


def _steps(ledger: Ledger) -> Callable[..., Awaitable[list[str]]]:
    @step
    async def effect(place: int) -> str:
        return note_step(ledger, place)

    async def steps(intent: str) -> list[str]:
        values: list[str] = []
        for place in range(STEPS):
            values.append(await effect(place))
            note_step(ledger, place, values[-1])
            fail_between_steps(place)
        return [run_name(), *values]

    return steps


def _steps_thread(ledger: Ledger) -> Callable[..., list[str]]:
    @step
    def effect(place: int) -> str:
        return note_step(ledger, place)

    def steps_thread(intent: str) -> list[str]:
        values: list[str] = []
        for place in range(STEPS):
            values.append(effect(place))
            note_step(ledger, place, values[-1])
            fail_between_steps(place)
        return [run_name(), *values]

    return steps_thread


def note_step(ledger: Ledger, place: int, value: str = "") -> str:
    """Record that a step was executed or returned a value. Return its value."""
    job = current_job()
    own = value or f"{run_name()}:{place}"
    intent, number = job.data["intent"], job.job.attempts_started
    ledger.note(
        StepNote, intent=intent, number=number, place=place, value=own, returned=bool(value)
    )
    return own


def fail_between_steps(place: int) -> None:
    if place == STEPS // 2 and current_job().attempt == 1:
        raise TransientError(run_name())


async def insistently(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Retry until Redis replies, so that injected faults use no attempt."""
    while True:
        try:
            return await ask()
        except LockLost:
            raise
        except TaskbullError:
            await sleep(0.1)


def _probe(ledger: Ledger) -> Callable[[float], None]:
    def probe(added: float) -> None:
        ledger.note(
            Vitals,
            threads=threading.active_count(),
            sockets=_open_sockets(),
            memory=_resident(),
            late=max(0.0, time.time() - added),
        )

    return probe


def _noting_runs(ledger: Ledger) -> Any:
    async def note_run(job: RunningJob, call_next: CallNext[RunningJob]) -> Any:
        if job.name in KINDS:
            ledger.note(
                Run,
                queue=job.queue,
                job=job.id,
                kind=job.name,
                intent=job.data["intent"],
                number=job.job.attempts_started,
            )
        return await call_next(job)

    return note_run


def _noting_events(ledger: Ledger) -> Callable[[events.JobEvent], None]:
    def note_event(event: events.JobEvent) -> None:
        if event.job.name in KINDS:
            ledger.note(
                Told,
                event=type(event).__name__,
                queue=event.queue,
                job=event.job.id,
                number=event.job.attempts_started,
                value=event.raw_value.decode() if isinstance(event, events.Completed) else "",
            )

    return note_event


def note_intent(ledger: Ledger, intent: str, kind: Kind, delay: float = 0.0) -> None:
    ledger.note(Intent, intent=intent, kind=kind.name, queue=kind.queue, delay=delay)


def note_refusal(ledger: Ledger, intent: str, error: EnqueueError) -> None:
    verdict = "maybe" if error.may_be_added else "refused"
    ledger.note(Answer, intent=intent, said=verdict, error=str(error))


def said(deduplicated: bool) -> str:
    return "stands" if deduplicated else "added"


def _open_sockets() -> int:
    """Count this process's sockets whose other end is open.

    An idle connection that the server has closed stays in its pool until a thread needs it.
    """
    closed: set[str] = set()
    for table in ("tcp", "tcp6"):
        rows = [line.split() for line in Path(f"/proc/self/net/{table}").read_text().splitlines()]
        closed.update(f"socket:[{row[9]}]" for row in rows[1:] if row[3] == CLOSE_WAIT)
    links = [_link(file) for file in Path("/proc/self/fd").iterdir()]
    return sum("socket:" in link and link not in closed for link in links)


def _link(file: Path) -> str:
    try:
        return os.readlink(file)
    except OSError:  # it was that of the listing
        return ""


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
