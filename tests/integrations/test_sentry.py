"""Sentry: reports of failed jobs, spans across producer and worker, check-ins of schedules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from taskbull import App, Backoff, Every, PermanentError, Snooze
from taskbull.app.app import load_app
from taskbull.integrations.sentry import SentryIntegration
from tests.servers.kinds import KINDS, Reachable, SharedServers

LIMIT = 60.0


class Sent(Transport):
    """A transport that keeps what it should send."""

    def __init__(self) -> None:
        super().__init__({"dsn": "http://key@127.0.0.1:1/1"})
        self.items: list[tuple[str, dict[str, Any]]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        for item in envelope.items:
            if item.payload.json is not None:
                self.items.append((item.type or "", item.payload.json))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [content for type_, content in self.items if type_ == kind]


@pytest.fixture
def server(shared_servers: SharedServers) -> Reachable:
    return shared_servers.emptied(KINDS[0])


@pytest.fixture
def app(server: Reachable, prefix: str) -> Iterator[App]:
    app = App("shop", redis=server.url, prefix=prefix)
    yield app
    app.close()


def _sentry(**options: Any) -> Sent:
    sent = Sent()
    sentry_sdk.init(
        dsn="http://key@127.0.0.1:1/1",
        transport=sent,
        traces_sample_rate=1.0,
        integrations=[SentryIntegration(**options)],
        default_integrations=False,
    )
    return sent


@pytest.fixture(autouse=True)
def without_sentry_afterwards() -> Iterator[None]:
    yield
    sentry_sdk.init()


async def test_a_failed_job_is_reported_once_without_its_arguments(
    app: App, anyio_backend: str
) -> None:
    sent = _sentry()

    @app.task(queue="emails", attempts=2, backoff=Backoff.fixed(0.01))
    async def send(to: str) -> None:
        raise ConnectionError("mail server is away")

    @app.task(queue="emails", throws=(KeyError,), fail_on=(KeyError,))
    async def look_up(to: str) -> None:
        raise KeyError(to)

    job = await send.adelay("ann@example.org")
    await look_up.adelay("ann@example.org")
    await app.run_worker(burst=True)
    [report] = sent.of("event")
    assert report["exception"]["values"][-1]["value"] == "mail server is away"
    assert report["transaction"] == "send"
    assert report["tags"] == {"taskbull.queue": "emails", "taskbull.task": "send"}
    assert report["contexts"]["job"] == {
        "id": job.id,
        "task": "send",
        "queue": "emails",
        "attempt": 2,
        "outcome": "transient_exhausted",
    }
    last = [one for one in sent.of("transaction") if one["transaction"] == "send"][-1]
    assert report["contexts"]["trace"]["trace_id"] == last["contexts"]["trace"]["trace_id"]
    assert "ann@example.org" not in str(sent.of("event"))


async def test_arguments_and_retries_are_reported_if_asked_for(
    app: App, anyio_backend: str
) -> None:
    sent = _sentry(send_data=True, retries=True)

    @app.task(attempts=2, backoff=Backoff.fixed(0.01))
    def send(to: str) -> None:
        raise ConnectionError("mail server is away")

    await send.adelay("ann@example.org")
    await app.run_worker(burst=True)
    assert [one["contexts"]["job"]["outcome"] for one in sent.of("event")] == [
        "retried",
        "transient_exhausted",
    ]
    assert sent.of("event")[0]["contexts"]["job"]["data"] == {"to": "ann@example.org"}


async def test_a_trace_goes_from_the_producer_through_the_job(app: App, anyio_backend: str) -> None:
    sent = _sentry()

    @app.task(queue="texts")
    def shout(text: str) -> str:
        with sentry_sdk.start_span(op="test", name="inside"):
            return text.upper()

    with sentry_sdk.start_transaction(op="test", name="request"):
        job = await shout.options(headers={"tenant": "acme"}).adelay("a")
    await app.run_worker(burst=True)
    request, processed = sent.of("transaction")
    assert request["transaction"] == "request"
    [publish] = request["spans"]
    assert publish["op"] == "queue.publish"
    assert publish["data"]["messaging.destination.name"] == "texts"
    trace = processed["contexts"]["trace"]
    assert trace["op"] == "queue.process"
    assert trace["trace_id"] == request["contexts"]["trace"]["trace_id"]
    assert trace["parent_span_id"] == publish["span_id"]
    assert trace["status"] == "ok"
    assert trace["data"]["messaging.message.id"] == job.id
    assert trace["data"]["messaging.message.retry.count"] == 0
    assert trace["data"]["messaging.message.receive.latency"] >= 0
    assert [span["description"] for span in processed["spans"]] == ["inside"]
    headers = (await job.ainfo()).options.headers
    assert headers is not None
    assert headers["tenant"] == "acme"


async def test_a_timeout_is_reported_in_the_trace_of_its_producer(
    app: App, anyio_backend: str
) -> None:
    sent = _sentry()

    @app.task(attempts=1, timeout=0.01)
    async def hang() -> None:
        await anyio.sleep_forever()

    with sentry_sdk.start_transaction(op="test", name="request") as request:
        await hang.adelay()
    await app.run_worker(burst=True)
    [report] = sent.of("event")
    assert report["exception"]["values"][-1]["type"] == "TimeoutError"
    assert report["contexts"]["trace"]["trace_id"] == request.trace_id


async def test_an_error_in_a_process_is_reported_under_its_own_name(
    server: Reachable,
    prefix: str,
    anyio_backend: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = _sentry()
    (tmp_path / "parsing_tasks.py").write_text(
        f"""
import json
from taskbull import App

app = App("parsing", redis={server.url!r}, prefix={prefix!r})

@app.task(attempts=1, process=True)
def parse(text: str) -> None:
    json.loads(text)
"""
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    app = load_app("parsing_tasks:app")
    await app.tasks["parse"].adelay("secret")
    await app.run_worker(burst=True)
    app.close()
    [report] = sent.of("event")
    error = report["exception"]["values"][-1]
    assert (error["type"], error["module"]) == ("JSONDecodeError", "json.decoder")
    assert "parsing_tasks.py" in report["contexts"]["job"]["stack"]
    assert "secret" not in str(report)


@pytest.mark.parametrize(
    "baggage", ["sentry-sample_rate=1e400,sentry-sample_rand=inf", "=,=,;%zz", "sentry-" + "," * 99]
)
async def test_headers_that_sentry_cannot_read_fail_no_job(
    app: App, anyio_backend: str, baggage: str
) -> None:
    sent = _sentry()

    @app.task
    async def work() -> int:
        return 1

    trace = {"sentry-trace": f"{'a' * 32}-{'b' * 16}-1", "baggage": baggage}
    job = await app.queue("default").add("work", {}, headers=trace)
    await app.run_worker(burst=True)
    assert await job.aresult(timeout=LIMIT) == 1
    assert [one["transaction"] for one in sent.of("transaction")] == ["work"]


async def test_runs_of_a_schedule_check_in(app: App, anyio_backend: str) -> None:
    sent = _sentry()

    @app.task(queue="reports", schedule=Every(60))
    async def nightly() -> None: ...

    async with app.worker().running():
        await _until(app, 1)
    first, last = sent.of("check_in")
    assert first["monitor_slug"] == last["monitor_slug"] == "nightly"
    assert (first["status"], last["status"]) == ("in_progress", "ok")
    assert first["check_in_id"] == last["check_in_id"]
    assert first["monitor_config"]["schedule"] == {"type": "interval", "value": 1, "unit": "minute"}


async def test_a_job_that_is_postponed_is_no_error(app: App, anyio_backend: str) -> None:
    sent = _sentry()
    seen: list[int] = []

    @app.task
    async def wait() -> None:
        seen.append(1)
        if len(seen) == 1:
            raise Snooze(0.01)
        raise PermanentError("no")

    await wait.adelay()
    await app.run_worker(burst=True)
    statuses = [one["contexts"]["trace"]["status"] for one in sent.of("transaction")]
    assert statuses == ["ok", "internal_error"]
    assert len(sent.of("event")) == 1


async def test_without_the_integration_nothing_is_sent(app: App, anyio_backend: str) -> None:
    _sentry()
    sent = Sent()
    sentry_sdk.init(dsn="http://key@127.0.0.1:1/1", transport=sent, default_integrations=False)

    @app.task(attempts=1)
    async def fail() -> None:
        raise ValueError("no")

    job = await fail.adelay()
    await app.run_worker(burst=True)
    assert sent.items == []
    assert (await job.ainfo()).options.headers in ({}, None)


async def _until(app: App, count: int) -> None:
    async with aclosing(app.queue("reports").events(last_id="0")) as found:
        async for event in found:
            count -= event.name == "completed"
            if not count:
                return
