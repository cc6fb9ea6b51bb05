"""The signals that stop a program: heard in the process they were sent to, and nowhere else.

An event loop learns of a signal by a byte in a pipe, and asyncio and uvloop take the byte for the
signal. A forked child has the handlers and the pipe of its parent: a SIGTERM for the child would
stop the parent, and leave the child alive. So the byte only wakes the loop here; what counts is
Python's own handler, which runs in the process that was signalled. And a child is forked with the
signals held back, until they mean again what they meant before.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, TypeAlias

from anyio import open_signal_receiver

from taskbull.store.backend import poster

_Handler: TypeAlias = Any  # what signal.getsignal gives: a function, a constant, or None

_before: dict[signal.Signals, _Handler] = {}
"""What the signals that are heard now meant before: signals belong to a whole process."""

_held = threading.local()


@contextmanager
def heard(*numbers: signal.Signals, by: Callable[[signal.Signals], None]) -> Generator[None]:
    """Call `by` in the event loop for each such signal that this process receives.

    Only the main thread can hear signals: in another one, nothing is heard.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    post = poster()

    def note(number: int, _: FrameType | None) -> None:
        with suppress(RuntimeError):  # the event loop is over
            post(lambda: by(signal.Signals(number)))

    before = {number: signal.getsignal(number) for number in numbers}
    try:
        with open_signal_receiver(*numbers):  # its byte wakes the loop
            for number in numbers:
                signal.signal(number, note)
                signal.siginterrupt(number, False)
            _before.update(before)
            yield
    finally:
        for number, handler in before.items():
            _before.pop(number, None)
            _set(number, handler)


def _set(number: signal.Signals, handler: _Handler) -> None:
    signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _hold_back() -> None:
    if _before:
        _held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, set(_before))


def _let_go() -> None:
    mask = getattr(_held, "mask", None)
    if mask is not None:
        _held.mask = None
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _give_back() -> None:
    """In a forked child: let signals mean what they did before; what was held back comes now."""
    if _before:
        signal.set_wakeup_fd(-1)
        for number, handler in _before.items():
            loops = number == signal.SIGINT and callable(
                handler
            )  # an event loop's, not the child's
            _set(number, signal.default_int_handler if loops else handler)
        _before.clear()
    _let_go()


if hasattr(os, "register_at_fork"):  # where there is a fork
    os.register_at_fork(before=_hold_back, after_in_parent=_let_go, after_in_child=_give_back)
