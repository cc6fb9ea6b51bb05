"""What became of the children of a job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from taskbull.core.keys import QueueKeys
from taskbull.core.wire.flow import (
    DROPPED_FIELD,
    ORDER_FIELD,
    PARENT_FIELD,
    Child,
    decode_order,
    decode_policy,
)
from taskbull.core.wire.numbers import read_number
from taskbull.errors import PermanentError, WaitForChildren
from taskbull.scripts.call import Call, Command, Steps
from taskbull.scripts.loader import load
from taskbull.scripts.replies import text

SCAN_RESULTS = load("scan_results")

PIECE: Final = 500
"""How many results one call reads."""


def get_results(
    queue: QueueKeys, job_id: str, name: str, *, piece: int = PIECE, so_far: bool = False
) -> Steps[list[bytes]]:
    """Return what the children of a name have returned, as JSON, in the order of the children.

    That order is known of flows of ours; of others it is that of the keys, and a child that is
    not stored any more has no name.

    Raises `WaitForChildren` if the job has not waited for some of them, because the worker that ran
    it died, unless it asks for the results `so_far`; and `PermanentError` if some were neither
    added, nor removed, nor have they failed.
    """
    job, processed = queue.job(job_id), queue.processed(job_id)
    order: list[Child] | None = yield Command(("HGET", job, ORDER_FIELD), job, decode_order)
    if order is None:
        return (yield from _unordered(processed, name, piece))
    keys = [base + child_id for child, base, child_id in order if child == name]
    results: list[bytes] = []
    lacking: list[str] = []
    for start in range(0, len(keys), piece):
        some = keys[start : start + piece]
        found: list[bytes | None] = yield Command(("HMGET", processed, *some), processed, list)
        results += [value for value in found if value is not None]
        lacking += [key for key, value in zip(some, found, strict=True) if value is None]
    if lacking and not so_far:
        yield from _explain(queue, job_id, name, lacking, piece)
    return results


def _explain(
    queue: QueueKeys, job_id: str, name: str, lacking: Sequence[str], piece: int
) -> Steps[None]:
    """Raise an error unless children without a result have failed, or were removed.

    A child that is stored, and for which the job does not wait, has failed by the policy "drop".
    One that is not stored counts as removed if the job knows of as many.
    """
    job, failed = queue.job(job_id), queue.failed_children(job_id)
    absent = 0
    for start in range(0, len(lacking), piece):
        some = lacking[start : start + piece]
        reasons: list[bytes | None] = yield Command(("HMGET", failed, *some), failed, list)
        left = [key for key, reason in zip(some, reasons, strict=True) if reason is None]
        if not left:
            continue
        absent += len(left) - (yield Command(("EXISTS", *left), left[0], int))
        waiting = queue.dependencies(job_id)
        pending: list[int] = yield Command(("SMISMEMBER", waiting, *left), waiting, list)
        if any(pending) and not (yield from _continues(failed)):
            raise WaitForChildren
    dropped = yield Command(("HGET", job, DROPPED_FIELD), job, read_number)
    if absent > (dropped or 0):
        raise PermanentError(
            f"{absent - (dropped or 0)} of the job's children {name} have no result: they were "
            "never added, or were removed by a program that does not say so"
        )


def _continues(failed: str) -> Steps[bool]:
    """Return whether the job runs early, by the policy "continue" of a child that has failed."""
    keys: list[bytes] = yield Command(("HKEYS", failed), failed, list)
    for raw in keys:
        child = text(raw)
        policy = yield Command(("HGET", child, PARENT_FIELD), child, decode_policy)
        if policy in ("continue", None):  # None if it is no longer stored
            return True
    return False


def _unordered(processed: str, name: str, piece: int) -> Steps[list[bytes]]:
    by_key: dict[str, bytes] = {}
    cursor = "0"
    while True:
        cursor, found = yield scan_results(processed, name, cursor, piece)
        by_key |= found
        if cursor == "0":
            return [by_key[key] for key in sorted(by_key)]


def scan_results(
    processed: str, name: str, cursor: str, count: int
) -> Call[tuple[str, dict[str, bytes]]]:
    """Read results of children by their keys; the call gives where to go on, "0" at the end."""
    return Call(SCAN_RESULTS, (processed,), (name, cursor, count), _scanned)


def _scanned(reply: Any) -> tuple[str, dict[str, bytes]]:
    cursor, found = reply
    return text(cursor), _pairs(found)


def get_failures(queue: QueueKeys, job_id: str) -> Command[dict[tuple[str, str], str]]:
    """Return why children failed whose failure the job survives, by queue and id."""
    failed = queue.failed_children(job_id)

    def read(reply: Sequence[bytes]) -> dict[tuple[str, str], str]:
        return {_place(queue, key): text(reason) for key, reason in _pairs(reply).items()}

    return Command(("HGETALL", failed), failed, read)


def _place(queue: QueueKeys, key: str) -> tuple[str, str]:
    """Return the name of a child's queue, and the child's id."""
    start = f"{queue.prefix}:"
    if not key.startswith(start):  # of another prefix, where ids have no colons
        base, _, job_id = key.rpartition(":")
        return base.rpartition(":")[2], job_id
    tagged, _, job_id = key.removeprefix(start).partition(":")
    if queue.tagged != queue.queue:  # ours have their hash tag by themselves
        tagged = tagged.removeprefix("{").removesuffix("}")
    return tagged, job_id


def _pairs(reply: Sequence[bytes]) -> dict[str, bytes]:
    return {text(key): value for key, value in zip(reply[::2], reply[1::2], strict=True)}
