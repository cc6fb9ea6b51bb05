"""What an app says about its queues, for all workers of the app that serve them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from msgspec.structs import asdict, replace

from taskbull.core.checks import check_type
from taskbull.core.worker_options import NO_RULES, QueueOptions, check_concurrency
from taskbull.errors import ConfigurationError

Queues: TypeAlias = str | Sequence[str] | Mapping[str, int | None]
"""One queue or several; a mapping gives each a concurrency of its own, None: the usual one."""


class QueueRules:
    """Knows the rules of the queues."""

    def __init__(self) -> None:
        self._declared: dict[str, QueueOptions] = {}

    @property
    def queues(self) -> list[str]:
        """The queues that have any."""
        return list(self._declared)

    def declare(self, queue: str, options: QueueOptions) -> None:
        """Note rules; more of them may follow elsewhere, but none that contradicts another."""
        known = asdict(self._declared.get(queue, NO_RULES))
        new = {name: value for name, value in asdict(options).items() if value is not None}
        for name, value in new.items():
            if known[name] not in {None, value}:
                raise ConfigurationError(
                    f"Queue {queue} would have two different values of {name}: {known[name]!r} and "
                    f"{value!r}. app.queue_options may be called several times for a queue, but "
                    "each rule has one value"
                )
        self._declared[queue] = QueueOptions(**{**known, **new})

    def for_worker(self, queues: Queues) -> dict[str, QueueOptions]:
        """Return the rules of a worker's queues; a number in `queues` overrides a declared one."""
        if isinstance(queues, str):
            queues = [queues]
        check_type("queues", queues, Iterable, "be a queue, a list of them, or a mapping")
        numbers = queues if isinstance(queues, Mapping) else dict.fromkeys(queues)
        return {queue: self._with(queue, number) for queue, number in numbers.items()}

    def _with(self, queue: str, concurrency: int | None) -> QueueOptions:
        rules = self._declared.get(queue, NO_RULES)
        if concurrency is None:
            return rules
        check_concurrency(f"concurrency of queue {queue}", concurrency)
        return replace(rules, concurrency=concurrency)
