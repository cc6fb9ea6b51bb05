"""Error texts in logs and in Redis. # users-5"""

from __future__ import annotations

import asyncio
import traceback
from dataclasses import dataclass
from typing import Any, cast

import pytest
import trio

from taskbull.core.job import compose
from taskbull.core.outcome import (
    REASON_LIMIT,
    STACK_LIMIT,
    hint_for,
    is_ours,
    leave_out_our_frames,
    reason_of,
    stack_of,
)
from taskbull.core.payload import encode
from taskbull.errors import (
    ConfigurationError,
    CorruptJob,
    PermanentError,
    SerializationError,
    Snooze,
    TransientError,
    UnrecoverableError,
)


class Order:
    class DoesNotExist(Exception):
        """Named as Django names it."""


class CardDeclined(PermanentError):
    """A user's subclass of a taskbull error."""


class Unprintable(Exception):
    def __init__(self, fault: BaseException) -> None:
        self._fault = fault

    def __str__(self) -> str:
        raise self._fault


@dataclass(frozen=True)
class Frozen(Exception):
    code: int


def caught(function: Any, *args: Any) -> BaseException:
    """Give what a function raises, with its stack."""
    try:
        function(*args)
    except BaseException as error:  # noqa: BLE001
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (KeyError("customer_id"), "KeyError: 'customer_id'"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (ValueError(), "ValueError"),
        (ValueError("two\nlines"), "ValueError: two\nlines"),
        (Order.DoesNotExist("no order 5"), "Order.DoesNotExist: no order 5"),
        (ValueError("😀 \0"), "ValueError: 😀 \0"),
        (ValueError("\ud800"), "ValueError: \\ud800"),
        # The error's message, as Node stores it.
        (PermanentError("no such card"), "no such card"),
        (UnrecoverableError("no such card"), "no such card"),
        (TransientError("busy"), "busy"),
        (PermanentError(), "PermanentError"),
        (CorruptJob("5", "opts", "bad"), "Cannot read field 'opts' of job '5': bad"),
        (CardDeclined("no such card"), "CardDeclined: no such card"),
        (
            ExceptionGroup("g", [ValueError("a"), ExceptionGroup("h", [KeyError("b")])]),
            "ExceptionGroup: g (2 sub-exceptions): ValueError: a; KeyError: 'b'",
        ),
        (
            ExceptionGroup("g", [ValueError(str(n)) for n in range(9)]),
            "ExceptionGroup: g (9 sub-exceptions): ValueError: 0; ValueError: 1; ValueError: 2; …",
        ),
    ],
)
def test_a_reason_names_the_type_of_the_error(error: BaseException, reason: str) -> None:
    assert reason_of(error) == reason


def test_a_class_made_in_a_function_has_its_plain_name() -> None:
    class Boom(Exception):
        pass

    assert reason_of(Boom("x")) == "Boom: x"


@pytest.mark.parametrize("fault", [RuntimeError("no"), SystemExit(1), KeyboardInterrupt()])
def test_an_error_that_cannot_be_printed_is_reported_anyway(fault: BaseException) -> None:
    reason = reason_of(Unprintable(fault))
    assert reason.startswith("Unprintable: its message cannot be read")
    assert type(fault).__name__ in reason
    assert "Unprintable" in stack_of(Unprintable(fault))


def test_what_is_stored_is_bounded() -> None:
    huge = ValueError("x" * 5_000_000)
    assert reason_of(huge).startswith("ValueError: xxx")
    assert len(reason_of(huge)) < REASON_LIMIT + 100
    assert len(stack_of(huge)) < STACK_LIMIT + 100
    many = ExceptionGroup("g", [ValueError("x" * 1_000_000) for _ in range(5)])
    assert len(reason_of(many)) < REASON_LIMIT + 100


def test_a_task_for_another_event_loop_names_the_backend() -> None:
    of_trio = caught(lambda: trio.Event().wait().send(None))
    of_asyncio = caught(lambda: asyncio.sleep(1).send(None))
    assert "--backend trio" in reason_of(of_trio)
    assert "--backend asyncio" in reason_of(of_asyncio)
    assert reason_of(of_trio).startswith("RuntimeError: must be called from async context")
    assert hint_for(ValueError("no running event loop")) is None
    assert hint_for(RuntimeError("the engine has no running water")) is None


def _frames(error: BaseException) -> list[str]:
    return [
        "ours" if is_ours(frame.filename) else frame.name
        for frame in traceback.extract_tb(error.__traceback__)
    ]


def _call(layers: list[Any], handler: Any) -> BaseException:
    error = caught(compose(layers, handler), None)
    leave_out_our_frames(error)
    return error


def _layer(job: Any, call_next: Any) -> Any:
    return call_next(job)


def _fail(_: Any) -> None:
    raise KeyError("customer_id")


def _refuse(_: Any) -> None:
    encode(object(), "data")


def test_frames_of_ours_around_a_task_are_left_out() -> None:
    error = _call([_layer, _layer], _fail)
    assert _frames(error) == ["caught", "_layer", "_layer", "_fail"]


def test_frames_of_ours_that_a_task_called_stay() -> None:
    error = _call([_layer], _refuse)
    assert isinstance(error, SerializationError)
    assert _frames(error)[:3] == ["caught", "_layer", "_refuse"]
    assert _frames(error)[3:] == ["ours"] * len(_frames(error)[3:]) != []


def test_causes_contexts_and_members_of_groups_lose_our_frames_too() -> None:
    def chained(_: Any) -> None:
        failing: Any = compose([_layer], cast("Any", _fail))
        try:
            failing(None)
        except KeyError as error:
            raise BaseExceptionGroup("g", [caught(failing, None)]) from error

    error = _call([], chained)
    assert isinstance(error, BaseExceptionGroup)
    assert error.__cause__ is not None
    assert "ours" not in _frames(error.__cause__) + _frames(error.exceptions[0])
    error.__cause__.__cause__ = error  # round in a circle
    leave_out_our_frames(error)


def test_an_error_of_ours_that_no_code_of_others_met_has_no_stack() -> None:
    error = caught(Snooze, -1)
    assert isinstance(error, ConfigurationError)
    error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # without this file
    leave_out_our_frames(error)
    assert error.__traceback__ is None
    assert stack_of(error).startswith("taskbull.errors.ConfigurationError: Snooze(…)")


def test_an_error_that_may_not_be_changed_is_no_obstacle() -> None:
    def frozen(_: Any) -> None:
        raise Frozen(5)

    assert _frames(_call([_layer], frozen)) == ["caught", "_layer", "frozen"]
