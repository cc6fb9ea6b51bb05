"""Jobs: what people see, and what machines read."""

from __future__ import annotations

import json
import threading

import anyio
import anyio.to_thread
import pytest
import redis

from taskbull.worker.worker import Worker
from tests.cli.conftest import CommandLine, Shop


def test_jobs_are_listed_state_by_state_in_pages(cli: CommandLine) -> None:
    queue = cli.queue("emails")
    queue.add_bulk([("send", {"n": n}) for n in range(5)])
    queue.add("send", {"n": 5}, delay=3600)
    everything = cli.json("jobs", "emails")
    assert [(job["data"]["n"], job["state"]) for job in everything] == [
        *((n, "waiting") for n in range(5)),
        (5, "delayed"),
    ]
    assert everything[-1]["due_at"] > everything[-1]["added_at"]
    page = cli.json("jobs", "emails", "--offset", "3", "--limit", "2")
    assert [job["data"]["n"] for job in page] == [3, 4]
    page = cli.json("jobs", "emails", "--offset", "4", "--limit", "20")
    assert [job["data"]["n"] for job in page] == [4, 5]
    [delayed] = cli.json("jobs", "emails", "--state", "delayed")
    assert delayed == everything[-1]
    assert cli.json("jobs", "emails", "--state", "failed") == []


def test_jobs_of_a_paused_queue_are_listed_once(cli: CommandLine) -> None:
    queue = cli.queue("emails")
    queue.add("send")
    queue.pause()
    assert [job["id"] for job in cli.json("jobs", "emails")] == ["1"]
    assert [job["id"] for job in cli.json("jobs", "emails", "--state", "paused")] == ["1"]


def test_users_see_that_there_are_more_jobs(cli: CommandLine) -> None:
    cli.queue("emails").add_bulk([("send", {})] * 5)
    result = cli.run("jobs", "emails", "--limit", "2", *cli.where)
    assert len(result.stdout.splitlines()) == 3
    assert "1 to 2 of 5 in queue emails; the next: --offset 2" in result.stderr


def test_everything_about_a_job_is_shown(shop: Shop) -> None:
    shop.run("call", "send_email", "to=ann", "subject=Hi")
    shop.run("call", "explode", "reason=no\x1b[31m such\nthing")
    shop.work()
    done = shop.json("job", "emails", "1")
    assert (done["state"], done["result"]) == ("completed", "sent to ann")
    assert done["data"] == {"to": "ann", "subject": "Hi"}
    assert done["logs"] == ["rendered for ann"]
    assert done["added_at"] <= done["started_at"] <= done["finished_at"]
    failed = shop.json("job", "default", "1")
    assert (failed["state"], failed["attempts_made"], failed["attempts"]) == ("failed", 1, 3)
    assert failed["reason"] == "no\x1b[31m such\nthing"
    assert len(failed["stacktrace"]) == 1
    text = shop("job", "emails", "1")
    assert '"sent to ann"' in text
    assert "rendered for ann" in text
    text = shop("job", "default", "1")
    assert r"reason    no\x1b[31m such\nthing" in text
    assert "Traceback, attempt 1" in text
    assert "\x1b" not in text
    [row] = shop("jobs", "default").splitlines()[1:]
    assert row.endswith(r"no\x1b[31m such…")


# users-5: three attempts that failed at the same place showed the same stack three times.
def test_a_stack_is_shown_once_for_all_failures_in_a_row_that_had_it(shop: Shop) -> None:
    handle = shop.queue("default").add("n", {})
    stacks = ["first", "then", "then", "then", "last"]
    with redis.Redis.from_url(shop.url) as client:
        client.hset(f"{shop.prefix}:default:{handle.id}", "stacktrace", json.dumps(stacks))
    shown = [
        line for line in shop("job", "default", handle.id).splitlines() if "Traceback, " in line
    ]
    titles = ["Traceback, attempt 1", "Traceback, attempts 2 to 4", "Traceback, attempt 5"]
    assert [line.strip() for line in shown] == titles


def test_a_job_has_the_same_keys_in_both_commands(shop: Shop) -> None:
    shop.run("call", "resize", "path=a")
    [listed] = shop.json("jobs", "default")
    shown = shop.json("job", "default", "1")
    own = {"options", "lock_seconds", "children", "logs", "steps", "why"}
    assert shown.keys() - listed.keys() == own
    assert shown["options"]["attempts"] == 3
    assert shown["children"] == {"processed": 0, "unprocessed": 0, "ignored": 0, "failed": 0}


def test_a_job_that_cannot_be_read_is_shown_nevertheless(cli: CommandLine) -> None:
    cli.queue("emails").add("send")
    with redis.Redis.from_url(cli.url) as client:
        client.hset(f"{cli.prefix}:emails:1", mapping={"data": "{nonsense\x1b", "opts": "[]"})
    shown = cli.json("job", "emails", "1")
    assert shown["data"] == "{nonsense\x1b"
    assert "data" in shown["corrupt"]
    assert "corrupt" in cli("job", "emails", "1")


def test_a_running_job_without_a_lock_is_shown_as_stalled(cli: CommandLine) -> None:
    cli.queue("emails").add("send")
    with redis.Redis.from_url(cli.url) as client:
        client.rpoplpush(f"{cli.prefix}:emails:wait", f"{cli.prefix}:emails:active")
        assert cli.json("job", "emails", "1")["lock_seconds"] == 0
        assert "job stalled" in cli("job", "emails", "1")
        client.set(f"{cli.prefix}:emails:1:lock", "token", px=30_000)
    assert 0 < cli.json("job", "emails", "1")["lock_seconds"] <= 30


@pytest.mark.parametrize(
    "words", [("jobs", "emials"), ("job", "emials", "1"), ("workers", "emials")]
)
def test_an_unknown_queue_gets_a_suggestion(cli: CommandLine, words: tuple[str, ...]) -> None:
    cli.queue("emails").add("send")
    assert "Queue 'emials' not found" in (said := cli.fails(*words))
    assert "did you mean emails?" in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("job_id", ["99", "meta", "id", "events"])
def test_an_unknown_job_is_reported(cli: CommandLine, job_id: str) -> None:
    cli.queue("emails").add("send")
    said = cli.fails("job", "emails", job_id)
    assert said == f"taskbull: Job '{job_id}' not found in queue 'emails'\n"


def test_json_is_valid_whatever_a_job_holds(cli: CommandLine) -> None:
    hostile = "\x1b]0;x\x07 \x9b31m \x7f \u202e \u2028 ä €"
    cli.queue("emails").add("send", {"text": hostile})
    printed = cli("jobs", "emails", "--json")
    assert printed.replace("\n", "").isprintable()
    assert "ä €" in printed
    assert json.loads(printed)[0]["data"]["text"] == hostile


def test_the_jobs_of_all_queues_are_listed(cli: CommandLine) -> None:
    first, second = cli.queue("emails").add("x"), cli.queue("other").add("y")
    assert [(each["queue"], each["id"]) for each in cli.json("jobs")] == [
        ("emails", first.id),
        ("other", second.id),
    ]
    lines = cli("jobs").splitlines()
    assert [line.split()[0] for line in lines] == ["QUEUE", "emails", "other"]


def test_the_stack_of_a_running_job_is_shown(cli: CommandLine) -> None:
    running, release = threading.Event(), threading.Event()

    def hang(_: object) -> None:
        running.set()
        release.wait(60)

    def work() -> None:
        worker = Worker("emails", hang, redis=cli.url, prefix=cli.prefix)

        async def run() -> None:
            async with worker.running():
                await anyio.to_thread.run_sync(release.wait)

        anyio.run(run)

    cli.queue("emails").add("send")
    refused = cli.run("stack", "emails", "1", *cli.where)
    assert (refused.exit_code, "it is waiting, not active" in refused.stderr) == (1, True)
    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert running.wait(60)
        text = cli("stack", "emails", "1")
        found = cli.json("stack", "emails", "1")
    finally:
        release.set()
        thread.join()
    assert "in its thread:" in text
    assert "in hang\n    release.wait(60)" in text
    assert (found["place"], "in hang" in found["stack"]) == ("thread", True)
