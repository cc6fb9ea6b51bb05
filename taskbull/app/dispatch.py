"""Dispatch: map jobs to task functions, and delay jobs of unregistered tasks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn, TypeVar, cast

from taskbull.app.batch import BatchTask, is_batch
from taskbull.app.group import EVERYWHERE, PlainJobMiddleware, Registry
from taskbull.app.task import Task
from taskbull.core import payload
from taskbull.core.job import Job, compose
from taskbull.core.retry import RetryPolicy
from taskbull.errors import SerializationError, Snooze, TaskbullError
from taskbull.observability.logs import cut, one_line
from taskbull.worker.attempt import Route, SyncHandler, system_route
from taskbull.worker.batch import Batch, BatchRules
from taskbull.worker.run import ResultCheck
from taskbull.worker.running_job import RunningJob, port_of
from taskbull.worker.streaming import awaited_call, plain_call

# Jobs of unregistered tasks wait for a worker that has the task.
#
# During a rollout, old workers receive jobs of new tasks. Two apps may also share a queue by
# mistake. Neither uses up an attempt.


logger = logging.getLogger(__name__)

J = TypeVar("J")

SHORTEST, LONGEST = 10.0, 300.0
"""Minimum and maximum seconds between checks. The delay grows with the time waited."""

PATIENCE = 86_400.0
"""Seconds until a job of an unregistered task fails."""

_NAMES = 1000
"""Maximum number of names to log. Redis may contain any number of names."""


class UnknownTaskHandler:
    """Delays jobs of unregistered tasks, and logs each name once."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._logged: set[tuple[str, str]] = set()

    async def delay(self, job: RunningJob) -> NoReturn:
        """Delay a job.

        Raises:
            Snooze: To check the job again later.
            TaskNotRegistered: If the job has waited for a day.
        """
        try:
            waited = await port_of(job).arecord_unknown_task(PATIENCE)
        except TaskbullError:  # A Redis problem is not a reason to fail a job.
            raise Snooze(SHORTEST) from None
        missing = self._registry.missing(job.name, job.queue)
        if waited >= PATIENCE:
            raise missing
        self._log_once(job, str(missing))
        raise Snooze(min(max(waited, SHORTEST), LONGEST))

    def _log_once(self, job: RunningJob, missing: str) -> None:
        key = (job.queue, job.name)
        if key not in self._logged and len(self._logged) < _NAMES:
            self._logged.add(key)
            logger.warning(
                "%s. The job is delayed, without using an attempt, for up to 24 hours. "
                "Register the task in every worker of this queue",
                one_line(missing),
                extra={"queue": job.queue, "job_name": cut(job.name)},
            )


# Mapping jobs to functions


class Dispatch:
    """Finds the route of each job. Routes are prepared once per task."""

    def __init__(self, registry: Registry, policy: RetryPolicy) -> None:
        self._registry = registry
        registry.watchers.append(self.forget)
        self._known: dict[str, Route] = {}
        self._unknown_task = Route(UnknownTaskHandler(registry).delay, policy)

    def resolve(self, job: Job) -> Route:
        """Return the route for a job.

        Raises:
            ConfigurationError: If the task cannot be prepared.
        """
        route = self._known.get(job.name)
        return self._prepared(job.name) if route is None else route

    def forget(self) -> None:
        """Discard all routes because the middleware has changed."""
        self._known.clear()

    def prepare(self) -> None:
        """Prepare all tasks, so that errors show up before the first job."""
        for name in self._registry.local:
            self._prepared(name)

    def _prepared(self, name: str) -> Route:
        task = self._registry.local.get(name)
        if task is None:
            if (route := system_route(name)) is not None:
                return route
            return self._unknown_task  # Not cached: Redis may contain any number of names.
        around = [one.layers for one in self._registry.around(name)]
        plain = [layer for each in (EVERYWHERE, *around) for layer in each.plain]
        awaited = [layer for each in around for layer in each.awaited]
        if task.is_async:
            awaited = [*EVERYWHERE.awaited, *awaited]
        check = task.calling.result_check()
        # Middleware may return something other than the function's result, so check that before.
        inner = check if any(each.awaited or each.plain for each in around) else None
        route = Route(
            _batch_function(task, plain, inner)
            if is_batch(task)
            else _function(task, plain, inner),
            task.settings.policy,
            task.settings.timeout,
            execution_mode=task.execution_mode,
            grace=task.settings.grace,
            layers=tuple(awaited),
            batch=_rules(task) if is_batch(task) else None,
            check_result=check if inner is None else None,
        )
        self._known[name] = route
        return route


# Sync middleware is part of the function and runs in the same thread or process.


def _function(
    task: Task[..., Any], plain: Sequence[PlainJobMiddleware], check: ResultCheck | None
) -> SyncHandler:
    function = _bare_function(task)
    if check is not None:
        function = _checked(function, partial(_fitting, check), is_async=task.is_async)
    return function if task.is_async else compose(plain, function)


def _checked(
    function: Callable[[J], Any], fitting: Callable[[Any], Any], *, is_async: bool
) -> Callable[[J], Any]:
    async def acall(given: J) -> Any:
        return fitting(await function(given))

    return acall if is_async else lambda given: fitting(function(given))


def _fitting(check: ResultCheck, result: Any) -> Any:
    """Return a result.

    Raises:
        SerializationError: If it does not fit the annotation of its task.
    """
    classes, raise_if_wrong = check
    if result.__class__ not in classes:
        raise_if_wrong(payload.encode(result, "result"))
    return result


def _fitting_items(check: ResultCheck, results: Any) -> Any:
    """Return the results of a batch, with an error in place of each that does not fit."""
    if not isinstance(results, list | tuple):
        return results  # The batch fails for another reason, or has a list of another class.
    found: list[Any] = []
    for each in cast("Sequence[Any]", results):
        try:
            found.append(each if isinstance(each, BaseException) else _fitting(check, each))
        except SerializationError as error:
            found.append(error)
    return found


def _batch_function(
    task: BatchTask[Any, ..., Any],
    plain: Sequence[PlainJobMiddleware],
    check: ResultCheck | None,
) -> Callable[[Batch], Any]:
    call, parameter, injected = task.caller(), task.calling.items.parameter, task.injected

    def call_with(batch: Batch) -> Any:
        resources = dict.fromkeys(injected, batch.jobs[0].resources) if injected else {}
        return call(**{parameter: batch.items, **resources})

    checked: Callable[[Batch], Any] = call_with
    if check is not None:
        checked = _checked(call_with, partial(_fitting_items, check), is_async=task.is_async)
    if task.is_async or not plain:
        return checked
    return lambda batch: compose(plain, lambda _: checked(batch))(batch.jobs[0])


def _rules(task: BatchTask[Any, ..., Any]) -> BatchRules:
    batch = task.batch
    return BatchRules(batch.size, batch.wait, batch.parallel, task.item_reader())


def _caller(task: Task[..., Any]) -> Callable[..., Any]:
    call, stream = task.caller(), task.settings.stream
    if stream is None:
        return call
    return awaited_call(call, stream) if task.is_async else plain_call(call, stream)


def _bare_function(task: Task[..., Any]) -> SyncHandler:
    read, call = task.reader(), _caller(task)
    receivers, injected = task.receivers(), task.injected
    if not receivers and not injected:
        return lambda job: call(**read(job.job.raw_data))

    def read_and_inject(job: RunningJob) -> dict[str, Any]:
        arguments = read(job.job.raw_data)
        if injected:
            arguments.update(dict.fromkeys(injected, job.resources))
        return arguments

    def receive(job: RunningJob) -> Any:
        arguments = read_and_inject(job)
        for one in receivers:
            if one.parameter not in arguments:
                results = port_of(job).call("child_results", one.child)
                arguments[one.parameter] = one.take(results)
        return call(**arguments)

    async def areceive(job: RunningJob) -> Any:
        arguments = read_and_inject(job)
        for one in receivers:
            if one.parameter not in arguments:
                results = await port_of(job).acall("child_results", one.child)
                arguments[one.parameter] = one.take(results)
        return await call(**arguments)

    return areceive if task.is_async else receive
