"""Thousands of malformed jobs in a running worker: each of them finishes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from taskbull.core import events
from taskbull.errors import PermanentError
from tests.selection import FULL
from tests.servers.kinds import KINDS
from tests.worker.bed import WorkerBed, until
from tests.worker.scale import SEED

JOBS = 10_000 if FULL else 2_000

pytestmark = pytest.mark.parametrize("server", KINDS[:1], indirect=True)

NUMBERS = (
    *("0", "-0", "-1", "1.5", "1e3", "1e300", "-1e300", "1e999", "-1e999", "9" * 30, "9" * 400),
    *("NaN", "nan", "inf", "Infinity", "-Infinity", "", "x", "0x10", "true", "null", "{}", "[]"),
    *("1.7976931348623157e308", "5e-324", "9007199254740993", "18446744073709551616", "\xff"),
)
TEXTS = ("", "n", "ü☃𝄞", "\x00", "a" * 3000, "{", '"', "[1,2", "constructor", "__proto__", " ")
NUMERIC = ("timestamp", "delay", "priority", "atm", "ats", "stc", "attemptsMade", "tbpd")
RARE = ("rjk", "deid", "parentKey", "parent", "stacktrace", "processedOn", "finishedOn", "pb")
OPTIONS = (
    *("attempts", "delay", "priority", "timeout", "kl", "sizeLimit", "stackTraceLimit", "lifo"),
    *("removeOnComplete", "removeOnFail", "backoff", "de", "repeat", "tm", "prevMillis", "jobId"),
    *("errorBackoffs", "parent", "timestamp", "fpof", "omc", "repeatJobKey"),
)
KEYS = ("age", "count", "limit", "type", "delay", "jitter", "maxDelay", "exponent", "curve", "id")
CURVES = ("fixed", "exponential", "linear", "polynomial", "decorrelatedJitter", "custom", "weird")


class Forger:
    """Makes hostile jobs, the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def job_id(self, number: int) -> bytes:
        """Give an id that no other job has; some are not even text."""
        chance = self._random.random()
        if chance < 0.7:
            return str(number).encode()
        if chance < 0.8:
            return b"%d" % number + self._random.randbytes(4)
        odd = self._random.choice(("ü☃", "a:b", " ", "repeat:x", "*", "{tag}", "\n", "de", "-1"))
        return f"{odd}-{number}".encode()

    def hash(self) -> dict[Any, Any]:
        """Return the fields of a job. Any of them may be missing or invalid."""
        choose, chance = self._random.choice, self._random.random
        fields = {"name": choose(TEXTS), "data": choose(TEXTS) if chance() < 0.2 else "{}"}
        for name in NUMERIC:
            if chance() < 0.3:
                fields[name] = choose(NUMBERS)
        for name in RARE:
            if chance() < 0.06:
                fields[name] = choose((*TEXTS, *NUMBERS))
        if chance() < 0.05:
            fields["defa"] = choose(TEXTS)
        if chance() < 0.9:
            fields["opts"] = self._options()
        kept = {name: self._bytes(value) for name, value in fields.items() if chance() < 0.97}
        return kept | {"something": "else"}

    def score(self) -> float:
        """Give a place in a sorted set that is due, whatever it means."""
        return self._random.choice((0.0, -1.0, 1.5, -1e300, 2.0**52, -5e-324))

    def chance(self) -> float:
        """Give a number from 0 to 1."""
        return self._random.random()

    def _options(self) -> str:
        chance = self._random.random()
        if chance < 0.05:
            return self._random.choice((*TEXTS, *NUMBERS))
        some = self._random.sample(OPTIONS, self._random.randint(0, 6))
        members = ",".join(f"{json.dumps(name)}:{self._value(2)}" for name in some)
        return "{" + members + "}" if chance < 0.97 else "{" + members

    def _value(self, depth: int) -> str:
        chance = self._random.random()
        if chance < 0.6 or depth == 0:
            return self._random.choice([n for n in NUMBERS if n not in {"", "x", "\xff", "0x10"}])
        if chance < 0.7:
            return json.dumps(self._random.choice((*TEXTS, *CURVES)))
        some = self._random.sample(KEYS, self._random.randint(0, 5))
        members = (
            f"{json.dumps(name)}:"
            + (
                json.dumps(self._random.choice(CURVES))
                if name in {"type", "curve"}
                else self._value(depth - 1)
            )
            for name in some
        )
        return "{" + ",".join(members) + "}"

    def _bytes(self, text: str) -> bytes:
        if text and self._random.random() < 0.01:
            return self._random.randbytes(8)
        return text.encode()


def plant(bed: WorkerBed, forger: Forger) -> Iterator[bytes]:
    """Write the jobs; give their ids."""
    base = bed.keys.base.encode()
    pipeline = bed.admin.pipeline(transaction=False)
    for number in range(1, JOBS + 1):
        raw = forger.job_id(number)
        pipeline.hset(base + raw, mapping=forger.hash())
        place = forger.chance()
        if place < 0.8:
            pipeline.lpush(bed.keys.wait, raw)
        else:
            key = bed.keys.prioritized if place < 0.9 else bed.keys.delayed
            pipeline.zadd(key, {raw: forger.score()})
        yield raw
    pipeline.execute()


async def test_every_hostile_job_ends_and_the_worker_lives(  # F1, F6, F7, F21
    bed: WorkerBed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL")
    print(f"seed {SEED}")
    ids = list(plant(bed, Forger(SEED)))
    runs: Counter[str] = Counter()

    async def handler(job: Any) -> Any:
        runs[job.id] += 1
        fate = len(job.id) % 3 if runs[job.id] == 1 else 0
        if fate == 1:
            raise TimeoutError("once")
        if fate == 2:
            raise PermanentError("no")
        return job.attempt

    admin: Any = bed.admin
    keys = bed.keys

    def is_empty() -> bool:
        return not (
            admin.llen(keys.wait) or admin.llen(keys.active) or admin.zcard(keys.prioritized)
        )

    async with bed.worker(handler, concurrency=200).running():
        await until(is_empty, 120)
        last = await bed.queue.add("sane")
        await bed.record.wait_for(events.Completed, where=lambda event: event.job.id == last.id)
    ended = {*bed.record.jobs(events.Completed), *bed.record.jobs(events.Failed)}
    # Delayed by its backoff, or held back because it seems to have stalled before.
    release_later = {*admin.zrange(keys.delayed, 0, -1), *admin.lrange(keys.wait, 0, -1)}
    release_later |= set(admin.zrange(keys.prioritized, 0, -1))
    refused = set(admin.zrange(keys.failed, 0, -1))
    missing = [
        raw
        for raw in ids
        if _text(raw) not in ended
        and raw not in release_later | refused
        and not _is_no_job(raw, admin.hgetall(keys.base.encode() + raw))
    ]
    assert missing == []


def _is_no_job(raw: bytes, fields: dict[bytes, bytes]) -> bool:
    """Return True if no worker can be notified of it, or if it looks like a scheduler."""
    if raw.startswith(b"repeat:") and b"timestamp" not in fields:
        return True
    return _text(raw) is None and not fields  # it had failed, and was trimmed since then


def _text(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None
