"""The dashboard as an ASGI app: routes, static files and access checks.

Mount it in another app or serve it alone, on asyncio or trio. It starts no background tasks and
needs no lifespan, which mounted apps do not get: all work happens within requests.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import aclosing
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from importlib.util import find_spec
from typing import Final, TypeAlias

from anyio import create_task_group, current_time, fail_after

from taskbull.app.app import App
from taskbull.core.validation import check_bool, check_list, check_type
from taskbull.dashboard.access import (
    SECURITY,
    AccessRule,
    Audit,
    Authenticator,
    BasicAuth,
    CustomRule,
    DashboardSettings,
    HostList,
    Loopback,
    RequestContext,
    TokenAuth,
    check_fetch,
    check_origin,
)
from taskbull.dashboard.actions.queues import ACTIONS
from taskbull.dashboard.forms import Notice
from taskbull.dashboard.handle_action import act, confirm, download
from taskbull.dashboard.html import SECRET, Redactor, render, render_page
from taskbull.dashboard.layout import Content, framed
from taskbull.dashboard.messages import (
    Receive,
    Refused,
    Request,
    Response,
    Scope,
    Send,
    Stream,
    path_sent,
)
from taskbull.dashboard.pages import (
    errors,
    groups,
    job,
    operations,
    overview,
    queue,
    redis,
    schedules,
    workers,
)
from taskbull.dashboard.pages.job import download as download_field
from taskbull.dashboard.pages.operations import bare_problem, describe_error, problem
from taskbull.dashboard.pages.search import search
from taskbull.dashboard.state import MOST_STREAMS, STREAM_LIMIT, DashboardState, LivePage, follow
from taskbull.errors import ConfigurationError, TaskbullError
from taskbull.monitor.server import Server, Where
from taskbull.observability import exporters

_FRESH: Final = 5.0
"""Seconds between two samples of all queues for metrics."""

_PATIENCE: Final = 8.0
"""Seconds to wait for a sample. By default, Prometheus waits 10 s for the response."""


# Routes. Addresses are flat, so that relative links work under any mount point.


DashboardPage: TypeAlias = Callable[[DashboardState, RequestContext], Awaitable[Content]]

PAGES: Final[dict[str, DashboardPage]] = {
    "": overview.show,
    "queue": queue.show,
    "errors": errors.show,
    "job": job.show,
    "stack": job.show_stack,
    "groups": groups.show,
    "schedules": schedules.show,
    "workers": workers.show,
    "operations": operations.show,
    "redis": redis.show,
}


LIVE: Final[dict[str, LivePage]] = {
    "": overview.parts,
    "queue": queue.parts,
    "errors": errors.parts,
    "groups": groups.parts,
    "job": job.parts,
    "workers": workers.parts,
    "operations": operations.parts,
    "redis": redis.parts,
}


async def answer(dashboard: DashboardState, ctx: RequestContext) -> Response | Stream:
    """Return the response to an admitted request."""
    path = ctx.request.path
    if path == "":  # Without the slash, relative links would point above the mount point.
        return Response.redirect(f"{path_sent(ctx.request.scope).rpartition('/')[2]}/")
    page = path.removeprefix("/")
    if ctx.request.method == "POST":
        return await _posted(dashboard, ctx, page)
    if page == "live":
        return _stream(dashboard, ctx)
    if page == "download":
        return await download_field(ctx)
    if page == "metrics":
        return await _metrics(dashboard, ctx)
    if page not in PAGES:
        raise Refused(404, "Page not found.")
    content = await PAGES[page](dashboard, ctx)
    return _page(ctx, content, dashboard.notices.get(ctx.query.get("said")))


async def _metrics(dashboard: DashboardState, ctx: RequestContext) -> Response:
    if find_spec("prometheus_client") is None:
        raise Refused(501, "Metrics need pip install 'taskbull[metrics]'.")
    overview = dashboard.metrics
    try:
        with fail_after(_PATIENCE):
            await dashboard.views.read(("metrics",), lambda: ctx.server.measure(overview), _FRESH)
    except (TaskbullError, TimeoutError):
        found = exporters.describe_outage()
    else:
        dashboard.backlog.record(overview.facts())
        known = ctx.server.known_queues
        found = exporters.describe_queues(overview.facts(), overview.nodes, known)
    body, content_type = exporters.render(found, ctx.request.headers.get("accept", ""))
    return Response(body, content_type=content_type)


def _stream(dashboard: DashboardState, ctx: RequestContext) -> Stream:
    page = LIVE.get(ctx.query.get("page"))
    if page is None:
        raise Refused(404, "Unknown live stream.")
    viewer = (ctx.access.user, ctx.request.peer)
    if not dashboard.streams.make_room(viewer):
        raise Refused(503, f"{MOST_STREAMS} pages are open already. Close some.")
    return Stream(follow(dashboard, ctx, page), viewer=viewer)


async def _posted(dashboard: DashboardState, ctx: RequestContext, page: str) -> Response | Stream:
    match page:
        case "confirm":
            content, only_question = await confirm(ctx)
            if only_question:
                return Response(render(content.body).encode())
            return _page(ctx, content)
        case "act":
            return await act(dashboard, ctx)
        case "download":
            return await download(ctx)
        case "search":
            return await search(dashboard, ctx)
        case _:
            raise Refused(405 if page in PAGES else 404, "Unknown action.")


def _page(ctx: RequestContext, content: Content, notice: Notice | None = None) -> Response:
    return Response(render_page(framed(ctx, content, notice)), content.status)


# Static files of this package: a style sheet, scripts and an icon.


_KINDS: Final = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@cache
def _content() -> dict[str, tuple[bytes, str]]:
    """Return all static files with their ETags. They are read once."""
    found: dict[str, tuple[bytes, str]] = {}
    for file in files("taskbull.dashboard").joinpath("static").iterdir():
        if file.name.rpartition(".")[2] in _KINDS:
            content = file.read_bytes()
            found[file.name] = content, f'"{blake2b(content, digest_size=8).hexdigest()}"'
    return found


def serve_file(request: Request, name: str) -> Response:
    """Return a static file. Browsers cache it and revalidate it by its ETag."""
    if name not in _content():
        raise Refused(404, "File not found.")
    content, mark = _content()[name]
    headers = {"etag": mark, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == mark:
        return Response(b"", 304, headers=headers)
    return Response(content, content_type=_KINDS[name.rpartition(".")[2]], headers=headers)


# The ASGI app.


_PIECE = 1 << 20
"""Bytes per chunk of a response body. The web server waits for the browser between chunks."""

_log = logging.getLogger("taskbull.dashboard")


class Dashboard:
    """An ASGI app that shows the queues of an app, or of any Redis server.

    Args:
        app: App whose Redis, prefix and queues to show.
        redis: Redis to use instead of the app's.
        prefix: Prefix of all keys. Defaults to the app's, or `bull`.
        read_only: Disable all actions.
        access: Function that returns the user of a request, or `BasicAuth` or `TokenAuth`.
            Without it, only browsers on this machine are served, and proxies are refused.
        redact: Parts of the field names whose values are masked.
        label: Name of the environment, shown in the header.
        on_action: Function called with an `Audit` for each action. The logger
            `taskbull.dashboard` logs the same.
        allow: Names of actions to enable that are disabled by default.
        allow_hosts: Other host names of the dashboard to accept if `access` is not given.
        trust_origins: Hosts whose forms are accepted, such as the name used by a proxy.

    Raises:
        ConfigurationError: If an argument is invalid.
    """

    def __init__(  # noqa: PLR0913 - passed by keyword
        self,
        app: App | None = None,
        *,
        redis: Where | None = None,
        prefix: str | None = None,
        read_only: bool = False,
        access: AccessRule | BasicAuth | TokenAuth | None = None,
        redact: Collection[str] = SECRET,
        label: str | None = None,
        on_action: Callable[[Audit], object] | None = None,
        allow: Collection[str] = (),
        allow_hosts: Collection[str] = (),
        trust_origins: Collection[str] = (),
    ) -> None:
        if app is not None:
            check_type("app", app, App, "be an App: pass a URL as redis=…")
        check_bool("read_only", read_only)
        check_list("redact", redact, "names")
        check_list("trust_origins", trust_origins, "names")
        self._app = app
        self._server = _server_of(app, redis, prefix)
        self._authenticator = _authenticator(access, allow_hosts)
        self._trusted = HostList(trust_origins, "trust_origins")
        self._settings = DashboardSettings(
            _allowed(allow), read_only, label, Redactor(redact), on_action
        )
        self._dashboard = DashboardState(self._server, writes=not read_only)

    def close(self) -> None:
        """Close the streams of open pages, so that the web server does not wait for them.

        Call it in the event loop of the web server.
        """
        self._dashboard.streams.end_all()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI connection."""
        match scope["type"]:
            case "lifespan":
                await _live(receive, send)
            case "websocket":
                await send({"type": "websocket.close", "code": 1000})
            case _:
                await self._serve(Request(scope, receive), send)

    async def _serve(self, request: Request, send: Send) -> None:
        found = await self._answer(request)
        if isinstance(found, Stream):
            await self._stream(request, found, send)
            return
        await _send(request, found, send)
        if found.after is not None:
            await found.after()
        await self._dashboard.sampler.search()

    async def _stream(self, request: Request, stream: Stream, send: Send) -> None:
        headers = {**SECURITY, "x-accel-buffering": "no", **stream.headers}
        headers["content-type"] = stream.content_type
        await send(_start(200, headers))
        async with create_task_group() as tasks:
            open_streams = self._dashboard.streams
            if stream.viewer is not None:
                open_streams.add(tasks.cancel_scope, stream.viewer)
                # A browser that does not read must not prevent the web server from stopping.
                tasks.cancel_scope.deadline = current_time() + STREAM_LIMIT

            async def watch() -> None:
                await request.ended()
                tasks.cancel_scope.cancel()

            tasks.start_soon(watch)
            try:
                async with aclosing(stream.chunks) as chunks:
                    async for chunk in chunks:
                        await send({"type": "http.response.body", "body": chunk, "more_body": True})
                tasks.cancel_scope.cancel()  # do not wait for the browser to disconnect
            finally:
                open_streams.discard(tasks.cancel_scope)
        await send({"type": "http.response.body", "body": b""})

    async def _answer(self, request: Request) -> Response | Stream:
        ctx: RequestContext | None = None
        try:
            if request.method not in {"GET", "HEAD", "POST"}:
                raise Refused(405, "Only GET, HEAD and POST are supported.", allow="GET, POST")
            if request.method != "POST":
                check_fetch(request)
            access = await self._authenticator.authenticate(request)
            ctx = RequestContext(
                request,
                access,
                self._settings,
                self._server,
                self._app,
                self._dashboard.throttle.wait,
            )
            if request.method == "POST":
                check_origin(request, self._trusted)
            elif request.path.startswith("/static/"):
                return serve_file(request, request.path.removeprefix("/static/"))
            return await answer(self._dashboard, ctx)
        except Refused as refused:
            return _explained(ctx, refused)
        except TaskbullError as error:
            return _explained(ctx, describe_error(error))
        except Exception:  # noqa: BLE001 - logged; other requests are unaffected
            _log.exception("the page %s failed", request.path)
            return _explained(ctx, Refused(500, "This page failed; see the server log."))


def _explained(ctx: RequestContext | None, refused: Refused) -> Response:
    page = bare_problem(refused) if ctx is None else framed(ctx, problem(refused))
    return Response(render_page(page), refused.status, headers=refused.headers)


def _server_of(app: App | None, redis: Where | None, prefix: str | None) -> Server:
    if app is None:
        return Server(redis, prefix="bull" if prefix is None else prefix)
    if redis is None and prefix is None:
        return app.server()
    namespace = app.producer.namespace
    return Server(
        namespace.address if redis is None else redis,
        prefix=namespace.prefix if prefix is None else prefix,
        hash_tag=namespace.hash_tag,
        queues=app.queues,
        attempts_of=app.attempts_of,
    )


def _authenticator(
    access: AccessRule | BasicAuth | TokenAuth | None, allow_hosts: Collection[str]
) -> Authenticator:
    if access is None:
        return Loopback(allow_hosts)
    if isinstance(access, BasicAuth | TokenAuth):
        return access
    if not callable(access):
        raise ConfigurationError("access must be a function that takes the scope of a request")
    return CustomRule(access)


def _allowed(names: Collection[str]) -> frozenset[str]:
    names = (names,) if isinstance(names, str) else names
    check_list("allow", names, "actions")
    for name in names:
        if name not in ACTIONS:
            raise ConfigurationError(
                f"allow: there is no action {name!r}; there is {', '.join(sorted(ACTIONS))}"
            )
    return frozenset(names) | {name for name, each in ACTIONS.items() if each.by_default}


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await send({"type": "lifespan.shutdown.complete"})
            return


async def _send(request: Request, response: Response, send: Send) -> None:
    headers = {**SECURITY, **response.headers}
    headers["content-type"] = response.content_type
    headers["content-length"] = str(len(response.body))
    await send(_start(response.status, headers))
    body = b"" if request.method == "HEAD" else response.body
    for start in range(0, len(body), _PIECE):
        chunk = body[start : start + _PIECE]
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def _start(status: int, headers: dict[str, str]) -> dict[str, object]:
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": raw}
