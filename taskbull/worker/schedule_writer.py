"""The schedules of a queue that an app declares, written when a worker starts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from random import random

from anyio import sleep

from taskbull.core.declared_schedule import DeclaredSchedule
from taskbull.errors import ConnectionLost, MaybeExecuted, ServerRefused, TaskbullError
from taskbull.observability.job_filter import cut
from taskbull.scripts.call import again
from taskbull.scripts.schedulers import declare_scheduler, list_schedulers
from taskbull.store.reconnection import LONGEST_DELAY, reconnect_delay
from taskbull.worker.context import QueueContext

logger = logging.getLogger(__name__)

_NAMED = 20
"""How many schedules a log line names."""


class ScheduleWriter:
    """Writes the declared schedules of one queue; those that stand there are left alone."""

    def __init__(
        self, context: QueueContext, app: str, declared: Sequence[DeclaredSchedule]
    ) -> None:
        self._context = context
        self._app = app
        self._declared = {each.id for each in declared}
        self._left = list(declared)
        self._refusal: ServerRefused | None = None

    async def write(self) -> None:
        """Write them all, before the first job is taken; what Redis refuses is left."""
        refused: list[DeclaredSchedule] = []
        for each in self._left:
            try:
                await self._write(each)
            except ServerRefused as error:
                refused.append(each)
                self._refusal = error
        self._left = refused

    async def insist(self) -> None:
        """Write what was refused: jobs do not wait for that."""
        failures = 0
        while self._left:
            failures += 1
            delay = reconnect_delay(failures, LONGEST_DELAY, random())  # noqa: S311
            logger.warning(
                "Queue %s: Redis refuses %d declared schedules of this app; next try in %.1f s: %s",
                self._context.keys.queue,
                len(self._left),
                delay,
                self._refusal,
            )
            await sleep(delay)
            await self.write()

    async def tell_undeclared(self) -> None:
        """Name the schedules that this app declared once and no longer does.

        They stay: a worker of an older version, which declares them, may be running.
        """
        keys = self._context.keys
        try:
            found = await self._context.store.run(again(list_schedulers(keys, self._app)))
        except ServerRefused as error:
            logger.warning("Queue %s: its schedules cannot be read: %s", keys.queue, error)
            return
        names = [cut(each.id) for each in found if each.id not in self._declared]
        if names:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            logger.warning(
                "Queue %s: app %s no longer declares %s%s, but they still run; to remove them: "
                "taskbull schedules sync --prune",
                keys.queue,
                self._app,
                ", ".join(names[:_NAMED]),
                more,
            )

    async def _write(self, declared: DeclaredSchedule) -> None:
        context = self._context
        queue, name = context.keys.queue, declared.id
        try:
            call = declare_scheduler(context.keys, self._app, declared, context.clock.wall_ms())
            while call is not None:
                try:
                    written = await context.store.run(call)
                except MaybeExecuted:
                    continue  # writing it twice does no harm
                if written.is_changed:
                    logger.info("Queue %s: schedule %s: %s", queue, name, declared.rule.describe())
                return
        except (ServerRefused, ConnectionLost):
            raise
        except TaskbullError as error:
            logger.error("Queue %s: schedule %s is not written: %s", queue, name, error)  # noqa: TRY400
