"""Both queues, and both servers, have the methods of one list: what people and tools see."""

from __future__ import annotations

import inspect
import pydoc
from typing import Any

import pytest

from taskbull.monitor.browse import ServerReads
from taskbull.monitor.inspect import ServerOperations
from taskbull.monitor.server import Server, SyncServer
from taskbull.queue.operations import QueueOperations
from taskbull.queue.questions import Method
from taskbull.queue.queue import Queue, SyncQueue

OPERATIONS = sorted(name for name in vars(QueueOperations) if not name.startswith("_"))


OF_SERVERS = sorted(
    name
    for kind in (ServerOperations, ServerReads)
    for name, value in vars(kind).items()
    if isinstance(value, Method)
)


def test_there_are_operations() -> None:
    assert {"queues", "survey", "jobs", "inspect"} <= set(OF_SERVERS)
    assert {"counts", "pause", "retry_all", "set_global_rate_limit"} <= set(OPERATIONS)


@pytest.mark.parametrize(
    ("one", "other", "name"),
    [
        *[(Queue, SyncQueue, name) for name in OPERATIONS],
        *[(Server, SyncServer, name) for name in OF_SERVERS],
    ],
)
def test_an_operation_is_an_ordinary_method_of_both(one: type, other: type, name: str) -> None:
    ours: Any = getattr(one, name)
    theirs: Any = getattr(other, name)
    assert inspect.iscoroutinefunction(ours)
    assert not inspect.iscoroutinefunction(theirs)
    assert inspect.isfunction(theirs)
    assert ours.__doc__ == theirs.__doc__
    assert ours.__doc__.splitlines()[0].endswith(".")
    assert inspect.signature(ours) == inspect.signature(theirs)
    assert "Operation" not in str(inspect.signature(ours))
    assert "Look" not in str(inspect.signature(ours))
    assert ours.__qualname__ == f"{one.__name__}.{name}"
    assert getattr(one, name) is ours


def test_help_shows_signature_result_and_docstring() -> None:
    shown = pydoc.plain(pydoc.render_doc(Queue.retry_all))
    signature = (
        "self, state: 'Finished' = 'failed', *, since: 'datetime | None' = None, "
        "reset_attempts: 'bool' = False"
    )
    one_line = " ".join(shown.split()).replace("( ", "(").replace(" )", ")")  # 3.13 wraps it
    assert f"async retry_all({signature}) -> 'int'" in one_line
    assert "Retry all failed (or completed) jobs and return their number." in shown
    assert "info(self, server: 'Node') -> 'dict[str, str]'" in pydoc.plain(
        pydoc.render_doc(SyncServer.info)
    )
    assert str(inspect.signature(SyncQueue("q").drain)) == "(*, delayed: 'bool' = False) -> 'int'"


def test_a_class_lists_its_operations_as_methods() -> None:
    kinds = {each.name: each.kind for each in inspect.classify_class_attrs(SyncQueue)}
    assert {kinds[name] for name in OPERATIONS} == {"method"}


def test_a_subclass_may_change_an_operation() -> None:
    class Shouting(SyncQueue):
        def _run(self, operation: Any) -> Any:
            return 5

        def drain(self, *, delayed: bool = False) -> int:
            return 1000 + super().drain(delayed=delayed)

    assert Shouting("q").drain() == 1005
