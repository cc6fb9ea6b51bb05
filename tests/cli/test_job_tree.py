"""`taskbull job --tree`: what people see of a flow, and what machines read."""

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
def flow(cli: CommandLine, client: redis.Redis) -> str:
    """A tree of three levels across two queues, with jobs in many states."""
    pages, reports = (QueueKeys(name, cli.prefix) for name in ("pages", "reports"))
    plain: dict[str, Any] = {
        "name": "n",
        "data": "{}",
        "opts": "{}",
        "timestamp": 1,
        "priority": 0,
        "delay": 0,
    }

    def job(queue: QueueKeys, job_id: str, state: str, **fields: Any) -> None:
        whole = {**plain, **fields}
        client.hset(queue.job(job_id), items=[word for pair in whole.items() for word in pair])
        client.zadd(queue.base + state, {job_id: 1})

    client.hset(reports.meta, "opts.maxLenEvents", 10000)
    job(reports, "top", "waiting-children", name="report")
    job(pages, "a", "waiting-children", name="count")
    job(
        pages,
        "aa",
        "failed",
        name="fetch",
        atm=3,
        failedReason="no\x1b[31m route\nto it",
        parent='{"idof":true}',
    )
    job(pages, "b", "completed", name="count", atm=1, returnvalue="17")
    job(pages, "c", "failed", name="count", atm=1, failedReason="empty")
    job(pages, "d", "failed", name="count", atm=1, failedReason="broken")
    top = reports.job("top")
    for job_id, parent in {"a": top, "aa": pages.job("a"), "b": top, "c": top, "d": top}.items():
        client.hset(pages.job(job_id), "parentKey", parent)
    client.sadd(f"{top}:dependencies", pages.job("a"))
    client.sadd(f"{pages.job('a')}:dependencies", pages.job("aa"))
    client.hset(f"{top}:processed", mapping={pages.job("b"): "17", pages.job("e"): "18"})
    client.hset(f"{top}:failed", pages.job("c"), "empty")
    client.zadd(f"{top}:unsuccessful", {pages.job("d"): 1})
    return "top"


def test_a_flow_is_shown_with_children_below_their_parents(cli: CommandLine, flow: str) -> None:
    lines = cli("job", "reports", flow, "--tree").splitlines()
    rows = [line.split() for line in lines[1:]]
    assert [line[:6].rstrip() for line in lines[1:]] == [
        "top",
        "  a",
        "    aa",
        "  b",
        "  c",
        "  d",
        "  e",
    ]
    assert rows[0][1:] == ["report", "reports", "waiting-children", "0", "-"]
    assert rows[2][1:5] == ["fetch", "pages", "failed", "3"]
    assert lines[3].endswith(r"no\x1b[31m route… (on_failure=ignore)")
    assert lines[4].endswith("result 17")
    assert rows[6][1:] == ["-", "pages", "completed", "(removed)", "-", "result", "18"]


def test_a_flow_as_json(cli: CommandLine, flow: str) -> None:
    tree = cli.json("job", "reports", flow, "--tree")
    assert (tree["id"], tree["state"], tree["child_count"]) == ("top", "waiting-children", 5)
    assert [child["id"] for child in tree["children"]] == list("abcde")
    assert tree["children"][0]["children"][0]["reason"] == "no\x1b[31m route\nto it"
    assert tree["children"][4]["removed"] is True


def test_omissions_are_reported(cli: CommandLine, flow: str) -> None:
    lines = cli("job", "reports", flow, "--tree", "--limit", "3").splitlines()
    assert lines[-1].endswith("3 more children not shown")
    assert lines[-1].startswith("  …")
    [_, _, last] = cli("job", "reports", flow, "--tree", "--depth", "1").splitlines()
    assert last.endswith("5 children not shown")


def test_a_flow_that_is_not_there(cli: CommandLine, flow: str) -> None:
    assert "nobody" in cli.fails("job", "reports", "nobody", "--tree")


def test_parents_and_counts_of_children_are_shown_with_a_job(cli: CommandLine, flow: str) -> None:
    shown = cli("job", "reports", flow)
    assert "children" in shown
    assert cli.json("job", "reports", flow)["children"] == {
        "processed": 2,
        "unprocessed": 1,
        "ignored": 1,
        "failed": 1,
    }
