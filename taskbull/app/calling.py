"""How a call of a task becomes a job: what a task and its variants share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from operator import attrgetter
from typing import Any, Protocol

from taskbull.app.arguments import result_reader
from taskbull.app.binding import Binder
from taskbull.app.checking import Check, argument_check
from taskbull.app.producer import JobSpec, Producer
from taskbull.app.received import needs_of
from taskbull.core.job import NewJob
from taskbull.core.options import JobOptions
from taskbull.queue.call_checks import BlockingCheck


class Home(Protocol):
    """What a task belongs to: an app or a group."""

    @property
    def producer(self) -> Producer: ...


class TaskCalling:
    """What a task and its variants share: how a call becomes a job."""

    def __init__(self, function: Callable[..., Any], name: str, home: Home) -> None:
        self.name = name
        self._home = home
        self.binder = self.by_hand = Binder(name, function)
        self.blocking = BlockingCheck(f"{name}.delay()", f"await {name}.adelay()")
        self.needs = needs_of(self.binder)
        self.read = self.read_result  # one for all handles
        self.function = function
        """Its parameters are what a job stores."""

    @property
    def producer(self) -> Producer:
        """What adds jobs; `ConfigurationError` if the task's group is not part of an app yet."""
        return self._home.producer

    def spec(
        self, queue: str, options: JobOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> JobSpec[Any]:
        """Return a job; refuse a call that does not fit."""
        arguments = self.binder.bind(args, kwargs)
        self._check(arguments)
        return JobSpec(queue, NewJob(self.name, arguments, options), self)

    def check_given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse a call by hand that leaves out what only a worker knows."""
        if not (self.needs or self.by_hand.injected):
            return
        given = self.by_hand.given_by_hand(args, kwargs)
        for name in self.by_hand.injected:
            if name not in given:
                raise TypeError(
                    f"{self.name}: a call by hand must give the argument {name}, which a worker "
                    "takes from what the lifespan yields"
                )
        for need in self.needs:
            if need.parameter not in given:
                raise TypeError(
                    f"{self.name}: a call by hand must give the argument {need.parameter}, which a "
                    f"worker takes from the job's {need.child}"
                )

    def __reduce__(self) -> tuple[Any, ...]:  # as its task: by the name in its module
        return _calling_of, (self.function.__module__, self.function.__qualname__)

    def read_result(self, raw: bytes) -> Any:
        """Return a result from its JSON."""
        return self._result_reader(raw)

    @functools.cached_property
    def _check(self) -> Check:
        return argument_check(self.name, self.function, self.binder)

    @functools.cached_property
    def _result_reader(self) -> Callable[[bytes], Any]:
        return result_reader(self.function)  # when first needed: all names are defined by then


def _calling_of(module: str, name: str) -> TaskCalling:
    calling: TaskCalling = attrgetter(name)(import_module(module)).calling
    return calling
