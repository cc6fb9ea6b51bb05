"""`taskbull doctor --acl`: the rules for a user of Redis who may do what we need, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from taskbull.queue.sync_server import SyncServer

_FILE = Path(__file__).parent / "least_rights.acl"


def rules() -> list[str]:
    """Return the commands that the user may run, as ACL rules."""
    lines = _FILE.read_text("utf-8").splitlines()
    return [rule for line in lines if not line.startswith("#") for rule in line.split()]


def acl_of(server: SyncServer, queues: Sequence[str], user: str = "taskbull") -> str:
    """Return all rules of a user for some queues, or (none given) for all under the prefix."""
    patterns = [server.key_pattern(queue) for queue in queues] or [server.key_pattern()]
    keys = [f"~{pattern}" for pattern in patterns]
    words = ["on", ">PASSWORD", "resetkeys", *keys, "resetchannels", "-@all", *rules()]
    return f"{user} {' '.join(words)}"
