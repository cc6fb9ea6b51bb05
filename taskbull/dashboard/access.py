"""Who may look and act: decided before anything else is done with a request.

Without any settings, only browsers on this machine are served, and no proxy. What a browser is
made to send by a page of somebody else is told by its origin; names that somebody else's DNS gives
this machine, by the host.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from inspect import isawaitable
from ipaddress import ip_address
from typing import Final, Protocol, TypeAlias

from msgspec import Struct

from taskbull.core.checks import check_type
from taskbull.dashboard.messages import Refused, Request, Scope
from taskbull.errors import ConfigurationError

_FORWARDED = ("forwarded", "x-forwarded-", "x-real-ip", "via")
"""How the headers begin that proxies add."""

_TRIES: Final = 10
_WINDOW: Final = 60.0
_MOST_PEERS: Final = 10_000


class Access(Struct, frozen=True):
    """Who somebody is, and which actions they may take."""

    user: str
    may: frozenset[str] | None = None
    """The names of actions; None: all that the dashboard allows. An empty set: only look."""


AccessRule: TypeAlias = Callable[[Scope], Access | Awaitable[Access | None] | None]
"""Says who a request is from; None: nobody who may look."""


class Entrance(Protocol):
    """Finds out who a request is from, or refuses it."""

    async def admit(self, request: Request) -> Access: ...


class Loopback:
    """Admits whoever is on this machine, and asks for it by a name of this machine."""

    def __init__(self, allow_hosts: Collection[str] = ()) -> None:
        self._hosts = HostList(allow_hosts, "allow_hosts")

    async def admit(self, request: Request) -> Access:
        """Refuse proxies, other machines, and names that are not this machine's."""
        proxy = next((name for name in request.headers if name.startswith(_FORWARDED)), None)
        if proxy is not None:
            raise Refused(
                403,
                f"This request came through a proxy (it has the header {proxy}), so it is unknown "
                "who sent it. Say who may look: Dashboard(access=…), or taskbull dashboard "
                "--auth-env NAME.",
            )
        if not _is_loopback(request.peer):
            raise Refused(
                403,
                "Only browsers on the same machine are served. Say who else may look: "
                "Dashboard(access=…), or taskbull dashboard --auth-env NAME.",
            )
        if not (_is_own_name(_name_of(request.host)) or self._hosts.has(request.host)):
            raise Refused(
                403,
                "This name is not known to be the dashboard's. If it is, allow it: "
                "Dashboard(allow_hosts=[…]), or taskbull dashboard --allow-host NAME.",
            )
        return Access("local")


class ByRule:
    """Admits whom a function of the user says."""

    def __init__(self, rule: AccessRule) -> None:
        self._rule = rule

    async def admit(self, request: Request) -> Access:
        """Ask the function, which gets the scope as ASGI has it."""
        found = self._rule(request.scope)
        access = await found if isawaitable(found) else found
        if access is None:
            raise Refused(403, "You may not look at this dashboard.")
        check_type("what access returns", access, Access, "be an Access or None")
        return access


class BasicAuth:
    """Admits who knows the password of HTTP's own kind; ten wrong ones a minute lock a peer out."""

    def __init__(self, credentials: str, clock: Callable[[], float] = time.monotonic) -> None:
        user, colon, password = credentials.partition(":")
        if not (colon and user and password):
            raise ConfigurationError("the credentials must be user:password")
        self._user = user
        self._wanted = credentials.encode()
        self._clock = clock
        self._failures: dict[str, list[float]] = {}

    async def admit(self, request: Request) -> Access:
        """Compare in constant time; while a peer is locked out, right ones wait as well."""
        wait = self._locked_for(request.peer)
        if wait > 0:
            raise Refused(
                429,
                "Too many wrong passwords came from this address: wait a minute.",
                retry_after=str(int(wait) + 1),
            )
        given = request.headers.get("authorization")
        if given is not None and hmac.compare_digest(_basic(given), self._wanted):
            return Access(self._user)
        if given is not None:
            self._remember(request.peer)
        raise Refused(
            401,
            "The dashboard needs a user and a password.",
            www_authenticate='Basic realm="taskbull", charset="UTF-8"',
        )

    def _locked_for(self, peer: str) -> float:
        recent = [at for at in self._failures.get(peer, []) if at > self._clock() - _WINDOW]
        return recent[-_TRIES] + _WINDOW - self._clock() if len(recent) >= _TRIES else 0.0

    def _remember(self, peer: str) -> None:
        if len(self._failures) >= _MOST_PEERS:
            oldest = min(self._failures, key=lambda each: self._failures[each][-1])
            del self._failures[oldest]
        self._failures[peer] = [*self._failures.get(peer, [])[-_TRIES:], self._clock()]


class HostList:
    """Names of hosts, each with or without a port; without one, any port will do."""

    def __init__(self, hosts: Collection[str], setting: str) -> None:
        if isinstance(hosts, str):
            raise ConfigurationError(f"{setting} must be a list of names, such as [{hosts!r}]")
        self._hosts = frozenset(host.lower() for host in hosts)

    def has(self, host: str) -> bool:
        """Return whether a host, with its port, is listed."""
        return host in self._hosts or _name_of(host) in self._hosts


def check_origin(request: Request, trusted: HostList) -> None:
    """Refuse a form that a page of somebody else has sent.

    Browsers say where a form comes from by `Sec-Fetch-Site`, or by `Origin` on plain HTTP.
    """
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    host = None if origin is None else origin.lower().partition("://")[2]
    if host and trusted.has(host):
        return
    if site is not None:
        if site != "same-origin":
            raise Refused(
                403,
                f"The form was sent by another site (Sec-Fetch-Site: {site}). If it is the "
                "dashboard behind another name, trust it: trust_origins=[…], or --trust-origin.",
            )
    elif not host or host != request.host:
        said = "does not say which page sent it" if origin is None else f"was sent by {origin}"
        raise Refused(
            403,
            f"The form {said}, and the dashboard is {request.host or 'unnamed'}. If a proxy "
            "changes the name, trust it: trust_origins=[…], or --trust-origin.",
        )


def _basic(header: str) -> bytes:
    scheme, _, word = header.partition(" ")
    if scheme.lower() != "basic":
        return b""
    try:
        return base64.b64decode(word.strip(), validate=True)
    except (binascii.Error, ValueError):
        return b""


def _is_loopback(peer: str) -> bool:
    try:
        address = ip_address(peer)
    except ValueError:
        return False  # also a unix socket: a proxy may be at its other end
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _is_own_name(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def _name_of(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


# Not `no-referrer`: forms would then come with `Origin: null`, which tells nothing about who sent
# them. Other sites get no referrer this way either.
SECURITY: Final[Mapping[str, str]] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types taskbull"
    ),
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""What every answer says to the browser."""
