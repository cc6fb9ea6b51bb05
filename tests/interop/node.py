"""Node BullMQ as a subprocess that answers calls."""

from __future__ import annotations

import itertools
import json
import os
import queue
import subprocess
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal, Self

from msgspec import Struct

from tests.interop.waiting import PATIENCE

HERE = Path(__file__).parent

Version = Literal[5, 6]


class _Undefined:
    """JavaScript's `undefined`, where it differs from `null`."""

    def __repr__(self) -> str:
        return "UNDEFINED"


UNDEFINED: Final = _Undefined()


class Refused(Exception):
    """The operation was refused; `code` is BullMQ's number for the reason, if it has one."""

    def __init__(self, message: str, code: int | None = None, name: str = "Error") -> None:
        super().__init__(message)
        self.code = code
        self.name = name


class NodeStoppedError(Exception):
    """The Node process exited, or did not reply in time. The message has its last output."""


class NodeEvent(Struct, frozen=True):
    """An unsolicited report of a worker or a listener in the Node process."""

    event: str
    source: str
    fields: dict[str, Any]
    version: int | None = None
    queue: str | None = None
    prefix: str | None = None


def encode(value: Any) -> Any:
    """Encode `value` as JSON that the driver decodes to the intended JavaScript value."""
    match value:
        case _Undefined():
            return {"$undefined": True}
        case float() if value != value or value in (float("inf"), float("-inf")):  # noqa: PLR0124
            return {"$number": str(value).replace("inf", "Infinity").replace("nan", "NaN")}
        case dict():
            return {key: encode(inner) for key, inner in value.items()}
        case list() | tuple():
            return [encode(inner) for inner in value]
        case _:
            return value


class Events:
    """The events that arrived since this was opened, in order."""

    def __init__(self, deadline: float) -> None:
        self._arrived: queue.SimpleQueue[NodeEvent] = queue.SimpleQueue()
        self._deadline = deadline

    def put(self, event: NodeEvent) -> None:
        self._arrived.put(event)

    def wait_for(self, event: str, **fields: Any) -> NodeEvent:
        """Read events until one has this name and these fields. Fail at the deadline."""
        while True:
            try:
                candidate = self._arrived.get(timeout=self._deadline)
            except queue.Empty:
                raise NodeStoppedError(f"no event {event} {fields} in {self._deadline} s") from None
            if candidate.event == "ended" and candidate.source == "driver":
                raise NodeStoppedError(f"Node ended before an event {event} {fields}")
            if candidate.event == event and fields.items() <= candidate.fields.items():
                return candidate


class Node:
    """One Node process with both versions of BullMQ, connected to the server at `url`.

    Calls may come from several threads. The process ends with the block, and also when this
    process dies, because its input closes then.
    """

    def __init__(self, url: str, *, deadline: float = PATIENCE, driver: str = "driver.mjs") -> None:
        self._url = url
        self._driver = driver
        self._deadline = deadline
        self._ids = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._listeners: list[Events] = []
        self._errors: deque[str] = deque(maxlen=50)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._threads: list[threading.Thread] = []
        self._ended = False

    def __enter__(self) -> Self:
        ready = Events(self._deadline * 3)
        self._listeners.append(ready)
        self._process = subprocess.Popen(
            ["node", self._driver, self._url],
            cwd=HERE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env={**os.environ, "TZ": "UTC"},
        )
        readers = (self._read_answers, self._read_errors)
        self._threads = [threading.Thread(target=reader, daemon=True) for reader in readers]
        for thread in self._threads:
            thread.start()
        try:
            ready.wait_for("ready")
        except NodeStoppedError as error:
            self.__exit__()
            raise NodeStoppedError(self._last_words("did not start")) from error
        self._listeners.remove(ready)
        return self

    def __exit__(self, *_: object) -> None:
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        with suppress(BrokenPipeError):  # It may have exited already.
            process.stdin.close()
        try:
            process.wait(self._deadline)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for thread in self._threads:
            thread.join(self._deadline)
        process.stdout.close()
        process.stderr.close()

    def call(
        self,
        op: str,
        *args: Any,
        version: Version = 5,
        prefix: str = "bull",
        queue: str = "q",
        deadline: float | None = None,
        **more: Any,
    ) -> Any:
        """Run `op` in the driver. Return its result, or raise `Refused` with its error."""
        number = next(self._ids)
        message = {"id": number, "version": version, "op": op, "prefix": prefix, "queue": queue}
        future: Future[Any] = Future()
        with self._lock:
            if self._ended:
                raise NodeStoppedError(self._last_words("has ended"))
            self._waiting[number] = future
        self._write(json.dumps({**message, "args": encode(args), **encode(more)}))
        try:
            answer = future.result(deadline or self._deadline)
        except FutureTimeout:
            raise NodeStoppedError(self._last_words(f"no answer to {op}{args!r}")) from None
        finally:
            with self._lock:
                self._waiting.pop(number, None)
        if (error := answer.get("error")) is not None:
            code = error["code"] if isinstance(error["code"], int) else None
            raise Refused(error["message"], code, error["name"])
        return answer["result"]

    @contextmanager
    def events(self, *, deadline: float | None = None) -> Iterator[Events]:
        """Collect the reports of workers and listeners during the block."""
        arriving = Events(deadline or self._deadline)
        with self._lock:
            self._listeners.append(arriving)
        try:
            yield arriving
        finally:
            with self._lock:
                self._listeners.remove(arriving)

    def _started(self) -> subprocess.Popen[str]:
        assert self._process is not None, "use Node in a with block"
        return self._process

    def _write(self, line: str) -> None:
        process = self._started()
        assert process.stdin is not None
        try:
            with self._lock:
                process.stdin.write(line + "\n")
                process.stdin.flush()
        except (BrokenPipeError, ValueError):
            raise NodeStoppedError(self._last_words("is gone")) from None

    def _read_answers(self) -> None:
        process = self._started()
        assert process.stdout is not None
        for line in process.stdout:
            try:
                message = json.loads(line)
            except ValueError:  # Output of something else in Node. Keep it for error messages.
                self._errors.append(line)
                continue
            with self._lock:
                if "id" in message:
                    waiting, listeners = self._waiting.get(message["id"]), []
                else:
                    waiting, listeners = None, list(self._listeners)
            if waiting is not None:
                waiting.set_result(message)
            for listener in listeners:
                listener.put(NodeEvent(**message))
        self._end()

    def _end(self) -> None:
        """Wake all waiting callers with an error."""
        self._threads[1].join(self._deadline)  # Until its last output has arrived.
        with self._lock:
            self._ended = True
            orphans, listeners = list(self._waiting.values()), list(self._listeners)
        for orphan in orphans:
            orphan.set_exception(NodeStoppedError(self._last_words("ended")))
        for listener in listeners:
            listener.put(NodeEvent("ended", "driver", {}))

    def _read_errors(self) -> None:
        process = self._started()
        assert process.stderr is not None
        self._errors.extend(process.stderr)

    def _last_words(self, what: str) -> str:
        return f"Node {what}\n{''.join(self._errors)}".rstrip()
