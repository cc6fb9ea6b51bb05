"""A page that cannot be shown, and why."""

from __future__ import annotations

from http import HTTPStatus

from taskbull.dashboard.frame import Content
from taskbull.dashboard.html import (
    Element,
    a,
    body,
    h1,
    head,
    html_,
    link,
    main,
    meta,
    p,
    section,
    title,
)
from taskbull.dashboard.messages import Refused
from taskbull.errors import (
    ConfigurationError,
    ConnectionLost,
    JobNotFound,
    JobsActive,
    MaybeExecuted,
    ScheduleNotFound,
    TaskbullError,
    WrongState,
)

_STATUSES: tuple[tuple[type[TaskbullError], int], ...] = (
    (JobNotFound, 404),
    (ScheduleNotFound, 404),
    (WrongState, 409),
    (JobsActive, 409),
    (ConfigurationError, 400),
    (ConnectionLost, 503),
    (MaybeExecuted, 504),
)


def describe_error(error: TaskbullError) -> Refused:
    """Return what a person is told about an error of the library."""
    status = next((number for kind, number in _STATUSES if isinstance(error, kind)), 502)
    said = str(error).rstrip(".")
    if isinstance(error, ConnectionLost):
        said = f"Redis cannot be used: {said}. This page comes back when Redis does"
    elif isinstance(error, MaybeExecuted):
        said += ". It may or may not have been done: look before you try again"
    return Refused(status, f"{said}.")


def problem(refused: Refused) -> Content:
    """Return the page that says why there is no other."""
    body = section(
        h1(HTTPStatus(refused.status).phrase),
        p(refused.reason),
        p(a("Overview", href="./")),
        class_="problem",
    )
    return Content(HTTPStatus(refused.status).phrase, body, page="-", status=refused.status)


def bare_problem(refused: Refused) -> Element:
    """Return the same for somebody who is not let in: it shows nothing else."""
    phrase = HTTPStatus(refused.status).phrase
    return html_(
        head(
            meta(charset="utf-8"),
            meta(name="viewport", content="width=device-width, initial-scale=1"),
            title(f"{phrase} – taskbull"),
            link(rel="stylesheet", href="static/style.css"),
        ),
        body(main(section(h1(phrase), p(refused.reason), class_="problem"))),
        lang="en",
    )
