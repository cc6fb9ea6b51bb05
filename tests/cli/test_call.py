"""`taskbull call`: arguments by the annotations, options, and waiting for the result."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from taskbull import from_lifespan
from tests.cli.conftest import Shop


def data(shop: Shop, *words: str) -> Any:
    """Give what a call stores."""
    queue = json.loads(shop("call", *words, "--json"))["queue"]
    [job] = shop.json("jobs", queue, "--state", "waiting", "--limit", "1")
    return job["data"]


@contextmanager
def working(shop: Shop) -> Iterator[None]:
    """Let a worker run beside the block."""
    stop = threading.Event()

    async def work() -> None:
        async with shop.app.worker().running():
            await anyio.to_thread.run_sync(stop.wait)

    thread = threading.Thread(target=anyio.run, args=(work,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize(
    ("word", "stored"),
    [
        ("path=5", "5"),
        ("path=", ""),
        ("path=a=b", "a=b"),
        ("path=true", "true"),
        ("path=[1]", "[1]"),
        ('path:="x"', "x"),
        ("width=5", 5),
        ("width:=5", 5),
        ("ratio=2", 2),
        ("ratio=1e3", 1000.0),
        ("keen=true", True),
        ("keen=Yes", True),
        ("keen=1", True),
        ("keen=off", False),
        ("sizes=[1, 2]", [1, 2]),
        ("sizes=null", None),
        ("sizes:=null", None),
        ("when=2030-01-31T09:00:00Z", "2030-01-31T09:00:00Z"),
    ],
)
def test_a_value_is_read_by_the_annotation(shop: Shop, word: str, stored: object) -> None:
    name = word.partition("=")[0].removesuffix(":")
    words = [word] if name == "path" else ["path=a", word]
    found = data(shop, "resize", *words)[name]
    assert (found, type(found)) == (stored, type(stored))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("resize", "path=a", "width=wide"),
            "argument 'width': 'wide' is invalid: it must be int, got str",
        ),
        (
            ("resize", "path=a", "width=1.5"),
            "argument 'width': '1.5' is invalid: it must be int, got float",
        ),
        (("resize", "path=a", "keen=perhaps"), "argument 'keen': 'perhaps' is invalid"),
        (("resize", "path=a", "sizes=1,2"), "argument 'sizes': '1,2' is invalid"),
        (("resize", "path=a", "sizes=[1,x]"), "argument 'sizes': '[1,x]' is invalid"),
        (("resize", "path=a", 'sizes=["x"]'), "must be int, got str"),
        (("resize", "path=a", "when=tomorrow"), "argument 'when': 'tomorrow' is invalid"),
        (("resize", "path=a", "width:=x"), "argument 'width': 'x' is not JSON"),
        (("resize", "path=a", 'width:="5"'), "argument 'width' must be int, got str"),
        (("resize", "path=a", "path=b"), "argument 'path' is given twice"),
        (("resize", "path"), "'path' must be key=value, or key:=json"),
        (("resize", "=x"), "'=x' must be key=value, or key:=json"),
        (("resize", "pth=a"), "has no argument 'pth' (did you mean path?); it takes path, width"),
        (("resize",), "missing required argument: 'path'"),
        (("rsize", "path=a"), "has no task 'rsize' (did you mean resize?)"),
        (
            ("resize", "path=a", "--delay=1", "--eta=2030-01-31T09:00:00Z"),
            "cannot be used together",
        ),
        (("resize", "path=a", "--eta=2030-01-31T09:00:00"), "has no time zone"),
        (("resize", "path=a", "--eta=soon"), "is not a date and time"),
        (("resize", "path=a", "--queue=a:b"), "queue name must not contain ':'"),
    ],
)
def test_a_wrong_call_is_wrong_usage_and_adds_nothing(
    shop: Shop, words: tuple[str, ...], said: str
) -> None:
    assert said in shop.fails("call", *words, code=2)
    assert shop.json("jobs", "default") == []


def test_arguments_may_be_by_position_only_or_of_any_name(shop: Shop) -> None:
    assert data(shop, "anything", "first=x", "more=5") == {"first": "x", "more": 5}
    assert "argument 'more': 'x' is invalid" in shop.fails(
        "call", "anything", "first=1", "more=x", code=2
    )


def test_the_options_of_a_call_are_stored(shop: Shop) -> None:
    shop(
        *("call", "resize", "path=a", "--delay=1h", "--priority=3", "--attempts=7", "--timeout=2m"),
        *("--job-id=mine", "--queue=images", "--lifo", "--expires=90m"),
    )
    job = shop.json("job", "images", "mine")
    assert (job["state"], job["delay"], job["priority"], job["attempts"]) == ("delayed", 3600, 3, 7)
    assert job["options"]["timeout"] == 120_000
    assert job["options"]["expires"] == 1_800_000  # after its delay
    assert job["options"]["lifo"] is True


def test_a_job_of_the_same_key_is_not_added(shop: Shop) -> None:
    added = shop("call", "resize", "path=a", "--dedup=once")
    assert added == "job 1 (resize) added to queue default\n"
    again = shop("call", "resize", "path=a", "--dedup=once")
    assert again == "not added: duplicate of job 1 in queue default\n"
    assert shop.json("call", "resize", "path=a", "--dedup=once") == {
        "id": "1",
        "queue": "default",
        "name": "resize",
        "deduplicated": True,
    }


def test_a_result_that_is_waited_for_is_all_that_is_printed(shop: Shop) -> None:
    with working(shop):
        result = shop.run("call", "resize", "path=a", "width=3", "--wait")
        assert (result.exit_code, json.loads(result.stdout)) == (0, [3, 3])
        assert "job 1 (resize) added to queue default" in result.stderr
        ended = shop.json("call", "send_email", "to=ann", "subject=x", "--wait")
    assert ended == {
        "id": "1",
        "queue": "emails",
        "name": "send_email",
        "deduplicated": False,
        "state": "completed",
        "result": "sent to ann",
        "reason": None,
    }


def test_a_failure_that_is_waited_for_is_a_failure(shop: Shop) -> None:
    with working(shop):
        result = shop.run("call", "explode", "reason=no \x1b[2J way", "--wait")
        assert (result.exit_code, result.stdout) == (1, "")
        last = result.stderr.splitlines()[-1]
        assert last == r"taskbull: Job '1' in queue 'default' failed: no \x1b[2J way (attempts: 1)"
        assert "PermanentError" in result.stderr
        assert "\x1b" not in result.stderr
        ended = shop.json("call", "explode", "reason=no", "--wait", code=1)
    assert (ended["state"], ended["reason"], ended["attempts"]) == ("failed", "no", 1)
    assert len(ended["stacktrace"]) == 1


def test_waiting_ends_in_time_and_says_that_nobody_works(shop: Shop) -> None:
    said = shop.fails("call", "resize", "path=a", "--wait-timeout=50ms")
    assert "no worker is connected to queue default" in said
    assert "Job '1' in queue 'default' did not finish within 0.05 s" in said


@dataclass
class Point:
    x: int
    name: str = ""


def test_an_item_of_a_batch_task_is_called_like_any_other(shop: Shop) -> None:
    @shop.app.batch_task(size=2, queue="batches")
    def count(texts: list[str]) -> list[int]:
        return [len(text) for text in texts]

    @shop.app.batch_task(size=2, queue="points")
    def place(points: list[Point]) -> list[int]:
        return [point.x for point in points]

    @shop.app.batch_task(size=3, queue="models", process=True)
    def embed(texts: list[str]) -> list[int]:
        return [len(text) for text in texts]

    assert data(shop, "count", "texts=one text") == {"texts": "one text"}
    assert data(shop, "place", "x:=5", "name=here") == {"x": 5, "name": "here"}
    by_name = {task["name"]: task for task in shop.json("tasks")}
    assert by_name["count"]["batch_size"] == 2
    assert (by_name["embed"]["runs_in"], by_name["embed"]["batch_size"]) == ("process", 3)
    shown = shop("tasks")
    assert "thread, batches of 2" in shown
    assert "process, batches of 3" in shown


def test_what_a_worker_fills_in_cannot_be_given(shop: Shop) -> None:
    @shop.app.task(queue="others")
    def work(number: int, model: Point = from_lifespan()) -> None: ...

    assert data(shop, "work", "number=5") == {"number": 5}
    assert "Task 'work' has no argument 'model'" in shop.fails("call", "work", "model=5", code=2)
