"""The command line in a real terminal: output, prompts and interruption."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine, Shop
from tests.cli.programs import Terminal, run

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def test_a_table_is_drawn_and_coloured(shop: Shop, nowhere: Path) -> None:
    with Terminal("tasks", cwd=nowhere, width=200) as terminal:
        assert terminal.end() == 0
    assert "\x1b[1m" in terminal.seen
    assert "━" in terminal.seen or "─" in terminal.seen
    assert "(to: str, subject: str, *, body: str = '') -> str" in ESCAPES.sub("", terminal.seen)


def drawn(terminal: Terminal) -> list[str]:
    """Give the lines on the screen, without the colours."""
    return ESCAPES.sub("", terminal.seen).splitlines()


def test_a_terminal_that_is_too_narrow_shows_row_by_row(shop: Shop, nowhere: Path) -> None:
    job_id = "x" * 80 + "END"
    shop("call", "resize", "path=a", f"--job-id={job_id}")
    with Terminal("jobs", "default", cwd=nowhere, width=60) as terminal:
        assert terminal.end() == 0
    assert max(map(len, drawn(terminal))) <= 60
    assert "".join(drawn(terminal)[:2]) == job_id
    assert "  state     waiting" in drawn(terminal)


@pytest.mark.full
def test_one_column_is_folded_where_that_is_enough(shop: Shop, nowhere: Path) -> None:
    with Terminal("tasks", cwd=nowhere, width=140) as terminal:
        assert terminal.end() == 0
    assert max(map(len, drawn(terminal))) <= 140
    assert drawn(terminal)[0].split()[:3] == ["task", "queue", "signature"]
    assert len(drawn(terminal)) > 2 + 4


@pytest.mark.full
def test_no_color_is_respected(shop: Shop, nowhere: Path) -> None:
    for words in (["tasks"], ["doctor"], ["jobs", "nowhere"]):
        with Terminal(*words, cwd=nowhere, env={"NO_COLOR": "1"}) as terminal:
            terminal.end()
        assert re.search(r"\x1b\[[0-9;]*3[0-9]", terminal.seen) is None


def test_what_a_job_holds_cannot_command_the_terminal(cli: CommandLine, nowhere: Path) -> None:
    hostile = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202e[red]x[/red]"
    cli.queue("emails").add(hostile, {"text": hostile, hostile: 1})
    for words in (["jobs", "emails"], ["job", "emails", "1"], ["jobs", "emails", "--json"]):
        with Terminal(*words, *cli.where, cwd=nowhere, width=200) as terminal:
            assert terminal.end() == 0
        seen = ESCAPES.sub("", terminal.seen)  # the colours are ours
        assert seen.replace("\n", "").isprintable()
        assert "[red]x[/red]" in seen


def test_a_person_is_asked_before_anything_is_destroyed(cli: CommandLine, nowhere: Path) -> None:
    cli.queue("emails").add_bulk([("x", {})] * 3)
    with Terminal("obliterate", "emails", *cli.where, cwd=nowhere) as terminal:
        terminal.read_until("Permanently delete queue 'emails' and its 3 jobs? [y/N]")
        terminal.type("\n")
        assert terminal.end() == 1
    assert "nothing was changed" in terminal.seen
    assert cli.queue("emails").counts()["waiting"] == 3
    with Terminal("obliterate", "emails", *cli.where, cwd=nowhere) as terminal:
        terminal.read_until("[y/N]")
        terminal.type("y\n")
        assert terminal.end() == 0
    assert "deleted queue emails and 3 jobs" in terminal.seen


@pytest.mark.parametrize("words", [("drain", "emails"), ("events", "emails")])
def test_an_interrupt_ends_a_command_quietly(
    cli: CommandLine, nowhere: Path, words: tuple[str, ...]
) -> None:
    cli.queue("emails").add("x")
    ready = "[y/N]" if words[0] == "drain" else "waiting"
    begin = () if words[0] == "drain" else ("--last-id", "0")
    with Terminal(*words, *begin, *cli.where, cwd=nowhere) as terminal:
        terminal.read_until(ready)
        assert terminal.interrupt() == 130
    assert "Traceback" not in terminal.seen
    assert cli.queue("emails").counts()["waiting"] == 1


def test_help_is_in_parts(nowhere: Path) -> None:
    done = run("--help", cwd=nowhere)
    assert done.returncode == 0
    parts = re.findall(r"^([A-Z][a-z ]+):$", done.stdout, re.MULTILINE)
    assert parts[:5] == ["Options", "Run", "Inspect", "Change jobs", "Change queues"]
    assert max(map(len, done.stdout.splitlines())) <= 80
