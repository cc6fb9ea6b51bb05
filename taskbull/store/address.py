"""Where Redis is: one URL, checked when it is read, as a value that both stores understand.

| URL | what |
|---|---|
| `redis://[user:password@]host:port/db`, `rediss://…` with TLS | one server |
| `unix://[user:password@]/path/to/socket?db=0` | one server, by its socket |
| `redis+sentinel://host:26379,host:26379/service/db` | the primary that the sentinels name |
| `redis+cluster://host:7000,host:7001` | a Redis Cluster |
| `embedded://`, `embedded:///folder` | a private server, started when needed |

`rediss+sentinel://` and `rediss+cluster://` are the same with TLS.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from msgspec import Struct
from msgspec.structs import replace

from taskbull.errors import ConfigurationError

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
    scheme, found, _ = url.partition("://")
    if not found or scheme not in _SCHEMES:
        known = ", ".join(f"{name}://" for name in _SCHEMES)
        raise _wrong(url, f"it must start with one of {known}")
    topology, encrypted = _SCHEMES[scheme]
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=False))
    except ValueError as error:
        raise _wrong(url, str(error)) from error
    if topology == "embedded":
        return _embedded(url, parts)
    _check_options(url, options, encrypted=encrypted, topology=topology)
    address = Address(
        topology,
        credentials=_credentials(parts, options),
        tls=_tls(url, options) if encrypted else None,
    )
    if scheme == "unix":
        return _unix(url, parts, options, address)
    endpoints = _endpoints(url, parts, _DEFAULT_PORT[topology])
    path = [unquote(part) for part in parts.path.split("/") if part]
    if topology == "sentinel":
        if not 1 <= len(path) <= 2:
            raise _wrong(url, "the path is the name of the service and the database: /mymaster/0")
        address = replace(
            address,
            service=path.pop(0),
            sentinel_credentials=Credentials(
                options.get("sentinel_username"), options.get("sentinel_password")
            ),
        )
    db = _db(url, options.get("db", "/".join(path)))
    if topology == "single" and len(endpoints) > 1:
        raise _wrong(url, "several hosts need redis+cluster:// or redis+sentinel://")
    if topology == "cluster" and db != 0:
        raise _wrong(url, "a Redis Cluster has database 0 only")
    return replace(address, endpoints=endpoints, db=db)


def _unix(url: str, parts: SplitResult, options: dict[str, str], address: Address) -> Address:
    if not parts.path or parts.hostname:
        raise _wrong(url, "unix:// is followed by an absolute path, as in unix:///run/redis.sock")
    endpoint = Endpoint(path=unquote(parts.path))
    return replace(address, endpoints=(endpoint,), db=_db(url, options.get("db", "")))


def _wrong(url: str, rule: str) -> ConfigurationError:
    return ConfigurationError(f"Redis URL {masked(url)!r} is not valid: {rule}")


def masked(url: str) -> str:
    """Show a URL without its password, however wrong it is."""
    scheme, separator, rest = url.partition("://")
    rest, _, _ = rest.partition("?")
    userinfo, at, place = rest.rpartition("@")
    if not at:
        return f"{scheme}{separator}{rest}"
    username, _, _ = userinfo.partition(":")
    return f"{scheme}{separator}{username}:***@{place}"


def _embedded(url: str, parts: SplitResult) -> Address:
    if parts.netloc or parts.query:
        raise _wrong(url, "write embedded:// or embedded:///absolute/folder")
    folder = Path(unquote(parts.path)) if parts.path else Path.cwd() / ".taskbull"
    return Address("embedded", folder=str(folder))


def _check_options(
    url: str, options: dict[str, str], *, encrypted: bool, topology: Topology
) -> None:
    known = _OPTIONS if encrypted else _OPTIONS - _TLS_OPTIONS
    if topology == "sentinel":
        known |= _SENTINEL_OPTIONS
    for name in options:
        if name in _TLS_OPTIONS and not encrypted:
            raise _wrong(url, f"option {name!r} needs TLS: use rediss")
        if name not in known:
            raise _wrong(url, f"option {name!r} is unknown; known are {', '.join(sorted(known))}")


def _credentials(parts: SplitResult, options: dict[str, str]) -> Credentials:
    userinfo, _, _ = parts.netloc.rpartition("@")
    username, colon, password = userinfo.partition(":")
    return Credentials(
        unquote(username) or options.get("username"),
        unquote(password) if colon else options.get("password"),
    )


def _tls(url: str, options: dict[str, str]) -> Tls:
    requirement = options.get("ssl_cert_reqs", "required")
    if requirement not in {"required", "none"}:
        raise _wrong(url, f"ssl_cert_reqs is 'required' or 'none', not {requirement!r}")
    check = options.get("ssl_check_hostname", "true").lower()
    if check not in {"true", "false", "1", "0", "yes", "no"}:
        raise _wrong(url, f"ssl_check_hostname is true or false, not {check!r}")
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
        raise _wrong(url, f"the TLS files cannot be used: {error}") from error
    return tls


def _endpoints(url: str, parts: SplitResult, default_port: int) -> tuple[Endpoint, ...]:
    _, _, places = parts.netloc.rpartition("@")
    return tuple(_endpoint(url, place, default_port) for place in places.split(","))


def _endpoint(url: str, place: str, default_port: int) -> Endpoint:
    try:
        one = urlsplit(f"//{place}")
        host, port = one.hostname, one.port
    except ValueError as error:
        raise _wrong(url, f"{place!r} is no host and port: {error}") from error
    name = unquote(host or "localhost")
    try:
        name.encode("idna")  # what a resolver would do, and fail on late
    except UnicodeError:
        host = None
    if port == 0 or (place and not host):
        raise _wrong(url, f"{place!r} is no host and port")
    return Endpoint(name, port or default_port)


def _db(url: str, text: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()):
        raise _wrong(url, f"the database is a number, not {text!r}")
    return int(text)
