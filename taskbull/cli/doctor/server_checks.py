"""What the doctor looks at on each server."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import TypeAlias, TypeVar

from taskbull.cli.doctor.findings import Finding, ok, problem, warning
from taskbull.errors import ServerRefused
from taskbull.queue.any_server import Node
from taskbull.queue.sync_server import SyncServer

T = TypeVar("T")

Fields: TypeAlias = dict[str, str]

_PINGS = 7
_SLOW = 0.02
"""Seconds for a round trip; a job needs one or two."""

_SKEW = 1.0
_BAD_SKEW = 10.0
_NEARLY_FULL = 0.9


def check_server(server: SyncServer, node: Node) -> Iterator[Finding]:
    """Examine one of the Redis servers that hold the queues."""
    name = str(node)
    fields = _info(server, node)
    if isinstance(fields, ServerRefused):
        forbidden = fields.code == "NOPERM"
        yield warning(
            "server",
            f"{name} does not describe itself (INFO is {'forbidden' if forbidden else 'unknown'}): "
            "its version, memory and persistence are not checked",
            "" if forbidden else "taskbull is tested with Redis 6.2 or newer, and Valkey",
        )
    else:
        yield _version(fields, name)
        yield from _role(server.namespace.address.topology, fields, name)
        yield from _memory(fields, name)
        yield from _persistence(server, node, fields)
    yield _latency(server, node)
    yield _clock(server, node)


def _info(server: SyncServer, node: Node) -> Fields | ServerRefused:
    try:
        return server.info(node)
    except ServerRefused as error:
        return error


def _version(fields: Fields, name: str) -> Finding:
    version = fields.get("redis_version", "")
    others = {
        "dragonfly_version": "Dragonfly",
        "keydb_version": "KeyDB",
        "garnet_version": "Garnet",
    }
    for field, product in others.items():
        if field in fields:
            return warning(
                "server",
                f"{name} runs {product} {fields[field]}, which taskbull is not tested with",
                "use Redis 6.2 or newer, or Valkey",
            )
    if fields.get("server_name") == "valkey" or "valkey_version" in fields:
        return ok("server", f"{name} runs Valkey {fields.get('valkey_version', version)}: fine")
    return ok("server", f"{name} runs Redis {version}: fine")


def _role(topology: str, fields: Fields, name: str) -> Iterator[Finding]:
    if fields.get("role") not in {"master", None}:
        yield problem(
            "topology", f"{name} is a replica: nothing can be written", "connect to its primary"
        )
    if fields.get("cluster_enabled") == "1" and topology != "cluster":
        yield problem(
            "topology",
            f"{name} is a node of a Redis Cluster, used as a single server",
            "use a redis+cluster:// URL",
        )
    replicas = fields.get("connected_slaves", "0")
    if topology in {"sentinel", "cluster"} and replicas == "0":
        yield warning("topology", f"{name} has no replica: nobody takes over if it dies")


def _memory(fields: Fields, name: str) -> Iterator[Finding]:
    policy = fields.get("maxmemory_policy", "")
    limit = int(fields.get("maxmemory", 0))
    used = int(fields.get("used_memory", 0))
    advice = "CONFIG SET maxmemory-policy noeviction"
    if policy == "noeviction":
        yield ok("memory", f"{name} evicts nothing (maxmemory-policy noeviction)")
    elif policy and limit:
        yield problem(
            "memory", f"{name} may evict jobs and locks: maxmemory-policy is {policy}", advice
        )
    elif policy:
        yield warning(
            "memory",
            f"{name} would evict jobs and locks if it had a memory limit: maxmemory-policy is "
            f"{policy}",
            advice,
        )
    if limit and used > _NEARLY_FULL * limit:
        full = used >= limit and policy == "noeviction"
        yield (problem if full else warning)(
            "memory",
            f"{name} uses {used / limit:.0%} of its memory; when it is full, no job can be added",
            "remove finished jobs (taskbull clean), keep fewer of them, or raise maxmemory",
        )


def _persistence(server: SyncServer, node: Node, fields: Fields) -> Iterator[Finding]:
    name = str(node)
    advice = "CONFIG SET appendonly yes, and in its configuration file"
    if fields.get("aof_enabled") == "1":
        yield ok("persistence", f"{name} keeps an append-only file")
    elif (points := _save_points(server, node)) is None:
        yield warning(
            "persistence",
            f"{name} keeps no append-only file; whether it takes snapshots is not known",
            advice,
        )
    elif points:
        yield warning(
            "persistence",
            f"{name} keeps snapshots only (save {points}): a crash loses the jobs since the last",
            advice,
        )
    else:
        yield warning("persistence", f"{name} saves nothing: a restart loses all jobs", advice)
    for field in ("rdb_last_bgsave_status", "aof_last_write_status", "aof_last_bgrewrite_status"):
        if fields.get(field, "ok") != "ok":
            yield problem(
                "persistence",
                f"{name} could not write to its disk ({field} is {fields[field]}): it may refuse "
                "all changes",
                "look at its log, and at the space on its disk",
            )


def _save_points(server: SyncServer, node: Node) -> str | None:
    try:
        return server.save_points(node)
    except ServerRefused:  # forbidden, as with most providers
        return None


def _latency(server: SyncServer, node: Node) -> Finding:
    times = [_timed(lambda: server.ping(node))[0] for _ in range(_PINGS)]
    usual = median(times)
    message = f"{node} answers in {usual * 1000:.2g} ms (the slowest of {_PINGS}: "
    message += f"{max(times) * 1000:.2g} ms)"
    if usual > _SLOW:
        return warning("latency", message, "run workers close to their Redis")
    return ok("latency", message)


def _clock(server: SyncServer, node: Node) -> Finding:
    try:
        took, theirs = _timed(lambda: server.time(node))
    except ServerRefused:
        return warning("clock", f"{node} does not give its time (TIME is forbidden)")
    ours = time.time() - took / 2
    skew = theirs - ours
    if abs(skew) < _SKEW:
        return ok("clock", f"{node} and this machine differ by {abs(skew) * 1000:.0f} ms")
    behind = "ahead of" if skew > 0 else "behind"
    message = f"the clock of {node} is {abs(skew):.1f} s {behind} this machine's"
    advice = "synchronise all machines by NTP: delayed jobs run by the clocks of workers"
    return (problem if abs(skew) >= _BAD_SKEW else warning)("clock", message, advice)


def _timed(ask: Callable[[], T]) -> tuple[float, T]:
    began = time.perf_counter()
    answer = ask()
    return time.perf_counter() - began, answer


def major_of(version: str | None) -> int | None:
    """Return BullMQ's major version of what a queue's producer wrote about itself."""
    found = re.fullmatch(r"bullmq[^:]*:(\d+)\..*", version or "")
    return int(found[1]) if found else None
