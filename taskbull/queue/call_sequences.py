"""The numbering of a producer's add calls, by which Redis knows one that is sent again.

A producer has as many sequences of calls as it has calls under way.
"""

from __future__ import annotations

import os
from collections import deque
from itertools import count
from uuid import uuid4

from taskbull.scripts.add import CallSequence


class _Producer:
    """What one process lends: replaced as a whole, so that threads need no lock."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.id = uuid4().hex
        self.free: deque[CallSequence] = deque()
        self.numbers = count()

    def new_sequence(self) -> CallSequence:
        return CallSequence(self.id, next(self.numbers))


class CallSequences:
    """Lends sequences, to any thread, before and after a fork.

    The producer's id is drawn when the first sequence is lent, not before: at import it would be
    the same in all processes that are started from one image.
    """

    def __init__(self) -> None:
        self._producer: _Producer | None = None

    def borrow(self) -> CallSequence:
        """Lend a sequence for one call, numbered as the next of its calls."""
        producer = self._own()
        try:
            sequence = producer.free.pop()
        except IndexError:
            sequence = producer.new_sequence()
        sequence.begin_call()
        return sequence

    def give_back(self, sequence: CallSequence) -> None:
        """Take back a sequence whose call is over."""
        producer = self._producer
        if producer is not None and producer.id == sequence.producer:
            producer.free.append(sequence)

    def reserve(self) -> CallSequence:
        """Return a sequence for one call that somebody makes later: it is not lent again."""
        sequence = self._own().new_sequence()
        sequence.begin_call()
        sequence.mark = uuid4().hex[:16]
        return sequence

    def renew(self) -> None:
        """Be another producer: this one's sequences are used by a clone of the process."""
        self._producer = None

    def _own(self) -> _Producer:
        producer = self._producer
        if producer is None or producer.process != os.getpid():
            producer = self._producer = _Producer()
        return producer
