"""Storage format of job options, and the fields of a queue's `meta` hash."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from copy import copy
from datetime import datetime
from functools import cached_property, lru_cache
from typing import Any, Final, TypeAlias, cast

import msgspec
from msgspec import field, structs
from msgspec.structs import force_setattr

from taskbull.core import payload
from taskbull.core.backoff import Backoff
from taskbull.core.options import SIZE_LIMIT, Dedup, ErrorBackoffs, JobOptions, Keep
from taskbull.core.validation import LONGEST, Foreign, Number, from_ms, to_ms
from taskbull.core.wire.backoff import StoredBackoff
from taskbull.errors import ConfigurationError

# Fields of a queue's `meta` hash, which apply to all its workers.


PAUSED_FIELD: Final = "paused"
CONCURRENCY_FIELD: Final = "concurrency"
RATE_LIMIT_FIELD: Final = "max"
"""Number of jobs that may start in each window."""
RATE_WINDOW_FIELD: Final = "duration"
"""Length of a window in ms."""


# Job options.


class StoredKeep(Foreign, frozen=True, omit_defaults=True):
    """The object form of `removeOnComplete` and `removeOnFail`. `age` is in seconds."""

    age: Number | None = None
    count: Number | None = None
    limit: Number | None = None


class StoredGroup(Foreign, frozen=True, omit_defaults=True):
    """The group of a job. BullMQ stores it, and ignores it."""

    id: str | Number
    cost: Number | None = None


class StoredDedup(
    Foreign,
    frozen=True,
    omit_defaults=True,
    rename={"ttl_ms": "ttl", "keep_last": "keepLastIfActive"},
):
    """The deduplication object `de`."""

    id: str
    ttl_ms: Number | None = None
    extend: bool = False
    replace: bool = False
    keep_last: bool = False
    reschedule: bool = False


Bounds: TypeAlias = tuple[int, int, int]
"""Number of jobs to keep, seconds to keep them, and number to remove per call. -1 sets no limit."""

NO_BOUNDS: Bounds = (-1, -1, -1)

MOST_BYTES = 1_000_000
"""Maximum size of `opts`. Decoding a larger one would block all queues of a worker."""

_MOST_BACKOFF_BYTES = 65_536
"""Maximum size of `errorBackoffs` in bytes. taskbull writes at most 100 entries."""

_NO_RAW = msgspec.Raw()


class StoredOptions(Foreign, frozen=True, kw_only=True, omit_defaults=True, dict=True):
    """The `opts` object of a job from any producer, with checked types and bounded numbers.

    Most jobs of a queue share one instance. So values that a worker needs for every job are cached
    properties, which saves 1.5 µs per job.
    """

    attempts: Number | None = None
    backoff: StoredBackoff | Number | None = None
    error_backoffs: msgspec.Raw = field(default=_NO_RAW, name="errorBackoffs")
    """Decoded only when an attempt fails. See `own_error_backoffs`."""
    delay_ms: Number | None = field(default=None, name="delay")
    priority: Number | None = None
    lifo: bool = False
    job_id: str | None = field(default=None, name="jobId")
    timestamp_ms: Number | None = field(default=None, name="timestamp")
    timeout_ms: Number | None = field(default=None, name="timeout")
    expires_ms: Number | None = field(default=None, name="expires")
    """Counted from `timestamp` plus `delay`, so each run of a schedule has its own deadline."""
    remove_on_complete: StoredKeep | bool | Number | None = field(
        default=None, name="removeOnComplete"
    )
    remove_on_fail: StoredKeep | bool | Number | None = field(default=None, name="removeOnFail")
    keep_logs: Number | None = field(default=None, name="kl")
    size_limit: Number | None = field(default=None, name="sizeLimit")
    stack_trace_limit: Number | None = field(default=None, name="stackTraceLimit")
    deduplication: StoredDedup | None = field(default=None, name="de")
    telemetry: str | None = field(default=None, name="tm")
    headers: dict[str, Any] | None = None
    group: StoredGroup | None = None
    omit_context: bool = field(default=False, name="omc")
    fail_parent: bool = field(default=False, name="fpof")
    continue_parent: bool = field(default=False, name="cpof")
    ignore_dependency: bool = field(default=False, name="idof")
    remove_dependency: bool = field(default=False, name="rdof")
    parent: dict[str, Any] | None = None
    repeat: dict[str, Any] | None = None
    repeat_job_key: str | None = field(default=None, name="repeatJobKey")
    previous_ms: Number | None = field(default=None, name="prevMillis")

    @property
    def own_backoff(self) -> Backoff | None:
        """Backoff of the job, or `None` if it has none."""
        return None if self.backoff is None else Backoff.from_stored(self.backoff)

    @property
    def own_error_backoffs(self) -> dict[str, StoredBackoff] | None:
        """Backoffs of the job by error name, or `None` if it has none or they are invalid."""
        raw = bytes(self.error_backoffs)
        if not raw or len(raw) > _MOST_BACKOFF_BYTES:
            return None
        try:
            return _decode_backoffs(raw)
        except (ValueError, msgspec.DecodeError, RecursionError):
            return None

    @property
    def group_id(self) -> str | None:
        """Id of the job's group, or `None` if it has none."""
        if self.group is None:
            return None
        found = self.group.id
        return (found if isinstance(found, str) else f"{found:.17g}") or None

    @cached_property
    def timeout(self) -> float | None:
        """Timeout of an attempt in seconds, or `None` if the producer set none."""
        return from_ms(self.timeout_ms) if self.timeout_ms and self.timeout_ms > 0 else None

    @cached_property
    def result_limit(self) -> int:
        """Maximum size of the result in bytes, which is also that of the data and options."""
        limit = self.size_limit
        return int(limit) if limit is not None and limit >= 1 else SIZE_LIMIT

    @cached_property
    def keep_completed(self) -> Keep | None:
        """Retention rule for the completed job, or `None` if the producer set none."""
        return _read_keep(self.remove_on_complete)

    @cached_property
    def keep_failed(self) -> Keep | None:
        """Retention rule for the failed job, or `None` if the producer set none."""
        return _read_keep(self.remove_on_fail)

    @cached_property
    def completed_bounds(self) -> Bounds | None:
        """`keep_completed` in the form that scripts take."""
        return None if self.keep_completed is None else keep_bounds(self.keep_completed)


def keep_bounds(keep: Keep | None) -> Bounds:
    """Return a retention rule in the form that scripts take."""
    if keep is None:
        return NO_BOUNDS
    return (
        -1 if keep.count is None else keep.count,
        -1 if keep.age is None else -(-to_ms(keep.age) // 1000),
        -1 if keep.limit is None else keep.limit,
    )


_decode = msgspec.json.Decoder(StoredOptions).decode
_decode_backoffs: Callable[[bytes], dict[str, StoredBackoff] | None] = msgspec.json.Decoder(
    dict[str, StoredBackoff] | None
).decode

# Limits of both caches below: number of entries, and size of an entry.
_CACHED_ENTRIES = 256
_CACHED_BYTES = 1024


def decode_options(text: bytes) -> StoredOptions:
    """Decode `opts` as tolerantly as Node does.

    Raises:
        ValueError: The text is not JSON, or is longer than `MOST_BYTES`.
    """
    # Most jobs of a queue have the same options: 0.1 µs instead of 0.7. Only their groups differ.
    if len(text) > _CACHED_BYTES:
        return _read(text)
    if text.endswith(b"}}"):
        others, found, group = text.rpartition(_GROUP_START)
        if found:
            with suppress(ValueError, msgspec.DecodeError, RecursionError):
                return _with_group(_cached(others + b"}"), _decode_group(b'{"id":' + group[:-1]))
    return _cached(text)


_GROUP_START = b',"group":{"id":'
"""A group's start in encoded options. It cannot be within a string, which would escape it."""

_decode_group = msgspec.json.Decoder(StoredGroup).decode


def _with_group(options: StoredOptions, group: StoredGroup) -> StoredOptions:
    """Return the options with a group: 2 µs, and 12 to decode them and to derive the limits."""
    found = copy(options)
    force_setattr(found, "group", group)
    _ = options.completed_bounds, options.keep_failed, options.timeout, options.result_limit
    vars(found).update(vars(options))  # These do not depend on the group.
    return found


def _read(text: bytes) -> StoredOptions:
    if len(text) > MOST_BYTES:
        raise ValueError(f"{len(text):,} bytes; the limit is {MOST_BYTES:,}")
    try:
        return _decode(text)
    except (ValueError, msgspec.DecodeError, RecursionError):
        return _salvage(payload.decode(text))


_cached = lru_cache(maxsize=_CACHED_ENTRIES)(_read)


def _salvage(options: Any) -> StoredOptions:
    """Keep the values of the right type. Node ignores the others or never reads them."""
    if not isinstance(options, dict):
        return StoredOptions()
    fitting: dict[str, Any] = {}
    for name, value in cast("dict[str, Any]", options).items():
        try:
            msgspec.convert({name: value}, StoredOptions, strict=False)
        except msgspec.ValidationError:
            continue
        fitting[name] = value
    return msgspec.convert(fitting, StoredOptions, strict=False)


def encode_options(options: JobOptions, *, delay_ms: int, expires_ms: int | None = None) -> bytes:
    """Encode `opts` as BullMQ does. It always contains `attempts`, as in Node."""
    # Options with an absolute time depend on the current time and cannot be cached.
    if options.eta is None and (expires_ms is None or not isinstance(options.expires, datetime)):
        return encode_lasting(options, delay_ms, expires_ms)
    return _encode(options, delay_ms, expires_ms)


def with_telemetry(options: bytes, telemetry: str, instead_of: str | None = None) -> bytes:
    """Append a trace context to encoded options, replacing the context `instead_of` if given."""
    bare = options[:-1] if instead_of is None else options.removesuffix(_tail(instead_of))
    return bare + _tail(telemetry)


def _tail(telemetry: str) -> bytes:
    return b',"tm":%b}' % payload.encode(telemetry, "telemetry")


# A task always enqueues with the same options: 0.3 µs instead of 6. Keyed by identity, because
# hashing costs more than that. Each entry keeps its options alive, so that no id is reused.
_encoded: dict[int, tuple[JobOptions, bytes]] = {}


def encode_lasting(options: JobOptions, delay_ms: int = 0, expires_ms: int | None = None) -> bytes:
    """Encode options that do not depend on the current time. The result is cached."""
    entry = _encoded.get(id(options))
    if entry is not None:
        return entry[1]
    text = _encode(options, delay_ms, expires_ms)
    if len(text) <= _CACHED_BYTES:
        if len(_encoded) >= _CACHED_ENTRIES:
            _encoded.clear()
        _encoded[id(options)] = (options, text)
    return text


def _encode(options: JobOptions, delay_ms: int, expires_ms: int | None) -> bytes:
    stored = StoredOptions(
        attempts=options.attempts,
        backoff=None if options.backoff is None else options.backoff.to_stored(),
        error_backoffs=_write_error_backoffs(options.error_backoffs),
        delay_ms=delay_ms or None,
        priority=options.priority or None,
        lifo=options.lifo,
        job_id=options.job_id,
        timeout_ms=None if options.timeout is None else to_ms(options.timeout),
        expires_ms=expires_ms,
        remove_on_complete=_write_keep(options.keep_completed),
        remove_on_fail=_write_keep(options.keep_failed),
        keep_logs=options.keep_logs,
        size_limit=None if options.size_limit == SIZE_LIMIT else options.size_limit,
        stack_trace_limit=options.stack_trace_limit,
        deduplication=_write_dedup(options.dedup),
        headers=None if options.headers is None else dict(options.headers),
        group=_write_group(options),
    )
    return payload.encode(stored, "options")


def node_options(options: JobOptions) -> dict[str, Any]:
    """Return the options of a task's jobs in the form that BullMQ's `queue.add` takes.

    Deduplication and the group are left out, because they depend on the arguments.
    """
    expires_ms = None if options.expires is None else to_ms(cast("float", options.expires))
    text = _encode(structs.replace(options, dedup=None, group=None, cost=1), 0, expires_ms)
    stored = payload.decode(text)
    return {"keepLogs" if name == "kl" else name: value for name, value in stored.items()}


def node_dedup(dedup: Dedup) -> dict[str, Any]:
    """Return the options of a deduplication in the form that BullMQ's `queue.add` takes."""
    stored = payload.decode(payload.encode(_write_dedup(dedup), "options"))
    return {name: value for name, value in stored.items() if name != "id"}


def _write_error_backoffs(backoffs: ErrorBackoffs | None) -> msgspec.Raw:
    if backoffs is None:
        return _NO_RAW
    stored = {
        error if isinstance(error, str) else error.__name__: backoff.to_stored()
        for error, backoff in backoffs.items()
    }
    return msgspec.Raw(payload.encode(stored, "options"))


def _write_dedup(dedup: Dedup | None) -> StoredDedup | None:
    if dedup is None:
        return None
    ttl_ms = None if dedup.ttl is None else to_ms(dedup.ttl)
    return StoredDedup(dedup.key, ttl_ms, dedup.extend, dedup.replace, dedup.keep_last)


def _write_group(options: JobOptions) -> StoredGroup | None:
    if options.group is None:
        return None
    return StoredGroup(options.group, None if options.cost == 1 else options.cost)


def _write_keep(keep: Keep | None) -> StoredKeep | bool | int | None:
    if keep is None:
        return None
    if keep.age is None and keep.limit is None:
        if keep.count is None:
            return False  # BullMQ's value for "do not remove"
        return keep.count or True  # True is BullMQ's value for "remove immediately".
    age = None if keep.age is None else -(-to_ms(keep.age) // 1000)
    return StoredKeep(age, keep.count, keep.limit)


def _read_keep(stored: StoredKeep | bool | float | None) -> Keep | None:
    if stored is None:
        return None
    if isinstance(stored, bool):
        return Keep.none() if stored else Keep.all()
    if not isinstance(stored, StoredKeep):
        stored = StoredKeep(count=stored)
    age = None if stored.age is None else min(stored.age, LONGEST)
    try:
        return Keep(age=age, count=_whole(stored.count), limit=_whole(stored.limit))
    except ConfigurationError:
        return None


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)
