"""Tasks of both kinds: Django's, and those of a taskbull app."""

from __future__ import annotations

import time
from typing import Any

import django
from conf.jobs import app
from django.db import connection

from shop.models import Order

if django.VERSION >= (6,):
    from django.tasks import TaskContext, task
    from django.tasks.signals import task_finished, task_started
else:
    from django_tasks import TaskContext, task
    from django_tasks.signals import task_finished, task_started


class NoStock(Exception):
    """An error of the project."""


@task
def confirm(number: int, *, by: str = "nobody") -> str:
    """Confirm an order."""
    Order.objects.filter(pk=number).update(state=f"confirmed by {by}")
    return Order.objects.get(pk=number).state


@task(queue_name="emails")
async def aconfirm(number: int) -> str:
    """Confirm an order with Django's async queries."""
    order = await Order.objects.aget(pk=number)
    order.state = "confirmed"
    await order.asave()
    return order.state


@task(takes_context=True)
def look(context: TaskContext, word: str) -> dict[str, Any]:
    """Return what the context says."""
    result = context.task_result
    return {
        "word": word,
        "id": result.id,
        "attempt": context.attempt,
        "status": result.status,
        "workers": len([each for each in result.worker_ids if each]),
        "args": result.args,
    }


@task
def fail(word: str) -> None:
    """Raise an error of the project."""
    raise NoStock(word)


@task(queue_name="retries", backend="retrying", takes_context=True)
def flaky(context: TaskContext, fine_at: int) -> int:
    """Fail until an attempt."""
    if context.attempt < fine_at:
        raise NoStock(str(context.attempt))
    return context.attempt


@task(queue_name="retries", backend="retrying", takes_context=True)
async def aflaky(context: TaskContext, fine_at: int) -> int:
    """Do the same in the event loop."""
    if context.attempt < fine_at:
        raise NoStock(str(context.attempt))
    return context.attempt


@task
def fail_without_utf8() -> None:
    """Raise an error whose message UTF-8 cannot encode."""
    raise NoStock("\ud800")


class Stop(BaseException):
    """An error that `except Exception` does not catch."""


@task
def stop() -> None:
    """Raise it, with a cause and several lines."""
    try:
        raise NoStock("1")
    except NoStock as error:
        raise Stop("first\nsecond: 2") from error


@task
def leave() -> None:
    """Try to end the process."""
    raise SystemExit(3)


@task
async def aleave() -> None:
    """Do the same in the event loop."""
    raise SystemExit(3)


@task
def no_json() -> object:
    """Return a number that JSON does not have."""
    return float("nan")


@task
def unserializable() -> object:
    """Return what JSON cannot represent."""
    return object()


@task
def order_of(word: str) -> None:
    """Write down when it ran."""
    Order.objects.create(state=f"ran {word}")


@task
def count(numbers: dict[int, int]) -> dict[int, int]:
    """Return a dict with numbers as keys."""
    return {7: sum(numbers.values())}


@task
def hang() -> None:
    """Take longer than a time limit."""
    time.sleep(1)


SIGNALS: dict[str, list[str]] = {}


def _on_started(task_result: Any, **_: Any) -> None:
    Order.objects.create(state=f"started {task_result.id} {task_result.status}")


def _on_finished(task_result: Any, **_: Any) -> None:
    errors = ",".join(error.exception_class_path for error in task_result.errors)
    Order.objects.create(state=f"finished {task_result.id} {task_result.status} {errors}"[:200])


task_started.connect(_on_started)
task_finished.connect(_on_finished)


@app.task
def ship(number: int) -> str:
    """Ship an order."""
    order = Order.objects.get(pk=number)
    order.state = "shipped"
    order.save()
    return order.state


@app.task
async def aship(number: int) -> str:
    """Ship an order with async queries."""
    order = await Order.objects.aget(pk=number)
    order.state = "shipped"
    await order.asave()
    return order.state


@app.task
def is_connected() -> bool:
    """Return True if an earlier job left its connection open."""
    was_open = connection.connection is not None
    Order.objects.exists()
    return was_open


@app.task
def any_object(thing) -> None:  # type: ignore[no-untyped-def]
    """Take anything that JSON can represent."""
