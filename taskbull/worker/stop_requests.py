"""Read requests to a worker: stop cancelled jobs, report stacks, or stop fetching jobs.

There is one reader per server. It waits on its own connection until everything is flushed. A job
can be cancelled even while its worker stops or has no free slot. A lost connection loses no
request, because the reader continues after the last request that it has read. The first read starts
with the oldest request. A request names the job's lock, so requests for previous workers have no
effect. If a request does not arrive, the next heartbeat finds the cancellation.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from time import monotonic
from types import FrameType
from typing import Any, Final

import msgspec
from anyio import create_task_group, get_running_tasks, move_on_after, sleep
from anyio.abc import TaskGroup

from taskbull.core.job import JobStack
from taskbull.core.outcome import format_stack
from taskbull.errors import ServerRefused, ServerUnavailable, TaskbullError
from taskbull.scripts import change
from taskbull.worker.attempt import thread_frames
from taskbull.worker.batch import BatchCollector
from taskbull.worker.consumer import Consumer, Runner
from taskbull.worker.context import QueueContext
from taskbull.worker.hooks import Hooks
from taskbull.worker.run import Run
from taskbull.worker.threads import ThreadCall

# Describe where a running job is: the stack of its coroutine, thread or pool process.
#
# Everything is found when a stack is requested, so that a job costs no more than without this
# module.


async def find_stack(context: QueueContext, run: Run) -> JobStack:
    """Return the stack of a running job.

    For a job in a pool process, this waits until the process replies. A process that is stuck in C
    code never does.
    """
    place, stack = await _find(context, run)
    seconds = monotonic() - run.began if run.began else 0.0
    return JobStack(context.worker_id, place, round(seconds, 3), stack)


async def _find(context: QueueContext, run: Run) -> tuple[str, str]:
    if not run.began:
        return "queue", "It is fetched and waits for a free slot of the worker."
    if context.processes is not None:
        stack = await context.processes.stack_of(run)
        if stack is not None:
            return "process", stack
    frames = thread_frames(run)
    if frames is not None:
        return "thread", format_stack(frames)
    if isinstance(run.call, ThreadCall) and not run.call.begun:
        return "thread", "It waits for a free thread of the worker."
    return "event loop", format_stack(_loop_frames(run))


def _loop_frames(run: Run) -> list[FrameType]:
    """Return the frames of the coroutine that runs the job, or its batch."""
    found: list[FrameType] = []
    for task in get_running_tasks():
        frames = list(_awaited_frames(task.coro))
        for place, frame in enumerate(frames):
            if BatchCollector.runs(frame, run):
                return frames[place + 1 :]
            if Runner.runs(frame, run):
                found = frames[place + 1 :]
    return found


def _awaited_frames(awaited: Any) -> Iterator[FrameType]:
    """Yield the frames of a suspended coroutine and of everything that it awaits."""
    while awaited is not None:
        for frame_name, next_name in (
            ("cr_frame", "cr_await"),
            ("gi_frame", "gi_yieldfrom"),
            ("ag_frame", "ag_await"),
        ):
            if hasattr(awaited, frame_name):
                if (frame := getattr(awaited, frame_name)) is not None:
                    yield frame
                awaited = getattr(awaited, next_name)
                break
        else:
            return


logger = logging.getLogger(__name__)

CLIENT: Final = "taskbull:requests:"
"""Prefix of the connection's name in CLIENT LIST; the worker's id follows."""

_REPLY_TIMEOUT = 5.0
"""Seconds to find and send a job's stack. Its client waits as long."""

_STACKS_AT_ONCE = 10
"""Number of stacks of one queue that are found and sent concurrently. Other requests are dropped,
because anyone who can write to the queue can send any number of them."""


async def watch_requests(
    consumers: Sequence[Consumer],
    hooks: Hooks,
    on_quiet: Callable[[Consumer, change.QuietRequest], None],
) -> None:
    """Handle the requests for queues on one server, until cancelled.

    A request applies to its own queue only.
    """
    by_stream = {change.requests_key(one.context.keys): one for one in consumers}
    positions = dict.fromkeys(by_stream, change.FIRST)
    context = consumers[0].context
    name = f"{CLIENT}{context.worker_id}"
    connection = context.store.blocking(next(iter(by_stream)), name)
    known: frozenset[str] = frozenset()
    left_out: frozenset[str] = frozenset()
    reports = _StackReports()
    try:
        async with create_task_group() as tasks:
            while True:
                wanted = {each: positions[each] for each in positions if each not in left_out}
                left_out = frozenset()
                try:
                    found = await connection.run(change.read_requests(wanted))
                except ServerRefused as error:
                    refused = await _unreadable(context, positions)
                    if refused != known:
                        _warn([by_stream[each] for each in refused] or consumers, error)
                        known = refused
                    if refused and len(refused) < len(positions):
                        left_out = refused
                    else:
                        await sleep(change.BLOCK)
                    continue
                for stream, requests in found.items():
                    for request in requests:
                        if request.has_ended:
                            hooks.wake()
                        elif request.stack_id:
                            reports.start(tasks, by_stream[stream].context, request)
                        elif request.quiet is not None:
                            on_quiet(by_stream[stream], request.quiet)
                        else:
                            by_stream[stream].cycle.stop_job(
                                request.job_id, request.token, request.reason
                            )
                        positions[stream] = request.position
    finally:
        await connection.close()


async def _unreadable(context: QueueContext, streams: Iterable[str]) -> frozenset[str]:
    """Return the streams that Redis refuses to read, such as keys of another type."""
    names = list(streams)
    replies = await context.store.run_each(
        [change.check_readable(each) for each in names], timeout=change.BLOCK
    )
    return frozenset(
        name
        for name, reply in zip(names, replies, strict=True)
        if isinstance(reply, ServerRefused) and not isinstance(reply, ServerUnavailable)
    )


def _warn(consumers: Sequence[Consumer], error: ServerRefused) -> None:
    logger.warning(
        "Cannot read cancel requests for queue %s; cancelled jobs stop only at the next heartbeat: "
        "%s",
        ", ".join(one.context.keys.queue for one in consumers),
        error,
    )


class _StackReports:
    """Finds stacks of running jobs and sends them to the clients that asked for them."""

    def __init__(self) -> None:
        self._active: Counter[QueueContext] = Counter()

    def start(self, tasks: TaskGroup, context: QueueContext, request: change.StopRequest) -> None:
        """Send the stack of a job, if the job runs here."""
        run = context.runs.find(request.job_id, request.token)
        if run is not None and self._active[context] < _STACKS_AT_ONCE:
            self._active[context] += 1
            tasks.start_soon(self._send, context, run, request.stack_id)

    async def _send(self, context: QueueContext, run: Run, stack_id: str) -> None:
        try:
            # The client can ask again.
            with move_on_after(_REPLY_TIMEOUT), suppress(TaskbullError):
                found = await find_stack(context, run)
                raw = msgspec.json.encode(found)
                await context.store.run(change.write_stack(context.keys, stack_id, raw))
        finally:
            self._active[context] -= 1
