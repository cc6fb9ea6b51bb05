"""A page that shows any BullMQ queue: `taskbull dashboard`, or mounted in an ASGI app."""

from taskbull.dashboard.access import Access as Access
from taskbull.dashboard.asgi import Dashboard as Dashboard
from taskbull.dashboard.visit import Audit as Audit
