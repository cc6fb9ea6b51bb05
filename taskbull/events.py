"""Worker events for listeners, as in `@app.on(events.Completed)`."""

from taskbull.core.events import *  # noqa: F403 - the list is there
from taskbull.core.events import __all__ as __all__
