"""One look of one person at one page, and what all pages need to know."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import Struct

from taskbull.app.app import App
from taskbull.dashboard.access import Access
from taskbull.dashboard.html import Redactor
from taskbull.dashboard.messages import Form, Request
from taskbull.monitor.server import Server


class Audit(Struct, frozen=True):
    """What somebody did: what the log says, and what `on_action` gets. Never a job's data."""

    action: str
    queue: str
    ids: tuple[str, ...]
    """At most 20 of the jobs."""
    count: int
    """How many jobs, or queues, were changed."""
    group: str
    """What the jobs had in common, if they were chosen by that."""
    by: str
    peer: str
    """The address that it came from."""
    outcome: str


class BoardSettings(Struct, frozen=True):
    """How a dashboard was set up."""

    allowed: frozenset[str]
    """The names of the actions that can be taken at all."""
    read_only: bool
    label: str | None
    redactor: Redactor
    on_action: Callable[[Audit], object] | None


class Visit(Struct, frozen=True):
    """A request that was let in."""

    request: Request
    access: Access
    settings: BoardSettings
    server: Server
    app: App | None
    pace: Callable[[], Awaitable[None]]
    """Waits until one more call of a scan may be sent."""

    @property
    def query(self) -> Form:
        """What stands in the address."""
        return self.request.query

    def may(self, action: str) -> bool:
        """Return whether this person may take an action here."""
        allowed = action in self.settings.allowed and not self.settings.read_only
        return allowed and (self.access.may is None or action in self.access.may)
