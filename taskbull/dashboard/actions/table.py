"""All actions: the only way from a form to a change."""

from __future__ import annotations

from typing import Final

from taskbull.dashboard.actions.downloads import DOWNLOAD, DOWNLOAD_UNMASKED
from taskbull.dashboard.actions.groups import REMOVE_GROUP, RETRY_ALL, RETRY_GROUP
from taskbull.dashboard.actions.jobs import CANCEL, DELAY_AGAIN, PROMOTE, REMOVE, RETRY
from taskbull.dashboard.actions.queues import (
    CLEAN,
    DRAIN,
    OBLITERATE,
    PAUSE,
    RESUME,
    STOP,
)
from taskbull.dashboard.actions.readd import READD
from taskbull.dashboard.actions.schedules import REMOVE_SCHEDULE, RUN_SCHEDULE
from taskbull.dashboard.actions.settings import DELAY, LIMITS, PRIORITY
from taskbull.dashboard.board_order import BoardAction
from taskbull.queue.queue import Queue

_JOBS = (RETRY, PROMOTE, DELAY_AGAIN, REMOVE, PRIORITY, DELAY, READD)
_QUEUES = (PAUSE, RESUME, DRAIN, CLEAN, LIMITS, OBLITERATE, STOP)
_DOWNLOADS = (DOWNLOAD, DOWNLOAD_UNMASKED)
_GROUPS = (RETRY_GROUP, RETRY_ALL, REMOVE_GROUP)
_SCHEDULES = (RUN_SCHEDULE, REMOVE_SCHEDULE)
_CANCELS = (CANCEL,) if hasattr(Queue, "cancel") else ()

ACTIONS: Final[dict[str, BoardAction]] = {
    action.name: action
    for action in (*_JOBS, *_CANCELS, *_DOWNLOADS, *_GROUPS, *_QUEUES, *_SCHEDULES)
}
