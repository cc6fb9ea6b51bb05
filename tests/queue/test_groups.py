"""Acting on chosen jobs and on those that failed alike, against real servers."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest

from taskbull import Queue, Server
from taskbull.errors import ConfigurationError, JobNotFound
from taskbull.queue.failures import GroupStep, fingerprint_of
from taskbull.scripts.browse import FailedJob
from tests.queue.conftest import Both
from tests.queue.test_server import fail
from tests.servers.kinds import Reachable


@pytest.fixture
def emails(server: Reachable, prefix: str) -> Queue:
    return Queue("emails", redis=server.url, prefix=prefix)


@pytest.fixture
def looks(server: Reachable, prefix: str) -> Server:
    return Server(server.url, prefix=prefix)


async def seed(emails: Queue, admin: Any, count: int = 120) -> None:
    """Fail jobs, every third of them for another reason."""
    for number in range(count):
        reason = "disk full" if number % 3 else f"no user {number}"
        fail(admin, emails.keys, f"{number:03}", reason, at_ms=number // 2 + 1)


async def act(action: Any, fingerprint: str, **more: Any) -> GroupStep:
    """Run all steps. Each examines 50 jobs."""
    step: GroupStep = await action(fingerprint, **more)
    while not step.over:
        assert step.examined % 50 == 0
        step = await action(fingerprint, step=step, **more)
    return step


async def test_a_group_is_retried_and_nothing_else(
    emails: Queue, looks: Server, admin: Any
) -> None:
    await seed(emails, admin)
    full, user = (await looks.failures("emails")).groups
    step = await act(emails.retry_group, user.fingerprint)
    assert (step.examined, step.done) == (120, 40)
    assert await emails.counts() == {**await emails.counts(), "failed": 80, "waiting": 40}
    [left] = (await looks.failures("emails")).groups
    assert left.fingerprint == full.fingerprint


async def test_one_step_of_an_operation_reports_what_it_did(
    emails: Queue, looks: Server, admin: Any
) -> None:
    await seed(emails, admin)
    full, _ = (await looks.failures("emails")).groups
    step = await emails.retry_group(full.fingerprint)
    assert not step.over
    assert (await emails.counts())["waiting"] == step.done


async def test_what_fails_after_it_began_is_left_alone(
    emails: Queue, looks: Server, admin: Any
) -> None:
    await seed(emails, admin, 60)
    full, _ = (await looks.failures("emails")).groups
    step = await emails.retry_group(full.fingerprint)
    fail(admin, emails.keys, "late", "disk full", at_ms=int(time.time() * 1000) + 60_000)
    while not step.over:
        step = await emails.retry_group(full.fingerprint, step=step)
    assert step.done == 40
    assert await emails.get_state("late") == "failed"


async def test_a_step_changes_no_more_than_it_may_and_the_next_continues_behind_it(
    queue: Both, admin: Any
) -> None:
    """By both queues; many jobs fail at the same moment."""
    for number in range(120):
        reason = "no answer" if number % 3 else "disk full"
        fail(admin, queue.keys, f"j{number:03}", reason, at_ms=1000 + number // 7)
    wanted = fingerprint_of(FailedJob("", "send", "no answer", None)).fingerprint
    step, gone = None, list[int]()
    while step is None or not step.over:
        step = await queue.remove_group(wanted, step=step, limit=7)
        gone.append(step.done)
    assert gone[:3] == [7, 14, 21]
    assert (step.done, step.examined) == (80, 120)
    left = {job.id for job in await queue.get_jobs("failed")}
    assert left == {f"j{number:03}" for number in range(120) if not number % 3}
    for wrong in (0, -1, True, 1.5):
        with pytest.raises(ConfigurationError, match="limit"):
            await queue.retry_group(wanted, limit=wrong)


async def test_only_what_failed_since_a_time_is_acted_on(queue: Both, admin: Any) -> None:
    for number in range(200):
        fail(admin, queue.keys, f"j{number:03}", "x", at_ms=1000 * number)
    await queue.add("next")  # a queue that is used
    step = None
    while step is None or not step.over:
        step = await queue.retry_group(None, step=step, since=at(130), limit=20)
    assert (step.done, step.examined) == (70, 70)
    step = await queue.remove_group(None, since=at(100))
    assert (step.done, step.over) == (30, True)
    assert await queue.retry_all(since=at(98), reset_attempts=True) == 2
    assert (await queue.counts())["failed"] == 98
    with pytest.raises(ConfigurationError, match="since"):
        await queue.retry_all(since=datetime(2030, 1, 1))  # noqa: DTZ001
    with pytest.raises(ConfigurationError, match="since"):
        await queue.retry_group(None, since=7)


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


async def test_a_group_may_get_all_its_attempts_again(emails: Queue, admin: Any) -> None:
    fail(admin, emails.keys, "a", "x")
    admin.hset(emails.keys.job("a"), mapping={"atm": 3, "ats": 4})
    assert (await emails.retry_group(None, reset_attempts=True)).done == 1
    assert admin.hmget(emails.keys.job("a"), "atm", "ats") == [None, None]


async def test_a_group_is_removed(emails: Queue, looks: Server, admin: Any) -> None:
    await seed(emails, admin)
    full, user = (await looks.failures("emails")).groups
    step = await act(emails.remove_group, full.fingerprint)
    assert step.done == 80
    assert [group.fingerprint for group in (await looks.failures("emails")).groups] == [
        user.fingerprint
    ]


async def test_chosen_jobs_are_acted_on_and_others_left(emails: Queue, admin: Any) -> None:
    fail(admin, emails.keys, "a", "x")
    fail(admin, emails.keys, "b", "x")
    found = await emails.retry_selected(["a", "gone", "b", "a"])
    assert found.done == ["a", "b"]
    assert set(found.left) == {"gone", "a"}
    admin.set(emails.keys.lock("b"), "token")
    removed = await emails.remove_selected(["a", "b"])
    assert (removed.done, list(removed.left)) == (["a"], ["b"])
    with pytest.raises(JobNotFound):
        await emails.retry_selected(["meta"])


async def test_a_job_that_has_moved_on_is_not_removed(emails: Queue, admin: Any) -> None:
    for job_id in ("a", "b"):
        fail(admin, emails.keys, job_id, "x")
    await emails.retry("a")
    found = await emails.remove_selected(["a", "b"], "failed")
    assert (found.done, list(found.left)) == (["b"], ["a"])
    assert await emails.get_state("a") == "waiting"


@pytest.mark.parametrize("reset", [False, True])
async def test_a_retry_may_begin_all_attempts_again(emails: Queue, admin: Any, reset: bool) -> None:
    for job_id in "abc":
        fail(admin, emails.keys, job_id, "x")
        admin.hset(emails.keys.job(job_id), mapping={"atm": 3, "ats": 4})
    await emails.retry("a", reset_attempts=reset)
    await emails.retry_selected(["b"], reset_attempts=reset)
    assert await emails.retry_all(reset_attempts=reset) == 1
    for job_id in "abc":
        found = admin.hmget(emails.keys.job(job_id), "atm", "ats")
        assert found == ([None, None] if reset else [b"3", b"4"])
    with pytest.raises(ConfigurationError, match="reset_attempts"):
        await emails.retry("a", reset_attempts=1)  # type: ignore[arg-type]


async def test_a_pause_may_say_why(emails: Queue, looks: Server, admin: Any) -> None:
    await emails.add("send")
    await emails.pause(by="bob", reason="migration")
    [sample] = await looks.survey(["emails"])
    assert sample.note is not None
    assert (sample.note.by, sample.note.why) == ("bob", "migration")
    explained = await looks.why("emails", "1")
    assert "by bob (migration)" in explained.text
    await emails.resume()
    assert not admin.exists(emails.keys.private("note"))
    await emails.pause()
    assert not admin.exists(emails.keys.private("note"))
