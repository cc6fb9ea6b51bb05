"""taskbull's producer behind BullMQ's interface."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from taskbull.core.backoff import Backoff
from taskbull.core.job import NewJob
from taskbull.core.keys import QueueKeys
from taskbull.core.options import Dedup, JobOptions, Keep
from taskbull.core.wire.job import EncodedJob, ParentLink, encode_job
from taskbull.errors import ConfigurationError, TaskbullError
from taskbull.scripts.add import (
    CallSequence,
    FlowChunk,
    FlowNode,
    FlowRefused,
    Result,
    add_flow,
    add_jobs,
)
from tests.interop.actor import Options
from tests.interop.node import UNDEFINED, Refused
from tests.interop.runner import Runner

POLICIES = {
    "failParentOnFailure": "fpof",
    "continueParentOnFailure": "cpof",
    "ignoreDependencyOnFailure": "idof",
    "removeDependencyOnFailure": "rdof",
}
OURS = frozenset(
    {"attempts", "backoff", "delay", "priority", "lifo", "jobId", "removeOnComplete"}
    | {"removeOnFail", "keepLogs", "stackTraceLimit", "deduplication"}
)


class OurProducer:
    """Adds jobs to one queue by our own scripts."""

    def __init__(self, store: Runner, keys: QueueKeys) -> None:
        self._store = store
        self._keys = keys
        self._sequence = CallSequence("actor", 0)

    def add_all(self, jobs: Sequence[Options], now_ms: int) -> list[str]:
        """Add jobs of the form {"name", "data", "opts"}; `Refused` as BullMQ would."""
        try:
            encoded = [encode(job, now_ms) for job in jobs]
        except TaskbullError as error:
            raise Refused(str(error)) from error
        self._sequence.calls += 1
        added = self._store.run(add_jobs(self._keys, encoded, now_ms, self._sequence))
        for one in added:
            if one.result in {Result.NO_PARENT, Result.OTHER_PARENT}:
                raise Refused("refused by the script", int(one.result))
        return [one.id for one in added]

    def add_flow(self, nodes: Sequence[FlowNode], now_ms: int) -> None:
        """Add the jobs of a flow; `Refused` as BullMQ would."""
        self._sequence.calls += 1
        self._sequence.mark = ""
        try:
            self._store.run(add_flow(nodes[0], FlowChunk(nodes), now_ms, self._sequence))
        except FlowRefused as error:
            raise Refused(str(error), int(error.result)) from error


def stored_options(opts: Options) -> dict[str, Any]:
    """Return the options of a schedule's jobs as BullMQ stores them: only what was given."""
    short = {"keepLogs": "kl", "deduplication": "de"}
    given = {short.get(name, name): value for name, value in opts.items() if name in OURS}
    return given | _extra(opts)


def encode(job: Options, now_ms: int) -> EncodedJob:
    """Return a job of the form {"name", "data", "opts"} as our scripts take it."""
    opts = {
        name: value for name, value in (job.get("opts") or {}).items() if value is not UNDEFINED
    }
    data = job.get("data", UNDEFINED)
    new = NewJob(job["name"], {} if data is UNDEFINED else data, options_of(opts))
    encoded = encode_job(new, opts.get("timestamp", now_ms))
    stored = json.loads(encoded.options)
    stored["attempts"] = opts.get("attempts", 0)  # Node writes 0 where nothing was said
    stored |= {name: value for name, value in opts.items() if name in {"lifo", "delay", "priority"}}
    if "deduplication" in opts:
        stored["de"] = opts["deduplication"]  # An explicit False is stored as well.
    stored |= _extra(opts)
    return replace(encoded, options=json.dumps(stored).encode(), parent=_parent(opts))


def options_of(opts: Options) -> JobOptions:
    """Read BullMQ's options as ours."""
    if sum(name in POLICIES and bool(value) for name, value in opts.items()) > 1:
        raise ConfigurationError("a child has one policy for its failure")
    return JobOptions(
        attempts=opts.get("attempts") or 1,
        backoff=None if "backoff" not in opts else Backoff.from_bullmq(opts["backoff"]),
        delay=opts.get("delay", 0) / 1000 or None,
        priority=opts.get("priority", 0),
        lifo=opts.get("lifo", False),
        job_id=opts.get("jobId"),
        dedup=_dedup(opts.get("deduplication")),
        keep_completed=keep_of(opts.get("removeOnComplete")),
        keep_failed=keep_of(opts.get("removeOnFail")),
        keep_logs=opts.get("keepLogs"),
        stack_trace_limit=opts.get("stackTraceLimit"),
        size_limit=opts.get("sizeLimit", JobOptions().size_limit),
    )


def _extra(opts: Options) -> dict[str, Any]:
    extra: dict[str, Any] = {}
    for name, value in opts.items():
        if name == "telemetry":
            extra |= {"tm": value.get("metadata"), "omc": value.get("omitContext")}
        elif name in POLICIES:
            extra[POLICIES[name]] = value
        elif name not in OURS:
            extra[name] = value
    return {name: value for name, value in extra.items() if value is not None}


def _parent(opts: dict[str, Any]) -> ParentLink | None:
    if not (parent := opts.get("parent")):
        return None
    stored = {"id": parent["id"], "queueKey": parent["queue"]}
    stored |= {POLICIES[name]: True for name, value in opts.items() if name in POLICIES and value}
    key = f"{parent['queue']}:{parent['id']}"
    return ParentLink(key, parent["id"], parent["queue"], json.dumps(stored).encode())


def _dedup(dedup: dict[str, Any] | None) -> Dedup | None:
    if dedup is None:
        return None
    ttl = dedup["ttl"] / 1000 if dedup.get("ttl") else None
    return Dedup(
        dedup["id"],
        ttl=ttl,
        extend=ttl is not None and dedup.get("extend", False),  # ours refuses what has no effect
        replace=dedup.get("replace", False),
        keep_last=dedup.get("keepLastIfActive", False),
    )


def keep_of(value: Any) -> Keep | None:
    """Read BullMQ's removeOnComplete or removeOnFail."""
    match value:
        case None:
            return None
        case bool():
            return Keep.none() if value else Keep.all()
        case int():
            return Keep(count=value)
        case _:
            return Keep(age=value.get("age"), count=value.get("count"), limit=value.get("limit"))
