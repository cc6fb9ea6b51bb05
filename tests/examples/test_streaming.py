"""The example of a streaming task: server-sent events, a reconnect, a killed worker, and Node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from taskbull.store.address import parse
from tests.examples.conftest import OpenExample
from tests.examples.test_web import client_of
from tests.interop.install import require_node_modules
from tests.interop.node import HERE
from tests.servers.proxy import Proxy

ANSWER = "Why? Sunlight is scattered by the air, and blue light more than red light. "


def events(client: httpx.Client, path: str, last_id: str = "") -> Iterator[dict[str, Any]]:
    headers = {"last-event-id": last_id} if last_id else {}
    with client.stream("GET", path, headers=headers) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        event: dict[str, str] = {}
        for line in response.iter_lines():
            if line:
                name, _, value = line.partition(": ")
                event[name] = value
            elif "data" in event:
                yield event
                event = {}
            else:
                event = {}


def words(found: list[dict[str, Any]]) -> str:
    return "".join(json.loads(event["data"]) for event in found if "event" not in event)


@pytest.mark.full
def test_a_browser_follows_a_model(on_server: OpenExample) -> None:
    place = on_server("streaming")
    place.env["WORDS_PER_SECOND"] = "100"
    web = place.python("-m", "uvicorn", "chat_web:api", "--port", "0")
    with web, place.worker("chat:app") as worker, client_of(web) as client:
        job_id = client.post("/prompts", json={"prompt": "Why?"}).json()["id"]
        path = f"/prompts/{job_id}/events"
        first: list[dict[str, Any]] = []
        for event in events(client, path):  # The connection breaks after some words.
            first.append(event)
            if len(first) == 4:
                break
        rest = list(events(client, path, first[-1]["id"]))
        assert words(first + rest) == ANSWER
        assert json.loads(rest[-1]["data"]) == {"state": "completed"}
        assert words(list(events(client, path))) == ANSWER
        assert "EventSource" in client.get("/").text
        worker.stop()
        web.stop()


@pytest.mark.full
def test_a_web_server_stops_with_an_open_stream_while_redis_is_away(on_server: OpenExample) -> None:
    place = on_server("streaming")
    redis = parse(place.env["TASKBULL_REDIS_URL"]).endpoints[0]
    with Proxy((redis.host, redis.port)) as proxy:
        place.env["TASKBULL_REDIS_URL"] = proxy.url
        web = place.python("-m", "uvicorn", "chat_web:api", "--port", "0")
        with web, client_of(web) as client:
            job_id = client.post("/prompts", json={"prompt": "Why?"}).json()["id"]
            proxy.black_hole()
            with client.stream("GET", f"/prompts/{job_id}/events") as response:
                lines = response.iter_lines()
                assert next(lines) == "retry: 1000"
                web.stop()


@pytest.mark.full
def test_node_follows_a_job(on_server: OpenExample) -> None:
    require_node_modules()
    place = on_server("streaming")
    place.env["WORDS_PER_SECOND"] = "100"
    (place.folder / "node_modules").symlink_to(HERE / "node_modules")
    adds = "from chat import complete; print(complete.delay('Why?').id)"
    with place.worker("chat:app") as worker:
        job_id = place.python("-c", adds).run().strip().splitlines()[-1]
        said = place.node("follow.mjs", job_id).run()
        worker.stop()
    assert said.splitlines() == [ANSWER, "(completed)"]
