"""Web dashboard for BullMQ queues.

Run it with `taskbull dashboard`, or mount `Dashboard` in an ASGI app.
"""

from taskbull.dashboard.access import Access as Access
from taskbull.dashboard.access import Audit as Audit
from taskbull.dashboard.asgi import Dashboard as Dashboard
