"""What dashboards write down for each other: which forms have come, and what is being done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from taskbull.core.keys import QueueKeys
from taskbull.core.wire.job import OPTIONS_FIELD
from taskbull.scripts.call import Command, Word
from taskbull.scripts.replies import nothing, text

_ONCE_MS: Final = 600_000
"""For how long a form that comes again is known."""

_KEPT_MS: Final = 3_600_000
"""For how long it is known what was done."""


def claim_number(prefix: str, number: str, by: str) -> Command[bool]:
    """Take a form's number, unless somebody has; the command says whether it was free."""
    key = _once(prefix, number)
    words: tuple[Word, ...] = ("SET", key, by, "NX", "PX", _ONCE_MS)
    return Command(words, key, lambda reply: reply is not None)


def get_claimant(prefix: str, number: str) -> Command[str]:
    """Read who has taken a form's number."""
    key = _once(prefix, number)
    return Command(("GET", key), key, lambda reply: "" if reply is None else text(reply))


def write_operation(prefix: str, operation_id: str, record: bytes) -> list[Command[None]]:
    """Write down what is being done, and keep it for an hour."""
    key = operations_key(prefix)
    return [
        Command(("HSET", key, operation_id, record), key, nothing),
        Command(("PEXPIRE", key, _KEPT_MS), key, nothing),
    ]


def forget_operations(prefix: str, operation_ids: Sequence[str]) -> Command[None]:
    """Strike off what was done long ago."""
    key = operations_key(prefix)
    return Command(("HDEL", key, *operation_ids), key, nothing)


def get_operations(prefix: str) -> Command[dict[str, bytes]]:
    """Read what is being done, and was done in the last hour."""
    key = operations_key(prefix)

    def read(reply: list[bytes]) -> dict[str, bytes]:
        return {text(name): value for name, value in zip(reply[::2], reply[1::2], strict=True)}

    return Command(("HGETALL", key), key, read)


def get_next_schedulers(queue: QueueKeys, most: int) -> Command[list[tuple[float, str]]]:
    """List the schedulers that run next: when, in ms since 1970, and their ids."""

    def read(reply: list[bytes]) -> list[tuple[float, str]]:
        pairs = zip(reply[::2], reply[1::2], strict=True)
        return [(float(score), text(scheduler)) for scheduler, score in pairs]

    words: tuple[Word, ...] = ("ZRANGE", queue.repeat, 0, most - 1, "WITHSCORES")
    return Command(words, queue.repeat, read)


def get_raw_options(queue: QueueKeys, job_id: str) -> Command[bytes]:
    """Read the options of a job as they stand in Redis; empty if it has none."""
    key = queue.job(job_id)
    return Command(("HGET", key, OPTIONS_FIELD), key, lambda reply: reply or b"")


def operations_key(prefix: str) -> str:
    """Name the hash of what dashboards do: no queue has an empty name."""
    return f"{prefix}::tb:operations"


def _once(prefix: str, number: str) -> str:
    return f"{prefix}::tb:once:{number}"
