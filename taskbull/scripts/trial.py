"""Trying what a server lets us do, without a trace."""

from __future__ import annotations

from typing import Any

from taskbull.core.keys import QueueKeys
from taskbull.scripts.call import Call
from taskbull.scripts.loader import load
from taskbull.scripts.replies import text

TRY_COMMANDS = load("try_commands")


def try_commands(queue: QueueKeys, token: str) -> Call[dict[str, str]]:
    """Run every command that our scripts use once; give those refused, with what Redis said."""
    kinds = ("text", "another", "hash", "list", "set", "zset", "stream")
    keys = tuple(queue.private("doctor", token, kind) for kind in kinds)
    return Call(TRY_COMMANDS, keys, (), _refused)


def _refused(reply: list[Any]) -> dict[str, str]:
    words = [text(each) for each in reply]
    return dict(zip(words[::2], words[1::2], strict=True))
