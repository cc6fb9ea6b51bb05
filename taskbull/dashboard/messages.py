"""HTTP requests, form data and responses, as ASGI passes them."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import parse_qsl, quote

from anyio import move_on_after, to_thread
from msgspec import Struct

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

T = TypeVar("T")

MOST_BYTES: Final = 1_000_000
"""Maximum size of a form, in bytes."""

MOST_EDITED_BYTES: Final = 10_000_000
"""Maximum size of the form that edits a job's data, in bytes."""

MOST_FIELDS: Final = 1_100
"""Maximum number of form fields: 1,000 ids plus the other fields."""


FORM_SECONDS: Final = 60.0
"""Time limit for receiving a form, in seconds."""

_SECONDS = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,3})?")


class Refused(Exception):
    """A request that is answered with an error or a redirect.

    `reason` is a sentence for the user: what went wrong and what to do about it.
    """

    def __init__(self, status: int, reason: str, **headers: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = {name.replace("_", "-").lower(): value for name, value in headers.items()}


class Form(Struct, frozen=True):
    """The fields of a form or of a query string."""

    pairs: tuple[tuple[str, str], ...]

    def get(self, name: str, default: str = "") -> str:
        """Return the first value of a field, or `default` if it is missing."""
        return next((value for key, value in self.pairs if key == name), default)

    def all(self, name: str) -> list[str]:
        """Return the distinct values of a field, in order."""
        return list(dict.fromkeys(value for key, value in self.pairs if key == name))

    def need(self, name: str) -> str:
        """Return the value of a required field.

        Raises:
            Refused: If the field is missing or empty.
        """
        value = self.get(name)
        if not value:
            raise Refused(400, f"The request lacks {name!r}. Reload the page.")
        return value

    def number(self, name: str, default: int = 0) -> int:
        """Return an integer field, or `default` if it is missing or empty."""
        text = self.get(name)
        if not text:
            return default
        if not text.isascii() or not text.isdecimal() or len(text) > 18:
            raise Refused(400, f"{name!r} must be a whole number.")
        return int(text)

    def seconds(self, name: str) -> float:
        """Return a duration field in seconds, to the millisecond; 0 if it is missing or empty."""
        text = self.get(name)
        if text and not _SECONDS.fullmatch(text):
            raise Refused(400, f"{name!r} must be a number of seconds.")
        return float(text or 0)


class Request:
    """An HTTP request."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope = scope
        self._receive = receive
        self.method = str(scope["method"])
        self.path = _path_below_mount(scope)
        self.headers = _headers(scope)
        self.query = _fields(bytes(scope.get("query_string", b"")).decode("latin-1"))

    @property
    def peer(self) -> str:
        """The client's address, or an empty string if the server does not provide it."""
        client = self.scope.get("client")
        return str(client[0]) if client else ""

    @property
    def host(self) -> str:
        """The `Host` header in lowercase: the name the browser used, with its port if given."""
        return self.headers.get("host", "").lower()

    async def form(self, most: int = MOST_BYTES) -> Form:
        """Read the submitted form.

        Raises:
            Refused: If it is not a form, is larger than `most` bytes or arrives too slowly.
        """
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/x-www-form-urlencoded":
            raise Refused(415, "Only forms from this dashboard are accepted.")
        with move_on_after(FORM_SECONDS):
            return await self._read_form(most)
        raise Refused(408, f"The form did not arrive within {FORM_SECONDS:.0f} s.")

    async def _read_form(self, most: int) -> Form:
        body = bytearray()
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Refused(400, "The form was incomplete.")
            body += message.get("body", b"")
            if len(body) > most:
                raise Refused(413, f"The form is longer than {most:,} bytes.")
            more = bool(message.get("more_body", False))
        return _fields(body.decode("latin-1"))

    async def ended(self) -> None:
        """Wait until the browser disconnects."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


class Response(Struct, frozen=True):
    """A response with a complete body."""

    body: bytes
    status: int = 200
    content_type: str = "text/html; charset=utf-8"
    headers: Mapping[str, str] = {}
    after: Callable[[], Awaitable[None]] | None = None
    """Callback that runs after the response has been sent."""

    @classmethod
    def attachment(cls, body: bytes, name: str) -> Response:
        """Return a file download that browsers never display, whatever it contains."""
        return cls(
            body,
            content_type="application/octet-stream",
            headers={
                "content-disposition": f'attachment; filename="{name}"',
                "content-security-policy": "sandbox; default-src 'none'",
            },
        )

    @classmethod
    def redirect(cls, to: str, after: Callable[[], Awaitable[None]] | None = None) -> Response:
        """Return a redirect that the browser follows with a GET request."""
        # Headers are latin-1. `%` is safe because the address is already encoded.
        location = quote(to, safe="%/:?#[]@!$&'()*+,;=~", errors="backslashreplace")
        return cls(b"", 303, headers={"location": location}, after=after)


async def run_in_thread(work: Callable[..., T], *args: Any) -> T:
    """Run a slow function in a thread, so that it does not block other requests."""
    return await to_thread.run_sync(work, *args)


class Stream(Struct, frozen=True):
    """A response sent in chunks, until the generator finishes or the browser disconnects."""

    chunks: AsyncGenerator[bytes, None]
    content_type: str = "text/event-stream"
    headers: Mapping[str, str] = {}
    viewer: tuple[str, str] | None = None
    """User and address of the viewer if this stream updates an open page, otherwise `None`."""


def _path_below_mount(scope: Scope) -> str:
    """Return the path below the mount point.

    ASGI 3 servers pass the full path, older ones only the part below the mount point.
    """
    path, root = str(scope["path"]), str(scope.get("root_path", "")).rstrip("/")
    # A proxy may have removed the root path of a Starlette app, which is a part of this one.
    mount = root.removeprefix(str(scope.get("app_root_path", "")).rstrip("/"))
    for start in (root, mount):
        if start and (path == start or path.startswith(f"{start}/")):
            path = path[len(start) :]
            break
    # Litestar adds a slash to the path of a mounted app. A browser resolves relative links by the
    # path that it sent.
    return f"{path.rstrip('/')}/" if path_sent(scope).endswith("/") else path.rstrip("/")


def path_sent(scope: Scope) -> str:
    """Return the path that the web server received, as far as the scope has it."""
    raw = bytes(scope.get("raw_path") or b"").partition(b"?")[0]
    return raw.decode("latin-1") or str(scope["path"])


def _headers(scope: Scope) -> dict[str, str]:
    found: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = bytes(raw_name).decode("latin-1").lower(), bytes(raw_value).decode("latin-1")
        # Join repeated headers, so that a duplicate never passes an access check.
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def _fields(encoded: str) -> Form:
    try:
        pairs = parse_qsl(
            encoded,
            keep_blank_values=True,
            errors="surrogateescape",
            max_num_fields=MOST_FIELDS,
        )
    except ValueError:
        raise Refused(413, f"A form can have at most {MOST_FIELDS:,} fields.") from None
    return Form(tuple(pairs))
