"""The private server of a project, as programs start and stop it."""

from taskbull.store.address import project_folder
from taskbull.store.embedded import logger, start_or_join, stop

__all__ = ["logger", "project_folder", "start_or_join", "stop"]
