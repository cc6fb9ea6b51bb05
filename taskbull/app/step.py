"""Steps: functions whose results are stored, so that a job that runs again continues after them."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable
from functools import cached_property, wraps
from typing import Any, ParamSpec, TypeVar, cast, overload

import msgspec

from taskbull.app.signature import result_reader
from taskbull.core import payload
from taskbull.core.backoff import Backoff
from taskbull.core.job import current
from taskbull.core.steps import DIGEST_LENGTH
from taskbull.core.validation import Duration, check_int, check_text, check_type, seconds
from taskbull.errors import ConfigurationError, SerializationError

P = ParamSpec("P")
R = TypeVar("R")


@overload
def step(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def step(
    *,
    name: str | None = None,
    attempts: int = 1,
    backoff: Backoff | None = None,
    timeout: Duration | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def step(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    attempts: int = 1,
    backoff: Backoff | None = None,
    timeout: Duration | None = None,
) -> Any:
    """Make a function a step: inside a job, its result is stored and used by later runs of the job.

    When a job runs again after an error, a crash, a deploy or a wait, a finished step returns its
    stored result, and the function is not called. Outside a job, a step is the plain function.
    Steps called by a step belong to it and are not stored.

    Both `async def` and `def` work. The result must be JSON-serializable. It is returned as
    decoded from JSON for the return annotation, even in the first run.

    Args:
        name: Name of the step. By default the function's name.
        attempts: Number of attempts within one run of the job.
        backoff: Delay between these attempts. By default they follow immediately.
        timeout: Time limit of one attempt. The thread of a sync function cannot be stopped; it
            continues, and its result is ignored.

    Raises:
        ConfigurationError: If an argument is invalid, or the function is a generator.

    Example:
        >>> @step
        ... async def charge(order: str) -> str: ...
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        return _decorate(function, name, attempts, backoff, timeout)

    return decorate if function is None else decorate(function)


def _decorate(
    function: Callable[..., Any],
    name: str | None,
    attempts: int,
    backoff: Backoff | None,
    timeout: Duration | None,
) -> Callable[..., Any]:
    if (kind := type(function)) in {staticmethod, classmethod}:
        raise ConfigurationError(f"@step must be below @{kind.__name__}: {function!r}")
    if not inspect.isroutine(function) or inspect.isbuiltin(function):
        raise ConfigurationError(f"@step needs a function made by def or async def: {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(f"@step cannot store the results of generator {function!r}")
    check_int("attempts", attempts, least=1)
    if backoff is not None:
        check_type("backoff", backoff, Backoff, "be a Backoff")
    limit = None if timeout is None else seconds("timeout", timeout, positive=True)
    chosen = function.__name__ if name is None else check_text("step name", name, most=255)
    made = _Step(function, chosen, attempts, backoff or Backoff.none(), limit)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        job = current.get(None)
        if job is None:
            return function(*args, **kwargs)
        return made.call(job, args, kwargs)

    if sys.version_info >= (3, 12) and inspect.iscoroutinefunction(function):
        return inspect.markcoroutinefunction(call)
    return call


class _Step:
    """A step. Annotations are read at its first call, because they may name later classes."""

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        attempts: int,
        backoff: Backoff,
        timeout: float | None,
    ) -> None:
        self._function = function
        self._name = name
        self._attempts = attempts
        self._backoff = backoff
        self._timeout = timeout
        self._is_async = inspect.iscoroutinefunction(function)
        parameters = inspect.signature(function).parameters.values()
        self._positional = [
            one.name
            for one in parameters
            if one.kind in {one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD}
        ]

    def call(self, job: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        from taskbull.worker import running_job  # noqa: PLC0415 - for workers only

        if running_job.is_inside_step():
            return self._function(*args, **kwargs)
        of_job = running_job.steps_of(job)
        call = of_job.begin("step", self._name, self._digest(args, kwargs))
        run = of_job.arun if self._is_async else of_job.run
        return run(call, cast("running_job.StepSpec", self._spec), args, kwargs)

    @cached_property
    def _spec(self) -> Any:
        from taskbull.worker.running_job import StepSpec  # noqa: PLC0415 - for workers only

        read = result_reader(self._function)
        return StepSpec(
            self._name, self._function, self._attempts, self._backoff, self._timeout, read
        )

    def _digest(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return a digest of the arguments, each with the name of its parameter."""
        named = {**dict(zip(self._positional, args, strict=False)), **kwargs}
        rest = args[len(self._positional) :]
        try:
            text = _encode([named, rest])
        except (TypeError, ValueError, msgspec.MsgspecError, RecursionError):
            text = repr([*map(type, args), *sorted(kwargs)]).encode()
        return hashlib.sha256(text).hexdigest()[:DIGEST_LENGTH]


def _stand_in(value: object) -> object:
    """Return JSON for an object without a JSON form, such as a client: its class."""
    try:
        return msgspec.Raw(payload.encode(value, "argument"))
    except SerializationError:
        return f"{type(value).__module__}.{type(value).__qualname__}"


_encode = msgspec.json.Encoder(enc_hook=_stand_in, order="deterministic").encode
