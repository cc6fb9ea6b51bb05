"""`/metrics` of the dashboard: what the exporter serves, for users of the dashboard."""

from __future__ import annotations

import pytest
import redis

from taskbull.dashboard import Dashboard
from taskbull.dashboard.access import BasicAuth, TokenAuth
from tests.dashboard.conftest import MakeQueue, Visitor
from tests.observability.scraping import Scrape
from tests.servers.kinds import VALKEY_9, PrivateServers, Reachable, SharedServers


@pytest.fixture
def server(shared_servers: SharedServers) -> Reachable:
    return shared_servers.get(VALKEY_9)


async def test_it_serves_the_metrics_of_all_queues(visitor: Visitor, make_queue: MakeQueue) -> None:
    queue = make_queue("emails")
    queue.add("send")
    queue.pause()
    answer = await visitor.get("metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    found = Scrape(answer.text)
    assert found.value("bullmq_queue_length", queue="emails", state="paused") == 1
    assert found.value("bullmq_queue_paused", queue="emails") == 1
    assert found.value("bullmq_connected_workers", queue="emails") == 0
    assert found.value("bullmq_redis_connection_status") == 1
    asked = await visitor.get("metrics", accept="application/openmetrics-text; version=1.0.0")
    assert asked.headers["content-type"].startswith("application/openmetrics-text")


async def test_scrapes_share_a_sample(
    visitor: Visitor, make_queue: MakeQueue, admin: redis.Redis
) -> None:
    make_queue("emails").add("send")

    def scripts() -> int:
        stats = admin.info("commandstats")
        return int(sum(each["calls"] for name, each in stats.items() if "evalsha" in name))

    await visitor.get("metrics")
    before = scripts()
    for _ in range(3):
        assert (await visitor.get("metrics")).status_code == 200
    assert scripts() == before


async def test_it_is_refused_like_any_page(server: Reachable, prefix: str) -> None:
    token = Visitor(Dashboard(redis=server.url, prefix=prefix, access=TokenAuth("secret")))
    assert (await token.get("metrics")).status_code == 401
    assert (await token.get("metrics", authorization="Bearer secret")).status_code == 200
    assert (await token.get("metrics", authorization="Bearer wrong")).status_code == 401
    login = BasicAuth("prometheus:secret")
    basic = Visitor(Dashboard(redis=server.url, prefix=prefix, access=login), "10.0.0.5")
    assert (await basic.get("metrics")).status_code == 401
    given = "Basic cHJvbWV0aGV1czpzZWNyZXQ="
    assert (await basic.get("metrics", authorization=given)).status_code == 200


async def test_it_says_that_redis_is_away(private_server: PrivateServers) -> None:
    server = private_server()
    visitor = Visitor(Dashboard(redis=server.url))
    assert Scrape((await visitor.get("metrics")).text).value("bullmq_redis_connection_status") == 1
    server.stop()
    other = Visitor(Dashboard(redis=server.url))
    found = Scrape((await other.get("metrics")).text)
    assert found.value("bullmq_redis_connection_status") == 0
    assert found.total("bullmq_queue_length") == 0
