"""Advice of `doctor` for hosted services, from their host names and from INFO."""

from __future__ import annotations

import pytest

from taskbull.cli.commands.doctor import (
    Finding,
    Level,
    Place,
    _memory,
    _version,
    check_service,
    hosted_persistence,
)
from taskbull.core.hosting import Service, identify
from taskbull.scripts.call import info

DRAGONFLY = b"""# Server\r
redis_version:7.4.0\r
dragonfly_version:df-v1.27.1\r
redis_mode:standalone\r
arch_bits:64\r
# Memory\r
used_memory:1048576\r
maxmemory:3221225472\r
maxmemory_policy:eviction\r
"""
ELASTICACHE = b"""# Server\r
redis_version:7.2.4\r
redis_mode:cluster\r
os:Amazon ElastiCache\r
cluster_enabled:1\r
maxmemory:1000\r
maxmemory_policy:volatile-lru\r
aof_enabled:0\r
"""
UPSTASH = b"""# Server\r
upstash_version:1.11.5\r
redis_version:6.2.6\r
"""


def found(host: str, text: bytes = b"") -> Service:
    service = identify([host], info(text))
    assert service is not None
    return service


@pytest.mark.parametrize(
    ("host", "text", "name"),
    [
        ("10.0.0.1", DRAGONFLY, "Dragonfly"),
        ("x.dragonflydb.cloud", b"", "Dragonfly"),
        ("10.0.0.1", ELASTICACHE, "Amazon ElastiCache"),
        ("c.abc.0001.use1.cache.amazonaws.com", b"", "Amazon ElastiCache"),
        (
            "c-abc.serverless.use1.cache.amazonaws.com",
            ELASTICACHE,
            "Amazon ElastiCache Serverless",
        ),
        ("clustercfg.c.abc.memorydb.us-east-1.amazonaws.com", b"", "Amazon MemoryDB"),
        ("Shop.redis.cache.windows.net", b"", "Azure Cache for Redis"),
        ("shop.westeurope.redis.azure.net", b"", "Azure Managed Redis"),
        ("eu1-fine-cat-1.upstash.io", b"", "Upstash"),
        ("localhost", UPSTASH, "Upstash"),
    ],
)
def test_a_service_is_recognized(host: str, text: bytes, name: str) -> None:
    assert found(host, text).name == name


@pytest.mark.parametrize("host", ["localhost", "upstash.io.example.org", "amazonaws.com", ""])
def test_another_host_is_no_service(host: str) -> None:
    assert identify([host], {"redis_version": "7.2.4", "os": "Linux 6.1"}) is None


def levels(host: str, place: Place, text: bytes = b"") -> list[tuple[Level, str]]:
    return [(each.level, each.advice) for each in check_service(found(host, text), place)]


def test_dragonfly_needs_hash_tags() -> None:
    first, last = check_service(found("h", DRAGONFLY), Place("single"))
    assert first.level is Level.WARNING
    assert "hash_tag=True" in first.advice
    assert "--lock_on_hashtags" in first.message
    assert last.level is Level.OK
    assert [level for level, _ in levels("h", Place("single", tagged=True), DRAGONFLY)] == ["ok"]
    assert _version(info(DRAGONFLY), "h:1").level is Level.OK


@pytest.mark.parametrize(
    ("host", "scheme"),
    [
        ("a.serverless.use1.cache.amazonaws.com", "rediss+cluster://"),
        ("clustercfg.a.memorydb.us-east-1.amazonaws.com", "redis+cluster://"),
        ("a.upstash.io", "rediss://"),
        ("a.westeurope.redis.azure.net", "rediss://"),
    ],
)
def test_a_url_that_cannot_work_is_a_problem(host: str, scheme: str) -> None:
    problems = [advice for level, advice in levels(host, Place("single")) if level == "problem"]
    assert problems
    assert all(scheme in advice for advice in problems)
    good = Place("cluster", tls=True, tagged=True)
    assert [level for level, _ in levels(host, good)] == ["ok"]


def eviction(host: str, text: bytes = ELASTICACHE) -> Finding:
    [finding] = _memory(info(text), "h:1", found(host, text))
    return finding


def test_advice_never_names_a_command_that_services_forbid() -> None:
    for host in (
        "a.serverless.use1.cache.amazonaws.com",
        "a.0001.use1.cache.amazonaws.com",
        "a.memorydb.us-east-1.amazonaws.com",
        "a.redis.cache.windows.net",
        "a.westeurope.redis.azure.net",
        "a.upstash.io",
    ):
        finding = eviction(host)
        assert finding.level is Level.PROBLEM
        assert finding.advice
        assert "CONFIG SET" not in finding.advice + hosted_persistence(found(host), {}).advice
    assert "--cache_mode" in eviction("h", DRAGONFLY).advice


def test_durable_services_need_no_append_only_file() -> None:
    for host in ("a.memorydb.us-east-1.amazonaws.com", "a.upstash.io"):
        assert hosted_persistence(found(host), {}).level is Level.OK
    azure = found("a.westeurope.redis.azure.net")
    assert hosted_persistence(azure, {}).level is Level.WARNING
    assert hosted_persistence(azure, {"aof_enabled": "1"}).level is Level.OK
