"""`taskbull schedules`: listed, previewed, run, removed, and written from the app."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from taskbull import Cron, Every
from taskbull.cli.output import until
from tests.cli.conftest import CommandLine, Shop

NIGHTLY = Cron("0 3 * * *", tz="Europe/Berlin")
DECLARING = """
from taskbull import Cron, Every

@app.task(queue="reports", schedule=Cron("0 3 * * *", tz="Europe/Berlin"))
def nightly(region: str = "all") -> None: ...

app.schedule("hourly", Every(3600), nightly.job(region="eu"))
"""


@pytest.fixture
def admin(url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(url) as client:
        yield client


@pytest.fixture
def declaring(shop: Shop, nowhere: Path) -> Shop:
    """The shop, with schedules."""
    with (nowhere / f"{shop.module}.py").open("a") as file:
        file.write(DECLARING)
    return shop


def test_schedules_are_listed_with_their_rules_in_words(cli: CommandLine) -> None:
    queue = cli.queue("reports")
    queue.upsert_schedule("nightly", NIGHTLY, queue.job("report", {"region": "eu"}, attempts=2))
    soon = datetime.now(UTC) + timedelta(hours=5)
    mail = cli.queue("mail")
    mail.upsert_schedule("s", Every(30, start=soon, limit=5), mail.job("send"))
    header, *rows = cli("schedules").splitlines()
    assert header.split() == [
        *("SCHEDULE", "QUEUE", "TASK", "RULE", "NEXT", "RUN", "IN", "RUNS", "DECLARED", "BY"),
    ]
    assert rows[0].startswith("s         mail     send")
    assert "every 30 seconds, from" in rows[0]
    assert "every day at 03:00, Europe/Berlin" in rows[1]
    assert rows[1].split()[-1] == "-"
    [only] = cli.json("schedules", "reports")
    assert only["rule"] == {
        "pattern": "0 3 * * *",
        "tz": "Europe/Berlin",
        "start": None,
        "end": None,
        "limit": None,
    }
    next_run = NIGHTLY.next()
    assert next_run is not None
    assert datetime.fromisoformat(only["next_run"]) == next_run
    assert 0 < only["in"] <= 90_000
    assert (only["id"], only["task"], only["data"]) == ("nightly", "report", {"region": "eu"})
    assert (only["count"], only["ended"], only["pending"]) == (1, False, True)
    assert (only["options"]["attempts"], only["declared_by"]) == (2, None)
    [other] = cli.json("schedules", "mail")
    assert (other["rule"]["every"], other["rule"]["limit"]) == (30, 5)


def test_without_schedules_there_is_nothing(cli: CommandLine) -> None:
    assert cli.json("schedules") == []
    assert "Queue 'nowhere' not found" in cli.fails("schedules", "nowhere")


def test_hostile_schedules_are_shown_anyway(cli: CommandLine, admin: redis.Redis) -> None:
    keys = cli.queue("q").keys
    cli.queue("q").add("job")
    admin.zadd(keys.repeat, {"a\x1b[31m": 1, "b": float("inf"), "c": -5, "d": 1e300})
    admin.hset(
        keys.scheduler("b"), mapping={"pattern": "* *", "tz": "Mars", "data": "{", "ic": "x"}
    )
    admin.hset(keys.scheduler("c"), mapping={"every": "0", "opts": "[", "limit": "-1"})
    admin.set(keys.scheduler("d"), "text")
    text = cli("schedules")
    assert "\x1b" not in text
    assert text.count("a rule that cannot be read") == 4
    found = {each["id"]: each for each in cli.json("schedules", "q")}
    assert found["b"]["data"] == "{"
    assert found["c"]["options"] == "["


def test_a_pattern_is_previewed_without_redis(cli: CommandLine) -> None:
    words = [*("schedules", "preview", "0 3 * * 1", "--tz", "Europe/Berlin", "-n", "3")]
    words += ("--from", "2027-03-20T00:00:00+01:00")
    done = cli.run(*words)
    assert (done.exit_code, done.stdout.splitlines()) == (
        0,
        [
            "on Monday at 03:00, Europe/Berlin",
            "  Mon 2027-03-22 03:00:00 +0100  in 2 d 3 h",
            "  Mon 2027-03-29 03:00:00 +0200  in 9 d 2 h",
            "  Mon 2027-04-05 03:00:00 +0200  in 16 d 2 h",
        ],
    )
    told = json.loads(cli.run(*words, "--json").stdout)
    assert (told["pattern"], told["tz"], len(told["runs"])) == ("0 3 * * 1", "Europe/Berlin", 3)
    assert told["runs"][0] == "2027-03-22T03:00:00+01:00"
    assert len(cli.run("schedules", "preview", "@hourly").stdout.splitlines()) == 11


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("0 25 * * *",), "hour '25' must be in 0-23"),
        (("no",), "must have 5 fields"),
        (("0 0 30 2 *",), "never runs"),
        (("* * * * *", "--tz", "Mars/Base"), "unknown time zone 'Mars/Base'"),
        (("* * * * *", "-n", "0"), "0 is not in the range"),
        (("* * * * *", "--from", "yesterday"), "is not a date and time"),
        (("* * * * *", "--from", "2027-01-01T00:00:00"), "has no time zone"),
        ((), "Missing argument 'PATTERN'"),
    ],
)
def test_a_wrong_preview_is_one_sentence(
    cli: CommandLine, words: tuple[str, ...], said: str
) -> None:
    done = cli.run("schedules", "preview", *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr


def test_a_schedule_is_run_now(cli: CommandLine) -> None:
    queue = cli.queue("reports")
    queue.upsert_schedule("nightly", NIGHTLY, queue.job("report", {"region": "eu"}))
    said = cli("schedules", "run", "reports", "nightly")
    assert said == "job 2 (report) added to queue reports\n"
    assert cli.json("schedules", "run", "reports", "nightly") == {
        "queue": "reports",
        "schedule": "nightly",
        "job": "3",
        "name": "report",
    }
    job = queue.get_job("2")
    assert job is not None
    assert job.data == {"region": "eu"}
    said = cli.fails("schedules", "run", "reports", "other")
    assert said == "taskbull: Schedule 'other' not found in queue 'reports'\n"


def test_a_schedule_is_removed_after_a_question(cli: CommandLine) -> None:
    queue = cli.queue("reports")
    queue.upsert_schedule("nightly", NIGHTLY, queue.job("report"))
    said = cli.fails("schedules", "remove", "reports", "nightly", code=2)
    assert said.startswith(
        "taskbull: Remove schedule 'nightly' from queue 'reports'? Cannot ask for"
    )
    cli("schedules", "remove", "reports", "nightly", "--yes")
    assert queue.schedules() == []
    cli.fails("schedules", "remove", "reports", "nightly", "--yes")


def test_a_declared_schedule_comes_back_and_the_question_says_so(declaring: Shop) -> None:
    declaring("schedules", "sync")
    said = declaring.fails("schedules", "remove", "reports", "nightly", code=2)
    assert "App 'shop' declares it, so its next worker will write it again" in said


def test_what_the_app_declares_is_written_without_a_worker(declaring: Shop) -> None:
    assert declaring("schedules", "sync").splitlines() == [
        "schedule nightly in queue reports is written",
        "schedule hourly in queue reports is written",
    ]
    assert declaring.json("schedules", "sync") == [
        {"queue": "reports", "id": "nightly", "state": "unchanged"},
        {"queue": "reports", "id": "hourly", "state": "unchanged"},
    ]
    listed = {each["id"]: each["declared_by"] for each in declaring.json("schedules")}
    assert listed == {"nightly": "shop", "hourly": "shop"}


def test_what_the_app_no_longer_declares_is_removed_when_asked(declaring: Shop) -> None:
    declaring("schedules", "sync")
    gone: Any = declaring.app.declared_schedules.of("reports")
    declaring.queue("former").declare_schedules("shop", gone[:1])  # a queue that the app has left
    declaring.queue("former").declare_schedules("office", gone[1:])
    declaring.queue("reports").upsert_schedule("mine", NIGHTLY, declaring.queue("reports").job("n"))
    rows = [row for row in declaring("schedules").splitlines() if " former " in row]  # V37
    assert [row.endswith("shop (no longer)") for row in sorted(rows)] == [False, True]
    told = declaring("doctor")
    assert "former: app 'shop' no longer declares nightly, but it still runs" in told
    said = "schedule nightly in queue former is no longer declared"
    assert f"{said}: --prune removes it" in declaring("schedules", "sync")
    assert [each.id for each in declaring.queue("former").schedules()] == ["hourly", "nightly"]
    assert f"{said}, and is removed" in declaring("schedules", "sync", "--prune")
    assert [each.id for each in declaring.queue("former").schedules()] == ["hourly"]
    assert len(declaring.queue("reports").schedules()) == 3


def test_schedules_that_add_the_same_job_at_the_same_times_are_reported(
    cli: CommandLine,
) -> None:  # V37
    queue = cli.queue("reports")
    for name in ("first", "second"):
        queue.upsert_schedule(name, NIGHTLY, queue.job("report", {"a": 1}))
    queue.upsert_schedule("third", NIGHTLY, queue.job("report", {"a": 2}))
    [told] = [line for line in cli("doctor").splitlines() if "the same times" in line]
    assert "reports: first, second add the same job at the same times" in told


def test_an_app_without_schedules_has_nothing_to_write(shop: Shop) -> None:
    assert shop("schedules", "sync") == "App shop declares no schedules.\n"


def test_the_help_names_the_commands(cli: CommandLine) -> None:
    text = cli.run("schedules", "--help").stdout
    assert all(name in text for name in ("preview", "run", "remove", "sync", "[QUEUE]"))


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (59, "59 s"),
        (60, "1 min"),
        (61, "1 min 1 s"),
        (3600 * 3 + 12 * 60 + 5, "3 h 12 min"),
        (86_400 * 2 + 30, "2 d"),
        (-90, "1 min 30 s overdue"),
    ],
)
def test_durations_have_two_units(seconds: int, words: str) -> None:
    now = datetime(2027, 1, 1, tzinfo=UTC)
    assert until(now + timedelta(seconds=seconds), now) == words


def test_repeatable_jobs_of_an_old_kind_are_shown_and_named_by_the_doctor(  # K2
    cli: CommandLine, admin: redis.Redis
) -> None:
    keys = cli.queue("old").keys
    due = int((datetime.now(UTC) + timedelta(hours=1)).timestamp() * 1000)
    admin.zadd(
        keys.repeat,
        {"rep::::1000": due, "own:mine::Europe/Berlin:0 3 * * *": due + 1, "x:y:z:w:bad": due + 2},
    )
    admin.hset(keys.meta, "opts.maxLenEvents", 10000)
    said = cli("schedules")
    assert "every second" in said
    assert "every day at 03:00, Europe/Berlin" in said
    assert "a rule that cannot be read" in said
    assert "3 repeatable jobs of BullMQ 3, 4 or early 5" in cli("doctor")
    cli("schedules", "remove", "old", "rep::::1000", "--yes")
    assert admin.zscore(keys.repeat, "rep::::1000") is None
