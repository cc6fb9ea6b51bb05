"""The final contents of Redis, and the history of each job in its event streams."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from tests.nemesis.kinds import MAIN, QUEUES
from tests.nemesis.ledger import JobKey
from tests.nemesis.place import Place, client, keys_of

STATES: Final = {
    "wait": "list",
    "paused": "list",
    "active": "list",
    "delayed": "zset",
    "prioritized": "zset",
    "waiting-children": "zset",
    "completed": "zset",
    "failed": "zset",
}
OPEN: Final = ("wait", "paused", "active", "delayed", "prioritized", "waiting-children")
"""States of unfinished jobs."""

Ending: TypeAlias = Literal["completed", "failed", "left", "stalled", ""]
"""How a run of a job ended: `left` means waiting or delayed again, `""` means unfinished."""


class Event(Struct, frozen=True):
    """An entry of a queue's event stream."""

    id: str
    name: str
    job: str
    fields: dict[str, str]

    @property
    def ms(self) -> int:
        """When it happened, by the server's clock."""
        return self.place[0]

    @property
    def place(self) -> tuple[int, int]:
        """Its position in the stream."""
        ms, _, number = self.id.partition("-")
        return int(ms), int(number)


class FetchOptions(Struct):
    """One run of a job, from its `active` event to the event that ended it."""

    number: int
    began_ms: int
    ended_ms: int = 0
    ending: Ending = ""


class Queue(Struct):
    """Everything of one queue."""

    states: dict[str, list[str]]
    jobs: dict[str, dict[str, str]]
    """The hashes of jobs by id."""
    keys: dict[str, int]
    """Time to live of every key, by its name without the queue's prefix. -1 means no expiry."""
    stream: list[Event]
    events: dict[str, list[Event]]
    """The stream's entries by job."""


class Truth(Struct):
    """All queues."""

    queues: dict[str, Queue]

    def intent_of(self, key: JobKey) -> str:
        """Return the intent of a stored job."""
        queue, job = key
        data: Any = msgspec.json.decode(self.queues[queue].jobs[job].get("data", "{}"))
        return str(data.get("intent", ""))


def read_truth(place: Place) -> Truth:
    """Read everything directly from the servers."""
    return Truth({name: _read_queue(place, name) for name in QUEUES})


def open_jobs(place: Place) -> dict[str, int]:
    """Count the unfinished jobs by queue and state."""
    found: dict[str, int] = {}
    for name in QUEUES:
        keys = keys_of(place, name)
        with client(place.owner(keys.meta)) as admin:
            for state in OPEN:
                key = keys.base + state
                if state == "waiting-children":  # A job that waits for no child would wait forever.
                    waiting = [keys.dependencies(job) for job in admin.zrange(key, 0, -1)]
                    count = admin.exists(*waiting) if waiting else 0
                else:
                    count = admin.llen(key) if STATES[state] == "list" else admin.zcard(key)
                if count:
                    found[f"{name}:{state}"] = int(count)
    return found


def ticks(place: Place, schedule: str) -> int:
    """Count the finished runs of a schedule."""
    keys = keys_of(place, MAIN)
    with client(place.owner(keys.meta)) as admin:
        done = admin.zrange(keys.completed, 0, -1)
        return sum(job.startswith(f"repeat:{schedule}:") for job in done)


def _read_queue(place: Place, name: str) -> Queue:
    keys = keys_of(place, name)
    with client(place.owner(keys.meta)) as admin:
        states = {
            state: admin.lrange(keys.base + state, 0, -1)
            if kind == "list"
            else admin.zrange(keys.base + state, 0, -1)
            for state, kind in STATES.items()
        }
        stream = [
            Event(id, fields.get("event", ""), fields.get("jobId", ""), fields)
            for id, fields in admin.xrange(keys.events)  # noqa: A001
        ]
        events: defaultdict[str, list[Event]] = defaultdict(list)
        for event in stream:
            events[event.job].append(event)
        found: dict[str, int] = {}
        jobs: dict[str, dict[str, str]] = {}
        pattern = f"{keys.base}*"  # It has no characters that are special in a SCAN pattern.
        for key in admin.scan_iter(match=pattern, count=1000):
            short = str(key)[len(keys.base) :]
            found[short] = int(admin.pttl(key))
            if short in events:
                jobs[short] = admin.hgetall(key)
    return Queue(states, jobs, found, stream, dict(events))


def takings(events: list[Event]) -> list[FetchOptions]:
    """Divide the history of a job into its runs."""
    found: list[FetchOptions] = []
    for event in events:
        last = found[-1] if found else None
        match event.name:
            case "active":
                found.append(FetchOptions(len(found) + 1, event.ms))
            case "completed" | "failed" if last and not last.ending:
                last.ending, last.ended_ms = event.name, event.ms
            case "delayed" | "waiting" | "waiting-children" if last and not last.ending:
                last.ending, last.ended_ms = "left", event.ms
            case "stalled" if last:
                last.ending = "stalled"
    return found
