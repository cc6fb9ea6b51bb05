"""Whose end an exception is: that of one job, or that of the slot in which the job ran."""

from __future__ import annotations

from math import inf

from anyio import current_effective_deadline, current_time, get_cancelled_exc_class

from taskbull.core.classification import leaves

_SIGNAL_HANDLERS = frozenset({"asyncio.runners", "anyio._backends._asyncio", "trio._core._ki"})
"""The modules whose functions raise `KeyboardInterrupt` when Ctrl-C was really pressed."""


def ends_the_slot(error: BaseException, *, interrupted: bool = False) -> bool:
    """Return whether a job ends for reasons that are not its own; `interrupted`: it was cancelled.

    A handler can raise anything: `KeyboardInterrupt` without a Ctrl-C, or, on asyncio,
    `CancelledError` although nobody cancels us, for it may have awaited something that was
    cancelled. Those are failures of the job.
    """
    # By its type: `isinstance` would ask the error for its class, which may raise.
    if issubclass(type(error), GeneratorExit):
        return _without_a_loop()
    cancelled = get_cancelled_exc_class()
    if all(issubclass(type(leaf), cancelled) for leaf in leaves(error)):  # a nursery groups them
        return not interrupted and current_effective_deadline() == -inf
    return any(pressed(leaf) for leaf in leaves(error))


def pressed(error: BaseException) -> bool:
    """Return whether it is the interrupt of a real Ctrl-C."""
    traceback = error.__traceback__
    if traceback is None or not issubclass(type(error), KeyboardInterrupt):
        return False
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback.tb_frame.f_globals.get("__name__") in _SIGNAL_HANDLERS


def _without_a_loop() -> bool:
    """Return whether our coroutine is being closed because its event loop is gone."""
    try:
        current_time()
    except RuntimeError:
        return True
    return False
