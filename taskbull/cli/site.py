"""Where a command finds queues: a server, a prefix, and the app if there is one."""

from __future__ import annotations

import re
from typing import TypeVar

import click

from taskbull.app.app import App
from taskbull.cli.asking import Asker
from taskbull.cli.errors import Failure
from taskbull.core.checks import did_you_mean
from taskbull.core.job import Job
from taskbull.core.keys import QueueKeys
from taskbull.core.retry import attempts_of
from taskbull.queue.operations import Operations
from taskbull.scripts.call import Command, Operation
from taskbull.scripts.replies import text
from taskbull.store.namespace import Namespace

T = TypeVar("T")

ADDRESS = f"{__name__}.address"
"""By which click's context knows where a command has gone."""

_SCANNED = 1000


class Site:
    """The queues under one prefix; nothing is connected before it is asked for."""

    def __init__(self, namespace: Namespace, app: App | None = None) -> None:
        self.namespace = namespace
        self.address = namespace.address
        self.prefix = namespace.prefix
        self.app = app
        self.redis = Asker(namespace.address)
        if ctx := click.get_current_context(silent=True):
            ctx.call_on_close(self.redis.close)
            ctx.meta[ADDRESS] = namespace.address

    @classmethod
    def of(cls, app: App) -> Site:
        """Give the place of an app's queues."""
        return cls(app.producer.namespace, app)

    def ask(self, operation: Operation[T]) -> T:
        """Do what a queue's `Operations` gave."""
        return self.redis.run(operation)

    def keys(self, name: str) -> QueueKeys:
        """Give the keys of a queue, whether it is there or not."""
        return self.namespace.keys(name)

    def operations(self, name: str) -> Operations:
        """Give what can be done with a queue, whether it is there or not."""
        return Operations(self.keys(name))

    def queue(self, name: str) -> Operations:
        """Give a queue that exists; one that does not is a failure that names the nearest."""
        operations = self.operations(name)
        self.redis.knock()
        if not self.exists(name):
            known = self.names()
            has = f"; there is {', '.join(known[:8])}" if known else "; there is none yet"
            hint = did_you_mean(name, known) or has
            raise Failure(
                f"Queue {name} does not exist in Redis at {self.address} under the prefix "
                f"{self.prefix!r}{hint}"
            )
        return operations

    def attempts_of(self, job: Job) -> int:
        """Tell how many attempts a job has: what the app says counts where the job says nothing."""
        return attempts_of(job) if self.app is None else self.app.attempts_of(job)

    def exists(self, name: str) -> bool:
        """Tell whether a queue is in Redis, or belongs to a task of the app."""
        if self.app is not None and name in self.app.queues:
            return True
        meta = self.keys(name).meta
        return self.redis.run(Command(("EXISTS", meta), meta, bool))

    def names(self) -> list[str]:
        """Name all queues, sorted: those of the app, and those found in Redis."""
        return sorted({*(self.app.queues if self.app else ()), *self.found()})

    def found(self) -> set[str]:
        """Name the queues in Redis, as code names them: without the hash tag that we add."""
        return {self._plain(name) for name in self._names_in_keys()}

    def _names_in_keys(self) -> set[str]:
        start, end = f"{self.prefix}:", ":meta"
        pattern = re.sub(r"([*?\[\]\\])", r"\\\1", start) + "*" + end
        names: set[str] = set()
        for server in self.redis.servers():
            cursor = b"0"
            while True:
                words = ("SCAN", cursor, "MATCH", pattern, "COUNT", _SCANNED, "TYPE", "hash")
                cursor, keys = self.redis.ask(server, *words)
                names.update(text(key)[len(start) : -len(end)] for key in keys)
                if cursor == b"0":
                    break
        # A name has no ":"; what has one is a key of another prefix, or of a job scheduler.
        return {name for name in names if name and ":" not in name}

    def _plain(self, name: str) -> str:
        inner = name[1:-1]
        if name == f"{{{inner}}}" and inner and self.keys(inner).tagged == name:
            return inner
        return name
