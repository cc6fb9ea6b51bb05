"""Why a job does not run: each reason by the facts that make it, and their order."""

from __future__ import annotations

import json
import shlex
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taskbull.core.diagnosis import ChildFacts, JobFacts, explain, explain_queue
from taskbull.core.keys import JobState, QueueKeys
from taskbull.core.queue_health import PauseNote, QueueFacts, Throughput, encode_note, read_note
from taskbull.core.steps import JobStep
from taskbull.core.validation import MAX_SAFE_INTEGER
from taskbull.core.worker_record import BreakerRecord, WorkerRecord, death_line, find_deaths
from taskbull.queue.stores import not_in_time

NOW = datetime(2026, 11, 17, 3, 0, 30, tzinfo=UTC)
WORKER = WorkerRecord(id="web1-812", tasks=["send_email", "fetch"])


def at(**ago: float) -> datetime:
    return NOW - timedelta(**ago)


def ms(instant: datetime) -> int:
    return int(instant.timestamp() * 1000)


def queue(**facts: Any) -> QueueFacts:
    given: dict[str, Any] = {"counts": {}, "records": [WORKER], "connected": ["web1-812"], **facts}
    return QueueFacts(name="emails", now=NOW, **given)


def job(of: QueueFacts | None = None, **facts: Any) -> JobFacts:
    given = {"id": "42", "stored": True, "name": "send_email", "state": JobState.WAITING, **facts}
    return JobFacts(queue=of or queue(), **given)


ROWS: dict[str, tuple[JobFacts, str]] = {
    "never_added": (
        job(stored=False, id="99", last_id=42, state=JobState.UNKNOWN),
        "Job 99 was never added: the queue has assigned ids up to 42.",
    ),
    "gone": (
        job(stored=False, last_id=42, state=JobState.UNKNOWN),
        "Job 42 no longer exists: it was removed, or its retention period has passed.",
    ),
    "completed": (
        job(
            state=JobState.COMPLETED,
            finished=at(seconds=12),
            started=at(seconds=12.2),
            worker="web1-812",
        ),
        "It completed 12 s ago on web1-812 after running for 0.2 s.",
    ),
    "failed": (
        job(
            state=JobState.FAILED,
            finished=at(seconds=12),
            attempts_made=5,
            attempts=5,
            reason="TimeoutError: smtp did not answer",
        ),
        (
            "It failed permanently 12 s ago: 5 of 5 attempts, the last with TimeoutError: smtp did "
            "not answer. Retry it once the cause is fixed."
        ),
    ),
    "failed, cancelled": (
        job(
            state=JobState.FAILED,
            finished=at(seconds=12),
            attempts=5,
            reason="cancelled: not needed",
        ),
        "It was cancelled 12 s ago: not needed. Retry it to run it anyway.",
    ),
    "failed, expired": (
        job(
            state=JobState.FAILED,
            finished=at(seconds=12),
            attempts=5,
            reason="expired: not started by 03:30",
        ),
        "It expired 12 s ago: not started by 03:30. Retry it to run it anyway.",
    ),
    "running": (
        job(
            state=JobState.ACTIVE,
            started=at(minutes=41),
            worker="web1-812",
            lock_seconds=24,
            lock_renewed=6,
            usual=0.2,
        ),
        (
            "web1-812 has been running it for 41 min; its lock was renewed 6 s ago. "
            "It usually takes 0.2 s."
        ),
    ),
    "stalled": (
        job(state=JobState.ACTIVE, started=at(minutes=41)),
        "Its worker is gone. Another worker, if there is one, returns it to the queue within 60 s.",
    ),
    "not_responding": (
        job(
            queue(silent={"web1-812": at(seconds=16)}),
            state=JobState.ACTIVE,
            started=at(minutes=41),
            worker="web1-812",
            lock_seconds=14,
        ),
        (
            "Its worker web1-812 is connected but does not respond (for 16 s): the process is "
            "frozen, or a task blocks its event loop. When its lock expires in 14 s, another "
            "worker can return the job to the queue."
        ),
    ),
    "not_responding, for a job that waits": (
        job(queue(silent={"web1-812": at(seconds=70)}, records=[])),
        (
            "The only worker is connected but does not respond (for 70 s): the process is frozen, "
            "or a task blocks its event loop."
        ),
    ),
    "stalled, because its worker does not respond": (
        job(
            queue(silent={"web1-812": at(seconds=40)}),
            state=JobState.ACTIVE,
            started=at(minutes=41),
            worker="web1-812",
        ),
        (
            "Its worker web1-812 is connected but does not respond: the process is frozen, or a "
            "task blocks its event loop. Another worker, if there is one, returns it to the queue "
            "within 60 s."
        ),
    ),
    "will_fail": (
        job(deferred_failure="job stalled more than allowable limit"),
        "The next worker will fail it without running it: job stalled more than allowable limit.",
    ),
    "paused": (
        job(queue(paused=True, note=PauseNote("bob", ms(at(hours=3)), "migration"))),
        "The queue was paused 3 h ago by bob (migration). Resume it with `taskbull resume emails`.",
    ),
    "no_worker": (
        job(queue(records=[], connected=[], last_seen=at(minutes=14))),
        (
            "No worker is connected to 'emails'. The last taskbull worker was seen 14 min ago. "
            "Start one with `taskbull worker`."
        ),
    ),
    "task_unknown": (
        job(
            queue(records=[WORKER, WORKER, WORKER], connected=["web1-812"]),
            name="sned_email",
        ),
        "None of the 3 workers has a task named sned_email; did you mean send_email?",
    ),
    "breaker": (
        job(
            queue(
                records=[
                    WorkerRecord(
                        id="w", circuit=BreakerRecord("open", ms(NOW + timedelta(minutes=20)), 5)
                    )
                ]
                * 3,
                connected=["w"],
            )
        ),
        "The circuit breakers of all 3 workers are open until 03:20, after 5 failures in a row.",
    ),
    "limited": (
        job(queue(rate_max=100, rate_window=60.0, started=100, limited_for=23.0)),
        "The rate limit of 100 jobs per minute is reached; the next job can start in 23 s.",
    ),
    "at_the_limit": (
        job(queue(concurrency=50, counts={"active": 50})),
        "The queue's concurrency limit of 50 is reached.",
    ),
    "stopping": (
        job(queue(records=[WorkerRecord(id="web1-812", stopping=True)])),
        "The only worker is shutting down and fetches no more jobs.",
    ),
    "delayed": (
        job(
            state=JobState.DELAYED,
            due=NOW + timedelta(minutes=4),
            attempts_made=2,
            reason="KeyError: 'x'",
        ),
        "It is delayed until 03:04 (in 4 min) because attempt 2 failed with KeyError: 'x'.",
    ),
    "delayed, because it stalled": (  # H3
        job(
            state=JobState.DELAYED,
            due=NOW + timedelta(seconds=20),
            attempts_made=2,
            reason="KeyError: 'x'",
            is_held=True,
        ),
        (
            "It is delayed until 03:00:50 (in 20 s) because its worker died earlier. A worker "
            "process starts such jobs one at a time, less than a second apart, in case one of them "
            "kills it. It delays a job for about 30 s at most."
        ),
    ),
    "overdue": (
        job(state=JobState.DELAYED, due=at(minutes=9)),
        "It was due 9 min ago, but no worker has fetched from this queue since.",
    ),
    "children": (
        job(
            state=JobState.WAITING_CHILDREN,
            pending=3,
            children=12,
            awaited=[
                ChildFacts("fetch#12", JobState.ACTIVE),
                ChildFacts("fetch#13", JobState.FAILED),
            ],
        ),
        (
            "It is waiting for 3 of 12 children. fetch#13 failed; retry or remove it to unblock "
            "this job."
        ),
    ),
    "expires": (
        job(expires=NOW + timedelta(minutes=30)),
        "It will expire at 03:30 if it has not started.",
    ),
    "expires, again": (
        job(started=at(minutes=9), expires=at(minutes=-30)),
        "It will expire at 03:30 if it has not started again.",
    ),
    "behind": (
        job(queue(completed=Throughput([19 * 60, *[38 * 60] * 5], "metrics")), before=12_840),
        "12,840 jobs are ahead of it. At 38 jobs/s (last minute), that is about 6 min.",
    ),
    "behind, priority": (
        job(state=JobState.PRIORITIZED, before=1_000, before_unranked=900),
        "1,000 jobs are ahead of it (900 of them without priority, which run first).",
    ),
    "lost": (
        job(state=JobState.UNKNOWN),
        (
            "It is in none of the queue's lists: an older BullMQ may have dropped it when the "
            "queue was resumed, or a part of it was removed by hand. Add it again."
        ),
    ),
    "next": (job(before=0), "Nothing is blocking it; a worker should start it within 5 s."),
}


@pytest.mark.parametrize("row", ROWS)
def test_each_reason_has_its_sentence(row: str) -> None:
    facts, text = ROWS[row]
    found = explain(facts)
    assert (found.reasons[0].code, found.reasons[0].text) == (row.partition(",")[0], text)


VARIANTS: list[tuple[JobFacts, str]] = [
    (
        job(state=JobState.DELAYED, due=NOW + timedelta(hours=3), schedule="nightly"),
        "It is delayed until 06:00 (in 3 h) by schedule nightly.",
    ),
    (
        job(state=JobState.DELAYED, due=NOW + timedelta(days=3)),
        "It is delayed until 2026-11-20 03:00 (in 3 days), as requested when it was added.",
    ),
    (
        job(
            state=JobState.DELAYED,
            due=NOW + timedelta(seconds=30),
            unknown_task=(at(minutes=9), at(minutes=1)),
        ),
        (
            "It is delayed until 03:01:00 (in 30 s). Workers without its task send_email have "
            "skipped it for 9 min."
        ),
    ),
    (
        job(state=JobState.WAITING_CHILDREN, pending=1, children=1),
        "It is waiting for 1 of 1 child.",
    ),
    (
        job(
            queue(records=[], connected=None),
        ),
        (
            "No taskbull worker is known to serve 'emails', and Redis does not list its "
            "connections. Start one with `taskbull worker`."
        ),
    ),
    (job(queue(paused=True)), "The queue is paused. Resume it with `taskbull resume emails`."),
    (
        job(queue(rate_max=1, started=MAX_SAFE_INTEGER, limited_for=4.0)),
        "The queue is rate-limited manually; the next job can start in 4 s.",
    ),
    (
        job(
            queue(
                records=[WorkerRecord(id="web1-812", limiter=(5, 2.0))],
                started=5,
                limited_for=1.5,
            )
        ),
        "The rate limit of 5 jobs per 2 s is reached; the next job can start in 1.5 s.",
    ),
    (job(before=30_000, sure=False), "About 30,000 jobs are ahead of it."),
    (
        job(expires=at(minutes=5)),
        "It expired at 02:55 and will not run.",
    ),
    (
        job(state=JobState.ACTIVE, lock_seconds=24.0),
        "A worker has been running it; its lock expires in 24 s.",
    ),
    (
        job(queue(completed=Throughput([1, *[3] * 5], "kept")), before=9),
        "9 jobs are ahead of it. At 2.7 jobs/min (last minute), that is about 3 min.",
    ),
]


@pytest.mark.parametrize(("facts", "text"), VARIANTS)
def test_a_reason_says_what_is_known(facts: JobFacts, text: str) -> None:
    assert explain(facts).reasons[0].text == text


def codes(facts: JobFacts) -> list[str]:
    return [reason.code for reason in explain(facts).reasons]


def test_the_jobs_own_state_comes_first_then_its_queue_then_its_place() -> None:
    busy = queue(
        paused=True,
        records=[
            WorkerRecord(id="w", tasks=[], stopping=True, circuit=BreakerRecord("open")),
        ],
        connected=["w"],
        concurrency=1,
        counts={"active": 1},
        rate_max=1,
        started=1,
        limited_for=1.0,
    )
    assert codes(job(busy, deferred_failure="x", expires=NOW + timedelta(1), before=3)) == [
        "will_fail",
        "expires",
        "paused",
        "task_unknown",
        "breaker",
        "limited",
        "at_the_limit",
        "stopping",
        "behind",
    ]


def test_what_only_concerns_a_start_is_not_said_of_a_job_that_is_not_due() -> None:
    full = queue(concurrency=1, counts={"active": 1}, paused=True)
    assert codes(job(full, state=JobState.DELAYED, due=NOW + timedelta(1))) == ["delayed", "paused"]


def test_a_job_that_has_ended_has_one_reason() -> None:
    nobody = queue(records=[], connected=[], paused=True)
    for state in (JobState.COMPLETED, JobState.FAILED, JobState.UNKNOWN):
        assert len(codes(job(nobody, state=state))) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"connected": ["web1-812", ""]},  # A Node worker without a record.
        {"records": [WorkerRecord(id="web1-812")]},  # takes any task
        {"records": [WorkerRecord(id="web1-812", tasks=["a"], tasks_left_out=9)]},
    ],
)
def test_a_task_is_unknown_only_if_nobody_can_know_it(other: dict[str, Any]) -> None:
    assert codes(job(queue(**other), name="other")) == ["next"]


def test_it_is_one_paragraph_and_json() -> None:
    found = explain(job(queue(paused=True), before=2))
    assert found.text == (
        "The queue is paused. Resume it with `taskbull resume emails`. "
        "Also: 2 jobs are ahead of it."
    )
    told = json.loads(json.dumps(found.describe()))
    assert (told["queue"], told["id"], told["state"]) == ("emails", "42", "waiting")
    assert [reason["code"] for reason in told["reasons"]] == ["paused", "behind"]
    delayed = explain(job(state=JobState.DELAYED, due=at(minutes=9))).describe()
    assert delayed["reasons"][0]["facts"] == {"due": "2026-11-17T02:51:30.000+00:00"}


def test_a_queue_is_explained_as_well() -> None:
    assert [reason.code for reason in explain_queue(queue())] == ["idle"]
    waits = queue(counts={"waiting": 5}, waiting_since=at(minutes=2), records=[], connected=[])
    assert [reason.code for reason in explain_queue(waits)] == ["no_worker", "waiting"]
    ends = Throughput([30, 60, 60], "metrics")
    grows = queue(counts={"waiting": 60}, completed=ends, arrivals=2.0)
    text = "60 jobs are waiting. Workers finish 1 job/s (last minute), but jobs are added faster."
    assert explain_queue(grows)[-1].text == text


def test_an_estimate_needs_a_minute_of_data() -> None:  # V27
    begun = queue(counts={"waiting": 9_000}, completed=Throughput([300, 0, 0], "metrics"))
    text = explain_queue(begun)[-1].text
    assert "in the last minute" in text
    assert "empty in" not in text
    behind = explain(job(begun, before=10)).reasons[0].text
    assert behind == "10 jobs are ahead of it."
    ends = Throughput([300, 600, 600], "metrics")
    steady = queue(counts={"waiting": 9_000}, completed=ends)
    assert "empty in about" in explain_queue(steady)[-1].text
    held: list[dict[str, Any]] = [
        {"paused": True},
        {"records": [], "connected": []},
        {"refusal": "its memory is full"},
    ]
    for facts in held:
        none = queue(**{"counts": {"waiting": 9}, "completed": ends, **facts})
        assert none.seconds_left is None
        assert "empty in" not in explain_queue(none)[-1].text


def test_samples_measure_both_rates_over_one_window() -> None:  # V27
    ends = Throughput([300, 600, 600], "metrics")
    sampled = queue(counts={"waiting": 90}, completed=ends, arrivals=1.0, finishes=10.0)
    assert (sampled.out, sampled.seconds_left) == (10.0, 10.0)


def test_refused_writes_are_the_first_reason() -> None:  # V30
    full = queue(counts={"waiting": 9}, refusal="its memory is full")
    assert explain_queue(full)[0].text == (
        "Redis refuses writes: its memory is full. No worker can fetch a job."
    )
    assert explain(job(full)).reasons[0].code == "refused"


def test_a_pending_cancel_is_shown() -> None:  # V35
    asked = job(state=JobState.ACTIVE, lock_seconds=20.0, deferred_failure="cancelled: drill")
    first = explain(asked).reasons[0]
    assert first.code == "cancelling"
    assert "asked to stop (cancelled: drill)" in first.text


def test_the_deaths_of_workers_are_named() -> None:  # V34
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    lines = [death_line("w1", "SIGKILL", at, 0), "hello", death_line("w2", "exit code 9", at, 3)]
    deaths = find_deaths(lines)
    facts = JobFacts(queue=queue(), id="1", stored=True, state=JobState.FAILED, deaths=deaths)
    assert explain(facts).reasons[-1].text == (
        "2 workers died while running it: w1 with SIGKILL (perhaps out of memory) at "
        "2026-01-02T03:04:05Z and w2 with exit code 9 at 2026-01-02T03:04:05Z. With process=True, "
        "a task that crashes its process affects no other job."
    )


def test_more_of_a_queue_is_explained() -> None:
    lockless = queue(counts={"active": 1}, lockless=1)
    assert explain_queue(lockless)[0].text == "1 running job lost its worker."


@pytest.mark.parametrize("raw", [b"", b"x", b"[]", b'{"by":1}', b"\xff"])
def test_what_is_no_note_is_none(raw: bytes) -> None:
    assert read_note(raw) is None


def test_a_note_is_of_bounded_size() -> None:
    raw = encode_note("b" * 1000, 5, "w" * 10_000)
    assert read_note(raw) == PauseNote("b" * 100, 5, "w" * 500)


@pytest.mark.parametrize("word", ["x; touch pwned", "it's", "$(id)", "-f", "a\nb", "`id`", "", "ü"])
def test_commands_to_copy_quote_what_they_name(word: str) -> None:  # K6
    wait = JobStep("signal", word, 1, NOW, None)
    waiting = job(id=word, state=JobState.WAITING_CHILDREN, waits=[wait])
    quiet = queue(records=[WorkerRecord(id=word, quiet=True)], connected=[word])
    for text, wanted in (
        (explain(waiting).text, ["signal", "emails", word, word, "JSON"]),
        (explain_queue(quiet)[0].text, ["resume-worker", word]),
        (str(not_in_time(QueueKeys("emails"), word, 1.0)), ["why", "emails", word]),
    ):
        copied = text.partition("taskbull ")[2].partition(". ")[0].rstrip(".`")
        if text.startswith("Job '"):
            copied = text.partition("To find out: taskbull ")[2]
        found = shlex.split(copied)
        assert [each for each in found if each != "--"] == wanted
        assert ("--" in found) is word.startswith("-")
