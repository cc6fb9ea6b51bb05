"""Names of a queue's Redis keys, job states, and the scores of priorities and delays."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from enum import StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import force_setattr

from taskbull.core.validation import check_bool, check_text, refusal
from taskbull.errors import ConfigurationError

# Names of a queue's Redis keys, and of the connections of its workers.


PREFIX = "bull"
"""Default prefix of all keys, which is also BullMQ's."""

NAME_LIMIT = 255

_SUFFIXES: Final = {
    "wait": "wait",
    "paused": "paused",
    "active": "active",
    "prioritized": "prioritized",
    "priority_counter": "pc",
    "delayed": "delayed",
    "waiting_children": "waiting-children",
    "completed": "completed",
    "failed": "failed",
    "stalled": "stalled",
    "stalled_check": "stalled-check",
    "limiter": "limiter",
    "meta": "meta",
    "events": "events",
    "id": "id",
    "marker": "marker",
    "calls": "tb:add:",
    "repeat": "repeat",
    "metrics_completed": "metrics:completed",
    "metrics_completed_data": "metrics:completed:data",
    "metrics_failed": "metrics:failed",
    "metrics_failed_data": "metrics:failed:data",
}

# A job's hash is `<base><id>`, so these ids would name another key of the queue.
RESERVED_IDS: Final = frozenset({*_SUFFIXES.values(), "priority", "de", "dn", "tb", "metrics"})

# BullMQ's clean-up treats keys with these endings as parts of a job, so private keys must not
# have them.
_JOB_PARTS: Final = frozenset(
    {"logs", "dependencies", "processed", "failed", "unsuccessful", "lock"}
)


def job_ref(queue: str, job_id: str) -> str:
    """Return a reference to a job: its queue and its id, such as `emails:42`."""
    return f"{queue}:{job_id}"


def read_ref(ref: object) -> tuple[str, str]:
    """Return the queue and the id of a reference.

    Raises:
        ConfigurationError: If it is not one.
    """
    queue, _, job_id = check_text("job reference", ref).partition(":")
    if not queue or not job_id:
        raise refusal("job reference", "have the form 'queue:id', as in job.ref", ref)
    return queue, job_id


def check_queue_name(name: object) -> None:
    """Raise `ConfigurationError` unless `name` is a valid queue name."""
    text = check_text("queue name", name, most=NAME_LIMIT)
    if ":" in text:
        raise refusal("queue name", "not contain ':' (it separates the parts of a key)", name)


class QueueKeys(Struct, frozen=True):
    """All keys of one queue, computed once."""

    queue: str
    prefix: str = PREFIX
    cluster: bool = False
    """True for Redis Cluster."""
    hash_tag: bool | None = None
    """True to add a hash tag, False to add none, or `None` to add one in a Cluster only."""

    # Computed from the fields above; arguments are ignored. Attributes are fast in hot paths.
    tagged: str = ""
    """Name of the queue in its keys, such as `{emails}` with a hash tag."""
    base: str = ""
    """Prefix of all keys of the queue, including the last colon."""
    wait: str = ""
    paused: str = ""
    active: str = ""
    prioritized: str = ""
    priority_counter: str = ""
    delayed: str = ""
    waiting_children: str = ""
    completed: str = ""
    failed: str = ""
    stalled: str = ""
    stalled_check: str = ""
    limiter: str = ""
    meta: str = ""
    events: str = ""
    id: str = ""
    marker: str = ""
    calls: str = ""
    """Start of the keys that remember which calls have added jobs. Only taskbull uses them."""
    repeat: str = ""
    metrics_completed: str = ""
    metrics_completed_data: str = ""
    metrics_failed: str = ""
    metrics_failed_data: str = ""

    def __post_init__(self) -> None:
        check_queue_name(self.queue)
        check_text("prefix", self.prefix, most=NAME_LIMIT)
        check_bool("cluster", self.cluster)
        if self.hash_tag is not None:
            check_bool("hash_tag", self.hash_tag)
        tagged = self._tagged_name()
        base = f"{self.prefix}:{tagged}:"
        force_setattr(self, "tagged", tagged)
        force_setattr(self, "base", base)
        for attribute, suffix in _SUFFIXES.items():
            force_setattr(self, attribute, base + suffix)

    def _tagged_name(self) -> str:
        wanted = self.cluster if self.hash_tag is None else self.hash_tag
        if not wanted or has_hash_tag(f"{self.prefix}:{self.queue}:"):
            return self.queue
        tagged = f"{{{self.queue}}}"
        if not has_hash_tag(f"{self.prefix}:{tagged}:"):
            raise ConfigurationError(
                f"prefix {self.prefix!r} contains an empty hash tag, which would spread the keys "
                "of a queue over several Redis Cluster nodes: use another prefix"
            )
        return tagged

    @property
    def states(self) -> tuple[str, ...]:
        """Keys of all lists and sets of jobs, in the order of the scripts that search them."""
        return (
            *(self.completed, self.failed, self.delayed, self.prioritized),
            *(self.waiting_children, self.active, self.wait, self.paused),
        )

    @property
    def qualified_name(self) -> str:
        """Name of the queue in parents and children: `<prefix>:<tagged>`."""
        return self.base[:-1]

    def job(self, job_id: str) -> str:
        """Return the key of the job's hash."""
        return self.base + job_id

    def lock(self, job_id: str) -> str:
        """Return the key of the job's lock."""
        return f"{self.base}{job_id}:lock"

    def logs(self, job_id: str) -> str:
        """Return the key of the job's log lines."""
        return f"{self.base}{job_id}:logs"

    def steps(self, job_id: str) -> str:
        """Return the key of the hash with the job's steps. Only taskbull uses it."""
        return f"{self.base}{job_id}:tb:steps"

    def items(self, job_id: str) -> str:
        """Return the key of the stream with the items that the job yields."""
        return f"{self.base}{job_id}:tb:items"

    def dependencies(self, job_id: str) -> str:
        """Return the key of the set of the job's unfinished children."""
        return f"{self.base}{job_id}:dependencies"

    def processed(self, job_id: str) -> str:
        """Return the key of the hash with the results of the job's children."""
        return f"{self.base}{job_id}:processed"

    def failed_children(self, job_id: str) -> str:
        """Return the key of the hash with the failure reasons of the job's children."""
        return f"{self.base}{job_id}:failed"

    def unsuccessful(self, job_id: str) -> str:
        """Return the key of the set of children whose failure fails the job."""
        return f"{self.base}{job_id}:unsuccessful"

    def deduplication(self, dedup_key: str) -> str:
        """Return the Redis key that holds the owner of a deduplication key."""
        return f"{self.base}de:{dedup_key}"

    def scheduler(self, scheduler_id: str) -> str:
        """Return the key of a job scheduler's hash."""
        return f"{self.base}repeat:{scheduler_id}"

    def private(self, *parts: str) -> str:
        """Return a key that only taskbull uses.

        BullMQ's clean-up of orphaned jobs does not touch it.
        """
        if not parts or parts[-1] in _JOB_PARTS:
            raise refusal("the last part of a private key", "not be a part of a job", parts)
        return f"{self.base}tb:{':'.join(parts)}"

    def connection_name(self, worker_name: str | None = None) -> str:
        """Return the connection name that BullMQ's `getWorkers` expects for a worker."""
        name = _connection_prefix(self.prefix) + b64encode(self.tagged.encode()).decode()
        return f"{name}:w:{worker_name}" if worker_name else name


def read_connection_name(prefix: str, name: str) -> tuple[str, str] | None:
    """Return the tagged queue name and the worker of a connection.

    Return `None` if the connection does not belong to a worker under this prefix.
    """
    start = _connection_prefix(prefix)
    if not name.startswith(start):
        return None
    encoded, colon, worker = name[len(start) :].partition(":")
    if colon and not worker.startswith("w:"):
        return None  # A connection that reads events, or one with another prefix.
    try:
        queue = b64decode(encoded, validate=True).decode()
    except ValueError:
        return None
    return (queue, worker[2:]) if queue and ":" not in queue and len(queue) <= NAME_LIMIT else None


def _connection_prefix(prefix: str) -> str:
    # CLIENT SETNAME rejects spaces and control characters. The base64 part has none.
    return re.sub(r"[^!-~]", "-", prefix) + ":"


def has_hash_tag(key: str) -> bool:
    """Return True if Redis Cluster hashes only a part of the key: the first {…}, if not empty."""
    _, opened, rest = key.partition("{")
    tag, closed, _ = rest.partition("}")
    return bool(opened and closed and tag)


# Job states, and the arithmetic of BullMQ's priority and delay scores.


class JobState(StrEnum):
    """State of a job."""

    WAITING = "waiting"
    ACTIVE = "active"
    COMPLETED = "completed"
    FAILED = "failed"
    DELAYED = "delayed"
    PRIORITIZED = "prioritized"
    WAITING_CHILDREN = "waiting-children"
    PAUSED = "paused"
    UNKNOWN = "unknown"


STATES = (
    JobState.WAITING,
    JobState.ACTIVE,
    JobState.PRIORITIZED,
    JobState.DELAYED,
    JobState.WAITING_CHILDREN,
    JobState.PAUSED,
    JobState.FAILED,
    JobState.COMPLETED,
)
"""States of stored jobs, in display order."""


MAX_PRIORITY = 2**21 - 1
"""Least urgent priority. The scores of a larger one would exceed a double's exact integers."""

MAX_SAFE_INTEGER = 2**53 - 1
"""Largest integer that JSON, Redis scores and Node represent exactly."""

MAX_DUE_MS = 2**41 - 1
"""Last millisecond that a score in `delayed` can hold: 6 September 2039."""

_DELAY_STEP = 4096


def due_ms(base_ms: int, delay_ms: int) -> int:
    """Return the time when a job is due, capped at `MAX_DUE_MS`."""
    return min(base_ms + max(delay_ms, 0), MAX_DUE_MS)


def delay_score_range(due: int) -> tuple[int, int]:
    """Return the lowest and the highest score of jobs that are due in this millisecond."""
    lowest = due * _DELAY_STEP
    return lowest, lowest + _DELAY_STEP - 1


def due_ms_of_score(score: float) -> int:
    """Return the due time in ms that a score in `delayed` encodes."""
    # Other clients may write any score, including infinity.
    return int(max(-MAX_SAFE_INTEGER, min(score, MAX_SAFE_INTEGER))) // _DELAY_STEP
