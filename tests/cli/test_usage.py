"""Everything wrong on purpose: one clear sentence, the right exit code, never a traceback."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete, FishComplete, ZshComplete

from taskbull.cli.app_loading import COMPLETING
from taskbull.cli.errors import advice
from taskbull.cli.main import commands
from taskbull.errors import ConnectionLost
from tests.cli.conftest import CommandLine, Shop
from tests.cli.programs import run

AWAY = "redis://:secret@127.0.0.1:1"

COMMANDS: list[tuple[str, ...]] = [
    ("queues",),
    ("workers",),
    ("workers", "emails"),
    ("jobs", "emails"),
    ("job", "emails", "1"),
    ("events", "emails"),
    ("schedules",),
    ("schedules", "emails"),
    ("schedules", "run", "emails", "s"),
    ("schedules", "remove", "emails", "s", "--yes"),
    ("retry", "emails", "1"),
    ("promote", "emails", "1"),
    ("remove", "emails", "1", "--yes"),
    ("retry-all", "emails"),
    ("errors", "emails"),
    ("pause", "emails"),
    ("resume", "emails"),
    ("drain", "emails", "--yes"),
    ("clean", "emails", "--yes"),
    ("obliterate", "emails", "--yes"),
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_an_unavailable_redis_is_reported_immediately_in_one_sentence(
    words: tuple[str, ...], nowhere: Path, open_cli: Callable[[str, str], CommandLine]
) -> None:
    said = open_cli(AWAY, "bull").fails(*words)
    assert said.startswith(
        "taskbull: Cannot use Redis at 127.0.0.1:1: Connection refused. Start a server, or set"
    )
    assert len(said.splitlines()) == 1
    assert "secret" not in said


def test_a_server_that_never_answers_is_given_up_soon(nowhere: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        done = run("queues", "--redis", f"redis://127.0.0.1:{silent.getsockname()[1]}", cwd=nowhere)
    assert done.returncode == 1
    assert "no answer from 127.0.0.1" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_call_without_redis_fails_immediately_with_one_sentence(nowhere: Path) -> None:
    (nowhere / "far_away.py").write_text(
        f"from taskbull import App\napp = App('far', redis={AWAY!r})\n"
        "@app.task\ndef add(a: int, b: int) -> int:\n    return a + b\n"
    )
    done = run("call", "add", "a=1", "b=2", "-A", "far_away:app", "--wait", cwd=nowhere)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        "taskbull: Cannot use Redis at 127.0.0.1:1: Connection refused. Start a server, or set"
    )
    assert len(done.stderr.splitlines()) == 1


def leaves(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from leaves(command, *path, name)
        else:
            yield (*path, name), command


SERVING = {"worker", "demo", "stop", "dashboard", "top", "exporter"}


@pytest.mark.parametrize("app", ["no app", "an app"])
def test_an_error_names_only_options_of_its_command(
    cli: CommandLine, nowhere: Path, monkeypatch: pytest.MonkeyPatch, app: str
) -> None:
    monkeypatch.chdir(nowhere)
    monkeypatch.setenv("TASKBULL_REDIS_URL", AWAY)
    if app == "an app":
        (nowhere / "far_app.py").write_text(
            "from taskbull import App\napp = App('far')\n@app.task\ndef x() -> None: ...\n"
        )
    errors = 0
    (nowhere / "x").write_text("{}")  # a file to restore
    for path, command in leaves(commands):
        options = {word for each in command.params for word in (*each.opts, *each.secondary_opts)}
        options |= {"-h", "--help"}
        arguments = [each for each in command.params if isinstance(each, click.Argument)]
        values = ["x" for each in arguments if each.required]
        words = (*path, *values, *(("--yes",) if "--yes" in options else ()))
        if path[0] not in SERVING:
            said = cli.run(*words, input="{}").stderr
            errors += "Connection refused" in said
            assert set(re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", said)) <= options, words
        with click.Context(command):
            said = advice(ConnectionLost("cannot connect to x:1: Connection refused"))
        assert set(re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", said)) <= options, words
    assert errors > 20
    sys.modules.pop("far_app", None)


@pytest.mark.parametrize(
    "words",
    [(), ("quues",), ("queues", "--jsn"), ("job",), ("jobs", "emails", "--state", "gone")],
)
def test_wrong_usage_is_2(cli: CommandLine, words: tuple[str, ...]) -> None:
    result = cli.run(*words)
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("queues", "--redis", "http://localhost"), "it must start with one of redis://"),
        (("queues", "--redis", "redis://localhost:x"), "'localhost:x' is not a host and port"),
        (("queues", "--prefix", ""), "prefix must not be empty"),
        (("jobs", "a:b"), "queue name must not contain ':'"),
        (("jobs", "emails", "--limit", "0"), "0 is not in the range"),
        (("tasks",), "No app found"),
        (("call", "x"), "No app found"),
        (("tasks", "-A", "shop"), "'shop' must be module:attribute, such as 'shop:app'"),
        (("tasks", "-A", "no_such_module:app"), "no module named 'no_such_module'"),
        (("tasks", "-A", "json:app"), "has no attribute 'app'"),
        (("tasks", "-A", "json:loads"), "'json:loads' must be an App, got "),
        (("completion", "powershell"), "is not one of 'bash', 'zsh', 'fish'"),
    ],
)
def test_what_cannot_be_right_is_2_and_one_sentence(
    cli: CommandLine, words: tuple[str, ...], said: str
) -> None:
    result = cli.run(*words)
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert len([line for line in result.stderr.splitlines() if said in line]) == 1


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("purge", "taskbull drain QUEUE"),
        ("beat", "workers run schedules"),
        ("flower", "taskbull dashboard"),
        ("inspect", "taskbull top"),
        ("status", "taskbull workers"),
        ("shell", "taskbull call TASK"),
    ],
)
def test_a_command_of_another_tool_leads_to_ours(cli: CommandLine, name: str, meant: str) -> None:
    result = cli.run(name)
    assert result.exit_code == 2
    assert f"No such command '{name}'" in result.stderr
    assert meant in result.stderr


def test_every_command_has_help(cli: CommandLine) -> None:
    for name, command in commands.commands.items():
        shown = cli.run(name, "--help")
        assert shown.exit_code == 0
        assert command.get_short_help_str(200).endswith(".")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_of_a_shell_is_printed(cli: CommandLine, shell: str) -> None:
    script = cli.run("completion", shell).stdout
    assert f"_TASKBULL_COMPLETE={shell}_complete" in script


def test_commands_queues_and_tasks_are_completed(shop: Shop) -> None:
    def completed(line: str) -> list[str]:
        words = line.split(" ")
        env = {
            "_TASKBULL_COMPLETE": "bash_complete",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
        }
        return shop.run(env=env, complete_var=COMPLETING).stdout.split()

    assert completed("taskbull ret") == ["plain,retry", "plain,retry-all"]
    assert completed("taskbull jobs em") == ["plain,emails"]
    assert completed("taskbull call se") == ["plain,send_email"]
    assert completed("taskbull jobs emails --state comp") == ["plain,completed"]
    assert completed(f"taskbull jobs --redis {AWAY} em") == []


HOSTILE = [
    "o$(touch PWNED)",
    "ok$(touch${IFS}PWNED)",
    "o;touch${IFS}PWNED;",
    "o`touch PWNED`",
    "o\nplain,$(touch PWNED)",
    "o\n",
    "o\ttab",
    "o*",
    "o[a-z]",
    "o?",
    "o{a,b}",
    "o!!",
    "o~",
    "~root",
    "=ls",
    "o=b",
    "--yes",
    "-q",
    "%self",
    "o(touch PWNED)",
    "o^(touch PWNED)",
    "o'",
    'o"',
    "o\\",
    "o#",
    "o&",
    "o|touch PWNED",
    "o<PWNED",
    "o>PWNED",
    "o b",
    "o\u2028b",
    "oü",
    "o,b",
]
PLAIN = ["o.k-1", "o/k", "o@k", "ok_2"]


# S2: a shell inserts what is proposed as it is.
def test_only_plain_words_are_proposed(cli: CommandLine, nowhere: Path) -> None:
    for name in [*HOSTILE, *PLAIN]:
        cli.queue(name).pause()
    assert {each["name"] for each in cli.json("queues")} == {*HOSTILE, *PLAIN}
    for shell in (BashComplete, ZshComplete, FishComplete):
        asked = shell(commands, {}, "taskbull", COMPLETING)
        for words in (["jobs"], ["why"], ["schedules", "list"], ["pause"]):
            for incomplete in ("", "o", "o$"):
                found = asked.get_completions([*words, *cli.where], incomplete)
                expected = [name for name in PLAIN if name.startswith(incomplete)]
                assert [item.value for item in found] == expected


def test_hostile_names_of_tasks_are_not_proposed(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nowhere / "hostile_tasks.py").write_text(
        "from taskbull import App\napp = App('x', redis='redis://127.0.0.1:1')\n"
        f"for name in {[*HOSTILE, *PLAIN]!r}:\n    app.task(name=name)(lambda: None)\n"
    )
    monkeypatch.setenv("TASKBULL_APP", "hostile_tasks:app")
    asked = BashComplete(commands, {}, "taskbull", COMPLETING)
    assert sorted(item.value for item in asked.get_completions(["call"], "")) == PLAIN


def test_bash_proposes_only_plain_words(cli: CommandLine, nowhere: Path) -> None:  # S2
    for name in [*HOSTILE, *PLAIN]:
        cli.queue(name).pause()
    script = cli.run("completion", "bash").stdout
    (nowhere / "taskbull").write_text(f'#!/bin/sh\nexec {sys.executable} -m taskbull "$@"\n')
    (nowhere / "taskbull").chmod(0o755)
    words = f"taskbull jobs --redis {cli.url} --prefix {cli.prefix} o"
    typed = (
        f'{script}\nCOMP_WORDS=({words}); COMP_CWORD=6; _taskbull_completion taskbull "" ""\n'
        'printf "%s\\n" "${COMPREPLY[@]}"; eval ": ${COMPREPLY[@]}"\n'
    )
    env = {**os.environ, "PATH": f"{nowhere}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", typed],
        cwd=nowhere,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == PLAIN
    assert not (nowhere / "PWNED").exists()
