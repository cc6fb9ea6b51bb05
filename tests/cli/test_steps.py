"""Steps, waits and signals on the command line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio
import pytest
import redis

from taskbull import App, JobHandle, current_job, step
from tests.cli.conftest import CommandLine


class Publishing:
    """A job that has done a step, and waits for a signal."""

    def __init__(self, url: str, prefix: str) -> None:
        self.app = app = App("publishing", redis=url, prefix=prefix)

        @step
        async def draft(text: str) -> str:
            return text.upper()

        @app.task(queue="texts", attempts=1)
        async def publish(text: str, timeout: float | None = None) -> Any:
            drafted = await draft(text)
            return [drafted, await current_job().await_signal("approval", timeout=timeout)]

        @app.task(queue="texts", attempts=1)
        async def doze() -> None:
            await draft("zzz")
            await current_job().asleep(3600)

        @app.task(queue="texts", attempts=1)
        async def broken() -> None:
            await draft("x")
            raise ConnectionError("away")

        self.publish, self.doze, self.broken = publish, doze, broken

    def work(self) -> None:
        async def burst() -> None:
            await self.app.run_worker(["texts"], burst=True)

        anyio.run(burst)

    def waiting(self, timeout: float | None = None) -> JobHandle[Any]:
        job = self.publish.delay("text", timeout)
        self.work()
        return job


@pytest.fixture
def publishing(cli: CommandLine, url: str, prefix: str) -> Iterator[Publishing]:
    made = Publishing(url, prefix)
    yield made
    made.app.close()


def test_a_signal_ends_a_wait(cli: CommandLine, publishing: Publishing) -> None:
    job = publishing.waiting()
    assert "sent signal approval to job 1" in cli("signal", "texts", job.id, "approval", '{"a": 1}')
    publishing.work()
    assert job.result() == ["TEXT", {"a": 1}]
    assert "has ended" in cli.fails("signal", "texts", job.id, "approval", "1")
    assert "'nothing'" in cli.fails("signal", "texts", "nothing", "approval", "1")
    assert "must be JSON" in cli.fails("signal", "texts", job.id, "approval", "{", code=2)
    assert "signal name" in cli.fails("signal", "texts", job.id, "a:b", "1", code=2)


def test_a_signal_has_null_as_its_value_and_json_output(
    cli: CommandLine, publishing: Publishing
) -> None:
    job = publishing.waiting()
    found = cli.json("signal", "texts", job.id, "approval")
    assert found == {"queue": "texts", "id": job.id, "signal": "approval"}
    publishing.work()
    assert job.result() == ["TEXT", None]


def test_why_says_what_a_job_waits_for_and_how_to_send_it(
    cli: CommandLine, publishing: Publishing
) -> None:
    job = publishing.waiting(86_400)
    said = " ".join(cli("why", "texts", job.id).split())
    assert "It has been waiting for the signal 'approval' for" in said
    assert f"taskbull signal texts {job.id} approval JSON" in said
    assert "of 1 child" not in said
    codes = [one["code"] for one in cli.json("why", "texts", job.id)["reasons"]]
    assert "signal" in codes
    sleeper = publishing.doze.delay()
    publishing.work()
    assert "It is sleeping until" in " ".join(cli("why", "texts", sleeper.id).split())


def test_a_job_is_shown_with_its_steps(cli: CommandLine, publishing: Publishing) -> None:
    job = publishing.waiting()
    shown = cli("job", "texts", job.id)
    assert "step 'draft': done in" in shown
    assert "signal 'approval': waiting with no time limit" in shown
    [draft, wait] = cli.json("job", "texts", job.id)["steps"]
    assert (draft["name"], draft["status"], draft["result"]) == ("draft", "done", "TEXT")
    assert (wait["kind"], wait["status"], wait["duration"]) == ("signal", "waiting", None)


def test_the_time_of_a_wait_is_shown_until_its_job_ends(
    cli: CommandLine, publishing: Publishing
) -> None:
    job = publishing.waiting(3600)
    [_, wait] = job.steps()
    assert wait.until is not None
    until = wait.until.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    assert f"signal 'approval': waiting until {until}\n" in cli("job", "texts", job.id)
    job.cancel()
    assert "signal 'approval': not finished" in cli("job", "texts", job.id)


def test_a_retry_can_forget_the_steps(
    cli: CommandLine, publishing: Publishing, url: str, prefix: str
) -> None:
    job = publishing.broken.delay()
    publishing.work()
    admin = redis.Redis.from_url(url)
    key = f"{prefix}:texts:{job.id}:tb:steps"
    cli("retry", "texts", job.id)
    assert admin.exists(key)
    publishing.work()
    cli("retry", "texts", job.id, "--reset-steps")
    assert not admin.exists(key)
    admin.close()
    assert "--reset-steps needs the ids" in cli.fails(
        "retry", "texts", "--error", "f", "--reset-steps", code=2
    )
