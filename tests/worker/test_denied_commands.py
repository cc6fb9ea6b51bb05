"""A worker without permission for one command loses no job, and finishes all once it is granted.

Some of the jobs are children, whose parent waits for them and gets all their results.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import redis
from anyio import create_task_group, sleep_forever

from taskbull.core import events
from taskbull.scripts.call import load
from taskbull.store.address import parse
from taskbull.store.sync_store import SyncStore
from tests.scripts.bed import Bed
from tests.servers.kinds import VALKEY_9, PrivateServers, Reachable
from tests.worker.bed import WorkerBed, until

SOURCE = load("cycle").source
COMMANDS = sorted(
    set(re.findall(r'redis\.p?call\("([A-Z]+)"', SOURCE))
    | {"LPUSH", "RPUSH", "LTRIM", "ZREM", "XREAD"}
)
SINGLE = [str(number) for number in range(1, 13)]
CHILDREN = [f"child-{number}" for number in range(4)]
ALL = [*SINGLE, *CHILDREN, "parent"]
LIMIT = 60.0


class Denied:
    """A queue whose worker lacks one command at first."""

    def __init__(self, server: Reachable, admin: Any, command: str) -> None:
        self.command = command
        self.admin = admin
        self.user = f"without-{command.lower()}"
        self.bed = WorkerBed(server, admin, f"denied-{command.lower()}")
        self.url = server.url.replace("//", f"//{self.user}:secret@")
        self.runs: Counter[str] = Counter()
        self.allow("on", ">secret", "~*", "&*", "+@all", f"-{command.lower()}")

    def allow(self, *rules: str) -> None:
        self.admin.execute_command("ACL", "SETUSER", self.user, *rules)

    def denials(self) -> int:
        """Count how often the worker was denied something."""
        log = self.admin.acl_log(1000)
        return sum(int(entry["count"]) for entry in log if entry["username"] == self.user)

    def tried(self, before: int, has_ended: Callable[[], bool]) -> bool:
        """Return True if the worker got the denial, or does not need the command."""
        return has_ended() or self.denials() > before

    def all_completed(self) -> bool:
        return bool(self.admin.zcard(self.bed.keys.completed) == len(ALL))

    def has_failed(self) -> bool:
        return bool(self.admin.zcard(self.bed.keys.failed) == 1)

    async def play(self) -> None:
        family = Bed(self.admin, SyncStore(parse(self.bed.url)), self.bed.prefix)
        family.job("parent", "waiting-children")
        for child in CHILDREN:
            family.child(child, "parent")
        family.store.close()
        for number in range(len(SINGLE)):
            await self.bed.queue.add(
                "n", priority=number % 3, delay=0.001 if number % 4 == 0 else None, backoff=None
            )
        worker = self.bed.worker(
            self._handle, redis=self.url, concurrency=5, heartbeat_interval=0.5
        )
        async with worker.running():
            await until(lambda: self.tried(0, self.all_completed), LIMIT)
            self.allow("+@all")
            await self.bed.record.wait_for(events.Completed, len(ALL), limit=LIMIT)
            await self._stop_one()

    async def _stop_one(self) -> None:
        """Cancel a running job while the command is denied once more."""
        record = self.bed.record
        stopped = await self.bed.queue.add("sleep")
        await record.wait_for(
            events.Started, where=lambda event: event.job.id == stopped.id, limit=LIMIT
        )
        before = self.denials()
        self.allow(f"-{self.command.lower()}")
        await self.bed.queue.cancel(stopped.id)
        await until(lambda: self.tried(before, self.has_failed), LIMIT)
        self.allow("+@all")
        await record.wait_for(events.Failed, limit=LIMIT)

    async def _handle(self, job: Any) -> None:
        if job.name == "sleep":
            await sleep_forever()
        self.runs[job.id] += 1
        if self.runs[job.id] == 1 and job.id in {"2", "3"}:
            raise TimeoutError


@pytest.mark.full
async def test_all_jobs_end_when_a_denied_command_is_allowed(  # G2
    private_server: PrivateServers,
) -> None:
    server = private_server()
    admin: Any = redis.Redis.from_url(server.url)
    admin.config_set("acllog-max-len", 1000)
    places = [Denied(Reachable(VALKEY_9, server.url), admin, command) for command in COMMANDS]
    async with create_task_group() as tasks:
        for place in places:
            tasks.start_soon(place.play)
    for place in places:
        keys = place.bed.keys
        assert place.runs == Counter({name: 2 if name in {"2", "3"} else 1 for name in ALL})
        assert sorted(place.bed.record.jobs(events.Completed)) == sorted(ALL)
        told = admin.hgetall(f"{keys.job('parent')}:processed")
        assert told == {keys.job(child).encode(): b"null" for child in CHILDREN}
        left = [admin.llen(key) for key in (keys.wait, keys.active)]
        left += [admin.zcard(key) for key in (keys.prioritized, keys.delayed, keys.failed)]
        assert (place.command, left) == (place.command, [0, 0, 0, 0, 1])  # it was cancelled
    admin.close()
