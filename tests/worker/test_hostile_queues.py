"""One worker runs a good and a hostile queue: neither it nor the good queue suffers.

All of it is S3, S5 and S13, for the keys of streams, steps, groups, hooks, stacks and requests.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from math import inf
from typing import Any

import pytest
from anyio import create_task_group, sleep, sleep_forever, to_thread
from click.testing import CliRunner

from taskbull import Server
from taskbull.cli.main import commands
from taskbull.core import events
from taskbull.core.keys import QueueKeys
from taskbull.core.outcome import Cancelled
from taskbull.errors import TaskbullError
from taskbull.observability.exporters import OwnMetrics
from taskbull.observability.metrics import LENGTH
from taskbull.scripts.change import requests_key
from taskbull.worker.running_job import RunningJob
from tests.worker.bed import LIMIT, WorkerBed, echo, until

GROUP = '{"group":{"id":"g"},"attempts":1}'
KEYS = (
    *("tb:turns", "tb:held", "tb:running", "tb:groups", "tb:group::jobs", "tb:group:g:jobs"),
    *("tb:group:g:running", "tb:group:g:window", "tb:hooks", "tb:ended", "tb:cancel"),
    *("tb:cancelling", "tb:flows", "tb:workers", "tb:suspects", "h:tb:steps", "h:tb:items"),
)
"""Private keys below a queue. The job `h` waits in it, in the group `g`."""

Write = Any
"""A function that writes below a queue: it is given a client of Redis and the queue's base."""


def shapes() -> Iterator[tuple[str, Write]]:
    for key in KEYS:
        yield f"{key}-text", lambda r, b, k=key: (r.delete(b + k), r.set(b + k, "oops"))
        yield (
            f"{key}-list",
            lambda r, b, k=key: (r.delete(b + k), r.rpush(b + k, "a", "b", b"\xff")),
        )
        yield f"{key}-hash", lambda r, b, k=key: (r.delete(b + k), r.hset(b + k, "x", "y"))
    for score in (inf, -inf, 1e300):
        yield f"turn-{score}", lambda r, b, s=score: r.zadd(b + "tb:turns", {"g": s, b"\xff": s})
        yield f"held-{score}", lambda r, b, s=score: r.zadd(b + "tb:held", {"g": s, b"\xff": s})
        yield (
            f"rank-{score}",
            lambda r, b, s=score: (
                r.zadd(b + "tb:group:g:jobs", {"h": s}),
                r.zadd(b + "prioritized", {"h": s}),
            ),
        )
    for place, words in enumerate(("1e308 1e308 1e308 1e308 1", "- 5", "x y z", "0 0 0 0 0", "")):
        for field in ("=", "+g", "*g"):
            yield f"rules-{place}{field}", lambda r, b, f=field, w=words: r.hset(
                b + "tb:groups", f, w)  # fmt: skip
    for cost in ("1e308", "-1e308", "1e400", "null", '"x"'):
        yield f"cost-{cost}", lambda r, b, c=cost: (
            r.hset(b + "tb:groups", "=", "- 10 1000 - -"),
            r.hset(b + "h", "opts", f'{{"group":{{"id":"g","cost":{c}}}}}'),
        )  # fmt: skip
    yield "ended-short", lambda r, b: r.rpush(b + "tb:ended", "1", "work", "{}")
    yield "ended-odd", lambda r, b: r.rpush(
        b + "tb:ended", "meta", "work", b"\xff", "", "x" * 70_000, "", "[", "y")  # fmt: skip
    yield (
        "requests",
        lambda r, b: [
            r.xadd(b + "tb:cancel", dict.fromkeys(each, "x"))
            for each in (
                ("id",),
                ("stack", "token", "reply"),
                ("worker", "quiet"),
                ("ended",),
                ("a",),
            )
        ],
    )
    yield "stream-rules", lambda r, b: r.hset(b + "h", "tbst", "9" * 400 + " x 5 tb:")


SHAPES = dict(shapes())


@pytest.mark.parametrize("write", SHAPES.values(), ids=SHAPES)
async def test_jobs_of_another_queue_run_despite_any_malformed_data(
    bed: WorkerBed, write: Write
) -> None:
    admin: Any = bed.admin
    base = QueueKeys("evil", bed.prefix).base
    admin.hset(base + "h", mapping={"name": "work", "data": "{}", "opts": GROUP, "timestamp": "1"})
    admin.hset(base + "meta", mapping={"opts.maxLenEvents": "10", "tb:groups": "1"})
    admin.rpush(base + "wait", "h")
    write(admin, base)
    worker = bed.worker(echo, queues=["evil", "q"], records=True, stalled_interval=0.1)
    own = OwnMetrics()
    worker.measure(own.metrics)
    async with worker.running():
        for number in range(5):
            handle = await bed.queue.add("good", number)
            assert await handle.aresult(timeout=LIMIT) == number
        length = ("q", "waiting")
        await until(lambda: length in own.snapshot().numbers.get(LENGTH.name, {}))
        await until(lambda: own.health().ready)


async def forever(_: RunningJob) -> None:
    await sleep_forever()


async def test_a_stack_request_uses_no_key_outside_its_queue(bed: WorkerBed) -> None:
    admin: Any = bed.admin
    victim = f"{bed.prefix}:other:1"
    admin.hset(victim, "name", "theirs")
    admin.set(f"{bed.prefix}-session", "theirs")
    handle = await bed.queue.add("work")
    async with bed.worker(forever, shutdown_timeout=0).running():
        await bed.record.wait_for(events.Started)
        token = admin.get(bed.keys.lock(handle.id))
        keys = (
            victim,
            f"{bed.prefix}-session",
            f"{bed.prefix}:other:wait",
            "x",
            ":",
            "meta",
            "a:lock",
        )
        for key in keys:
            for name in ("reply", "request"):
                fields = {"stack": handle.id, "token": token, name: key}
                admin.xadd(requests_key(bed.keys), fields)
        found = await Server(bed.url, prefix=bed.prefix).stack("q", handle.id)
        assert "forever" in found.stack
        assert admin.type(victim) == b"hash"
        assert admin.get(f"{bed.prefix}-session") == b"theirs"
        assert [key for key in keys if admin.exists(key)] == [victim, f"{bed.prefix}-session"]


async def test_a_flood_of_requests_for_stacks_is_dropped(bed: WorkerBed) -> None:  # S13
    admin: Any = bed.admin
    handle = await bed.queue.add("work")
    async with bed.worker(forever, shutdown_timeout=0).running():
        await bed.record.wait_for(events.Started)
        fields = {"stack": handle.id, "token": admin.get(bed.keys.lock(handle.id))}
        together = admin.pipeline()
        for number in range(2000):
            together.xadd(requests_key(bed.keys), fields | {"request": f"r{number}"})
        await to_thread.run_sync(together.execute)
        assert await bed.queue.cancel(handle.id, "enough") is Cancelled.REQUESTED
        await bed.record.wait_for(events.Failed)  # all requests before it have been read
    # Two pages, or three if the first one is short.
    assert len(admin.keys(f"{bed.keys.base}tb:stack:*")) <= 30


async def test_a_request_in_one_queue_leaves_the_others_of_a_worker_as_they_are(
    bed: WorkerBed,
) -> None:
    admin: Any = bed.admin
    evil = QueueKeys("evil", bed.prefix)
    worker = bed.worker(echo, queues=["evil", "q"], records=True)
    async with worker.running():
        about = evil.private("worker", worker.id, "about")
        await until(lambda: admin.exists(about) == 1)
        started = str(json.loads(admin.get(about))["started_ms"])
        request = {"worker": worker.id, "started": started, "quiet": "1"}
        admin.xadd(requests_key(evil), request)
        await until(lambda: worker._consumers["evil"].context.is_quiet)
        assert not worker.is_quiet
        assert await (await bed.queue.add("work", 1)).aresult(timeout=LIMIT) == 1
        await Server(bed.url, prefix=bed.prefix).quiet_worker(worker.id)
        await until(lambda: worker.is_quiet)
        admin.xadd(requests_key(evil), request | {"quiet": "0"})
        await until(lambda: not worker._consumers["evil"].context.is_quiet)
        assert worker._consumers["q"].context.is_quiet


async def test_requests_are_read_beside_a_queue_whose_requests_cannot_be(bed: WorkerBed) -> None:
    admin: Any = bed.admin
    evil = QueueKeys("evil", bed.prefix)
    admin.set(requests_key(evil), "oops")
    handle = await bed.queue.add("work")
    # The heartbeat would find the cancellation too, minutes later.
    worker = bed.worker(forever, queues=["evil", "q"], lock_duration=900, heartbeat_interval=300)
    async with worker.running():
        await bed.record.wait_for(events.Started)
        assert await bed.queue.cancel(handle.id, "enough") is Cancelled.REQUESTED
        await bed.record.wait_for(events.Failed)
        admin.delete(requests_key(evil))


@pytest.mark.parametrize(
    "reply",
    [
        b"x",
        b"\xff",
        b"[" * 100_000,
        b'{"worker":1}',
        b'{"worker":"w","place":"p","seconds":1,"stack":"%s"}' % (b"x" * 2_000_000),
    ],
    ids=["text", "bytes", "deep", "short", "long"],
)
async def test_a_stack_that_another_program_sent_is_refused(bed: WorkerBed, reply: bytes) -> None:
    admin: Any = bed.admin
    await bed.queue.add("work", job_id="held")
    admin.set(bed.keys.lock("held"), "tb:someone")
    stacks = Server(bed.url, prefix=bed.prefix)

    async def answer() -> None:
        found: list[Any] = []
        while not found:
            found = admin.xrange(requests_key(bed.keys))
            await sleep(0.01)
        [(_, fields)] = found
        admin.set(bed.keys.private("stack", fields[b"request"].decode()), reply)

    async with create_task_group() as tasks:
        tasks.start_soon(answer)
        with pytest.raises(TaskbullError, match="cannot be read"):
            await stacks.stack("q", "held")


async def test_the_parts_of_a_stack_are_printed_without_control_codes(bed: WorkerBed) -> None:
    admin: Any = bed.admin
    await bed.queue.add("work", job_id="held")
    admin.set(bed.keys.lock("held"), "tb:someone")
    where = ("--redis", bed.url, "--prefix", bed.prefix)
    code = "\\u001b]0;x\\u0007"
    record = f'{{"worker":"{code}","place":"{code}","seconds":1e308,"stack":"{code}\\n{code}"}}'

    def answer() -> None:
        while not (found := admin.xrange(requests_key(bed.keys))):
            time.sleep(0.01)
        admin.set(bed.keys.private("stack", found[0][1][b"request"].decode()), record)

    async with create_task_group() as tasks:
        tasks.start_soon(to_thread.run_sync, answer)
        call = partial(CliRunner().invoke, commands, ["stack", "q", "held", *where])
        done = await to_thread.run_sync(call)
    assert done.exit_code == 0, done.output
    assert "\x1b" not in done.output
    assert "\x07" not in done.output
