"""Start and stop a project's private Redis server."""

from taskbull.store.address import project_folder
from taskbull.store.embedded import logger, start_or_join, stop

__all__ = ["logger", "project_folder", "start_or_join", "stop"]
