"""Access control, checked before anything else in a request is processed.

By default, only browsers on this machine are served, and proxies are refused. The origin check
rejects forms that another site makes the browser send (CSRF). The host check rejects foreign DNS
names that point to this machine (DNS rebinding).
"""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from inspect import isawaitable
from ipaddress import ip_address
from typing import Final, Protocol, TypeAlias
from urllib.parse import quote, urlencode

from msgspec import Struct

from taskbull.app.app import App
from taskbull.core.validation import check_list, check_text, check_type
from taskbull.dashboard.html import Redactor
from taskbull.dashboard.messages import Form, Refused, Request, Scope
from taskbull.errors import ConfigurationError
from taskbull.monitor.server import Server

_log = logging.getLogger("taskbull.dashboard")

_FORWARDED = ("forwarded", "x-forwarded-", "x-real-ip", "via")
"""Prefixes of the headers that proxies add."""

_TRIES: Final = 10
_WINDOW: Final = 60.0
_MOST_PEERS: Final = 10_000
_LONGEST_USER: Final = 100


class Access(Struct, frozen=True):
    """A user and the actions they may take."""

    user: str
    may: frozenset[str] | None = None
    """Names of the permitted actions.

    `None` permits every action that the dashboard allows; an empty set permits viewing only.
    """


AccessRule: TypeAlias = Callable[[Scope], Access | Awaitable[Access | None] | None]
"""Function that returns the user of a request, or `None` to deny access."""


class Authenticator(Protocol):
    """Identifies the user of a request, or refuses the request."""

    async def authenticate(self, request: Request) -> Access: ...


class Loopback:
    """Admits browsers on this machine that use one of its local names."""

    def __init__(self, allow_hosts: Collection[str] = ()) -> None:
        self._hosts = HostList(allow_hosts, "allow_hosts")

    async def authenticate(self, request: Request) -> Access:
        """Refuse proxies, other machines and unknown host names."""
        proxy = next((name for name in request.headers if name.startswith(_FORWARDED)), None)
        if proxy is not None:
            raise Refused(
                403,
                f"This request came through a proxy (header: {proxy}), so its user is unknown. "
                "To allow it, use Dashboard(access=…) or taskbull dashboard --auth-env NAME.",
            )
        if not _is_loopback(request.peer):
            raise Refused(
                403,
                "Only local browsers are allowed. To allow others, use Dashboard(access=…) or "
                "taskbull dashboard --auth-env NAME.",
            )
        if not (_is_own_name(_name_of(request.host)) or self._hosts.has(request.host)):
            raise Refused(
                403,
                "This host name is not allowed. To allow it, use Dashboard(allow_hosts=[…]) or "
                "taskbull dashboard --allow-host NAME.",
            )
        return Access("local")


class CustomRule:
    """Admits the users that a user-defined function accepts."""

    def __init__(self, rule: AccessRule) -> None:
        self._rule = rule

    async def authenticate(self, request: Request) -> Access:
        """Call the function with the ASGI scope; refuse the request if it returns `None`."""
        found = self._rule(request.scope)
        access = await found if isawaitable(found) else found
        if access is None:
            raise Refused(403, "You do not have access to this dashboard.")
        check_type("what access returns", access, Access, "be an Access or None")
        return access


class WrongTries:
    """Counts and logs wrong passwords by user and address, but never logs the password.

    The key includes the user because all clients behind a proxy share one address. The tenth
    wrong password within a minute is logged as a lockout; later ones are refused and not logged.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: dict[tuple[str, str], list[float]] = {}

    def refuse(self, what: str, user: str, peer: str) -> None:
        """Count a wrong password or token.

        Raises:
            Refused: If there were too many in the last minute.
        """
        user, now = user[:_LONGEST_USER], self._clock()
        recent = [at for at in self._failures.get((user, peer), ()) if at > now - _WINDOW]
        if len(recent) >= _TRIES:
            raise Refused(
                429,
                f"Too many failed logins. Wait a minute, or use the correct {what}.",
                retry_after=str(int(recent[-_TRIES] + _WINDOW - now) + 1),
            )
        if len(self._failures) >= _MOST_PEERS:
            del self._failures[min(self._failures, key=lambda each: self._failures[each][-1])]
        self._failures.pop((user, peer), None)
        self._failures[user, peer] = [*recent, now]
        _log.warning("wrong %s: user=%a from=%a", what, user, peer)
        if len(recent) + 1 == _TRIES:
            _log.warning("locked out for a minute: user=%a from=%a", user, peer)


class BasicAuth:
    """HTTP Basic authentication for one user. Too many wrong passwords cause a lockout.

    The correct password works even during a lockout, so one user cannot lock out another.
    """

    def __init__(self, credentials: str, clock: Callable[[], float] = time.monotonic) -> None:
        user, colon, password = credentials.partition(":")
        if not (colon and user and password):
            raise ConfigurationError("the credentials must be user:password")
        self._user = user
        self._wanted = credentials.encode()
        self._tries = WrongTries(clock)

    async def authenticate(self, request: Request) -> Access:
        """Return the user if the credentials match. They are compared in constant time."""
        header = request.headers.get("authorization")
        if header is not None:
            given = _basic(header)
            if hmac.compare_digest(given, self._wanted):
                return Access(self._user)
            user = given.partition(b":")[0].decode("utf-8", "backslashreplace")
            self._tries.refuse("password", user, request.peer)
        raise Refused(
            401,
            "This dashboard requires a user name and a password.",
            www_authenticate='Basic realm="taskbull", charset="UTF-8"',
        )


class TokenAuth:
    """Admits local browsers that were opened with a token, and local scripts that send it.

    Every user of a machine can connect to 127.0.0.1, so the token identifies its owner.
    A browser gets the token once, in the address that the command prints, and then stores a
    cookie. The cookie is derived from the token; the token cannot be recovered from it.
    """

    def __init__(self, token: str, allow_hosts: Collection[str] = ()) -> None:
        if not token:
            raise ConfigurationError("the token must not be empty")
        self._token = token.encode()
        self._cookie = hmac.digest(self._token, b"taskbull dashboard cookie", "sha256").hex()
        self._loopback = Loopback(allow_hosts)
        self._tries = WrongTries()

    async def authenticate(self, request: Request) -> Access:
        """Check the cookie or token in constant time.

        A browser that sends the token is redirected to the same address without it.
        """
        access = await self._loopback.authenticate(request)
        if hmac.compare_digest(_cookie(request).encode(), self._cookie.encode()):
            if "token" in dict(request.query.pairs):
                raise _without_token(request)
            return access
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        by_header = scheme.lower() == "bearer"
        given = bearer.strip() if by_header else request.query.get("token")
        if given and hmac.compare_digest(given.encode("utf-8", "replace"), self._token):
            if by_header:
                return access
            kept = f"{_cookie_name(request)}={self._cookie}; HttpOnly; SameSite=Strict; Path=/"
            raise _without_token(request, set_cookie=kept)
        if given:
            self._tries.refuse("token", "", request.peer)
        raise Refused(
            401,
            "This dashboard requires a token. Open the address that `taskbull dashboard` printed "
            "at startup; it ends with the token. Scripts send `Authorization: Bearer TOKEN`.",
            www_authenticate='Bearer realm="taskbull"',
        )


def _cookie_name(request: Request) -> str:
    """Return a cookie name that contains the port: browsers share cookies across ports."""
    port = request.host.rpartition(":")[2]
    return f"taskbull-{port if port.isascii() and port.isdecimal() else 80}"


def _cookie(request: Request) -> str:
    pairs = (each.strip().partition("=") for each in request.headers.get("cookie", "").split(";"))
    return next((value for name, _, value in pairs if name == _cookie_name(request)), "")


def _without_token(request: Request, **headers: str) -> Refused:
    rest = urlencode([pair for pair in request.query.pairs if pair[0] != "token"])
    page = quote(request.path.rpartition("/")[2]) or "./"
    address = f"{page}?{rest}" if rest else page
    return Refused(303, "The address without the token.", location=address, **headers)


class HostList:
    """A set of host names. A name without a port matches any port."""

    def __init__(self, hosts: Collection[str], setting: str) -> None:
        check_list(setting, hosts, "names")
        self._hosts = frozenset(check_text(f"a name in {setting}", host).lower() for host in hosts)

    def has(self, host: str) -> bool:
        """Return True if a host (with its port, if any) is in the list."""
        return host in self._hosts or _name_of(host) in self._hosts


def check_fetch(request: Request) -> None:
    """Refuse requests made by pages of other sites, except plain links to pages.

    Otherwise another site could put load on the dashboard and measure its response times.
    """
    site = request.headers.get("sec-fetch-site", "none")
    if site in {"same-origin", "none"}:
        return
    is_link = (
        request.headers.get("sec-fetch-mode") == "navigate"
        and request.headers.get("sec-fetch-dest", "document") == "document"
        and request.path not in {"/download", "/stack"}  # A worker does work for these.
    )
    if not is_link:
        raise Refused(403, f"Another site requested this page (Sec-Fetch-Site: {site}).")


def check_origin(request: Request, trusted: HostList) -> None:
    """Refuse a form that a page of another site has sent.

    Browsers send the source of a form in `Sec-Fetch-Site`, or in `Origin` over plain HTTP.
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
                f"The form was sent by another site (Sec-Fetch-Site: {site}). If that is this "
                "dashboard under another name, use trust_origins=[…] or --trust-origin.",
            )
    elif not host or host != request.host:
        said = "does not name the page that sent it" if origin is None else f"was sent by {origin}"
        raise Refused(
            403,
            f"The form {said}, but the dashboard's host is {request.host or 'unknown'}. If a proxy "
            "changes the host name, use trust_origins=[…] or --trust-origin.",
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
        return False  # includes Unix sockets: the client may be a proxy
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


# Not `no-referrer`: browsers would then send forms with `Origin: null`, which hides their source.
# With `same-origin`, other sites get no referrer either.
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
"""Headers of every response."""


# The context of an admitted request, the dashboard settings and the audit record.


class Audit(Struct, frozen=True):
    """An action that a user took, as logged and passed to `on_action`.

    It never contains job data.
    """

    action: str
    queue: str
    ids: tuple[str, ...]
    """Ids of the affected jobs, at most 20."""
    count: int
    """Number of jobs or queues changed."""
    group: str
    """Fingerprint of the error group, if the jobs were selected by error."""
    by: str
    peer: str
    """Address of the client."""
    outcome: str


class DashboardSettings(Struct, frozen=True):
    """Settings of a dashboard."""

    allowed: frozenset[str]
    """Names of the actions that are enabled."""
    read_only: bool
    label: str | None
    redactor: Redactor
    on_action: Callable[[Audit], object] | None


class RequestContext(Struct, frozen=True):
    """An admitted request with its user, the settings and the Redis server."""

    request: Request
    access: Access
    settings: DashboardSettings
    server: Server
    app: App | None
    throttle: Callable[[], Awaitable[None]]
    """Function that waits until a scan may send its next call."""

    @property
    def query(self) -> Form:
        """The query string parameters."""
        return self.request.query

    def may(self, action: str) -> bool:
        """Return True if the action is enabled and this user may take it."""
        allowed = action in self.settings.allowed and not self.settings.read_only
        return allowed and (self.access.may is None or action in self.access.may)
