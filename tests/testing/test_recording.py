"""Code that enqueues is tested without Redis: recorded, looked at, run here in virtual time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taskbull import (
    App,
    Backoff,
    ConfigurationError,
    Dedup,
    InvalidArguments,
    JobFailed,
    JobSpec,
    JobState,
    PermanentError,
    RateLimited,
    Retry,
    SerializationError,
    Snooze,
    TaskbullError,
    WaitForChildren,
    current_job,
)
from taskbull.testing import Box, recorded

NOWHERE = "redis://127.0.0.1:1/0"


class Shop:
    """An app with some tasks; no server is behind it."""

    def __init__(self) -> None:
        self.app = app = App("shop", redis=NOWHERE, enqueue_timeout=0.2)
        self.sent: list[tuple[str, str]] = []
        self.attempts: list[int] = []
        self.threads: set[int] = set()
        self.fail_until = 0

        @app.task(queue="emails", backoff=Backoff.fixed(60))
        def send(to: str, subject: str, at: datetime | None = None) -> str:
            self.attempts.append(current_job().attempt)
            self.threads.add(threading.get_ident())
            if current_job().attempt <= self.fail_until:
                raise ConnectionError("the mail server is away")
            self.sent.append((to, subject))
            current_job().log("sent")
            current_job().progress(100)
            return f"{to}: {subject} {at.isoformat() if at else ''}".strip()

        @app.task
        async def welcome(name: str) -> int:
            await current_job().aprogress(50)
            await send.adelay(f"{name}@example.org", "Welcome")
            return len(name)

        self.send = send
        self.welcome = welcome


@pytest.fixture
def shop() -> Shop:
    return Shop()


def test_what_is_enqueued_is_recorded_and_nothing_is_sent(shop: Shop) -> None:
    with recorded(shop.app) as box:
        handle = shop.send.options(delay=60, priority=2).delay("ann@example.org", subject="Hi")
        job = box.assert_enqueued(shop.send, to="ann@example.org", delay=60)
        box.assert_enqueued(shop.send, subject="Hi", priority=2, queue="emails")
        assert handle.id == job.id
        assert handle.state() is JobState.DELAYED
        assert box.of(shop.welcome) == []
    assert shop.sent == []


def test_expected_values_may_have_the_types_of_the_arguments(shop: Shop) -> None:
    @shop.app.task
    def restock(
        counts: dict[int, int], days: tuple[timedelta, ...], **others: dict[int, str]
    ) -> None:
        assert (counts, days, others) == ({7: 2}, (timedelta(days=1),), {"names": {7: "tea"}})

    given: dict[str, Any] = {"counts": {7: 2}, "days": (timedelta(days=1),), "names": {7: "tea"}}
    with recorded(shop.app) as box:
        restock.delay(**given)
        box.assert_enqueued(restock, **given)
        box.assert_not_enqueued(restock, counts={7: 3})
        box.run()


@pytest.mark.parametrize("expected", [{"to": "bob"}, {"delay": 61}])
def test_jobs_that_were_not_enqueued_are_reported_with_those_that_were(
    shop: Shop, expected: Any
) -> None:
    with recorded(shop.app) as box:
        shop.send.options(delay=60).delay("ann", "Hi")
        with pytest.raises(AssertionError, match=r"send\(to='ann', subject='Hi'\) with delay=60"):
            box.assert_enqueued(shop.send, **expected)
        box.assert_not_enqueued(shop.send, **expected)
        with pytest.raises(AssertionError, match="Unexpected job enqueued"):
            box.assert_not_enqueued(shop.send, to="ann")


@pytest.mark.parametrize("check", ["assert_enqueued", "assert_not_enqueued"])
def test_an_expectation_that_no_job_of_the_task_can_meet_is_refused(shop: Shop, check: str) -> None:
    with recorded(shop.app) as box:
        shop.send.delay("ann", "Hi")
        with pytest.raises(TypeError, match=r"send has no argument or option 'subjet' \(did you"):
            getattr(box, check)(shop.send, subjet="Hi")


def test_what_is_neither_an_app_nor_a_task_is_named(shop: Shop) -> None:
    wrong: Any = shop.send.function
    with recorded(shop.app) as box:
        for method in (box.assert_enqueued, box.assert_not_enqueued, box.of):
            shop.send.delay("ann", "Hi")
            with pytest.raises(ConfigurationError, match="task must be a task, such as"):
                method(wrong)
    with pytest.raises(ConfigurationError, match="app must be an App"), recorded(wrong):
        pass


def test_jobs_run_here_with_those_that_they_enqueue(shop: Shop) -> None:
    with recorded(shop.app) as box:
        handle = shop.welcome.delay("ann")
        box.run()
        assert handle.result() == 3
        assert shop.sent == [("ann@example.org", "Welcome")]
        [sent] = box.of(shop.send)
        assert (sent.state, sent.progress, sent.logs) == (JobState.COMPLETED, 100, ["sent"])
    assert shop.threads == {threading.get_ident()}


def test_a_failure_is_raised_by_one_call(shop: Shop) -> None:
    @shop.app.task(attempts=1)
    def refuse(number: int) -> None:
        raise ValueError(number)

    with recorded(shop.app) as box:
        refuse.delay(1)
        box.run(check=False)
        box.advance(60)
        refuse.delay(2)
        with pytest.raises(JobFailed, match="ValueError: 2"):
            box.run()
        box.run()


def test_a_hook_sees_spawned_jobs_as_in_a_worker(shop: Shop) -> None:
    seen: list[str] = []

    @shop.app.on_enqueue
    def add_tenant(spec: JobSpec[Any]) -> JobSpec[Any]:
        seen.append(spec.name)
        return spec.with_options(headers={"tenant": "acme"})

    @shop.app.task
    def child() -> str:
        return current_job().headers["tenant"]

    @shop.app.task
    def parent() -> list[str]:
        if found := current_job().children(child):
            return found
        current_job().spawn([child.job()])
        raise WaitForChildren

    with recorded(shop.app) as box:
        job = parent.delay()
        box.run()
        assert job.result() == ["acme"]
    assert seen == ["parent", "child"]


def test_a_result_that_the_worker_does_not_check_is_checked_here(shop: Shop) -> None:
    @shop.app.task
    def numbers() -> Iterator[int]:
        yield "one"  # type: ignore[misc]

    with recorded(shop.app) as box:
        job = numbers.delay()
        box.run()
        with pytest.raises(SerializationError, match="Cannot read the result of job '1'"):
            job.result()


async def test_they_run_in_an_event_loop_too(shop: Shop) -> None:
    with recorded(shop.app) as box:
        handle = await shop.welcome.adelay("ann")
        await box.arun()
        assert await handle.aresult() == 3
        assert (await handle.astate(), handle.info().name) == (JobState.COMPLETED, "welcome")
    assert shop.sent == [("ann@example.org", "Welcome")]


def test_everything_that_a_job_stored_can_be_read(shop: Shop) -> None:
    @shop.app.task(attempts=2, backoff=Backoff.fixed(60))
    def refuse() -> None:
        raise ValueError("no")

    with recorded(shop.app) as box:
        sent, refused = shop.send.delay("ann", "Hi"), refuse.delay()
        waiting = sent.info()
        assert (waiting.progress, waiting.returnvalue, waiting.finished_on) == (0, None, None)
        box.run(check=False)
        done, failed = sent.info(), shop.app.job(refused.queue, refused.id).info()
    assert (done.progress, done.failed_reason, done.attempts_made) == (100, None, 1)
    assert done.returnvalue == sent.result()
    assert (failed.returnvalue, failed.failed_reason, failed.attempts_made) == (
        None, "ValueError: no", 2
    )  # fmt: skip
    assert "ValueError: no" in failed.stacktrace[-1]
    assert done.finished_on is not None
    assert failed.finished_on is not None
    assert failed.finished_on - done.finished_on >= timedelta(seconds=59)


def test_retries_take_no_time_but_that_of_the_box(shop: Shop) -> None:
    shop.fail_until = 2
    with recorded(shop.app) as box:
        handle = shop.send.delay("ann", "Hi")
        box.run()
        assert box.now == 120
        assert handle.result() == "ann: Hi"
        assert handle.logs().lines == ["sent"]
    assert shop.attempts == [1, 2, 3]


def test_the_info_of_a_job_has_its_outcome(shop: Shop) -> None:
    with recorded(shop.app) as box:
        done = shop.send.delay("ann", "Hi")
        assert (done.info().finished_ms, done.info().processed_ms) == (None, None)
        box.run()
        info = done.info()
        assert (info.returnvalue, info.failed_reason) == ("ann: Hi", None)
        assert info.created_ms is not None
        assert info.processed_ms is not None
        assert info.finished_ms is not None
        assert info.created_ms <= info.processed_ms <= info.finished_ms
        shop.fail_until = 99
        failed = shop.send.delay("ben", "Hi")
        box.run(check=False)
        info = failed.info()
        assert (info.returnvalue, info.attempts_made) == (None, 3)
        assert info.failed_reason == "ConnectionError: the mail server is away"
        assert info.stacktrace[-1].endswith(info.failed_reason)


def test_a_job_that_fails_for_good_is_raised(shop: Shop) -> None:
    shop.fail_until = 3
    with recorded(shop.app) as box:
        handle = shop.send.delay("ann", "Hi")
        with pytest.raises(JobFailed, match="the mail server is away") as failed:
            box.run()
        assert isinstance(failed.value.__cause__, ConnectionError)
        assert failed.value.attempts == 3
        with pytest.raises(JobFailed):
            handle.result()


def test_it_is_not_raised_if_the_test_wants_to_look_itself(shop: Shop) -> None:
    shop.fail_until = 3
    with recorded(shop.app) as box:
        shop.send.delay("ann", "Hi")
        box.run(check=False)
        [job] = box.jobs
        assert (job.state, job.attempts) == (JobState.FAILED, 3)
        assert job.failure is not None
        assert job.failure.reason == "ConnectionError: the mail server is away"


def test_arguments_go_through_json_and_back(shop: Shop) -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    with recorded(shop.app) as box:
        handle = shop.send.delay("ann", "Hi", at)
        box.assert_enqueued(shop.send, at=at)
        box.run()
        assert handle.result() == "ann: Hi 2030-01-01T00:00:00+00:00"


def test_wrong_calls_and_payloads_are_refused_as_ever(shop: Shop) -> None:
    send: Any = shop.send
    with recorded(shop.app) as box:
        with pytest.raises(TypeError, match="subject"):
            send.delay("ann")
        with pytest.raises(SerializationError):
            send.delay("ann", object())
        with pytest.raises(InvalidArguments, match="argument 'subject' must be str, got int"):
            send.delay("ann", 5)
        assert box.jobs == []


def test_jobs_run_in_the_order_in_which_they_are_due(shop: Shop) -> None:
    with recorded(shop.app) as box:
        shop.app.enqueue(
            [
                shop.send.options(delay=timedelta(hours=2)).job("c", ""),
                shop.send.options(priority=3).job("b", ""),
                shop.send.job("a", ""),
            ]
        )
        box.run()
        assert box.now == 7200
    assert [to for to, _ in shop.sent] == ["a", "b", "c"]


def test_jobs_of_an_instant_run_in_the_order_of_their_queue() -> None:
    app = App("x", redis=NOWHERE, backoff=Backoff.none())
    order: list[str] = []

    @app.task
    def work(name: str) -> None:
        order.append(name)
        if name == "fails" and current_job().attempt == 1:
            raise ConnectionError
        if name == "snoozes" and current_job().job.attempts_started == 1:
            raise Snooze(0)

    with recorded(app) as box:
        for name in ("fails", "snoozes", "last"):
            work.delay(name)
        work.options(lifo=True).delay("second")
        work.options(lifo=True).delay("first")
        box.run()
    assert order == ["first", "second", "fails", "snoozes", "snoozes", "last", "fails"]


def test_a_second_job_of_a_key_or_an_id_is_not_recorded(shop: Shop) -> None:
    with recorded(shop.app) as box:
        first = shop.send.options(dedup=Dedup("k")).delay("a", "")
        again = shop.send.options(dedup=Dedup("k")).delay("a", "")
        named = shop.send.options(job_id="mine").delay("a", "")
        twice = shop.send.options(job_id="mine").delay("a", "")
        assert (first.deduplicated, again.deduplicated) == (False, True)
        assert (again.id, twice.id) == (first.id, named.id)
        assert len(box.jobs) == 2
        box.run()
        assert shop.send.options(dedup=Dedup("k")).delay("a", "").deduplicated is False


def test_what_a_task_may_raise_is_understood() -> None:
    app = App("x", redis=NOWHERE)
    seen: list[float] = []

    @app.task(attempts=2)
    def moody() -> None:
        seen.append(box.now)
        match len(seen):
            case 1:
                raise Snooze(5)
            case 2:
                raise Retry(after=7)
            case 3:
                raise PermanentError("enough")

    with recorded(app) as box:
        moody.delay()
        box.run(check=False)
    assert seen == [0, 5, 12]
    assert box.jobs[0].attempts == 2


def test_a_rate_limit_holds_the_whole_queue() -> None:
    app = App("x", redis=NOWHERE)
    seen: list[tuple[str, float]] = []

    @app.task
    def work(name: str) -> None:
        seen.append((name, box.now))
        if len(seen) == 1:
            raise RateLimited(5)

    with recorded(app) as box:
        for name in "ab":
            work.delay(name)
        work.options(queue="other").delay("c")
        box.advance(4)
        assert [job.state for job in box.jobs[:2]] == [JobState.WAITING] * 2
        box.run()
    assert seen == [("a", 0), ("c", 0), ("a", 5), ("b", 5)]


def test_jobs_that_never_end_are_noticed() -> None:
    app = App("x", redis=NOWHERE)

    @app.task
    def again() -> None:
        again.delay()

    with recorded(app) as box:
        again.delay()
        with pytest.raises(TaskbullError, match="may be retrying forever"):
            box.run(limit=50)


def test_jobs_may_take_as_many_turns_as_the_limit(shop: Shop) -> None:
    with recorded(shop.app) as box:
        shop.send.delay("ann", "Hi")
        shop.send.delay("bob", "Hi")
        with pytest.raises(TaskbullError, match="after 1 turns"):
            box.run(limit=1)
        box.run(limit=1)
        box.advance(hours=1, limit=0)
    assert [job.state for job in box.jobs] == [JobState.COMPLETED] * 2


def test_middleware_is_around_the_jobs() -> None:
    app = App("x", redis=NOWHERE)
    seen: list[str] = []

    @app.middleware
    async def watch(job: Any, call_next: Any) -> Any:
        seen.append(job.name)
        return await call_next(job)

    @app.task
    def plain() -> str:
        return "done"

    with recorded(app) as box:
        handle = plain.delay()
        box.run()
        assert handle.result() == "done"
    assert seen == ["plain"]


def test_a_job_that_was_not_run_has_no_result(shop: Shop) -> None:
    with recorded(shop.app) as box:
        handle = shop.send.delay("a", "")
        with pytest.raises(TimeoutError, match="has not run yet"):
            handle.result()
        box.clear()
        assert box.jobs == []


def test_after_the_block_redis_is_used_again(shop: Shop) -> None:
    with recorded(shop.app) as outer, recorded(shop.app) as inner:
        shop.send.delay("a", "")
        assert isinstance(outer, Box)
        assert (len(outer.jobs), len(inner.jobs)) == (0, 1)
    with pytest.raises(TaskbullError, match="cannot connect"):
        shop.send.delay("a", "")


@pytest.mark.parametrize("jobs", [5, "abc", [5], {"a": 1}, [("send", {})]])
def test_what_is_no_bulk_is_refused_as_without_recording(jobs: Any) -> None:
    app = App("shop", redis=NOWHERE)
    with recorded(app), pytest.raises(ConfigurationError, match=r"jobs.* must be"):
        app.enqueue(jobs)
