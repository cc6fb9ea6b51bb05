"""Redis addresses: parsing URLs, reading redis-py clients, TLS settings and project folders.

`address_of` accepts a URL or a redis-py client and returns an `Address`, which both stores use.
"""

from __future__ import annotations

import grp
import logging
import os
import pwd
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, assert_never, cast
from urllib.parse import parse_qsl, unquote

from msgspec import Struct
from msgspec.structs import replace

from taskbull.core.keys import PREFIX, QueueKeys
from taskbull.core.validation import nearest
from taskbull.errors import ConfigurationError
from taskbull.store.credentials import AskCredentials, Credentials, Provider

if TYPE_CHECKING:
    import ssl


# Project folders, and whether their files can be trusted.


logger = logging.getLogger(__name__)

FOLDER = ".taskbull"

IDLE = 3600.0
"""Default number of seconds without a client before an embedded server shuts down."""

_PROJECT_FILES = ("pyproject.toml", ".git")


def project_folder() -> Path:
    """Return the `.taskbull` folder of the current project, for its embedded server.

    The project is the nearest directory with a `pyproject.toml` or `.git`, starting at the working
    directory and searching upward. Without one, it is the working directory.

    The directory must belong to this user. Directories and files that other users own or can write
    to are skipped, because any user can create such a file in /tmp.
    """
    here = Path.cwd()
    for place in (here, *here.parents):
        for mark in (place / name for name in _PROJECT_FILES):
            if not os.path.lexists(mark):
                continue
            if (reason := distrust(place, mark)) is not None:
                _warn(f"Ignored {mark} when looking for the project's folder: {reason}")
            elif place.stat().st_uid == os.geteuid():
                return place / FOLDER
    return here / FOLDER


def distrust(*paths: Path) -> str | None:
    """Return why one of these paths cannot be trusted, or None if all can be.

    Each must belong to this user or to root, and must not be writable by other users. The target
    of a symbolic link is checked as well, and so is the folder of a target that is a file.
    """
    for path in paths:
        try:
            places = [path]
            if path.is_symlink():
                real = path.resolve(strict=True)
                places += [real] if real.is_dir() else [real, real.parent]
            for place in places:
                if (reason := _suspicion(place)) is not None:
                    return reason
        except (OSError, RuntimeError) as error:  # RuntimeError: symlink loop, before 3.13
            return f"{path} cannot be examined ({error})"
    return None


def _suspicion(path: Path) -> str | None:
    found = path.lstat()
    if found.st_uid not in {0, os.geteuid()}:
        return f"{path} is owned by another user (uid {found.st_uid})"
    if stat.S_ISLNK(found.st_mode):
        return None  # the mode of a symlink has no meaning
    if found.st_mode & stat.S_IWOTH:
        return f"{path} is writable by other users"
    if found.st_mode & stat.S_IWGRP and not _is_own_group(found.st_gid):
        return f"{path} is writable by the users of group {found.st_gid}"
    return None


def _is_own_group(gid: int) -> bool:
    """Return True for the user's private group, or root's, if it has no other members.

    Many systems use umask 002, which makes files writable by the user's private group.
    """
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container may run under any uid
        user = ""
    try:
        group = grp.getgrgid(gid)
    except KeyError:
        return False
    return (gid == 0 or group.gr_name == user) and set(group.gr_mem) <= {user, "root"}


@cache
def _warn(message: str) -> None:
    """Log each distinct message only once."""
    logger.warning(message)


# TLS settings, with the names of redis-py's `ssl_…` options.


_REQUIREMENTS = ("none", "optional", "required")  # in the order of the `ssl.CERT_…` values
_OCSP = tuple(
    f"ssl_{name}"
    for name in ("validate_ocsp", "validate_ocsp_stapled", "ocsp_context", "ocsp_expected_cert")
)
_TLS_TEXTS = ("ca_certs", "certfile", "keyfile", "password", "ca_path", "ca_data", "ciphers")
_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class Tls(Struct, frozen=True):
    """TLS settings: certificates and how strictly to verify them."""

    ca_certs: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    password: str | None = None
    cert_reqs: str = "required"
    check_hostname: bool = True
    ca_path: str | None = None
    ca_data: str | None = None
    ciphers: str | None = None
    min_version: int | None = None
    include_flags: int = 0
    """`ssl.VerifyFlags` to set in addition to Python's defaults."""
    exclude_flags: int = 0
    """`ssl.VerifyFlags` to clear."""

    def __repr__(self) -> str:
        """Return a description without the password."""
        return f"Tls({self.ca_certs!r}, {self.certfile!r}, {self.cert_reqs!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Return the fields that rich may show in tracebacks."""
        return [("ca_certs", self.ca_certs), ("certfile", self.certfile)]

    def context(self) -> ssl.SSLContext:
        """Return the SSL context for sockets.

        Raises `OSError` or `ValueError` if a file or a setting is invalid.
        """
        import ssl  # noqa: PLC0415 - takes as long as `python -c pass`; only TLS users need it

        context = ssl.create_default_context(
            cafile=self.ca_certs, capath=self.ca_path, cadata=self.ca_data
        )
        requirement = ssl.VerifyMode(_REQUIREMENTS.index(self.cert_reqs))
        context.check_hostname = self.check_hostname and requirement is not ssl.CERT_NONE
        context.verify_mode = requirement
        if self.certfile:
            context.load_cert_chain(self.certfile, self.keyfile, self.password)
        if self.ciphers:
            context.set_ciphers(self.ciphers)
        if self.min_version is not None:
            context.minimum_version = ssl.TLSVersion(self.min_version)
        flags = (context.verify_flags | self.include_flags) & ~self.exclude_flags
        context.verify_flags = ssl.VerifyFlags(flags)
        return context


def read_tls(settings: Mapping[str, Any], wrong: Callable[[str], ConfigurationError]) -> Tls:
    """Return the TLS settings from redis-py's `ssl_…` options.

    Values may be strings, as in a URL, or the objects that redis-py accepts. Raises the error that
    `wrong` returns for a problem: an invalid or unsupported option, or a file that cannot be used.
    """
    try:
        return _read_tls(settings)
    except ValueError as error:
        raise wrong(str(error)) from error


def _read_tls(settings: Mapping[str, Any]) -> Tls:
    for name in _OCSP:
        if settings.get(name) and str(settings[name]).lower() not in {"false", "0", "no"}:
            raise ValueError(
                f"{name} is not supported: taskbull does not check certificates by OCSP. Remove "
                "the setting, or check revocation lists with "
                "ssl_include_verify_flags=VERIFY_CRL_CHECK_LEAF"
            )
    minimum = settings.get("ssl_min_version")
    texts = {name: str(settings.get(f"ssl_{name}") or "") or None for name in _TLS_TEXTS}
    tls = Tls(
        **texts,
        cert_reqs=_requirement(settings.get("ssl_cert_reqs")),
        check_hostname=_switch("ssl_check_hostname", settings.get("ssl_check_hostname")),
        min_version=None if minimum is None else int(minimum),
        include_flags=_verify_flags(settings, "ssl_include_verify_flags"),
        exclude_flags=_verify_flags(settings, "ssl_exclude_verify_flags"),
    )
    for file in (tls.ca_certs, tls.certfile, tls.keyfile):
        if file is not None and not Path(file).is_file():
            raise ValueError(f"the TLS files cannot be used: there is no file {file!r}")
    try:
        tls.context()
    except (OSError, ValueError) as error:  # a missing file, or one that is not a certificate
        raise ValueError(f"the TLS files cannot be used: {error}") from error
    return tls


def _requirement(value: object) -> str:
    """Accept the spellings of Python (`CERT_NONE`), redis-py (`none`) and Celery."""
    if value is None:
        return "required"
    if isinstance(value, IntEnum):  # a member of `ssl.VerifyMode`
        value = value.name
    name = str(value).lower().removeprefix("ssl.").removeprefix("cert_")
    if name not in _REQUIREMENTS:
        raise ValueError(f"ssl_cert_reqs is 'required', 'optional' or 'none', not {value!r}")
    return name


def _verify_flags(settings: Mapping[str, Any], name: str) -> int:
    """Accept a list of `ssl.VerifyFlags`, or a string of names separated by commas."""
    from ssl import VerifyFlags  # noqa: PLC0415 - see `Tls.context`

    given = settings.get(name) or ()
    if isinstance(given, str):
        given = [word for word in given.strip("[] ").replace(",", " ").split() if word]
    elif not isinstance(given, Iterable):
        given = [given]
    flags = 0
    for flag in cast("Iterable[object]", given):
        word = str(flag).removeprefix("VerifyFlags.")
        if isinstance(flag, int):
            flags |= flag
        elif word in VerifyFlags.__members__:
            flags |= VerifyFlags[word]
        else:
            known = ", ".join(VerifyFlags.__members__)
            raise ValueError(f"{name} is a list of {known}, not {flag!r}")
    return flags


def _switch(name: str, value: object) -> bool:
    if value is None or isinstance(value, bool):
        return value is not False
    if str(value).lower() not in _WORDS:
        raise ValueError(f"{name} is true or false, not {value!r}")
    return _WORDS[str(value).lower()]


# Splitting URLs. The standard library's parser supports one host only, and its errors may quote
# a password.


_SHAPE = re.compile(
    r"(?P<scheme>[a-z]+(\+[a-z]+)?)://"
    r"((?P<userinfo>[^/?#@\[\]\s]*)@)?"
    r"(?P<hosts>[^/?#@]*)"
    r"(?P<path>/[^?#@]*)?"  # an "@" here would end a password
    r"(\?(?P<query>[^#@]*))?"
)

# A mistyped URL with only a scheme, a host and a port. It cannot contain a password.
_HARMLESS = re.compile(
    r"\s*([a-z+]{4,16}:?/{1,2})?(localhost|[A-Za-z0-9.-]+:[0-9]{1,5})(/[0-9]{0,3})?\s*"
)


class Url(Struct, frozen=True):
    """The parts of a URL.

    User name, password and options are percent-decoded. Hosts and path are not.
    """

    text: str
    scheme: str
    username: str
    password: str
    hosts: tuple[str, ...]
    path: str
    options: dict[str, str]

    def __repr__(self) -> str:
        """Return the URL without its password and options."""
        return f"Url({masked(self.text)!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Return the fields that rich may show in tracebacks."""
        return [("text", masked(self.text))]

    def wrong(self, rule: str) -> ConfigurationError:
        """Return the error for a URL that breaks a rule."""
        return wrong(self.text, rule)


def read_url(text: str) -> Url:
    """Split a URL into its parts.

    Raises `ConfigurationError`, which never shows the password, if the URL is malformed.
    """
    shape = _SHAPE.fullmatch(text)
    if shape is None:
        raise wrong(
            text,
            "it has the form scheme://user:password@host:port/path?option=value, and characters "
            "such as / ? # @ [ ] in a user name or password are written as %2F and so on",
        )
    username, _, password = (shape["userinfo"] or "").partition(":")
    return Url(
        text,
        shape["scheme"],
        unquote(username),
        unquote(password),
        tuple(shape["hosts"].split(",")) if shape["hosts"] else (),
        shape["path"] or "",
        dict(parse_qsl(shape["query"] or "", keep_blank_values=True)),
    )


def wrong(text: str, rule: str) -> ConfigurationError:
    """Return the error for a URL that breaks a rule."""
    return ConfigurationError(f"Redis URL {masked(text)!r} is not valid: {rule}")


def masked(text: str) -> str:
    """Return a URL without its password and options.

    A malformed URL is returned only if it cannot contain a password, otherwise `***`.
    """
    shape = _SHAPE.fullmatch(text)
    if shape is None:
        return text if _HARMLESS.fullmatch(text) else "***"
    username, colon, _ = (shape["userinfo"] or "").partition(":")
    login = "" if shape["userinfo"] is None else f"{username}{colon and ':***'}@"
    return f"{shape['scheme']}://{login}{shape['hosts']}{shape['path'] or ''}"


# Options of a Redis URL: all that redis-py's `from_url` accepts, and taskbull's own.
#
# One URL often serves a whole application, so options without a meaning for taskbull are ignored.
# A name that redis-py does not know either is an error.


LOGIN = frozenset({"db", "username", "password"})
SENTINEL = frozenset({"sentinel_username", "sentinel_password"})
TLS = frozenset(
    {f"ssl_{name}" for name in _TLS_TEXTS}
    | {"ssl_cert_reqs", "ssl_check_hostname", "ssl_min_version"}
    | {"ssl_include_verify_flags", "ssl_exclude_verify_flags", *_OCSP}
)
OBEYED = frozenset({"socket_timeout", "socket_connect_timeout", "client_name"})
IGNORED = frozenset(
    {"socket_keepalive", "socket_keepalive_options", "socket_read_size", "socket_type"}
    | {"retry", "retry_on_timeout", "retry_on_error", "health_check_interval", "max_connections"}
    | {"timeout", "protocol", "legacy_responses", "encoding", "encoding_errors", "lib_name"}
    | {"decode_responses", "lib_version", "driver_info", "single_connection_client"}
    | {"auto_close_connection_pool", "parser_class", "connection_class", "encoder_class"}
    | {"command_packer", "credential_provider", "redis_connect_func", "event_dispatcher"}
    | {"cache", "cache_config", "host", "port", "path", "read_from_replicas", "cache_factory"}
    | {"cluster_error_retry_attempts", "require_full_coverage", "reinitialize_steps"}
    | {"dynamic_startup_nodes", "load_balancing_strategy", "address_remap", "policy_resolver"}
    | {"skip_full_coverage_check", "maint_notifications_config", "startup_nodes", "url"}
)


def check_parameters(url: Url, *, encrypted: bool, sentinel: bool) -> None:
    """Raise `ConfigurationError` if an option is unknown or needs another scheme."""
    known = LOGIN | TLS | OBEYED | IGNORED
    if sentinel:
        known |= SENTINEL
    for name in url.options:
        if name in TLS and not encrypted:
            raise url.wrong(f"option {name!r} needs TLS: use rediss")
        if name not in known:
            # Do not show the name: it may be the rest of a password that contains "&".
            if any("password" in option for option in url.options):
                raise url.wrong("an option is unknown")
            near = nearest(name, known)
            hint = f"did you mean {near!r}?" if near else "redis-py has none of that name"
            raise url.wrong(f"option {name!r} is unknown; {hint}")


def read_seconds(url: Url, name: str) -> float | None:
    """Return an option that is a number of seconds, or None if it is not set.

    Raises `ConfigurationError` unless it is greater than 0 and at most one day.
    """
    text = url.options.get(name)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86_400:  # NaN also fails this check
        raise url.wrong(f"{name} is a number of seconds, greater than 0")
    return seconds


# Addresses, and the URLs that are parsed and checked to make them.
#
# | URL | meaning |
# |---|---|
# | `redis://[user:password@]host:port/db`, `rediss://…` with TLS | one server |
# | `unix://[user:password@]/path/to/socket?db=0` | one server, over its socket |
# | `redis+sentinel://host:26379,host:26379/service/db` | the primary that the sentinels name |
# | `redis+cluster://host:7000,host:7001` | a Redis Cluster |
# | `embedded://`, `embedded:///folder`, `…?idle=3600` | a private server, started when needed |
#
# `rediss+sentinel://` and `rediss+cluster://` are the same with TLS.


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
_CELERY = {"sentinel": "redis+sentinel://host:26379/mymaster/0", "redis+socket": "unix:///path"}
_DEFAULT_PORT = {"single": 6379, "sentinel": 26379, "cluster": 6379}

_PLACE = re.compile(r"[A-Za-z0-9.-]+:[0-9]{1,5}(/[0-9]{0,3})?|localhost")
_HOST = re.compile(r"(\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[^:\[\]\s]+))(:(?P<port>[0-9]{1,6}))?")


class Endpoint(Struct, frozen=True):
    """A server's listening socket: a host and port, or a path."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Address(Struct, frozen=True):
    """Everything that a store needs to reach Redis and log in."""

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
        """True if keys are distributed over the nodes of a Redis Cluster."""
        return self.topology == "cluster"

    @property
    def primary_only(self) -> bool:
        """True if a server must confirm that it is the primary.

        A sentinel may name an outdated one.
        """
        return self.topology == "sentinel"

    def __str__(self) -> str:
        """Return the address without the password."""
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
    """Return the address for a URL.

    Raises `ConfigurationError` if the URL is invalid.
    """
    scheme = url.partition("://")[0]
    if scheme not in _SCHEMES:
        hint = f"; did you mean redis://{url}?" if _PLACE.fullmatch(url) else ""
        if scheme in _CELERY:
            hint = f". Celery's {scheme}:// is {_CELERY[scheme]} here"
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
        tls=read_tls(parts.options, parts.wrong) if encrypted else None,
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
        name.encode("idna")  # fail now, not later in the resolver
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
    return _login(username, url.password or url.options.get("password"))


def _login(username: str | None, password: str | None) -> Credentials:
    if username:
        return Credentials(username, password or "")  # It needs AUTH even without a password.
    return Credentials(None, password)


def _db(url: Url, text: str) -> int:
    if not text:
        return 0
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise url.wrong(f"the database is a number, not {text[:20]!r}")
    return int(text)


def default_url() -> str:
    """Return the URL from the environment, or that of a Redis on this machine.

    `TASKBULL_REDIS_URL` takes precedence over `REDIS_URL`.
    """
    for name in ("TASKBULL_REDIS_URL", "REDIS_URL"):
        if url := os.environ.get(name):
            return url
    return "redis://localhost:6379/0"


# Addresses of redis-py clients. taskbull reads their settings and never uses their sockets.
#
# Clients are recognized by their attributes instead of their class, so that a program without
# `redis.asyncio` does not import it.


if TYPE_CHECKING:
    from redis import Redis, RedisCluster
    from redis.asyncio import Redis as AsyncRedis
    from redis.asyncio import RedisCluster as AsyncRedisCluster

    Where: TypeAlias = str | Address | Redis | AsyncRedis | RedisCluster | AsyncRedisCluster
    """A Redis URL, an `Address` or a redis-py client."""
else:
    Where = object


_MARKS = ("connection_pool", "nodes_manager", "master_for")


def address_of(redis: Where | None, credentials: AskCredentials | None = None) -> Address:
    """Return the address for a URL or a redis-py client.

    None means `default_url`. `credentials` is called for each new connection,
    and its result replaces the password. Raises `ConfigurationError` if the URL is invalid or
    taskbull cannot use the client.
    """
    address = _address_of(redis)
    if credentials is None:
        return address
    if address.topology == "embedded":
        raise ConfigurationError("credentials cannot be used with embedded://, which has no users")
    return replace(
        address, credentials=replace(address.credentials, provider=Provider(credentials))
    )


def _address_of(redis: Where | None) -> Address:
    match redis:
        case None:
            return parse(default_url())
        case "":
            raise ConfigurationError(
                "redis must not be empty: pass a URL, or None for TASKBULL_REDIS_URL, REDIS_URL or "
                "redis://localhost:6379/0"
            )
        case str():
            return parse(redis)
        case Address():
            return redis
        case _ if any(hasattr(redis, mark) for mark in _MARKS):
            return _of_client(redis)
        case _:
            pass
    raise ConfigurationError(
        "redis must be a URL such as redis://localhost:6379/0, or a redis-py client, got "
        f"{type(redis).__qualname__}"
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
        _client_credentials(settings),
        int(settings.get("db") or 0),
        _client_tls(settings, pool.connection_class),
    )


def _refuse(name: str, value: object) -> None:
    """Reject a client setting that changes how it connects and that taskbull cannot apply."""
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
        _client_credentials(settings),
        tls=_client_tls(settings, settings.get("connection_class")),
    )


def _sentinels(pool: Any, settings: Mapping[str, Any]) -> Address:
    if not pool.is_master:
        raise ConfigurationError(
            "redis must connect to the primary, not to replicas: use sentinel.master_for(…)"
        )
    asked = [one.connection_pool.connection_kwargs for one in pool.sentinel_manager.sentinels]
    return Address(
        "sentinel",
        tuple(Endpoint(str(one["host"]), int(one["port"])) for one in asked),
        _client_credentials(settings),
        int(settings.get("db") or 0),
        _client_tls(settings, pool.connection_class),
        str(pool.service_name),
        _client_credentials(asked[0]),
    )


def _client_credentials(settings: Mapping[str, Any]) -> Credentials:
    if (provider := settings.get("credential_provider")) is not None:
        return Credentials(provider=Provider(provider))
    return _login(settings.get("username"), settings.get("password") or None)


def _client_tls(settings: Mapping[str, Any], connection_class: Any) -> Tls | None:
    name = getattr(connection_class, "__name__", "")
    if not settings.get("ssl") and "SSL" not in name:
        return None
    return read_tls(settings, lambda problem: ConfigurationError(f"redis: {problem}"))


# The queues of an app, a worker or a command.


class Namespace(Struct, frozen=True):
    """The queues under one key prefix in one Redis.

    Raises `ConfigurationError` if the prefix or the hash tag is invalid.
    """

    address: Address
    prefix: str = PREFIX
    hash_tag: bool | None = None
    """True to put queue names in braces in keys. None does so only in a Cluster, which needs it."""

    def __post_init__(self) -> None:
        self.keys("any")

    def __str__(self) -> str:
        """Return the address and prefix without the password."""
        return f"{self.address}, prefix {self.prefix}"

    def keys(self, queue: str) -> QueueKeys:
        """Return the keys of a queue.

        Raises `ConfigurationError` if the name is invalid.
        """
        return QueueKeys(queue, self.prefix, self.address.clustered, self.hash_tag)
