"""A queue on a real server, to be seeded by hand and looked at as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import redis

from taskbull.core.keys import QueueKeys
from taskbull.scripts.call import Request, Steps
from taskbull.store.sync_store import SyncStore

T = TypeVar("T")

NOW = 1_800_000_000_000
DUE = NOW + 5_000

State = dict[str, Any]


class Bed:
    """One queue; `state` gives every key of its prefix, by its name without that."""

    def __init__(self, admin: redis.Redis, store: SyncStore, prefix: str) -> None:
        self.admin = admin
        self.store = store
        self.prefix = prefix
        self.queue = QueueKeys("q", prefix)

    def run(self, request: Request[T]) -> T:
        return self.store.run(request)

    def go(self, steps: Steps[T], after_each: Callable[[], object] = lambda: None) -> T:
        """Run an operation of several calls to its end; others may act between them."""
        try:
            request = next(steps)
            while True:
                reply = self.run(request)
                after_each()
                request = steps.send(reply)
        except StopIteration as end:
            result: T = end.value
            return result

    def job(self, job_id: str, into: str = "wait", *, score: Any = NOW, **fields: Any) -> str:
        """Put a job into a list (at its head) or a set."""
        plain = {"name": "n", "data": "{}", "opts": "{}", "timestamp": NOW, "priority": 0}
        self.hset(job_id, {**plain, "delay": 0, **fields})
        self.put(job_id, into, score=score)
        return job_id

    def put(self, member: str, into: str, *, score: float = NOW) -> None:
        """Put an id into a list or a set, and nothing else."""
        if into in {"wait", "paused", "active"}:
            self.admin.lpush(self.queue.base + into, member)
        elif into:
            self.admin.zadd(self.queue.base + into, {member: score})

    def child(self, job_id: str, parent: str, into: str = "wait", **fields: Any) -> str:
        """Put a job whose parent, of the same queue, waits for it."""
        key = self.queue.job(parent)
        self.admin.sadd(f"{key}:dependencies", self.queue.job(job_id))
        stored = f'{{"id":"{parent}","queueKey":"{self.queue.qualified_name}"}}'
        return self.job(job_id, into, parentKey=key, parent=stored, **fields)

    def lock(self, job_id: str, token: str = "token") -> None:
        self.admin.set(self.queue.lock(job_id), token, px=30_000)

    def hset(self, key: str, fields: Mapping[str, Any]) -> None:
        flat = [word for pair in fields.items() for word in pair]
        self.admin.hset(self.queue.base + key, items=flat)

    def state(self, *, events: bool = True) -> State:
        """Give every key of the prefix; a stream as the fields of its entries."""
        start = f"{self.prefix}:q:"
        found = {_text(name): name for name in self.admin.scan_iter(match=f"{self.prefix}:*")}
        state = {
            name.removeprefix(start): _READ[_text(self.admin.type(key))](self.admin, key)
            for name, key in sorted(found.items())
        }
        if not events:
            state.pop("events", None)
        return state

    def events(self) -> list[dict[str, str]]:
        """Give the queue's events."""
        entries: list[dict[str, str]] = _READ["stream"](self.admin, self.queue.events.encode())
        return entries


def without(state: State, *names: str) -> State:
    """Give the state without some keys."""
    return {name: value for name, value in state.items() if name not in names}


def _text(raw: Any) -> str:
    return raw.decode("utf-8", "backslashreplace") if isinstance(raw, bytes) else str(raw)


def _texts(raw: Any) -> list[str]:
    return [_text(item) for item in raw]


def _stream(admin: Any, key: bytes) -> list[dict[str, str]]:
    entries = admin.xrange(key)
    return [{_text(k): _text(v) for k, v in fields.items()} for _, fields in entries]


_READ: dict[str, Any] = {
    "string": lambda admin, key: _text(admin.get(key)),
    "list": lambda admin, key: _texts(admin.lrange(key, 0, -1)),
    "set": lambda admin, key: set(_texts(admin.smembers(key))),
    "zset": lambda admin, key: {
        _text(member): score for member, score in admin.zrange(key, 0, -1, withscores=True)
    },
    "hash": lambda admin, key: {_text(k): _text(v) for k, v in admin.hgetall(key).items()},
    "stream": _stream,
}
