"""What the page of one job asks beyond its place: large fields, its log, its earlier attempts.

These are methods of both servers; each says what it costs Redis.
"""

from __future__ import annotations

from math import inf

from taskbull.core.attempt_times import JobHistory
from taskbull.core.checks import check_int, check_text, refusal
from taskbull.core.wire.row import WIRE_NAMES
from taskbull.queue.methods import looks
from taskbull.queue.questions import Look, ask
from taskbull.scripts import job_pieces
from taskbull.scripts.job_pieces import LOG_PIECE, FieldPiece, NewestLines
from taskbull.store.namespace import Namespace

__all__ = ["FIELDS", "FieldPiece", "JobHistory", "JobLooks", "NewestLines"]

FIELDS = tuple(WIRE_NAMES)
"""The fields of a job that may be of any length."""


class JobLooks:
    """The reads of parts of one job."""

    namespace: Namespace

    @looks
    def peek_field(
        self, queue: str, job_id: str, field: str, *, most: int = 16_384, end: bool = False
    ) -> Look[FieldPiece]:
        """Read the first bytes of a field of a job, or its last: one call of two commands.

        Above 4 MB nothing but the size is told: Redis would have to copy all of it.
        """
        check_int("most", most, least=1, most=65_536)
        keys = self.namespace.keys(queue)
        return ask(job_pieces.peek_field(keys, check_text("job_id", job_id), _field(field), most,
                                         end=end))  # fmt: skip

    @looks
    def get_field(self, queue: str, job_id: str, field: str) -> Look[bytes | None]:
        """Read a field of a job as it stands in Redis, however large; None if there is none."""
        keys = self.namespace.keys(queue)
        return ask(job_pieces.get_field(keys, check_text("job_id", job_id), _field(field)))

    @looks
    def peek_log(self, queue: str, job_id: str, most: int = 200) -> Look[NewestLines]:
        """Read the newest lines of a job's log, as many as have 256 kB: a command for each."""
        check_int("most", most, least=1, most=1000)
        return ask(job_pieces.peek_logs(self.namespace.keys(queue), job_id, most))

    @looks
    def get_log(self, queue: str, job_id: str, *, most_bytes: float = inf) -> Look[list[bytes]]:
        """Read all lines of a job's log, a hundred with each command, or more than `most_bytes`."""
        keys, lines, length = self.namespace.keys(queue), list[bytes](), 0
        while True:
            some = yield from ask(job_pieces.get_log_lines(keys, job_id, len(lines)))
            lines += some
            length += sum(map(len, some))
            if len(some) < LOG_PIECE or length > most_bytes:
                return lines

    @looks
    def history(self, queue: str, job_id: str) -> Look[JobHistory]:
        """See what the newest 1,000 events of a queue tell about a job: one call, ~100 commands."""
        keys = self.namespace.keys(queue)
        return ask(job_pieces.peek_events(keys, check_text("job_id", job_id)))


def _field(name: str) -> str:
    if name not in WIRE_NAMES:
        raise refusal("field", f"be one of {', '.join(WIRE_NAMES)}", name)
    return name
