"""Binding a call to a signature: as Python does it, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskbull.app.signature import Binder


def plain(a: int, b: int, c: int = 3) -> None: ...
def keyword(a: int, *, b: int, c: int = 3) -> None: ...
def positional(a: int, b: int = 2, /, c: int = 3) -> None: ...
def open_ended(a: int, b: int = 2, **others: int) -> None: ...
def positional_open(a: int, b: int = 2, /, **others: int) -> None: ...
def nothing() -> None: ...


FUNCTIONS: list[Callable[..., None]] = [
    plain,
    keyword,
    positional,
    open_ended,
    positional_open,
    nothing,
]

PARAMETERS = {"a", "b"}

names = st.sampled_from(["a", "b", "c", "d", "others"])
calls = st.tuples(
    st.lists(st.integers(0, 9), max_size=4).map(tuple),
    st.dictionaries(names, st.integers(0, 9), max_size=4),
)


def bound_by_python(function: Callable[..., None], args: Any, kwargs: Any) -> dict[str, Any] | None:
    try:
        arguments = dict(inspect.signature(function).bind(*args, **kwargs).arguments)
    except TypeError:
        return None
    others = arguments.pop("others", {}) if "open" in function.__name__ else {}
    # Python lets ** have the name of a positional-only parameter; in a JSON object there is one.
    return None if others.keys() & PARAMETERS else {**arguments, **others}


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
@settings(deadline=None)  # other programs may hold it up
@given(call=calls)
def test_calls_are_bound_as_python_binds_them(
    function: Callable[..., None], call: tuple[Any, Any]
) -> None:
    args, kwargs = call
    binder = Binder("task", function)
    expected = bound_by_python(function, args, kwargs)
    if expected is None:
        with pytest.raises(TypeError, match=r"^task\(\)"):
            binder.bind(args, kwargs)
    else:
        assert binder.bind(args, kwargs) == expected


WRONG: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((), {}, "task() missing required argument: 'a'"),
    ((1,), {}, "task() missing required argument: 'b'"),
    ((1, 2, 3, 4), {}, "task() got too many positional arguments"),
    ((1, 2), {"x": 3}, "task() got an unexpected keyword argument 'x'"),
    ((1, 2), {"a": 3}, "task() got multiple values for argument 'a'"),
]


@pytest.mark.parametrize(("args", "kwargs", "message"), WRONG)
def test_a_wrong_call_names_the_parameter(
    args: tuple[Any, ...], kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError) as refused:
        Binder("task", plain).bind(args, kwargs)
    assert str(refused.value) == message


def test_a_default_is_not_stored() -> None:
    assert Binder("task", plain).bind((1, 2), {}) == {"a": 1, "b": 2}
