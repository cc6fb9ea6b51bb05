"""The context of an admitted request, the dashboard settings and the audit record."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import Struct

from taskbull.app.app import App
from taskbull.dashboard.access import Access
from taskbull.dashboard.html import Redactor
from taskbull.dashboard.messages import Form, Request
from taskbull.monitor.server import Server


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
