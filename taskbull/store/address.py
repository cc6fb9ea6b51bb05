"""Where Redis is: one URL, checked when it is read, as a value that both stores understand.

| URL | what |
|---|---|
| `redis://[user:password@]host:port/db`, `rediss://…` with TLS | one server |
| `unix://[user:password@]/path/to/socket?db=0` | one server, by its socket |
| `redis+sentinel://host:26379,host:26379/service/db` | the primary that the sentinels name |
| `redis+cluster://host:7000,host:7001` | a Redis Cluster |
| `embedded://`, `embedded:///folder`, `…?idle=3600` | a private server, started when needed |

`rediss+sentinel://` and `rediss+cluster://` are the same with TLS.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Literal, assert_never
from urllib.parse import unquote

from msgspec import Struct
from msgspec.structs import replace

from taskbull.store.parameters import check_parameters, read_seconds
from taskbull.store.project import IDLE, project_folder
from taskbull.store.tls import Tls, read_tls
from taskbull.store.url import Url, read_url, wrong

TopologyKind = Literal["single", "sentinel", "cluster", "embedded"]

_SCHEMES: dict[str, tuple[TopologyKind, bool]] = {
    "redis": ("single", False),
    "rediss": ("single", True),
    "unix": ("single", False),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
    "embedded": ("embedded", False),
}
_DEFAULT_PORT = {"single": 6379, "sentinel": 26379, "cluster": 6379}

_PLACE = re.compile(r"[A-Za-z0-9.-]+:[0-9]{1,5}(/[0-9]{0,3})?|localhost")
_HOST = re.compile(r"(\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[^:\[\]\s]+))(:(?P<port>[0-9]{1,6}))?")


class Endpoint(Struct, frozen=True):
    """One listening socket: host and port, or a path."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Credentials(Struct, frozen=True):
    """Who we are; no user name means Redis' `default` user."""

    username: str | None = None
    password: str | None = None

    def __repr__(self) -> str:
        """Show who, never the password."""
        return f"Credentials({self.username!r}, ***)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Show the same in tracebacks of rich."""
        return [("username", self.username)]

    @property
    def words(self) -> tuple[str, ...]:
        """The AUTH command for them; empty if none is needed."""
        if self.password is None:
            return ()
        return ("AUTH", self.username, self.password) if self.username else ("AUTH", self.password)


class Address(Struct, frozen=True):
    """Everything that is needed to reach Redis and be let in."""

    topology: TopologyKind
    endpoints: tuple[Endpoint, ...] = ()
    credentials: Credentials = Credentials()
    db: int = 0
    tls: Tls | None = None
    service: str = ""
    sentinel_credentials: Credentials = Credentials()
    folder: str = ""
    idle: float = IDLE
    connect_timeout: float | None = None
    response_timeout: float | None = None
    client_name: str = ""

    @property
    def clustered(self) -> bool:
        """Whether keys are spread over the nodes of a Redis Cluster."""
        return self.topology == "cluster"

    @property
    def primary_only(self) -> bool:
        """Whether a server must say that it is the primary: what names it may be out of date."""
        return self.topology == "sentinel"

    def __str__(self) -> str:
        """Show where, never the password."""
        where = ",".join(map(str, self.endpoints))
        match self.topology:
            case "embedded":
                return f"embedded://{self.folder}"
            case "sentinel":
                return f"{where}/{self.service}/{self.db}"
            case "cluster":
                return where
            case "single":
                return f"{where}/{self.db}" if self.db else where
            case _:
                assert_never(self.topology)


def parse(url: str) -> Address:
    """Read a URL; raise `ConfigurationError` with a sentence that says what is wrong with it."""
    scheme = url.partition("://")[0]
    if scheme not in _SCHEMES:
        hint = f"; did you mean redis://{url}?" if _PLACE.fullmatch(url) else ""
        known = ", ".join(f"{scheme}://" for scheme in _SCHEMES)
        raise wrong(url, f"it must start with one of {known}{hint}")
    topology, encrypted = _SCHEMES[scheme]
    parts = read_url(url)
    if topology == "embedded":
        return _embedded(parts)
    check_parameters(parts, encrypted=encrypted, sentinel=topology == "sentinel")
    address = Address(
        topology,
        credentials=_credentials(parts),
        tls=_tls(parts) if encrypted else None,
        connect_timeout=read_seconds(parts, "socket_connect_timeout"),
        response_timeout=read_seconds(parts, "socket_timeout"),
        client_name=parts.options.get("client_name", ""),
    )
    if scheme == "unix":
        return _unix(parts, address)
    if topology == "cluster" and not parts.hosts:
        raise parts.wrong("a Redis Cluster needs a host: redis+cluster://host:7000,host:7001")
    hosts = parts.hosts or ("localhost",)
    endpoints = tuple(_endpoint(parts, host, _DEFAULT_PORT[topology]) for host in hosts)
    path = [unquote(part) for part in parts.path.split("/") if part]
    if topology == "sentinel":
        if not 1 <= len(path) <= 2:
            raise parts.wrong("the path is the name of the service and the database: /mymaster/0")
        login = Credentials(
            parts.options.get("sentinel_username"), parts.options.get("sentinel_password")
        )
        address = replace(address, service=path.pop(0), sentinel_credentials=login)
    db = _db(parts, parts.options.get("db", "/".join(path)))
    if topology == "single" and len(endpoints) > 1:
        raise parts.wrong("several hosts need redis+cluster:// or redis+sentinel://")
    if topology == "cluster" and db != 0:
        raise parts.wrong("a Redis Cluster has database 0 only")
    return replace(address, endpoints=endpoints, db=db)


def _endpoint(url: Url, place: str, default_port: int) -> Endpoint:
    host = _HOST.fullmatch(place)
    name = (host["six"] or unquote(host["name"])) if host else ""
    port = int(host["port"] or default_port) if host else 0
    try:
        name.encode("idna")  # what a resolver would do, and fail on late
    except UnicodeError:
        name = ""
    if not name or not 0 < port < 65536:
        raise url.wrong(f"{place!r} is not a host and port")
    return Endpoint(name, port)


def _unix(url: Url, address: Address) -> Address:
    if not url.path or url.hosts:
        raise url.wrong("unix:// is followed by an absolute path, as in unix:///run/redis.sock")
    endpoint = Endpoint(path=unquote(url.path))
    return replace(address, endpoints=(endpoint,), db=_db(url, url.options.get("db", "")))


def _embedded(url: Url) -> Address:
    if url.hosts or url.options.keys() - {"idle"} or url.username or url.password:
        raise url.wrong("write embedded:// or embedded:///absolute/folder, maybe with ?idle=3600")
    idle = url.options.get("idle", str(IDLE))
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", idle):
        raise url.wrong(
            "idle is the number of seconds without a client after which the server ends; 0: never"
        )
    folder = Path(unquote(url.path)) if url.path else project_folder()
    return Address("embedded", folder=str(folder), idle=float(idle))


def _credentials(url: Url) -> Credentials:
    username = url.username or url.options.get("username")
    password = url.password or url.options.get("password")
    if username and not password:
        password = ""  # an ACL user may have none; without AUTH we would be somebody else
    return Credentials(username or None, password)


def _tls(url: Url) -> Tls:
    try:
        return read_tls(url.options)
    except ValueError as error:
        raise url.wrong(str(error)) from error


def _db(url: Url, text: str) -> int:
    if not text:
        return 0
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise url.wrong(f"the database is a number, not {text[:20]!r}")
    return int(text)


def default_url() -> str:
    """Return where Redis is when nobody says: what the environment names, else this machine."""
    for name in ("TASKBULL_REDIS_URL", "REDIS_URL"):
        if url := os.environ.get(name):
            return url
    return "redis://localhost:6379/0"
