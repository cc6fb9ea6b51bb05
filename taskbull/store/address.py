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
import ssl
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

from msgspec import Struct
from msgspec.structs import replace

from taskbull.store.home import IDLE, project_folder
from taskbull.store.url import Url, read_url, wrong

Topology = Literal["single", "sentinel", "cluster", "embedded"]

_SCHEMES: dict[str, tuple[Topology, bool]] = {
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
_TLS_OPTIONS = frozenset(
    {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_password", "ssl_cert_reqs"}
    | {"ssl_check_hostname"}
)
_OPTIONS = _TLS_OPTIONS | {"db", "username", "password"}
_SENTINEL_OPTIONS = frozenset({"sentinel_username", "sentinel_password"})


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

    @property
    def words(self) -> tuple[str, ...]:
        """The AUTH command for them, empty if there is nothing to prove."""
        if self.password is None:
            return ()
        return ("AUTH", self.username, self.password) if self.username else ("AUTH", self.password)


class Tls(Struct, frozen=True):
    """How the server proves itself to us, and we to it."""

    ca_certs: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    password: str | None = None
    cert_reqs: str = "required"
    check_hostname: bool = True

    def __repr__(self) -> str:
        """Show the files, never the password."""
        return f"Tls({self.ca_certs!r}, {self.certfile!r}, {self.cert_reqs!r})"

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca_certs)
        if self.cert_reqs == "none":
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        else:
            context.check_hostname = self.check_hostname
        if self.certfile:
            context.load_cert_chain(self.certfile, self.keyfile, self.password)
        return context


class Address(Struct, frozen=True):
    """Everything that is needed to reach Redis and be let in."""

    topology: Topology
    endpoints: tuple[Endpoint, ...] = ()
    credentials: Credentials = Credentials()
    db: int = 0
    tls: Tls | None = None
    service: str = ""
    sentinel_credentials: Credentials = Credentials()
    folder: str = ""
    idle: float = IDLE

    def __str__(self) -> str:
        """Show where, never the password."""
        if self.topology == "embedded":
            return f"embedded://{self.folder}"
        where = ",".join(map(str, self.endpoints))
        match self.topology:
            case "sentinel":
                return f"{where}/{self.service}/{self.db}"
            case "cluster":
                return where
            case _:
                return f"{where}/{self.db}" if self.db else where


def parse(url: str) -> Address:
    """Read a URL; a wrong one is refused with a sentence that says what is wrong."""
    scheme = url.partition("://")[0]
    if scheme not in _SCHEMES:
        raise wrong(url, f"it must start with one of {', '.join(f'{s}://' for s in _SCHEMES)}")
    topology, encrypted = _SCHEMES[scheme]
    parts = read_url(url)
    if topology == "embedded":
        return _embedded(parts)
    _check_options(parts, encrypted=encrypted, topology=topology)
    address = Address(
        topology,
        credentials=_credentials(parts),
        tls=_tls(parts) if encrypted else None,
    )
    if scheme == "unix":
        return _unix(parts, address)
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


def _check_options(url: Url, *, encrypted: bool, topology: Topology) -> None:
    known = _OPTIONS if encrypted else _OPTIONS - _TLS_OPTIONS
    if topology == "sentinel":
        known |= _SENTINEL_OPTIONS
    for name in url.options:
        if name in _TLS_OPTIONS and not encrypted:
            raise url.wrong(f"option {name!r} needs TLS: use rediss")
        if name not in known:
            # After a password that has a "&" in it, its rest would look like an option.
            secret = any("password" in option for option in url.options)
            shown = "an option" if secret else f"option {name!r}"
            raise url.wrong(f"{shown} is unknown; known are {', '.join(sorted(known))}")


def _credentials(url: Url) -> Credentials:
    username = url.username or url.options.get("username")
    password = url.password or url.options.get("password")
    if username and not password:
        password = ""  # an ACL user may have none; without AUTH we would be somebody else
    return Credentials(username or None, password)


def _tls(url: Url) -> Tls:
    options = url.options
    requirement = options.get("ssl_cert_reqs", "required")
    if requirement not in {"required", "none"}:
        raise url.wrong(f"ssl_cert_reqs is 'required' or 'none', not {requirement!r}")
    check = options.get("ssl_check_hostname", "true").lower()
    if check not in {"true", "false", "1", "0", "yes", "no"}:
        raise url.wrong(f"ssl_check_hostname is true or false, not {check!r}")
    tls = Tls(
        ca_certs=options.get("ssl_ca_certs"),
        certfile=options.get("ssl_certfile"),
        keyfile=options.get("ssl_keyfile"),
        password=options.get("ssl_password"),
        cert_reqs=requirement,
        check_hostname=check in {"true", "1", "yes"},
    )
    try:
        tls.context()
    except OSError as error:  # a missing file, or one that is no certificate
        raise url.wrong(f"the TLS files cannot be used: {error}") from error
    return tls


def _db(url: Url, text: str) -> int:
    if not text:
        return 0
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise url.wrong(f"the database is a number, not {text[:20]!r}")
    return int(text)


def default_url() -> str:
    """Find out where Redis is when nobody says: the environment, or this machine."""
    for name in ("TASKBULL_REDIS_URL", "REDIS_URL"):
        if url := os.environ.get(name):
            return url
    return "redis://localhost:6379/0"
