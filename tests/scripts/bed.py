"""A queue on a real server that tests fill by hand and read as a whole."""

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
    """One queue. `state` returns every key of its prefix, by name without the prefix."""

    def __init__(self, admin: redis.Redis, store: SyncStore, prefix: str) -> None:
        self.admin = admin
        self.store = store
        self.prefix = prefix
        self.queue = QueueKeys("q", prefix)

    def run(self, request: Request[T]) -> T:
        return self.store.run(request)

    def go(self, steps: Steps[T], after_each: Callable[[], object] = lambda: None) -> T:
        """Run an operation of several calls. Other clients may act between them."""
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
        pipe: Any = self.admin.pipeline(transaction=False)
        _hset(pipe, self.queue.base + job_id, {**plain, "delay": 0, **fields})
        self._put(pipe, job_id, into, score)
        pipe.execute()
        return job_id

    def put(self, member: str, into: str, *, score: float = NOW) -> None:
        """Put an id into a list or a set, and nothing else."""
        self._put(self.admin, member, into, score)

    def _put(self, client: Any, member: str, into: str, score: Any) -> None:
        if into in {"wait", "paused", "active"}:
            client.lpush(self.queue.base + into, member)
        elif into:
            client.zadd(self.queue.base + into, {member: score})

    def child(self, job_id: str, parent: str, into: str = "wait", **fields: Any) -> str:
        """Add a job with a waiting parent in the same queue."""
        key = self.queue.job(parent)
        self.admin.sadd(f"{key}:dependencies", self.queue.job(job_id))
        stored = f'{{"id":"{parent}","queueKey":"{self.queue.qualified_name}"}}'
        return self.job(job_id, into, parentKey=key, parent=stored, **fields)

    def lock(self, job_id: str, token: str = "token") -> None:
        self.admin.set(self.queue.lock(job_id), token, px=30_000)

    def hset(self, key: str, fields: Mapping[str, Any]) -> None:
        _hset(self.admin, self.queue.base + key, fields)

    def state(self, *, events: bool = True) -> State:
        """Return every key of the prefix. A stream is the fields of its entries."""
        start = f"{self.prefix}:q:"
        scanned = self.admin.scan_iter(match=f"{self.prefix}:*", count=10_000)
        found = sorted({_text(name): name for name in scanned}.items())
        # Read them together, because tests read hundreds of thousands of keys.
        pipe: Any = self.admin.pipeline(transaction=False)
        for _, key in found:
            pipe.type(key)
        kinds = _texts(pipe.execute())
        for (_, key), kind in zip(found, kinds, strict=True):
            _ASK[kind](pipe, key)
        state = {
            name.removeprefix(start): _READ[kind](raw)
            for (name, _), kind, raw in zip(found, kinds, pipe.execute(), strict=True)
        }
        if not events:
            state.pop("events", None)
        return state

    def events(self) -> list[dict[str, str]]:
        """Return the queue's events."""
        return _stream(self.admin.xrange(self.queue.events))


def _hset(client: Any, key: str, fields: Mapping[str, Any]) -> None:
    client.hset(key, items=[word for pair in fields.items() for word in pair])


def without(state: State, *names: str) -> State:
    """Return the state without some keys."""
    return {name: value for name, value in state.items() if name not in names}


def _text(raw: Any) -> str:
    return raw.decode("utf-8", "backslashreplace") if isinstance(raw, bytes) else str(raw)


def _texts(raw: Any) -> list[str]:
    return [_text(item) for item in raw]


def _stream(entries: Any) -> list[dict[str, str]]:
    return [{_text(k): _text(v) for k, v in fields.items()} for _, fields in entries]


_ASK: dict[str, Callable[[Any, bytes], object]] = {
    "string": lambda client, key: client.get(key),
    "list": lambda client, key: client.lrange(key, 0, -1),
    "set": lambda client, key: client.smembers(key),
    "zset": lambda client, key: client.zrange(key, 0, -1, withscores=True),
    "hash": lambda client, key: client.hgetall(key),
    "stream": lambda client, key: client.xrange(key),
}

_READ: dict[str, Callable[[Any], object]] = {
    "string": _text,
    "list": _texts,
    "set": lambda raw: set(_texts(raw)),
    "zset": lambda raw: {_text(member): score for member, score in raw},
    "hash": lambda raw: {_text(k): _text(v) for k, v in raw.items()},
    "stream": _stream,
}
