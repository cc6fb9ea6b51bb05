"""What can be set, and set back: the priority and the delay of a job, the limits of a queue."""

from __future__ import annotations

import time
from datetime import datetime

from msgspec import Struct

from taskbull.core.durations import instant_from_ms, instant_to_ms
from taskbull.core.states import MAX_PRIORITY
from taskbull.dashboard.actions.fields import field
from taskbull.dashboard.board_order import Acted, BoardAction, BoardOrder, Offer
from taskbull.dashboard.html import Node, code, p, strong
from taskbull.dashboard.messages import Form, Refused
from taskbull.dashboard.visit import Visit
from taskbull.dashboard.words import ago, clock, duration


async def _ask_priority(visit: Visit, order: BoardOrder) -> Node:
    old = str(await _priority_of(visit, order))
    return [
        p("Change the priority of job ", code(order.id), "?"),
        field(
            "priority",
            ["Priority: ", _from(old)],
            "number",
            f"1 runs first, {MAX_PRIORITY:,} last; 0: before all of them",
            min="0",
            max=str(MAX_PRIORITY),
            value=order.form.get("priority") or old,
            required="required",
        ),
    ]


async def _priority(visit: Visit, order: BoardOrder) -> Acted:
    order.form.need("priority")
    new, old = order.form.number("priority"), await _priority_of(visit, order)
    await visit.server.queue(order.queue).change_priority(order.id, new)
    fields = {"q": order.queue, "id": order.id, "priority": str(old)}
    return Acted(
        f"The priority of job {order.id} was {old}, and is {new}.",
        offer=Offer("priority", f"Back to {old}", fields) if new != old else None,
    )


async def _priority_of(visit: Visit, order: BoardOrder) -> int:
    return (await visit.server.place(order.queue, order.id)).row.job.priority


async def _ask_delay(visit: Visit, order: BoardOrder) -> Node:
    old, restored = await _due(visit, order), restored_due(order.form)
    was = ["Due ", clock(old), " (", ago(old), ") → "]
    if restored is not None:
        return [p("Change when job ", code(order.id), " is to run?"), p(was, clock(restored))]
    seconds = 3600 if old is None else max(0, round(old.timestamp() - time.time()))
    return [
        p("When is job ", code(order.id), " to run?"),
        field(
            "delay",
            [was, "new, in seconds from now"],
            "number",
            min="0",
            value=str(seconds),
            required="required",
        ),
    ]


async def _delay(visit: Visit, order: BoardOrder) -> Acted:
    old, restored = await _due(visit, order), restored_due(order.form)
    if restored is None:
        order.form.need("delay")
        delay: float = order.form.number("delay")
    else:
        delay = max(0.0, restored.timestamp() - time.time())
    await visit.server.queue(order.queue).change_delay(order.id, restored or delay)
    said = f"Job {order.id} will run in {duration(delay)}"
    if old is None:
        return Acted(f"{said}.")
    due = {"due": str(instant_to_ms(old)), "state": str(order.state or "")}
    offer = Offer("delay", "Back to when it was due", {"q": order.queue, "id": order.id, **due})
    before = duration(max(0.0, old.timestamp() - time.time()))
    return Acted(f"{said}; it would have in {before}.", offer=None if restored else offer)


async def _due(visit: Visit, order: BoardOrder) -> datetime | None:
    return (await visit.server.place(order.queue, order.id)).row.due


def restored_due(form: Form) -> datetime | None:
    """Return when a job is to be due again, if a form has that from an offer."""
    if not form.get("due"):
        return None
    due = instant_from_ms(form.number("due"))
    if due is None:
        raise Refused(400, "'due' is not a time: open the page again.")
    return due


class _Limits(Struct, frozen=True):
    """What a queue allows over all workers; 0: there is no such limit."""

    at_once: int
    most: int
    window: float

    @property
    def words(self) -> str:
        at_once = f"{self.at_once:,} at once" if self.at_once else "any number at once"
        rate = f"{self.most:,} per {self.window:g} s" if self.most else "at any rate"
        return f"{at_once}, {rate}"

    @property
    def fields(self) -> dict[str, str]:
        return {
            "concurrency": str(self.at_once or ""),
            "most": str(self.most or ""),
            "window": f"{self.window:g}",
        }


async def _ask_limits(visit: Visit, order: BoardOrder) -> Node:
    old = await _limits_of(visit, order)
    offered = bool(order.form.get("window"))
    new = {**old.fields, **{name: order.form.get(name) for name in old.fields if offered}}
    window = old.fields["window"] if old.most else "none"
    return [
        p("Limit ", code(order.queue), ", over all workers? An empty field is no limit."),
        p("Now: ", strong(old.words), "."),
        field(
            "concurrency",
            ["Jobs at once: ", _from(old.fields["concurrency"])],
            "number",
            min="1",
            value=new["concurrency"],
        ),
        field(
            "most",
            ["Jobs started per window: ", _from(old.fields["most"])],
            "number",
            min="1",
            value=new["most"],
        ),
        field(
            "window",
            ["Window in seconds: ", _from(window)],
            "number",
            min="0.001",
            step="0.001",
            value=new["window"],
        ),
    ]


async def _limits(visit: Visit, order: BoardOrder) -> Acted:
    form, queue = order.form, visit.server.queue(order.queue)
    new = _Limits(form.number("concurrency"), form.number("most"), form.seconds("window") or 1.0)
    old = await _limits_of(visit, order)
    await queue.set_global_concurrency(new.at_once or None)
    await queue.set_global_rate_limit(new.most or None, new.window)
    offer = Offer("limits", "Back to what it was", {"q": order.queue, **old.fields})
    said = f"{order.queue} now runs {new.words}; before: {old.words}."
    return Acted(said, offer=offer if new.words != old.words else None)


async def _limits_of(visit: Visit, order: BoardOrder) -> _Limits:
    [sample] = await visit.server.sample([order.queue])
    found = sample.found
    return _Limits(found.concurrency or 0, found.rate_max or 0, found.rate_window or 1.0)


def _from(old: str) -> Node:
    return [strong(old or "none"), " → new"]


PRIORITY = BoardAction("priority", "Change priority", "job", _ask_priority, _priority)
DELAY = BoardAction("delay", "Change delay", "job", _ask_delay, _delay, carries=("due",))
LIMITS = BoardAction("limits", "Set limits", "queue", _ask_limits, _limits)
