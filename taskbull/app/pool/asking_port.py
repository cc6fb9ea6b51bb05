"""What a job in a process writes to: its worker, which does it and answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from taskbull.core.classification import causes
from taskbull.core.flow import Children
from taskbull.errors import ConnectionLost, LockLost, MaybeExecuted, Steering
from taskbull.worker.pool.faults import unpack_fault
from taskbull.worker.pool.messages import Question, Reply
from taskbull.worker.run import Run

Ask = Callable[[Question, bytes], Reply | None]
Spawn = Callable[[Children], list[str]]


class AskingPort:
    """Asks the worker for what a job wants written or read.

    When the attempt is over, it raises `LockLost`: a task may have left a thread behind.
    """

    held_up = 0.0  # the worker knows

    def __init__(self, run: Run, queue: str, ask: Ask, spawn: Spawn) -> None:
        self._run = run
        self._queue = queue
        self._ask_worker = ask
        self._spawn = spawn
        self._trouble: BaseException | None = None

    def caused(self, error: BaseException) -> bool:
        """Return whether an error of the task comes from Redis; a word of the task's own wins."""
        if self._trouble is None or isinstance(error, Steering):
            return False
        return any(one is self._trouble for one in causes(error))

    def progress(self, raw: bytes) -> None:
        """Write how far the job has come."""
        self._ask(Question.PROGRESS, raw)

    async def aprogress(self, raw: bytes) -> None:
        """Write how far the job has come."""
        self.progress(raw)

    def log(self, line: str) -> None:
        """Append a line to the job's log."""
        self._ask(Question.LOG, str(line).encode("utf-8", "backslashreplace"))

    async def alog(self, line: str) -> None:
        """Append a line to the job's log."""
        self.log(line)

    def update_data(self, raw: bytes) -> None:
        """Replace the payload."""
        self._ask(Question.UPDATE_DATA, raw)

    async def aupdate_data(self, raw: bytes) -> None:
        """Replace the payload."""
        self.update_data(raw)

    def child_results(self, name: str) -> list[bytes]:
        """Read what the job's children of a name returned."""
        # The worker does not know what a call has spawned until its end.
        spawned = self._run.spawned.new > 0
        question = Question.CHILD_RESULTS_SO_FAR if spawned else Question.CHILD_RESULTS
        found: list[bytes] = self._ask(question, name.encode())
        return found

    async def achild_results_so_far(self, name: str) -> list[bytes]:
        """Read what children of a name have returned, though others may be pending."""
        found: list[bytes] = self._ask(Question.CHILD_RESULTS_SO_FAR, name.encode())
        return found

    async def achild_results(self, name: str) -> list[bytes]:
        """Read what the job's children of a name returned."""
        return self.child_results(name)

    def child_failures(self) -> dict[tuple[str, str], str]:
        """Read why children of the job failed."""
        found: list[list[str]] = self._ask(Question.CHILD_FAILURES)
        return {(queue, job_id): reason for queue, job_id, reason in found}

    async def achild_failures(self) -> dict[tuple[str, str], str]:
        """Read why children of the job failed."""
        return self.child_failures()

    def spawn(self, children: Children) -> list[str]:
        """Add children of the job: from here, for they are specs of the app's tasks."""
        try:
            return self._spawn(children)
        except (ConnectionLost, MaybeExecuted) as error:
            self._trouble = error
            raise

    async def aspawn(self, children: Children) -> list[str]:
        """Add children of the job."""
        return self.spawn(children)

    def drop_children(self) -> int:
        """Remove the pending children that nobody runs."""
        return int(self._ask(Question.DROP_CHILDREN))

    async def adrop_children(self) -> int:
        """Remove the pending children that nobody runs."""
        return self.drop_children()

    async def aunclaimed(self, patience: float) -> float:
        """Return that nobody else is asked: the worker gives a process only what it can run."""
        return patience

    def _ask(self, question: Question, argument: bytes = b"") -> Any:
        answer = self._ask_worker(question, argument)
        if answer is None:
            raise LockLost(self._queue, self._run.job.id)
        if answer.fault is None:
            return answer.value
        error = unpack_fault(answer.fault, self._queue, self._run.job.id)
        if answer.fault.of_redis:
            self._trouble = error
        raise error
