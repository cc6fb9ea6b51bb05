"""The private server of a project, as programs start and stop it."""

from taskbull.store.embedded import logger, start_or_join, stop
from taskbull.store.project import project_folder

__all__ = ["logger", "project_folder", "start_or_join", "stop"]
