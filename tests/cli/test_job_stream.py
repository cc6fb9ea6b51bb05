"""`taskbull job`: the items of a job that yields, finished or live."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from taskbull.core.keys import QueueKeys
from tests.cli.conftest import CommandLine


@pytest.fixture
def client(url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(url) as made:
        yield made


@pytest.fixture
def finished(cli: CommandLine, client: redis.Redis) -> str:
    """A failed job that has yielded 30 items in its second run, the last but one of them long."""
    keys = QueueKeys("chat", cli.prefix)
    client.hset(keys.meta, "opts.maxLenEvents", 10000)
    fields: dict[Any, Any] = {
        "name": "n",
        "data": "{}",
        "opts": "{}",
        "timestamp": 1,
        "failedReason": "no luck",
    }
    client.hset(keys.job("a"), mapping={**fields, "finishedOn": 2, "atm": 2})
    client.zadd(keys.failed, {"a": 1})
    items = keys.items("a")
    client.xadd(items, {"item": '"old"'}, id="1-1")
    client.xadd(items, {"event": "restart", "attempt": "2"}, id="2-0")
    for number in range(1, 31):
        text = "x" * 5000 if number == 29 else f"word {number} \\u001b[31m"
        client.xadd(items, {"item": f'"{text}"'}, id=f"2-{number}")
    end: dict[Any, Any] = {"event": "end", "state": "failed", "reason": "no luck"}
    client.xadd(items, end, id="2-18446744073709551615")
    return "a"


def test_the_last_items_are_shown(cli: CommandLine, finished: str) -> None:
    shown = cli("job", "chat", finished)
    assert "Stream, 31 items; the last ones" in shown
    assert '"word 30 \\u001b[31m"' in shown
    assert "(5,002 bytes)" in shown
    assert "word 11 " not in shown
    stream = cli.json("job", "chat", finished)["stream"]
    assert stream["items"] == 31
    assert stream["last"][-1] == "word 30 \x1b[31m"


def test_a_job_is_followed_to_its_end(cli: CommandLine, finished: str) -> None:
    result = cli.run("job", "chat", finished, "--follow", *cli.where)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert (lines[0], lines[-1], len(lines)) == ('"old"', '"word 30 \\u001b[31m"', 31)
    assert "restarted (attempt 2)" in result.stderr
    assert "no luck" in result.stderr
    assert "exclude each other" in cli.fails("job", "chat", finished, "--follow", "--tree", code=2)
