"""The layout of every page: head, header, navigation, search box, notice and help."""

from __future__ import annotations

import time
from datetime import datetime
from math import inf

from msgspec import Struct

from taskbull.dashboard.components import ask_button, clock
from taskbull.dashboard.forms import Notice
from taskbull.dashboard.html import (
    Element,
    Node,
    a,
    body,
    button,
    dd,
    dialog,
    div,
    dl,
    dt,
    form,
    h2,
    head,
    header,
    html_,
    input_,
    kbd,
    label,
    link,
    main,
    meta,
    nav,
    p,
    script,
    span,
    strong,
    title,
    url,
)
from taskbull.dashboard.request_context import RequestContext

_PAGES = {
    "": "Overview",
    "schedules": "Schedules",
    "workers": "Workers",
    "operations": "Operations",
}

_SHORTCUTS = {
    "/": "search",
    "p": "pause or resume live updates",
    "g o": "go to the overview",
    "g s": "go to the schedules",
    "g w": "go to the workers",
    "g p": "go to the operations",
    "?": "show this help",
}


class Content(Struct, frozen=True):
    """The content of a page."""

    title: str
    body: Node
    page: str = ""
    """The navigation entry to highlight."""
    queue: str | None = None
    """The queue that the search box searches, or `None` for all queues."""
    state: str | None = None
    live: str | None = None
    """Address of the stream that updates the page, if any."""
    status: int = 200
    read_at: datetime | None = None
    """Time of the data if it is stale, otherwise `None`."""


def framed(ctx: RequestContext, content: Content, notice: Notice | None = None) -> Element:
    """Return a complete page with this content."""
    return html_(
        head(
            meta(charset="utf-8"),
            meta(name="viewport", content="width=device-width, initial-scale=1"),
            meta(name="color-scheme", content="light dark"),
            title(f"{content.title} – taskbull"),
            link(rel="stylesheet", href="static/style.css"),
            link(rel="icon", href="static/icon.svg", type="image/svg+xml"),
            script(src="static/main.js", type="module"),
        ),
        body(
            a("Skip to content", href="#content", class_="skip"),
            _header(ctx, content),
            main(
                None if notice is None else _notice(ctx, notice),
                content.body,
                id="content",
                tabindex="-1",
            ),
            div(id="announcer", class_="unseen", aria_live="polite"),
            _help(),
            dialog(id="question", aria_label="Confirmation"),
            data_live=content.live,
        ),
        lang="en",
    )


def _notice(ctx: RequestContext, notice: Notice) -> Element:
    offer = notice.offer
    left = 0.0 if offer is None else offer.until - time.time()
    if offer is None or left <= 0:
        return p(notice.said, class_="notice", role="status")
    back = ask_button(ctx, offer.action, offer.words, offer.fields, notice.back, "light")
    return div(
        notice.said,
        div(back, class_="offer", data_seconds=f"{left:.0f}" if left < inf else None),
        class_="notice",
        role="status",
    )


def _header(ctx: RequestContext, content: Content) -> Element:
    settings, user = ctx.settings, ctx.access.user
    return header(
        a(strong("task"), "bull", href=url(""), class_="brand"),
        nav(
            [
                a(name, href=url(page), aria_current="page" if page == content.page else None)
                for page, name in _PAGES.items()
            ],
            aria_label="Pages",
        ),
        _search(content),
        div(
            span("as of ", clock(content.read_at), class_="age stale")
            if content.read_at
            else span("", id="age", class_="age", hidden=content.live is None),
            button(
                "Freeze",
                id="freeze",
                type="button",
                aria_pressed="false",
                title="Pause live updates (p)",
                hidden=True,
            ),
            button(
                "?",
                id="keys-help",
                type="button",
                aria_label="Keyboard shortcuts",
                title="Keyboard shortcuts (?)",
                hidden=True,
            ),
            span("read-only", class_="tag") if settings.read_only else None,
            span(settings.label, class_="tag label") if settings.label else None,
            span(user, class_="user", title=f"Signed in as {user}"),
            class_="about",
        ),
        class_="top",
    )


def _search(content: Content) -> Element:
    where = f"in {content.queue}" if content.queue else "in all queues"
    return form(
        label(span(f"Search {where}", class_="unseen"), for_="search"),
        input_(
            id="search",
            name="text",
            type="search",
            placeholder=f"id or text {where}",
            autocomplete="off",
            maxlength="500",
            required=True,
        ),
        input_(type="hidden", name="q", value=content.queue) if content.queue else None,
        input_(type="hidden", name="state", value=content.state) if content.state else None,
        method="post",
        action="search",
        role="search",
    )


def _help() -> Element:
    rows = [(dt(kbd(key)), dd(what)) for key, what in _SHORTCUTS.items()]
    return dialog(
        h2("Keyboard shortcuts", id="help-title"),
        dl(rows, class_="keys"),
        label(input_(type="checkbox", id="keys-on", checked=True), " Enable keyboard shortcuts"),
        form(button("Close", type="submit"), method="dialog"),
        id="help",
        aria_labelledby="help-title",
    )
