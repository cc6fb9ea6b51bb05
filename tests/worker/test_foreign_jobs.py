"""Jobs with invalid numbers, ids and options: each finishes, and the worker survives."""

from __future__ import annotations

from typing import Any

import pytest

from taskbull.core import events
from taskbull.core.wire.options import StoredOptions
from taskbull.errors import PermanentError
from tests.servers.kinds import KINDS
from tests.worker.bed import WorkerBed, echo

pytestmark = pytest.mark.parametrize("server", KINDS[:1], indirect=True)

HUGE = "1.7976931348623157e308"


async def refuse(job: Any) -> None:
    raise PermanentError("no")


async def stumble(job: Any) -> None:
    raise TimeoutError("later")


def put(bed: WorkerBed, job_id: str | bytes, opts: str = "{}", **fields: Any) -> None:
    """Write a waiting job as another program might."""
    plain: dict[Any, Any] = {
        "name": "n",
        "data": "{}",
        "opts": opts,
        "timestamp": 1,
        "delay": 0,
        "priority": 0,
    }
    raw = job_id if isinstance(job_id, bytes) else job_id.encode()
    bed.admin.hset(bed.keys.base.encode() + raw, mapping=plain | dict(fields))
    bed.admin.lpush(bed.keys.wait, raw)


@pytest.mark.parametrize("number", [HUGE, "1e999", "-" + HUGE, "9" * 400])
@pytest.mark.parametrize("handler", [echo, refuse], ids=["completes", "fails"])
async def test_no_number_in_a_jobs_options_ends_the_worker(  # F1
    bed: WorkerBed, number: str, handler: Any
) -> None:
    keep = f'{{"age":{number},"count":{number},"limit":{number}}}'
    numbers = f'"attempts":{number},"stackTraceLimit":{number},"timeout":{number}'
    put(bed, "bare", f'{{{numbers},"removeOnFail":{number},"removeOnComplete":{number}}}')
    put(bed, "kept", f'{{{numbers},"removeOnFail":{keep},"removeOnComplete":{keep}}}')
    put(bed, "sane")
    kind = events.Completed if handler is echo else events.Failed
    async with bed.worker(handler).running():
        await bed.record.wait_for(kind, 3)
    assert sorted(bed.record.jobs(kind)) == ["bare", "kept", "sane"]


@pytest.mark.parametrize(
    ("backoff", "fields"),
    [
        ('{"type":"fixed","curve":"polynomial","exponent":1.5,"delay":1}', {"atm": -100_000}),
        ('{"type":"exponential","curve":"linear","delay":1}', {"atm": "9" * 300}),
        ('{"type":"exponential","curve":"decorrelatedJitter","delay":1}', {"tbpd": "9" * 400}),
    ],
)
async def test_no_number_in_a_jobs_hash_ends_the_worker(  # F1
    bed: WorkerBed, backoff: str, fields: dict[str, Any]
) -> None:
    put(bed, "odd", f'{{"attempts":{HUGE},"backoff":{backoff}}}', **fields)
    put(bed, "sane", '{"attempts":1}')
    async with bed.worker(stumble).running():
        await bed.record.wait_for(events.Failed, where=lambda event: event.job.id == "sane")
        await bed.record.wait_for(events.JobEvent, where=_is_end_of_odd)


def _is_end_of_odd(event: events.JobEvent) -> bool:
    return event.job.id == "odd" and isinstance(event, events.Retried | events.Failed)


async def test_an_outcome_that_cannot_be_written_fails_its_job_alone(  # F1: the belt
    bed: WorkerBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trap(options: StoredOptions) -> Any:
        return 1 / 0 if options.attempts == 13 else None

    monkeypatch.setattr(StoredOptions, "keep_completed", property(trap))
    put(bed, "odd", '{"attempts":13}')
    put(bed, "sane")
    async with bed.worker(echo).running():
        [failed] = await bed.record.wait_for(events.Failed)
        [completed] = await bed.record.wait_for(events.Completed)
    assert (failed.job.id, completed.job.id) == ("odd", "sane")
    assert "ZeroDivisionError" in ((await bed.job("odd")).failed_reason or "")


async def test_a_result_above_the_limit_fails_its_job_for_good(bed: WorkerBed) -> None:  # D5
    async def verbose(job: Any) -> str:
        return "x" * 2000

    put(bed, "1", '{"attempts":3,"sizeLimit":1000}')
    async with bed.worker(verbose).running():
        [failed] = await bed.record.wait_for(events.Failed)
    assert failed.failure.reason == "Result 0.002 MB exceeds limit of 0.001 MB"
    assert failed.job.attempt == 1
