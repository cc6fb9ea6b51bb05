"""Hosted Redis services and other engines: how to recognize one, and what a queue needs there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct


class Service(Struct, frozen=True):
    """A service or engine, with the advice that `taskbull doctor` gives for it.

    `eviction` and `persistence` replace the advice to use CONFIG, which services forbid.
    """

    name: str
    hosts: tuple[str, ...] = ()
    """Ends of host names. With a space, the name must contain the first word as well."""
    fields: tuple[str, ...] = ()
    """Fields of INFO that only this service has, or `field:value`."""
    note: str = ""
    eviction: str = ""
    persistence: str = ""
    durable: str = ""
    """Why acknowledged writes survive a crash, if they do."""
    cluster: bool = False
    """True if it only works with a `redis+cluster://` URL."""
    tls: bool = False
    """True if it only accepts TLS."""
    hash_tag: str = ""
    """Why queue names must be hash tags, with any URL."""

    def has_host(self, host: str) -> bool:
        """Return True if a host name belongs to this service."""
        for end in self.hosts:
            *parts, suffix = end.split()
            if host.lower().endswith(suffix) and all(part in host.lower() for part in parts):
                return True
        return False

    def has_fields(self, fields: Mapping[str, str]) -> bool:
        """Return True if the INFO of a server belongs to this service."""
        return any(
            fields.get(name, "").startswith(value) if value else name in fields
            for name, _, value in (field.partition(":") for field in self.fields)
        )


_PARAMETERS = "set maxmemory-policy to noeviction in its parameter group (CONFIG is not allowed)"

_SERVICES = (
    Service(
        "Amazon ElastiCache Serverless",
        (".serverless .cache.amazonaws.com", ".serverless .cache.amazonaws.com.cn"),
        note="settings are fixed, and IAM tokens expire: pass credentials= to the app",
        eviction="maxmemory-policy is fixed to volatile-lru: set no memory limit that a backlog "
        "can reach, because an evicted lock lets a job run twice; MemoryDB evicts nothing",
        persistence="ElastiCache is a cache: a failover can lose jobs. Take backups, or use "
        "MemoryDB",
        cluster=True,
        tls=True,
    ),
    Service(
        "Amazon ElastiCache",
        (".cache.amazonaws.com", ".cache.amazonaws.com.cn"),
        ("os:Amazon ElastiCache",),
        note="IAM tokens expire: pass credentials= to the app",
        eviction=_PARAMETERS,
        persistence="turn on Multi-AZ with a replica and backups, or use MemoryDB, which keeps "
        "every write",
    ),
    Service(
        "Amazon MemoryDB",
        (".memorydb .amazonaws.com", ".memorydb .amazonaws.com.cn"),
        note="IAM tokens expire: pass credentials= to the app",
        eviction=_PARAMETERS,
        durable="every write is in a log across availability zones before it is confirmed",
        cluster=True,
    ),
    Service(
        "Azure Managed Redis",
        (".redis.azure.net", ".redisenterprise.cache.azure.net"),
        note="with cluster policy OSS use rediss+cluster://, otherwise rediss:// and "
        "App(hash_tag=True); Entra tokens expire: pass credentials= to the app",
        eviction="set the eviction policy of the database to NoEviction (CONFIG is not allowed)",
        persistence="turn on data persistence (AOF) and high availability for the database",
        tls=True,
    ),
    Service(
        "Azure Cache for Redis",
        (".redis.cache.windows.net", ".redis.cache.chinacloudapi.cn"),
        note="Entra tokens expire: pass credentials= to the app; Microsoft replaces this service "
        "with Azure Managed Redis",
        eviction="set maxmemory-policy to noeviction under Advanced settings (CONFIG is not "
        "allowed)",
        persistence="data persistence needs the Premium tier",
    ),
    Service(
        "Upstash",
        (".upstash.io",),
        ("upstash_version",),
        note="each command is billed unless the plan is fixed; taskbull is not tested there",
        eviction="turn off Eviction in the settings of the database",
        durable="writes are stored on disk",
        tls=True,
    ),
    Service(
        "Dragonfly",
        (".dragonflydb.cloud",),
        ("dragonfly_version",),
        note="taskbull tests its scripts with Dragonfly's version of Lua",
        eviction="start dragonfly without --cache_mode",
        persistence="start dragonfly with --snapshot_cron and a --dir that is kept; it has no "
        "append-only file, so a crash loses the jobs since the last snapshot",
        hash_tag="it refuses keys that a script did not declare unless they share a hash tag; "
        "start it with --cluster_mode=emulated --lock_on_hashtags",
    ),
)


def identify(hosts: Sequence[str], fields: Mapping[str, str] | None = None) -> Service | None:
    """Return the service with one of these host names or this INFO, or None if it is unknown.

    A host name is more specific than INFO, so it takes precedence.
    """
    for service in _SERVICES:
        if any(map(service.has_host, hosts)):
            return service
    return next((each for each in _SERVICES if each.has_fields(fields or {})), None)
