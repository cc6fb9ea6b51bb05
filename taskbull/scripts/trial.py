"""Trying what a server lets us do, without a trace."""

from __future__ import annotations

from typing import Any

from taskbull.core.keys import QueueKeys
from taskbull.scripts.call import Call, Command, Word
from taskbull.scripts.loader import load
from taskbull.scripts.replies import nothing, text

TRY_COMMANDS = load("try_commands")


def try_commands(queue: QueueKeys, token: str) -> Call[dict[str, str]]:
    """Run every command that our scripts use once; return those refused, with what Redis said."""
    kinds = ("text", "another", "hash", "list", "set", "zset", "stream")
    keys = tuple(queue.private("doctor", token, kind) for kind in kinds)
    return Call(TRY_COMMANDS, keys, (), _refused)


def try_plainly(queue: QueueKeys, token: str) -> dict[str, Command[None]]:
    """Return the commands that are sent without a script, by name, in a form that does nothing."""
    key = queue.private("doctor", token, "none")
    tried: dict[str, tuple[Word, ...]] = {
        "BZPOPMIN": ("BZPOPMIN", key, 0.01),
        "XREAD": ("XREAD", "COUNT", 1, "STREAMS", key, "0"),
        "CLIENT ID": ("CLIENT", "ID"),
        "CLIENT SETNAME": ("CLIENT", "SETNAME", "taskbull-doctor"),
        "CLIENT KILL": ("CLIENT", "KILL", "ID", 1 << 62),
        "CLIENT LIST": ("CLIENT", "LIST"),
        "SCAN": ("SCAN", 0, "COUNT", 1),
    }
    return {name: Command(words, queue.base, nothing) for name, words in tried.items()}


def _refused(reply: list[Any]) -> dict[str, str]:
    words = [text(each) for each in reply]
    return dict(zip(words[::2], words[1::2], strict=True))
