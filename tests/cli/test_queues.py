"""Tasks, queues and workers: what people see, and what machines read."""

from __future__ import annotations

import pytest
import redis
from anyio.from_thread import start_blocking_portal

from taskbull.core.groups import Limiter
from taskbull.core.options import WorkerOptions
from taskbull.worker.worker import Worker
from tests.cli.conftest import CommandLine, OpenCli, Shop
from tests.servers.cluster import Cluster
from tests.servers.kinds import Reachable
from tests.worker.bed import echo


def lines(output: str) -> list[list[str]]:
    """Give the cells of a table as it is piped: two spaces or more part them."""
    return [[cell for cell in line.split("  ") if cell.strip()] for line in output.splitlines()]


def test_tasks_are_listed_with_what_they_were_declared_with(shop: Shop) -> None:
    by_name = {task["name"]: task for task in shop.json("tasks")}
    assert list(by_name) == ["anything", "explode", "resize", "send_email"]
    email = by_name["send_email"]
    assert email["signature"] == "(to: str, subject: str, *, body: str = '') -> str"
    assert (email["queue"], email["kind"], email["attempts"], email["timeout"]) == (
        "emails",
        "async",
        3,
        20,
    )
    assert email["circuit_breaker"] == {
        "threshold": 5,
        "duration": 30,
        "half_open_max_attempts": 1,
    }
    assert email["place"].endswith(f"/{shop.module}.py:13")
    assert email["description"] == "Send one."
    assert by_name["resize"]["circuit_breaker"] is None


def test_a_piped_table_has_one_aligned_line_per_row(shop: Shop) -> None:
    header, *rows = shop("tasks").splitlines()
    assert header.startswith("TASK        QUEUE    SIGNATURE")
    assert len(rows) == 4
    start = header.index("RUNS IN")
    assert {row[start:].split("  ")[0] for row in rows} == {"event loop", "thread"}


@pytest.mark.parametrize("number", [0, 3])
def test_queues_are_those_of_the_app_and_those_found(shop: Shop, number: int) -> None:
    shop.queue("reports").add_bulk([("render", {})] * number)
    found = shop.json("queues")
    names = ["default", "emails", *(["reports"] if number else [])]
    assert [queue["name"] for queue in found] == names
    assert found[0]["counts"] == dict.fromkeys(
        (
            "waiting",
            "active",
            "prioritized",
            "delayed",
            "waiting-children",
            "paused",
            "failed",
            "completed",
        ),
        0,
    )
    if number:
        assert found[-1]["counts"]["waiting"] == number


def test_queues_of_any_server_are_counted_by_state(
    server: Reachable, prefix: str, open_cli: OpenCli
) -> None:
    cli = open_cli(server.url, prefix)
    queue = cli.queue("emails")
    queue.add_bulk([("a", {}), ("b", {}, {"delay": 60}), ("c", {}, {"priority": 3})])
    queue.pause()
    [found] = cli.json("queues")
    assert (found["paused"], found["workers"], found["version"]) == (True, 0, None)
    counts = {state: count for state, count in found["counts"].items() if count}
    assert counts == {"paused": 1, "delayed": 1, "prioritized": 1}
    header, row = lines(cli("queues"))
    assert header[0].strip() == "QUEUE"
    assert (row[0].strip(), row[-1].strip()) == ("emails", "yes")


def test_keys_that_only_look_like_a_queue_are_none(cli: CommandLine) -> None:
    cli.queue("emails").add("a")
    with redis.Redis.from_url(cli.url) as client:
        client.hset(f"{cli.prefix}:other:emails:meta", "x", "1")
        client.hset(f"{cli.prefix}:emails:repeat:meta", "x", "1")
        client.set(f"{cli.prefix}:text:meta", "x")
    assert [queue["name"] for queue in cli.json("queues")] == ["emails"]


def test_a_prefix_is_no_pattern(url: str, prefix: str, open_cli: OpenCli) -> None:
    open_cli(url, f"{prefix}-a").queue("emails").add("x")
    strange = open_cli(url, f"{prefix}-[a]*")
    assert strange.json("queues") == []
    strange.queue("emails").add("x")
    assert [queue["name"] for queue in strange.json("queues")] == ["emails"]


def test_queues_of_a_cluster_are_found_on_all_its_nodes(
    cluster: Cluster, prefix: str, open_cli: OpenCli
) -> None:
    cli = open_cli(cluster.url, prefix)
    names = [f"queue-{number}" for number in range(8)]
    for name in names:
        cli.queue(name).add("x")
    owners = {cluster.owner(f"{prefix}:{{{name}}}:meta").port for name in names}
    assert len(owners) > 1
    assert [queue["name"] for queue in cli.json("queues")] == names
    assert cli.json("jobs", names[0])[0]["id"] == "1"


def test_a_connected_worker_is_listed(shop: Shop) -> None:
    name = shop.queue("emails").keys.connection_name("ann")
    with redis.Redis.from_url(shop.url, client_name=name) as worker:
        worker.ping()
        [found] = shop.json("workers", "emails")
        assert (found["queue"], found["name"]) == ("emails", "ann")
        assert set(found) == {"queue", "name", "address", "age", "idle", "state"}
        [same] = shop.json("workers")
        assert {**same, "age": 0, "idle": 0} == {**found, "age": 0, "idle": 0}  # a second may pass
        assert "ann" in shop("workers")
        assert shop.json("queues")[1]["workers"] == 1
    assert shop("workers").splitlines() == [
        "QUEUE  WORKER  ADDRESS  CONNECTED FOR  IDLE FOR  STATE"
    ]


def test_a_worker_is_made_quiet_and_resumed(shop: Shop) -> None:
    worker = Worker(
        "emails",
        echo,
        redis=shop.url,
        prefix=shop.prefix,
        options=WorkerOptions(worker_id="ann", records=True),
    )
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(worker.running()):
        told(shop, "running")
        assert shop("quiet", "ann") == "asked worker ann to fetch no more jobs\n"
        told(shop, "quiet")
        assert worker.is_quiet
        assert shop("quiet", "ann") == "worker ann was already quiet\n"
        assert "taskbull resume-worker ann" in shop("why", "emails")
        [resumed] = shop.json("resume-worker", "ann")
        assert resumed == {"worker": "ann", "quiet": False, "changed": True}
        told(shop, "running")
        assert "No taskbull worker 'bob' is running" in shop.fails("quiet", "bob")
    assert "No taskbull worker 'ann' is running" in shop.fails("resume-worker", "ann")


def told(shop: Shop, state: str) -> None:
    """Wait until the list of workers shows a state."""
    while [one["state"] for one in shop.json("workers", "emails")] != [state]:
        pass


def test_groups_are_listed_with_their_limits(shop: Shop) -> None:
    queue = shop.queue("emails")
    for group in ("acme", "acme", "beta"):
        queue.add("send_email", {}, group=group)
    queue.set_group("acme", concurrency=2)
    queue.set_group("beta", paused=True, limiter=Limiter(10, 60))
    found = {group["id"]: group for group in shop.json("groups", "emails")}
    assert found["acme"] == {
        "id": "acme",
        "waiting": 2,
        "active": 0,
        "held": 0,
        "paused": False,
        "limited_until": None,
        "concurrency": 2,
        "weight": 1,
        "limiter": None,
    }
    assert found["beta"]["limiter"] == {"max": 10, "duration": 60}
    assert (found["beta"]["held"], found["beta"]["paused"]) == (1, True)
    text = shop("groups", "emails")
    assert "GROUP  WAITING  RUNNING  HELD  LIMIT  RATE         WEIGHT  STATE" in text
    assert "10 per 60 s" in text
    shop.queue("reports").add("render")
    assert shop.json("groups", "reports") == []
