"""Why a job does not run, or what became of it: facts in, reasons out, the cause first.

What holds by the job's own state comes first; what holds by its queue follows, then its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from taskbull.core.cancelling import is_cancelled
from taskbull.core.expiry import is_expired
from taskbull.core.queue_facts import QueueFacts, plain
from taskbull.core.spans import ago, count_of, moment, span
from taskbull.core.states import JobState
from taskbull.core.why_queue import Reason, holding


class ChildFacts(Struct, frozen=True):
    """A child that a job waits for."""

    label: str
    """Its name and id, such as `fetch#13`."""
    state: JobState


class JobFacts(Struct, frozen=True, kw_only=True):
    """A job, and its queue, at one moment; what nobody knows is None."""

    queue: QueueFacts
    id: str
    stored: bool
    """Whether there is such a job."""
    state: JobState = JobState.UNKNOWN
    sure: bool = True
    """Whether state and place are exact."""
    last_id: int = 0
    """The last id that the queue has given out."""
    name: str = ""
    attempts_made: int = 0
    attempts: int = 1
    reason: str = ""
    """Why its last attempt failed."""
    started: datetime | None = None
    finished: datetime | None = None
    worker: str = ""
    lock_seconds: float | None = None
    lock_renewed: float | None = None
    """Seconds since its lock was renewed, where that is known."""
    usual: float | None = None
    """Seconds that such jobs take."""
    stalled_interval: float = 30.0
    doom: str = ""
    """Why the next worker will fail it without running it."""
    due: datetime | None = None
    schedule: str = ""
    unclaimed: tuple[datetime, datetime] | None = None
    """When workers first and last met it without having its task."""
    is_held: bool = False
    """Whether a worker has delayed it, because it had stalled before."""
    pending: int = 0
    """How many children it waits for."""
    children: int = 0
    """How many it has."""
    awaited: Sequence[ChildFacts] = ()
    """Some of those that it waits for."""
    expires: datetime | None = None
    before: int | None = None
    """How many jobs run before it."""
    before_unranked: int = 0
    """How many of those have no priority, where it has one."""


class Explanation(Struct, frozen=True):
    """Why a job, or a queue, does not run: the first reason is the cause, others hold as well."""

    queue: str
    id: str | None
    state: str
    reasons: list[Reason]
    found: bool = True
    """Whether there is such a job."""

    @property
    def text(self) -> str:
        """All reasons as one paragraph."""
        first, *others = [reason.text for reason in self.reasons]
        return " ".join([first, *(f"Also: {text}" for text in others)])

    def describe(self) -> dict[str, Any]:
        """Return it as JSON has it: what `taskbull why --json` prints."""
        return {
            "queue": self.queue,
            "id": self.id,
            "state": self.state,
            "reasons": [
                {"code": each.code, "text": each.text, "facts": plain(each.facts)}
                for each in self.reasons
            ],
        }


def explain(job: JobFacts) -> Explanation:
    """Say where a job is, since when, what it waits for, and what would help."""
    reasons = [*_absent(job)] if not job.stored else [*_ended(job)] or [*_alive(job)]
    return Explanation(job.queue.name, job.id, str(job.state), reasons, job.stored)


def _absent(job: JobFacts) -> Iterator[Reason]:
    if job.id.isdigit() and int(job.id) > job.last_id:
        given = f"has given out ids up to {job.last_id}" if job.last_id else "has given out no id"
        text = f"Job {job.id} was never added: the queue {given}."
        yield _reason("never_was", text, last_id=job.last_id)
    else:
        text = f"Job {job.id} is not stored any more: removed, or past its keeping time."
        yield _reason("gone", text)


def _ended(job: JobFacts) -> Iterator[Reason]:
    when = "" if job.finished is None else f" {ago(job.finished, job.queue.now)}"
    took = None
    if job.finished is not None and job.started is not None:
        took = (job.finished - job.started).total_seconds()
    if job.state is JobState.COMPLETED:
        where = f" on {job.worker}" if job.worker else ""
        after = "" if took is None else f" after {span(took)}"
        text = f"It completed{when}{where}{after}."
        yield _reason("completed", text, finished=job.finished, worker=job.worker, took=took)
    elif job.state is JobState.FAILED:
        text = f"It {_failure(job, when)}"
        yield _reason("failed", text, finished=job.finished, reason=job.reason)
    elif job.state is JobState.UNKNOWN and job.sure:
        text = (
            "It is in no list: an older BullMQ's resume may have dropped it, or a part of it was "
            "removed by hand. Re-add it."
        )
        yield _reason("lost", text)


def _failure(job: JobFacts, when: str) -> str:
    """Return why a job has failed, as the rest of a sentence, and what helps."""
    if is_cancelled(job.reason) or is_expired(job.reason):
        ended, _, why = (job.reason or "").partition(": ")
        was = "was " if is_cancelled(job.reason) else ""
        return f"{was}{ended}{when}: {_closed(why)} Retry it if it is to run all the same."
    last = f", the last with {job.reason}" if job.reason else ""
    made = f"{job.attempts_made} of {count_of(job.attempts, 'attempt')}{last}"
    return f"failed for good{when}: {_closed(made)} Retry it once the cause is mended."


def _alive(job: JobFacts) -> Iterator[Reason]:
    if job.state is JobState.ACTIVE:
        yield from _running(job)
        return
    own = [*_own(job)]
    held = [*holding(job.queue, job.name, job.unclaimed, job.state)]
    yield from own
    yield from held
    if job.state in _RANKED:
        yield from _place(job, held=bool(own or held))


_RANKED = frozenset({JobState.WAITING, JobState.PRIORITIZED, JobState.PAUSED, JobState.UNKNOWN})


def _running(job: JobFacts) -> Iterator[Reason]:
    now = job.queue.now
    if job.lock_seconds is None:
        gone = f"Its worker {job.worker} is gone." if job.worker else "Its worker is gone."
        within = span(2 * job.stalled_interval)
        text = f"{gone} It returns to the queue within {within}, if a worker is left to notice."
        yield _reason("stalled", text, worker=job.worker, started=job.started)
        yield from holding(job.queue, job.name, job.unclaimed, job.state)
        return
    who = job.worker or "A worker"
    since = "" if job.started is None else f" for {span((now - job.started).total_seconds())}"
    lock = ""
    if job.lock_renewed is not None:
        lock = f"; its lock was renewed {span(job.lock_renewed)} ago"
    elif job.lock_seconds < 1e9:
        lock = f"; its lock holds for {span(job.lock_seconds)} more"
    usual = "" if job.usual is None else f" Usually it takes {span(job.usual)}."
    yield _reason(
        "running",
        f"{who} has been running it{since}{lock}.{usual}",
        worker=job.worker,
        started=job.started,
        lock_seconds=job.lock_seconds,
        usual=job.usual,
    )


def _own(job: JobFacts) -> Iterator[Reason]:
    now = job.queue.now
    if job.doom:
        text = f"The next worker will fail it without running it: {_closed(job.doom)}"
        yield _reason("doomed", text, reason=job.doom)
    if job.state is JobState.DELAYED and job.due is not None:
        late = (now - job.due).total_seconds()
        if late > 0:
            text = f"It was due {span(late)} ago: only a worker that fetches can release it."
            yield _reason("overdue", text, due=job.due)
        else:
            text = f"It waits until {moment(job.due, now)} (in {span(-late)}) {_delayed_by(job)}"
            yield _reason("delayed", text, due=job.due)
    if job.state is JobState.WAITING_CHILDREN:
        yield _children(job)
    if job.expires is not None:
        past = job.expires <= now
        text = f"It {'has not run by' if past else 'will not run after'} {moment(job.expires, now)}"
        yield _reason(
            "expires", f"{text}, and never will." if past else f"{text}.", expires=job.expires
        )


def _delayed_by(job: JobFacts) -> str:
    if job.unclaimed is not None:
        since = ago(job.unclaimed[0], job.queue.now)
        return f"because no worker that met it has its task {job.name}, first {since}."
    if job.is_held:
        return (
            "because its worker died before. A worker process starts such jobs one at a time, less "
            "than a second apart, in case one of them kills it. It delays a job for about 30 s at "
            "most."
        )
    if job.schedule and not job.attempts_made:
        return f"by schedule {job.schedule}."
    if job.attempts_made and job.reason:
        return _closed(f"because attempt {job.attempts_made} failed with {job.reason}")
    return "as it was added so."


def _children(job: JobFacts) -> Reason:
    text = f"It waits for {job.pending} of {count_of(job.children, 'child')}"
    text = text.replace(" childs", " children")
    stuck = [child.label for child in job.awaited if child.state is JobState.FAILED]
    if stuck:
        names = ", ".join(stuck[:3])
        has = "has" if len(stuck) == 1 else "have"
        it = "it" if len(stuck) == 1 else "them"
        text += f"; {names} {has} failed and nothing will let it go on: retry or remove {it}."
    else:
        shown = [f"{child.label} ({child.state})" for child in job.awaited[:3]]
        text += f": {', '.join(shown)}." if shown else "."
    return _reason("children", text, pending=job.pending, children=job.children, failed=stuck)


def _place(job: JobFacts, *, held: bool) -> Iterator[Reason]:
    if not job.before:
        if not held:
            yield _reason("next", "Nothing holds it: a worker takes it within 5 s.")
        return
    about = "" if job.sure else "About "
    text = f"{about}{job.before:,} {'is' if job.before == 1 else 'are'} before it"
    if job.before_unranked:
        text += f", of which {job.before_unranked:,} without priority, which go first"
    out = job.queue.out
    wait = None
    if out:
        wait = job.before / out
        text += f"; {_rate(out)} end: about {span(wait)}"
    yield _reason(
        "behind",
        f"{text}.",
        before=job.before,
        unranked=job.before_unranked,
        sure=job.sure,
        per_second=out,
        seconds=wait,
    )


def _rate(per_second: float) -> str:
    if per_second >= 1:
        return f"{per_second:.0f} per second"
    return f"{per_second * 60:.2g} per minute"


def _closed(text: str) -> str:
    """Return a text that ends as a sentence does."""
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."


def _reason(code: str, text: str, **facts: Any) -> Reason:
    known: Mapping[str, Any] = {name: value for name, value in facts.items() if value is not None}
    return Reason(code, text, known)
