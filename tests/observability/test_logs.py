"""The log lines of real workers: the eight required events with their fields, and no payloads."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest
from anyio import Event

from taskbull.core import events
from taskbull.core.backoff import Backoff
from taskbull.core.retry import CircuitBreaker
from taskbull.errors import PermanentError, TransientError
from taskbull.observability.logs import FIRST_PAUSE, LONGEST_PAUSE, JsonFormatter, LogLines, Repeats
from tests.servers.proxy import Proxy
from tests.worker.bed import WorkerBed, echo, until

SECRET = "the-secret-argument"
RESULT = "the-secret-result"


class Lines(logging.Handler):
    """Keeps lines as a machine gets them."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        assert "\n" not in line
        self.lines.append(json.loads(line))

    def one(self, pattern: str) -> dict[str, Any]:
        """Give the first line whose message is like this."""
        found = [line for line in self.lines if re.search(pattern, line["message"])]
        assert found, [line["message"] for line in self.lines]
        return found[0]


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, loggers = Lines(), logging.getLogger("taskbull")
    before = loggers.level
    loggers.addHandler(handler)
    loggers.setLevel(logging.INFO)
    yield handler
    loggers.setLevel(before)
    loggers.removeHandler(handler)


def fields(line: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: line[name] for name in names}


async def test_the_required_events_of_jobs_are_written(bed: WorkerBed, lines: Lines) -> None:
    async def handler(job: Any) -> str:
        if job.name == "bad":
            raise PermanentError("no such address")
        if job.name == "flaky" and job.attempt == 1:
            raise TransientError("not yet")
        return RESULT

    left = await bed.queue.add("good", {"word": SECRET})
    bed.admin.lmove(bed.keys.wait, bed.keys.active, "RIGHT", "LEFT")
    bed.admin.sadd(bed.keys.stalled, left.id)
    options = {"attempts": 2, "backoff": Backoff.fixed(0.001)}
    bad, flaky = await bed.queue.add_bulk(
        [("bad", {"word": SECRET}, options), ("flaky", {"word": SECRET}, options)]
    )
    async with bed.worker(handler, worker_id="me").running():
        await bed.record.wait_for(events.Completed, 2)
        await bed.record.wait_for(events.Failed)

    common = ("worker_id", "queue", "job_id", "job_name", "attempt", "level")
    told = {"worker_id": "me", "queue": "q", "attempt": 1}
    of_left = {**told, "job_id": left.id, "job_name": "good"}
    stalled = lines.one("stalled and was returned")
    # The worker reads the job for this line, and may have started it by then.
    assert stalled["attempt"] in {1, 2}
    assert fields(stalled, *common) == {
        **of_left,
        "attempt": stalled["attempt"],
        "level": "warning",
    }
    assert fields(stalled, "stalled_count", "doomed") == {"stalled_count": 1, "doomed": False}
    assert fields(lines.one(f"Job {left.id}.* started"), *common) == {**of_left, "level": "info"}
    completed = lines.one(f"Job {left.id}.* completed")
    assert fields(completed, *common) == {**of_left, "level": "info"}
    assert completed["duration"] >= 0
    failed = lines.one(f"Job {bad.id}.* failed permanently")
    assert fields(failed, "level", "category", "verdict", "reason") == {
        "level": "error",
        "category": "permanent",
        "verdict": "permanent",
        "reason": "no such address",
    }
    retried = lines.one(f"Job {flaky.id}.* will be retried in")
    assert fields(retried, "level", "category", "delay", "reason") == {
        "level": "warning",
        "category": "transient",
        "delay": 0.001,
        "reason": "not yet",
    }
    everything = json.dumps(lines.lines)
    assert SECRET not in everything
    assert RESULT not in everything


async def test_a_job_forges_no_lines_where_a_program_formats_them_itself(  # S19
    bed: WorkerBed, caplog: pytest.LogCaptureFixture
) -> None:
    forged = "x\n2026-11-18 CRITICAL auth login of root\r\x1b[2J\x9b\u202e\u2028"

    async def handler(job: Any) -> None:
        if job.attempt == 1:
            raise TransientError(f"no: {job.id}")
        raise PermanentError(f"never: {job.id}")

    caplog.set_level(logging.DEBUG, "taskbull")
    formatter = logging.Formatter("%(levelname)s %(message)s %(job_id)s", defaults={"job_id": ""})
    options = {"attempts": 2, "backoff": Backoff.fixed(0.001), "job_id": forged}
    await bed.queue.add_bulk([(forged, {}, options)])
    async with bed.worker(handler, worker_id="me").running():
        await bed.record.wait_for(events.Failed)
    for record in caplog.records:
        record.exc_info = record.exc_text = None  # Python writes the stack as it is
        assert formatter.format(record).isprintable()
    shown = [
        record.getMessage() for record in caplog.records if "permanently" in record.getMessage()
    ]
    assert len(shown) == 1
    assert r"Job x\n2026-11-18 CRITICAL auth login of root\r\x1b[2J\x9b\u202e\u2028" in shown[0]


async def test_trouble_with_redis_is_written(bed: WorkerBed, lines: Lines) -> None:
    release = Event()

    async def hold(_: Any) -> None:
        await release.wait()

    await bed.queue.add("held")
    server = bed.admin.connection_pool.connection_kwargs
    with Proxy((server["host"], server["port"])) as proxy:
        worker = bed.worker(
            hold, redis=proxy.url, worker_id="me", heartbeat_interval=0.02, shutdown_timeout=1
        )
        async with worker.running():
            await bed.record.wait_for(events.LocksRenewed)
            await until(lambda: proxy.connections >= 3)  # none is just being made
            proxy.refuse()
            proxy.cut()
            await bed.record.wait_for(events.RedisLost)
            await bed.record.wait_for(events.HeartbeatFailed, 10)
            proxy.accept()
            await bed.record.wait_for(events.RedisBack)
            release.set()
    lost = lines.one("Lost connection to Redis")
    assert fields(lost, "worker_id", "level") == {"worker_id": "me", "level": "warning"}
    assert "cannot connect" in lost["reason"]
    back = lines.one("Reconnected to Redis")
    assert fields(back, "worker_id", "level") == {"worker_id": "me", "level": "info"}
    assert back["duration"] > 0
    assert back["attempts"] >= 1
    beats = [line for line in lines.lines if "Could not renew" in line["message"]]
    assert fields(beats[0], "worker_id", "queue", "count") == {
        "worker_id": "me",
        "queue": "q",
        "count": 1,
    }
    assert len(beats) < len(bed.record.of(events.HeartbeatFailed)) / 2  # the others are left out


async def test_changes_of_a_breaker_are_written(bed: WorkerBed, lines: Lines) -> None:
    broken = True

    async def handler(_: Any) -> None:
        if broken:
            raise PermanentError("down")

    breaker = CircuitBreaker(threshold=1, duration=0.05)
    async with bed.worker(handler, worker_id="me", circuit_breaker=breaker).running():
        await bed.queue.add("n")
        await bed.record.wait_for(events.CircuitOpened)
        broken = False
        test = await bed.queue.add("n")
        await bed.record.wait_for(events.CircuitClosed)
    common = {"worker_id": "me", "queue": "q"}
    opened, half = lines.one("opened after"), lines.one("half-opened")
    names = ("worker_id", "queue", "failures", "threshold")
    assert fields(opened, *names) == {**common, "failures": 1, "threshold": 1}
    assert fields(half, "worker_id", "queue", "duration") == {**common, "duration": 0.05}
    closed = fields(lines.one("closed: job"), "worker_id", "queue", "test_job_id")
    assert closed == {**common, "test_job_id": test.id}


async def test_every_line_of_a_worker_names_it(bed: WorkerBed, lines: Lines) -> None:
    lines.setFormatter(JsonFormatter("me"))  # as the command line sets it up
    await bed.queue.add("n")
    async with bed.worker(echo, worker_id="me").running():
        await bed.record.wait_for(events.Completed)
    assert {line["worker_id"] for line in lines.lines} == {"me"}


def beat_failed(queue: str = "q") -> events.HeartbeatFailed:
    return events.HeartbeatFailed(worker_id="me", queue=queue, count=3, reason="away")


def test_what_repeats_itself_is_written_at_growing_intervals(lines: Lines) -> None:
    now = 0.0
    write = LogLines(lambda: now)
    for _ in range(3600):
        write(beat_failed())
        now += 1.0
    assert len(lines.lines) == 20  # at 0, 1, 3, 7, … 255, and every five minutes from then on
    assert "left_out" not in lines.lines[0]
    assert lines.lines[2]["left_out"] == 1
    assert lines.lines[-1]["left_out"] == LONGEST_PAUSE - 1
    assert "(similar lines suppressed: 299)" in lines.lines[-1]["message"]
    write(beat_failed("another"))
    assert len(lines.lines) == 21  # each queue for itself


def test_after_a_quiet_time_it_is_news_again() -> None:
    repeats = Repeats()
    assert [repeats.left_out(now) for now in (0.0, 0.5, 1.0, 2.0, 3.0)] == [0, None, 1, None, 1]
    assert repeats.left_out(1000.0) == 0
    assert repeats.left_out(1000.0 + FIRST_PAUSE) == 0
