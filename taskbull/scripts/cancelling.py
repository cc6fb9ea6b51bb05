"""Cancelling jobs: what is asked of Redis, and what workers read of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from taskbull.core.cancelling import Cancelled
from taskbull.core.keys import QueueKeys
from taskbull.errors import JobNotFound, MaybeExecuted, ServerRefused, ServerUnavailable
from taskbull.scripts.call import Call, Command, Steps, Word
from taskbull.scripts.loader import load
from taskbull.scripts.replies import text, texts

CANCEL_JOB = load("cancel_job")
CANCEL_CHILDREN = load("cancel_children")

PIECE: Final = 50
"""About how many children one call cancels."""

LONGEST: Final = 100_000
"""How long a list may be in which a job is searched: it takes 50 ns per job before it."""

BLOCK: Final = 60.0
"""Seconds for which the server holds a read of the requests."""

FIRST: Final = "0-0"
"""The place before all requests."""

_AT_ONCE: Final = 1000

_NO_JOB: Final = -1

_ANSWERS: Final = {
    1: Cancelled.BEFORE_START,
    2: Cancelled.REQUESTED,
    3: Cancelled.UNSTOPPABLE,
    4: Cancelled.TOO_LATE,
}


class CancelAnswer(Struct, frozen=True):
    """What cancelling a job came to, and whether children of it are to be cancelled, too."""

    answer: Cancelled | None
    """None: there is no such job."""
    more: bool


class StopRequest(Struct, frozen=True):
    """That a running job is to be stopped."""

    place: str
    """Its id in the stream."""
    job_id: str
    token: str
    """That of the lock: a later run of the job is another's."""
    reason: str


class Pending(Struct, frozen=True):
    """Where the cancelling of children has come to: a set of them, and a place in it."""

    key: str = ""
    cursor: str = "0"


def cancel(
    queue: QueueKeys, job_id: str, reason: str, now_ms: int, *, piece: int = PIECE
) -> Steps[Cancelled]:
    """Cancel a job, then its children that have not started; raise `JobNotFound`.

    Whatever is lost on the way is sent again: the scripts know what they have done.
    """
    found: CancelAnswer = yield from _insist(
        cancel_job(queue, job_id, reason, now_ms),
        cancel_job(queue, job_id, reason, now_ms, again=True),
    )
    if found.more:
        yield from cancel_all_children(queue, job_id, now_ms, piece=piece)
    if found.answer is None:
        raise JobNotFound(queue.queue, job_id)
    return found.answer


def cancel_all_children(
    queue: QueueKeys, job_id: str, now_ms: int, *, piece: int = PIECE
) -> Steps[None]:
    """Cancel the children of a job that was cancelled, and theirs, as far as they have not started.

    Others may be at it at the same time.
    """
    pending = Pending()
    more = True
    while more:
        call = cancel_children(queue, job_id, pending, now_ms, piece)
        pending = yield from _insist(call, call)
        more = bool(pending.key)


def finish_cancelling(queue: QueueKeys, now_ms: int) -> Steps[list[str]]:
    """Cancel the children that somebody was to cancel and has not; return the ids of the parents.

    If there are many of those, some are left for the next time. If Redis refuses to cancel those of
    one parent, raise that error after the others.
    """
    noted = queue.private("cancelling")
    ids: list[str] = yield Command(("SRANDMEMBER", noted, _AT_ONCE), noted, texts)
    refused: ServerRefused | None = None
    for job_id in ids:
        try:
            yield from cancel_all_children(queue, job_id, now_ms)
        except ServerRefused as error:
            refused = refused or error
    if refused is not None:
        raise refused
    return ids


def _insist(first: Call[Any], again: Call[Any]) -> Steps[Any]:
    """Send a call, and `again` instead if its reply was lost."""
    call = first
    while True:
        try:
            return (yield call)
        except MaybeExecuted:
            call = again
        except ServerUnavailable:
            continue


def cancel_job(
    queue: QueueKeys,
    job_id: str,
    reason: str,
    now_ms: int,
    *,
    again: bool = False,
    longest: int = LONGEST,
) -> Call[CancelAnswer]:
    """Cancel a job, wherever it is; `again`: the same call may have been executed before."""
    keys = (queue.job(job_id), requests_key(queue), _parents(queue, job_id))
    args = (queue.base, job_id, now_ms, reason, longest, int(again))
    return Call(CANCEL_JOB, keys, args, _answer)


def cancel_children(
    queue: QueueKeys, job_id: str, pending: Pending, now_ms: int, piece: int = PIECE
) -> Call[Pending]:
    """Cancel some pending children of a job that was cancelled."""
    args = (now_ms, LONGEST, pending.key, pending.cursor, piece)
    return Call(CANCEL_CHILDREN, (_parents(queue, job_id),), args, _went_on)


def requests_key(queue: QueueKeys) -> str:
    """Name the stream by which workers of a queue are asked to stop jobs."""
    return queue.private("cancel")


def read_requests(
    places: Mapping[str, str], block: float = BLOCK
) -> Command[dict[str, list[StopRequest]]]:
    """Wait for requests in streams, each after its place; the result is by stream."""
    words: tuple[Word, ...] = ("XREAD", "COUNT", _AT_ONCE, "BLOCK", int(block * 1000), "STREAMS")
    return Command((*words, *places, *places.values()), next(iter(places)), _requests, held=block)


def _parents(queue: QueueKeys, job_id: str) -> str:
    return queue.private("cancelling", job_id, "parents")


def _answer(reply: Any) -> CancelAnswer:
    code, more = reply
    return CancelAnswer(None if code == _NO_JOB else _ANSWERS[code], bool(more))


def _went_on(reply: Any) -> Pending:
    key, cursor = reply
    return Pending(text(key), text(cursor))


def _requests(reply: Any) -> dict[str, list[StopRequest]]:
    return {text(stream): [_request(entry) for entry in entries] for stream, entries in reply or ()}


def _request(entry: Sequence[Any]) -> StopRequest:
    place, flat = entry
    fields = {text(name): text(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}
    return StopRequest(
        text(place), fields.get("id", ""), fields.get("token", ""), fields.get("reason", "")
    )
