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


def key_rule(server: SyncServer, queue: str | None = None) -> str:
    """Return the rule for the keys of a queue, or of all queues.

    It is one word whatever the queue is called: a space in a name would start another rule.
    """
    rule = f"~{server.key_pattern(queue)}"
    return "".join("?" * len(c.encode()) if c in "\"' " or not c.isprintable() else c for c in rule)


def acl_of(server: SyncServer, queues: Sequence[str], user: str = "taskbull") -> str:
    """Return all rules of a user for some queues, or (none given) for all under the prefix."""
    keys = [key_rule(server, queue) for queue in queues] or [key_rule(server)]
    words = ["on", ">PASSWORD", "resetkeys", *keys, "resetchannels", "-@all", *rules()]
    return f"{user} {' '.join(words)}"
