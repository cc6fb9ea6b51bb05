"""Where a client of redis-py leads: its settings are read, its sockets are never used.

Clients are recognized by their attributes, not by their class: `redis.asyncio` need not be
imported by a program that does not use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from taskbull.errors import ConfigurationError
from taskbull.store.address import Address, Credentials, Endpoint, default_url, parse
from taskbull.store.tls import Tls, read_tls

if TYPE_CHECKING:
    from redis import Redis, RedisCluster
    from redis.asyncio import Redis as AsyncRedis
    from redis.asyncio import RedisCluster as AsyncRedisCluster

    Where: TypeAlias = str | Address | Redis | AsyncRedis | RedisCluster | AsyncRedisCluster
    """A URL, or a client of redis-py; None stands for the environment."""
else:
    Where = object


_MARKS = ("connection_pool", "nodes_manager", "master_for")


def address_of(redis: Where | None) -> Address:
    """Return the address that a URL or a client leads to; None: that of the environment."""
    match redis:
        case None:
            return parse(default_url())
        case str():
            return parse(redis or default_url())
        case Address():
            return redis
        case _ if any(hasattr(redis, mark) for mark in _MARKS):
            return _of_client(redis)
        case _:
            pass
    raise ConfigurationError(
        "redis must be a URL such as redis://localhost:6379/0, or a client of redis-py, not of "
        f"type {type(redis).__qualname__}"
    )


def _of_client(client: Any) -> Address:
    if hasattr(client, "nodes_manager"):
        return _cluster(client)
    if hasattr(client, "master_for"):
        raise ConfigurationError(
            "redis must name one service of the sentinels: redis=sentinel.master_for('mymaster')"
        )
    pool = client.connection_pool
    settings: Mapping[str, Any] = pool.connection_kwargs
    _refuse("redis_connect_func", settings.get("redis_connect_func"))
    if hasattr(pool, "sentinel_manager"):
        return _sentinels(pool, settings)
    path = settings.get("path")
    endpoint = (
        Endpoint(path=str(path))
        if path
        else Endpoint(str(settings.get("host") or "localhost"), int(settings.get("port") or 6379))
    )
    return Address(
        "single",
        (endpoint,),
        _credentials(settings),
        int(settings.get("db") or 0),
        _tls(settings, pool.connection_class),
    )


def _refuse(name: str, value: object) -> None:
    """Refuse a client with a setting that changes where or how it connects, and is not obeyed."""
    if value is not None:
        raise ConfigurationError(
            f"redis: taskbull opens its own connections and cannot use the client's {name}"
        )


def _cluster(client: Any) -> Address:
    manager = client.nodes_manager
    _refuse("address_remap", getattr(manager, "address_remap", None))
    _refuse("redis_connect_func", getattr(client, "user_on_connect_func", None))
    settings: Mapping[str, Any] = getattr(client, "connection_kwargs", None) or (
        manager.connection_kwargs
    )
    nodes = manager.startup_nodes.values()
    return Address(
        "cluster",
        tuple(Endpoint(str(node.host), int(node.port)) for node in nodes),
        _credentials(settings),
        tls=_tls(settings, settings.get("connection_class")),
    )


def _sentinels(pool: Any, settings: Mapping[str, Any]) -> Address:
    if not pool.is_master:
        raise ConfigurationError(
            "redis must lead to a primary, not to replicas: use sentinel.master_for(…)"
        )
    asked = [one.connection_pool.connection_kwargs for one in pool.sentinel_manager.sentinels]
    return Address(
        "sentinel",
        tuple(Endpoint(str(one["host"]), int(one["port"])) for one in asked),
        _credentials(settings),
        int(settings.get("db") or 0),
        _tls(settings, pool.connection_class),
        str(pool.service_name),
        _credentials(asked[0]),
    )


def _credentials(settings: Mapping[str, Any]) -> Credentials:
    username, password = settings.get("username"), settings.get("password")
    if (provider := settings.get("credential_provider")) is not None:
        *names, password = cast("tuple[str, ...]", provider.get_credentials())
        username = names[0] if names else None
    if username and password is None:
        password = ""  # an ACL user may have none
    return Credentials(username or None, password or (password if username else None))


def _tls(settings: Mapping[str, Any], connection_class: Any) -> Tls | None:
    name = getattr(connection_class, "__name__", "")
    if not settings.get("ssl") and "SSL" not in name:
        return None
    try:
        return read_tls(settings)
    except ValueError as error:
        raise ConfigurationError(f"redis: {error}") from error
