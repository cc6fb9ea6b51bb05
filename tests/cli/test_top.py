"""`taskbull top`: what it shows of queues, which keys it knows, and a real terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from rich.console import Console

from taskbull.cli.commands.top import (
    TopState,
    cells,
    drained_in,
    ordered,
    rate,
    sparkline,
    workers,
)
from taskbull.cli.top import draw, names_of
from taskbull.core.groups import GroupInfo
from taskbull.core.keys import STATES
from taskbull.core.queue_health import QueueFacts, Throughput
from tests.cli.conftest import CommandLine
from tests.core.test_why import at, queue

NAMES = ["a", "b", "c"]


def facts(**more: Any) -> QueueFacts:
    counts = {str(state): 0 for state in STATES} | more.pop("counts", {})
    return queue(counts=counts, **more)


def test_a_row_has_what_matters() -> None:
    one = facts(
        counts={"waiting": 12_840, "active": 200, "delayed": 310, "failed": 1_032},
        waiting_since=at(minutes=4),
        arrivals=41.0,
        completed=Throughput([19 * 60, *[38 * 60] * 59], "metrics"),
        failed=Throughput([0] * 60, "metrics"),
        connected=["web1-812", ""],
    )
    assert cells(one) == [
        *("emails", "12,840", "4 min", "200", "310", "1,032", "41", "38"),
        *("███████████▇", "1 Python, 1 Node", "growing"),
    ]


def test_a_paused_queue_and_one_without_workers_say_so() -> None:
    assert cells(facts(paused=True, counts={"paused": 88}))[0] == "emails ‖"
    assert drained_in(facts(paused=True, counts={"paused": 88})) == "paused"
    nobody = facts(counts={"waiting": 1}, records=[], connected=[])
    assert (drained_in(nobody), workers(nobody)) == ("never", "none")
    unknown = facts(counts={"waiting": 1}, records=[], connected=None)
    assert (drained_in(unknown), workers(unknown)) == ("?", "?")
    assert drained_in(facts()) == "-"


@pytest.mark.parametrize(
    ("per_second", "text"),
    [(None, "-"), (0.0, "0"), (0.041, "0.041"), (2.5, "2.5"), (3e3, "3,000")],
)
def test_rates_are_short(per_second: float | None, text: str) -> None:
    assert rate(per_second) == text


def test_what_is_unknown_of_an_hour_is_not_drawn_as_nothing() -> None:
    hour: list[int | None] = [*[0] * 5, *[8] * 5, *[None] * 50]
    assert sparkline(
        facts(completed=Throughput(hour, "kept"), failed=Throughput([None] * 60, None))
    ) == ("··········█_")


def test_queues_are_sorted() -> None:
    few, many = facts(counts={"waiting": 1}), facts(counts={"failed": 5})
    assert ordered([few, many], "failed") == [many, few]
    assert ordered([many, few], "waiting") == [few, many]


def test_keys_change_what_is_seen() -> None:
    chosen = TopState()
    assert [(chosen := chosen.after("s", NAMES)).sort for _ in range(4)] == [
        *("waiting", "failed", "out/s", "name"),
    ]
    assert chosen.after("down", NAMES).queue == "a"
    assert chosen.after("up", NAMES).queue == "c"
    assert TopState(queue="b").after("down", NAMES).queue == "c"
    assert TopState(queue="c").after("down", NAMES).queue == "c"
    inside = TopState(queue="b").after("enter", NAMES)
    assert inside.inside
    assert not inside.after("escape", NAMES).inside
    assert chosen.after("p", NAMES).frozen
    assert chosen.after("?", NAMES).help
    assert chosen.after("q", NAMES).over
    assert chosen.after("x", NAMES) == chosen
    assert chosen.after("down", []) == chosen


@pytest.mark.parametrize(
    ("read", "names"),
    [
        ("\x1b[A", ["up"]),
        ("\x1bOB", ["down"]),
        ("\x1b[B\x1b[B\r", ["down", "down", "enter"]),
        ("\x1b", ["escape"]),
        ("\x1b[15~", [""]),
        ("", ["q"]),
        ("ps", ["p", "s"]),
    ],
)
def test_keys_have_names(read: str, names: list[str]) -> None:
    assert names_of(read) == names


def shown(
    *queues: QueueFacts, chosen: TopState | None = None, groups: Sequence[GroupInfo] = ()
) -> str:
    console = Console(width=160, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(draw(queues, chosen or TopState(), "redis://here", None, groups))
    console.file.close()
    return console.export_text()


def test_the_screen_has_trouble_first() -> None:
    text = shown(facts(counts={"waiting": 7}, records=[], connected=[]))
    assert text.index("! emails: 7 waiting, no worker connected") < text.index("QUEUE")
    assert "All queues are healthy." in shown(facts())
    assert "No queues yet." in shown()
    assert "p pause" in shown(chosen=TopState(help=True))


def test_a_queue_fills_the_screen_and_nothing_is_obeyed() -> None:
    text = shown(facts(worst_error="x"), chosen=TopState(queue="emails", inside=True))
    assert "No jobs are waiting." in text
    assert "web1-812   0/0 running" in text
    assert "\x1b" not in shown(queue_named("e\x1b[31m"))


def test_the_largest_groups_of_a_queue_are_shown() -> None:
    groups = [
        GroupInfo("a\x1b[31m\n", 0, 2, 7, False, None, 2, 1),
        GroupInfo("x" * 255, 5, 0, 0, False, None, None, 1),
        GroupInfo("b", 0, 0, 3, False, at() + timedelta(days=3), None, 1),
    ]
    text = shown(facts(), chosen=TopState(queue="emails", inside=True), groups=groups)
    assert "0 waiting      2 running        7 held   a" in text
    assert "at its limit" in text
    assert "b   limited for 3 days" in text
    assert "\x1b" not in text
    assert "xxx…" in text


def queue_named(name: str) -> QueueFacts:
    return QueueFacts(name=name, now=at(), counts={str(state): 0 for state in STATES}, connected=[])


def test_without_a_terminal_it_is_one_table(cli: CommandLine) -> None:
    cli.queue("emails").add("send")
    result = cli.run("top", *cli.where)
    assert result.exit_code == 0
    trouble, header, row = result.stdout.splitlines()
    assert header.split()[:3] == ["QUEUE", "WAITING", "OLDEST"]
    assert row.split()[:2] == ["emails", "1"]
    assert trouble == "! emails: 1 waiting, no worker connected"  # V39: also in a mail
    assert row.split()[6:8] == ["0", "0"]  # V39: rates need two reads
    [told] = cli.json("top")["queues"]
    assert told.keys() == {"name", "counts", "rates", "workers", "trouble", "problem"}
    assert (told["name"], told["counts"]["waiting"]) == ("emails", 1)
    assert told["workers"] == {"taskbull": 0, "other": 0, "complete": True}
    assert [trouble["code"] for trouble in told["trouble"]] == ["no_worker"]
    json.dumps(told, allow_nan=False)


def test_an_interval_has_to_be_one(cli: CommandLine) -> None:
    assert "--interval must be at least" in cli.fails("top", "--interval", "0.01", code=2)
    assert "is not a duration" in cli.fails("top", "--interval", "soon", code=2)


def read_until(file: int, wanted: str, limit: float = 60.0) -> str:
    text, end = "", time.monotonic() + limit
    while wanted not in text and time.monotonic() < end:
        if select.select([file], [], [], 0.1)[0]:
            text += os.read(file, 65_536).decode("utf-8", "replace")
    assert wanted in text, text
    return text


def test_in_a_terminal_it_lives_until_q(cli: CommandLine) -> None:
    cli.queue("emails").add("send")
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "taskbull", "top", "--interval", "0.2", *cli.where]
    environment = {**os.environ, "COLUMNS": "140", "LINES": "40", "TERM": "xterm"}
    with subprocess.Popen(words, stdin=theirs, stdout=theirs, env=environment) as process:
        os.close(theirs)
        try:
            read_until(ours, "1 waiting, no worker connected")
            cli.queue("reports").add("make")
            os.write(ours, b"?")
            read_until(ours, "p pause")
            os.write(ours, b"\x1b[B\r")
            read_until(ours, "No worker is connected to 'emails'")
            os.write(ours, b"q")
            assert process.wait(60) == 0
        finally:
            process.kill()
            os.close(ours)
