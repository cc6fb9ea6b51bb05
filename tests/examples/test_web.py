"""The web frameworks' examples: a real server on a loopback port, a real worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect, sync_playwright

from tests.dashboard.browser import FLAGS, chromium
from tests.examples.conftest import OpenExample
from tests.examples.programs import Program
from tests.servers.waiting import wait_until


@contextmanager
def client_of(server: Program) -> Iterator[httpx.Client]:
    """Give a client of a server that prints where it listens."""
    address = server.read_until(r"http://127\.0\.0\.1:\d+")[0]
    with httpx.Client(base_url=address, timeout=20, trust_env=False) as client:
        yield client


@pytest.mark.full
def test_fastapi_adds_jobs_and_tells_how_they_are(on_server: OpenExample) -> None:
    place = on_server("with_fastapi")
    place.env |= {"PAGES_PER_SECOND": "100", "RUN_WORKER": "no"}
    web = place.python("-m", "uvicorn", "web:api", "--port", "0")
    with web, place.worker("reports:app") as worker, client_of(web) as client:
        ordered = client.post("/reports", json={"customer": "Ann", "pages": 5})
        assert ordered.status_code == 202
        report = f"/reports/{ordered.json()['id']}"
        events = list(_events(client, f"{report}/events"))
        assert client.get(report).json() == {
            "state": "completed",
            "progress": {"page": 5, "of": 5},
            "result": {"customer": "Ann", "pages": 5},
            "error": None,
        }
        assert client.get("/reports/4711").status_code == 404
        assert client.post("/reports", json={"customer": "Ann", "pages": 0}).status_code == 422
        assert "<progress" in client.get("/").text
        assert "reports" in client.get("/jobs/").text
        worker.stop()
        assert "Traceback" not in web.stop()
    assert [event["event"] for event in events] == [
        "added", "waiting", "active", *["progress"] * 5, "completed",
    ]  # fmt: skip
    assert json.loads(events[-2]["data"]) == {"page": 5, "of": 5}


@pytest.mark.full
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_browser_follows_a_report_that_the_web_server_builds(
    on_server: OpenExample, loop: str
) -> None:
    place = on_server("with_fastapi")
    place.env["PAGES_PER_SECOND"] = "100"
    web = place.python("-m", "uvicorn", "web:api", "--port", "0", "--loop", loop)
    with web, sync_playwright() as playwright:
        address = web.read_until(r"http://127\.0\.0\.1:\d+")[0]
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        page, tab = browser.new_page(), browser.new_page()
        tab.goto(f"{address}/jobs/")
        page.goto(f"{address}/")
        page.get_by_role("button").click()
        expect(page.locator("pre")).to_contain_text('completed {"customer":"Ann"', timeout=60_000)
        assert page.locator("progress").get_attribute("value") == "1"
        expect(tab.locator("#queue-reports")).to_be_visible()
        # Neither the open dashboard nor the worker keeps uvicorn from stopping.
        assert "Traceback" not in web.stop()
        browser.close()


@pytest.mark.full
def test_the_tests_of_the_fastapi_service_pass(on_server: OpenExample) -> None:
    assert "2 passed" in on_server("with_fastapi").python("-m", "pytest", "-q").run()


@pytest.mark.full
def test_fastapi_says_so_when_redis_is_away(on_server: OpenExample) -> None:
    place = on_server("with_fastapi")
    place.env |= {"TASKBULL_REDIS_URL": "redis://127.0.0.1:1/0", "ENQUEUE_TIMEOUT": "0.5"}
    place.env["RUN_WORKER"] = "no"
    web = place.python("-m", "uvicorn", "web:api", "--port", "0")
    with web, client_of(web) as client:
        assert client.post("/reports", json={"customer": "Ann"}).status_code == 503
        web.stop()


def _events(client: httpx.Client, path: str) -> Iterator[dict[str, Any]]:
    last_id = "0"
    while True:  # as a browser does: a stream ends after some seconds, and the next one continues
        with client.stream("GET", path, headers={"last-event-id": last_id}) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            for line in response.iter_lines():
                if line.startswith("id: "):
                    last_id = line.removeprefix("id: ")
                if line.startswith("data: "):
                    event = json.loads(line.removeprefix("data: "))
                    yield event
                    if event["event"] == "completed":
                        return


@pytest.mark.full
def test_fastapi_stops_although_somebody_follows_a_job(on_server: OpenExample) -> None:  # V2
    place = on_server("with_fastapi")
    place.env |= {"STREAM_SECONDS": "0.5", "RUN_WORKER": "no"}
    web = place.python("-m", "uvicorn", "web:api", "--port", "0")
    with web, client_of(web) as client:
        ordered = client.post("/reports", json={"customer": "Ann"}).json()
        with client.stream("GET", f"/reports/{ordered['id']}/events") as response:
            lines = response.iter_lines()
            assert next(line for line in lines if line.startswith("data: "))
            web.stop()
            assert list(lines)[-1] == ""


@pytest.mark.full
def test_django_adds_a_job_when_the_order_is_in_the_database(embedded_only: OpenExample) -> None:
    place = embedded_only("with_django")
    assert (
        "Creating table orders_order" in place.python("manage.py", "migrate", "--run-syncdb").run()
    )
    web = place.python("manage.py", "runserver", "--noreload", "127.0.0.1:0")
    worker = place.python("manage.py", "taskbull", "worker")
    with web, worker, client_of(web) as client:
        ordered = client.post("/orders", data={"book": "War and Peace"})
        assert ordered.status_code == 202
        order = f"/orders/{ordered.json()['number']}"
        wait_until(lambda: client.get(order).json()["state"] == "confirmed", "it is confirmed")
        worker.read_until(r"\(confirm_order\) in queue default completed")
        assert client.get("/orders/4711").status_code == 404
        worker.stop()
