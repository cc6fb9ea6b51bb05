"""Queues in all kinds of states, created by real producers and workers."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from taskbull import SyncQueue


def fail(
    admin: Any,
    queue: SyncQueue,
    job_id: str,
    reason: str,
    *,
    name: str = "send",
    data: Any = None,
    seconds_ago: float = 10.0,
    stack: Sequence[str] | None = None,
) -> None:
    """Do to a job what the end of its last attempt does."""
    at_ms = int((time.time() - seconds_ago) * 1000)
    trace = f'Traceback (most recent call last):\n  File "mail.py", line 88, in send\n{reason}'
    stacks = [trace] if stack is None else stack
    fields = {
        "name": name,
        "data": json.dumps(data or {}),
        "opts": json.dumps({"attempts": 1}),
        "timestamp": at_ms - 5000,
        "processedOn": at_ms - 2000,
        "finishedOn": at_ms,
        "failedReason": reason,
        "stacktrace": json.dumps(list(stacks)),
        "atm": 1,
        "ats": 1,
    }
    admin.hset(queue.keys.job(job_id), mapping=fields)
    admin.zadd(queue.keys.failed, {job_id: at_ms})
    admin.hset(queue.keys.meta, "opts.maxLenEvents", "10000")


def complete(
    admin: Any, queue: SyncQueue, job_id: str, result: Any = None, *, seconds_ago: float = 0.0
) -> None:
    """Do to a job what its success does."""
    at_ms = int((time.time() - seconds_ago) * 1000)
    admin.hset(
        queue.keys.job(job_id),
        mapping={
            "name": "send",
            "data": "{}",
            "timestamp": at_ms - 5000,
            "processedOn": at_ms - 200,
            "finishedOn": at_ms,
            "returnvalue": json.dumps(result),
            "atm": 1,
            "ats": 1,
        },
    )
    admin.zadd(queue.keys.completed, {job_id: at_ms})
    admin.hset(queue.keys.meta, "opts.maxLenEvents", "10000")


def run(admin: Any, queue: SyncQueue, worker: str = "web1", *, lock: bool = True) -> str:
    """Do to the next job what a worker does when it takes one."""
    job_id = admin.rpoplpush(queue.keys.wait, queue.keys.active).decode()
    if lock:
        admin.set(queue.keys.lock(job_id), "token", px=60_000)
    started = int(time.time() * 1000) - 60_000
    admin.hset(queue.keys.job(job_id), mapping={"pb": worker, "processedOn": started, "ats": 1})
    return str(job_id)
