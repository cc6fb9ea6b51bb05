"""The backend of Django's tasks: `django.tasks`, or the package django-tasks before Django 6."""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from inspect import iscoroutinefunction, signature
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast, get_type_hints

import django
from anyio import to_thread
from asgiref.sync import sync_to_async
from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import close_old_connections
from django.utils import timezone
from django.utils.crypto import get_random_string
from django.utils.module_loading import import_string
from msgspec.structs import replace

from taskbull import errors
from taskbull.app.app import App
from taskbull.app.producer import JobSpec, frozen
from taskbull.app.task import Task as TaskbullTask
from taskbull.core.job import Job
from taskbull.core.keys import JobState, check_queue_name, job_ref, read_ref
from taskbull.core.outcome import Failure, leave_out_our_frames, stack_of
from taskbull.core.payload import model_advice, with_text_keys
from taskbull.core.validation import instant_from_ms
from taskbull.django.connections import defer, entry_rule, on_asyncio
from taskbull.worker.running_job import RunningJob, current_job

if TYPE_CHECKING or (django.VERSION >= (6,) and "django_tasks" not in settings.INSTALLED_APPS):
    from django.tasks import (
        DEFAULT_TASK_BACKEND_ALIAS,
        TaskContext,
        TaskResult,
        TaskResultStatus,
    )
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskError
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
else:
    from django_tasks import (
        DEFAULT_TASK_BACKEND_ALIAS,
        TaskContext,
        TaskResult,
        TaskResultStatus,
    )
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskError
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started

if TYPE_CHECKING or django.VERSION >= (6,):
    from django.utils.json import normalize_json
else:
    from django_tasks.utils import normalize_json

if TYPE_CHECKING:
    AnyTask: TypeAlias = Task[..., Any]
    AnyResult: TypeAlias = TaskResult[..., Any]

T = TypeVar("T")

Args: TypeAlias = list[Any] | None
Kwargs: TypeAlias = dict[str, Any] | None

MOST_URGENT = 100
"""Django's highest priority, which is BullMQ's 0."""

_ID_LENGTH = 32

_declared: dict[str, AnyTask] = {}
"""Django's tasks by module path. Django creates a backend per thread, so it is global."""

_apps: dict[str, tuple[Mapping[str, Any], TasksApp]] = {}
_lock = threading.RLock()


class TaskbullBackend(BaseTaskBackend):
    """Runs Django's tasks as taskbull jobs.

    `OPTIONS` are keyword arguments of `App`, such as `redis`, `prefix`, `attempts`, `timeout` and
    `keep_completed`. Unlike an `App`, a task has one attempt by default, because Django's tasks
    are not retried. `ENQUEUE_ON_COMMIT` says whether jobs wait for the current transaction.

    Example:
        >>> TASKS = {
        ...     "default": {
        ...         "BACKEND": "taskbull.django.TaskbullBackend",
        ...         "QUEUES": ["default", "emails"],
        ...         "OPTIONS": {"redis": "redis://localhost:6379/0"},
        ...     }
        ... }
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        queues = params.get("QUEUES", [])
        if not isinstance(queues, list | tuple | set):
            raise ImproperlyConfigured(
                f"TASKS[{alias!r}]['QUEUES'] must be a list of names, got {queues!r}"
            )
        super().__init__(alias, params)
        self._params = params

    @property
    def app(self) -> TasksApp:
        """The app that stores the jobs and runs them in workers. It is shared by all threads.

        Raises:
            ImproperlyConfigured: If `OPTIONS` or `QUEUES` are invalid.
        """
        with _lock:
            known = _apps.get(self.alias)
            if known is None or known[0] != self._params:
                known = _apps[self.alias] = (self._params, self._make_app())
            return known[1]

    def _make_app(self) -> TasksApp:
        where = f"TASKS[{self.alias!r}]"
        try:
            queues = list(self._params.get("QUEUES", ["default"]))
            for name in queues:
                check_queue_name(name)
            if "name" in self.options:
                raise errors.ConfigurationError("OPTIONS must not have 'name': it is the alias")
            options = {"attempts": 1, **self.options}
            options.pop("enqueue_on_commit", None)
            return TasksApp(self.alias, queues, options)
        except (errors.TaskbullError, TypeError) as error:
            raise ImproperlyConfigured(f"{where} is invalid: {error}") from error

    def validate_task(self, task: AnyTask) -> None:
        """Check that the backend can run a task, and declare the task for workers."""
        super().validate_task(task)
        _declared[task.module_path] = task

    def enqueue(self, task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Add a job for a task, now or when the current transaction is committed.

        The result has its id before the commit. Until then, `enqueued_at` is None, and `get_result`
        does not find it.

        Raises:
            TypeError: If an argument is not JSON.
            EnqueueError: If Redis is unavailable.
        """
        self.validate_task(task)
        _check_models(task.name, args, kwargs)
        job_id = get_random_string(_ID_LENGTH)
        result: AnyResult = TaskResult(
            task=task,
            id=job_ref(task.queue_name, job_id),
            status=TaskResultStatus.READY,
            enqueued_at=None,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=list(args),
            kwargs=dict(kwargs),
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        for name in ("args", "kwargs"):
            object.__setattr__(result, name, with_text_keys(getattr(result, name), name))
        producer = self.app.producer
        spec = producer.prepared(self._spec(task, job_id, result))

        def send(spec: JobSpec[Any]) -> None:
            now_ms = int(time.time() * 1000)
            added = producer.add_now(spec.created_at(now_ms))
            object.__setattr__(result, "id", added.ref)
            object.__setattr__(result, "enqueued_at", _time(now_ms))
            task_enqueued.send_robust(type(self), task_result=result)

        if not defer(entry_rule(self.alias, self._params), lambda: partial(send, frozen(spec))):
            send(spec)
        return result

    def _spec(self, task: AnyTask, job_id: str, result: AnyResult) -> JobSpec[Any]:
        variant = self.app.task_of(task).options(
            queue=task.queue_name,
            priority=MOST_URGENT - task.priority,
            job_id=job_id,
            eta=None if task.run_after is None else _aware(task.run_after),
        )
        return variant.job(args=result.args, kwargs=result.kwargs, queue=task.queue_name)

    async def aenqueue(self, task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """See `enqueue`."""
        return await in_thread(partial(self.enqueue, task, args, kwargs))

    def get_result(self, result_id: str) -> AnyResult:
        """Read a result from Redis.

        Raises:
            TaskResultDoesNotExist: If there is no such job, or it was removed.
        """
        try:
            read_ref(result_id)
            handle = self.app.job(result_id)
            state, job = handle.state(), handle.info()  # In this order: `_status` relies on it.
            path, _, alias = job.name.partition("@")
            task = _task_of(path) if (alias or DEFAULT_TASK_BACKEND_ALIAS) == self.alias else None
        except (errors.ConfigurationError, errors.JobNotFound, ImportError) as error:
            raise TaskResultDoesNotExist(f"Task result {result_id!r}: {error}") from error
        if task is None:
            raise TaskResultDoesNotExist(
                f"Task result {result_id!r} is not of a Django task of the backend {self.alias!r}"
            )
        return _result_of(self.alias, task, job, _status(state, job))

    async def aget_result(self, result_id: str) -> AnyResult:
        """See `get_result`."""
        return await in_thread(partial(self.get_result, result_id))

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        """Return the problems of the settings that system checks report."""
        return list(self._problems())

    def _problems(self) -> Iterator[checks.CheckMessage]:
        where = f"TASKS[{self.alias!r}]"
        if not apps.is_installed("taskbull.django"):
            yield checks.Warning(
                f"{where} uses taskbull, but 'taskbull.django' is not in INSTALLED_APPS.",
                hint="Add it: it provides manage.py taskbull, and it closes database connections.",
                id="taskbull.W001",
            )
        unknown = sorted(self._params.keys() - {"BACKEND", "QUEUES", "OPTIONS", *_OUR_KEYS})
        if unknown:
            yield checks.Warning(
                f"{where} has the unknown key {unknown[0]!r}.",
                hint="Options of taskbull belong in OPTIONS.",
                id="taskbull.W002",
            )
        try:
            entry_rule(self.alias, self._params)
            self.app  # noqa: B018 - it raises an error if the options are invalid
        except ImproperlyConfigured as error:
            yield checks.Error(str(error), id="taskbull.E001")


_OUR_KEYS = {"ENQUEUE_ON_COMMIT"}


async def in_thread(function: Callable[[], T]) -> T:
    """Call a function that uses the database, from any event loop."""
    if on_asyncio():
        return await sync_to_async(function)()
    return await to_thread.run_sync(function)


# The worker's side


class TasksApp(App):
    """The app of one backend. Its tasks are Django's, under their module paths."""

    def __init__(self, alias: str, queues: Sequence[str], options: Mapping[str, Any]) -> None:
        super().__init__(f"django-{alias}", **options)
        self._alias = alias
        self.registry.more_queues = queues

    def load_tasks(self) -> None:
        """Register all tasks that are declared in modules imported so far."""
        super().load_tasks()
        for config in apps.get_app_configs():
            module = sys.modules.get(f"{config.name}.tasks")
            for value in list(vars(module).values() if module else ()):
                if (task := _as_task(value)) is not None:  # Also those of other backends.
                    _declared.setdefault(task.module_path, task)
        for task in list(_declared.values()):
            self.task_of(task)

    def task_of(self, task: AnyTask) -> TaskbullTask[..., Any]:
        """Return the taskbull task that runs a task of Django.

        A worker can serve several backends, so names outside the default backend have its alias.
        """
        name = task.module_path
        if self._alias != DEFAULT_TASK_BACKEND_ALIAS:
            name = f"{name}@{self._alias}"
        with _lock:
            found = self.tasks.get(name)
            return found if found is not None else self._register(name, task)

    def _register(self, name: str, task: AnyTask) -> TaskbullTask[..., Any]:
        alias = self._alias

        def run(args: Args = None, kwargs: Kwargs = None, queue: str = "") -> Any:  # noqa: ARG001
            job = current_job()
            result = _running_result(alias, task, job)
            task_started.send_robust(TaskbullBackend, task_result=result)
            try:
                return _json(task.func(*_arguments(task, result, args), **kwargs or {}))
            except BaseException as error:
                if (data := _with_attempt(job, error)) is not None:
                    job.update_data(data)
                raise

        async def arun(args: Args = None, kwargs: Kwargs = None, queue: str = "") -> Any:  # noqa: ARG001
            job = current_job()
            result = _running_result(alias, task, job)
            await in_thread(partial(task_started.send_robust, TaskbullBackend, task_result=result))
            try:
                return _json(await task.func(*_arguments(task, result, args), **kwargs or {}))
            except (Exception, SystemExit, KeyboardInterrupt) as error:  # But no cancellation.
                if (data := _with_attempt(job, error)) is not None:
                    await job.aupdate_data(data)
                raise

        def succeeded(job: Job, value: Any) -> None:
            result = _result_of(alias, task, job, TaskResultStatus.SUCCESSFUL)
            object.__setattr__(result, "_return_value", value)
            _finished(result)

        def failed(job: Job, failure: Failure) -> None:
            result = _result_of(alias, task, job, TaskResultStatus.FAILED, failure)
            try:
                raise failure.error
            except BaseException:  # noqa: BLE001 - receivers, such as Django's logging, look at it
                _finished(result)

        function = arun if iscoroutinefunction(task.func) else run
        function.__doc__ = task.func.__doc__
        # `__wrapped__` shows where the user's function is defined. The arguments are this one's.
        function.__annotations__ = get_type_hints(function)
        vars(function).update(__signature__=signature(function), __wrapped__=task.func)
        made: TaskbullTask[..., Any] = self.task(
            name=name,
            queue=task.queue_name,
            extra="ignore",
            on_success=succeeded,
            on_failure=failed,
        )(function)
        return made


def _running_result(alias: str, task: AnyTask, job: RunningJob) -> AnyResult:
    stored = replace(job.job, processed_by=job.worker_id)
    return _result_of(alias, task, stored, TaskResultStatus.RUNNING)


def _arguments(task: AnyTask, result: AnyResult, args: Args) -> Iterator[Any]:
    if task.takes_context:
        yield TaskContext(task_result=result)
    yield from args or ()


def _json(value: object) -> Any:
    """Return a result as JSON types. Numbers as keys become strings, as in `json.dumps`."""
    return with_text_keys(normalize_json(value), "result")


def _finished(result: AnyResult) -> None:
    close_old_connections()
    try:
        task_finished.send_robust(TaskbullBackend, task_result=result)
    finally:
        close_old_connections()


# Results. A failed attempt adds a record to the job's data, so that the next attempts and
# `get_result` know its worker and its error.


def _with_attempt(job: RunningJob, error: BaseException) -> dict[str, Any] | None:
    """Return the job's data with a record of a failed attempt, or None if it was not an error."""
    if isinstance(error, errors.TaskbullError):  # Such as Retry and Snooze, which steer the job.
        return None
    leave_out_our_frames(error)
    record = {
        "worker": job.worker_id,
        "started_ms": job.job.processed_ms,
        "error": _path(type(error)),
        "traceback": f"{stack_of(error)}\n",
    }
    return {**_data(job.job), "attempts": [*_records(job.job), record]}


def _data(job: Job) -> dict[str, Any]:
    data = job.data
    return cast("dict[str, Any]", data) if isinstance(data, dict) else {}


def _records(job: Job) -> list[dict[str, Any]]:
    found: Any = _data(job).get("attempts")
    if not isinstance(found, list):
        return []
    records = cast("list[object]", found)
    made = [cast("dict[str, Any]", each) for each in records if isinstance(each, dict)]
    return [each for each in made if "error" in each]  # Other producers write what they like.


def _status(state: JobState, job: Job) -> TaskResultStatus:
    """Return the status of a job that was read after its state."""
    if job.finished_ms is not None:
        # The state may be older than the job, and a job that succeeded in a later attempt keeps
        # the reason of an earlier failure. Only a completed job has a return value.
        is_completed = state is JobState.COMPLETED or job.raw_returnvalue is not None
        return TaskResultStatus.SUCCESSFUL if is_completed else TaskResultStatus.FAILED
    return TaskResultStatus.RUNNING if state is JobState.ACTIVE else TaskResultStatus.READY


def _result_of(
    alias: str,
    task: AnyTask,
    job: Job,
    status: TaskResultStatus,
    failure: Failure | None = None,
) -> AnyResult:
    data, records = _data(job), _records(job)
    queue = str(data.get("queue") or task.queue_name)
    task_errors = [
        _task_error(str(each["error"]), str(each.get("traceback", ""))) for each in records
    ]
    workers = [str(each.get("worker")) for each in records]
    started = [each.get("started_ms") for each in records]
    is_recorded = bool(records) and started[-1] == job.processed_ms
    if not is_recorded and job.processed_ms is not None:
        started.append(job.processed_ms)
        workers.append(job.processed_by or "")
    if failure is not None and not is_recorded:
        task_errors.append(_stored_error(failure.reason, failure.stack))
    elif status is TaskResultStatus.FAILED and not is_recorded:
        reason = job.failed_reason or ""
        task_errors.append(_stored_error(reason, (job.stacktrace or [reason])[-1] or reason))
    result = TaskResult(
        task=_as_enqueued(alias, task, queue, job),
        id=job_ref(queue, job.id),
        status=status,
        enqueued_at=_time(job.created_ms),
        started_at=_time(started[0] if started else None),
        finished_at=_time(job.finished_ms),
        last_attempted_at=_time(job.processed_ms),
        args=data.get("args") or [],
        kwargs=data.get("kwargs") or {},
        backend=alias,
        errors=task_errors,
        worker_ids=workers,
    )
    object.__setattr__(result, "_return_value", job.returnvalue)
    return result


def _as_enqueued(alias: str, task: AnyTask, queue: str, job: Job) -> AnyTask:
    delay_ms, created_ms = int(job.options.delay_ms or 0), job.created_ms
    due_ms = created_ms + delay_ms if delay_ms and created_ms is not None else None
    values = {each.name: getattr(task, each.name) for each in dataclasses.fields(task)}
    values |= {"backend": alias, "queue_name": queue, "priority": MOST_URGENT - job.priority}
    # A new task would be validated, but the settings may have changed since it was enqueued.
    made = object.__new__(type(task))
    for name, value in {**values, "run_after": _time(due_ms)}.items():
        object.__setattr__(made, name, value)
    return made


def _stored_error(reason: str, stack: str) -> TaskError:
    """Return the error of a job that a worker failed without running it to its end."""
    name = errors.JobFailed("", "", reason, [stack]).error_type or ""
    return _task_error(name if "." in name else f"builtins.{name}", f"{stack}\n")


def _task_error(path: str, stack: str) -> TaskError:
    """Return an error with the path of its class, or of `JobFailed` if it is not loaded.

    Django imports the module that an error names, and others may have written the path.
    """
    if _loaded_error(path) is None:
        path = _path(errors.JobFailed)
    is_nested = path.rpartition(".")[0] not in sys.modules
    return (_NestedError if is_nested else TaskError)(exception_class_path=path, traceback=stack)


class _NestedError(TaskError):
    """An error whose class is in another class, such as `Order.DoesNotExist`.

    Django can import only the attributes of modules.
    """

    __slots__ = ()

    @property
    def exception_class(self) -> type[BaseException]:
        """The class of the exception."""
        return _loaded_error(self.exception_class_path) or errors.JobFailed


def _task_of(path: str) -> AnyTask | None:
    """Return the task at a module path, or None if the path leads to something else.

    Data in Redis must not cause any other import than those of a worker.

    Raises:
        ImportError: If there is no such task, or its module is not imported.
    """
    module = path.rpartition(".")[0]
    if path in _declared:
        return _declared[path]
    if module not in sys.modules and module not in _task_modules():
        raise ImportError(f"the module of task {path!r} is not imported")
    return _as_task(import_string(path))


def _task_modules() -> set[str]:
    return {f"{config.name}.tasks" for config in apps.get_app_configs()}


def _loaded_error(path: str) -> type[BaseException] | None:
    """Return the exception class at a path, or None if no imported module has it."""
    module, _, name = path.rpartition(".")
    inner: list[str] = []
    while module and module not in sys.modules:
        inner.insert(0, name)
        module, _, name = module.rpartition(".")
    found = getattr(sys.modules.get(module), name, None)
    for each in inner:
        found = vars(found).get(each) if isinstance(found, type) else None
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def _as_task(value: object) -> AnyTask | None:
    return cast("AnyTask", value) if isinstance(value, Task) else None


def _path(kind: type[Any]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _time(ms: object) -> datetime | None:
    if not isinstance(ms, int):  # Others may have written it.
        return None
    at = instant_from_ms(ms)
    return at if settings.USE_TZ or at is None else timezone.make_naive(at)


def _aware(at: datetime) -> datetime:
    return timezone.make_aware(at) if timezone.is_naive(at) else at


def _check_models(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Reject model instances, also inside of lists and dicts, with advice."""
    for place, value in (*enumerate(args), *kwargs.items()):
        for inner in _values(value):
            if advice := model_advice(type(inner)):
                kind = type(inner).__qualname__
                raise TypeError(f"{name}(): argument {place!r} contains a {kind}{advice}")


def _values(value: Any) -> Iterator[object]:
    if isinstance(value, Mapping | list | tuple | set):
        inner: Any = cast("Any", value)
        for each in inner.values() if isinstance(value, Mapping) else inner:
            yield from _values(each)
    else:
        yield value
