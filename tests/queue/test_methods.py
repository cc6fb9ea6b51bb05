"""Both queues have the methods of one list: what people and tools see of them."""

from __future__ import annotations

import inspect
import pydoc
from typing import Any

import pytest

from taskbull.queue.operations import Operations, QueueOperations
from taskbull.queue.queue import Queue
from taskbull.queue.schedules import ScheduleOperations
from taskbull.queue.sync_queue import SyncQueue

OPERATIONS = sorted(
    name for name in vars(QueueOperations) | vars(ScheduleOperations) if not name.startswith("_")
)


def test_there_are_operations() -> None:
    assert {"counts", "pause", "retry_all", "set_global_rate_limit"} <= set(OPERATIONS)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_an_ordinary_method_of_both_queues(name: str) -> None:
    ours: Any = getattr(Queue, name)
    theirs: Any = getattr(SyncQueue, name)
    assert inspect.iscoroutinefunction(ours)
    assert not inspect.iscoroutinefunction(theirs)
    assert inspect.isfunction(theirs)
    assert ours.__doc__ == theirs.__doc__
    assert ours.__doc__.rstrip().endswith(".")
    assert inspect.signature(ours) == inspect.signature(theirs)
    assert "Operation" not in str(inspect.signature(ours))
    assert ours.__qualname__ == f"Queue.{name}"
    assert getattr(Queue, name) is ours


def test_help_shows_signature_result_and_docstring() -> None:
    shown = pydoc.plain(pydoc.render_doc(Queue.retry_all))
    assert "async retry_all(self, state: 'Finished' = 'failed') -> 'int'" in shown
    assert "Run all jobs that failed (or completed) once more; return how many." in shown
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


def test_operations_can_be_had_as_values(prefix: str) -> None:
    queue = SyncQueue("q", prefix=prefix)
    assert Operations(queue.keys).is_paused() == Operations(queue.keys).is_paused()
