"""`taskbull contract`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine, Shop


def run(cli: CommandLine, *words: str, code: int = 0) -> str:
    """Run a command that does not need Redis."""
    result = cli.run(*words)
    assert result.exit_code == code, result.output
    return result.stdout


def fails(cli: CommandLine, *words: str, code: int = 1) -> str:
    result = cli.run(*words)
    assert result.exit_code == code, result.output
    return result.stderr


def test_both_files_are_written_and_checked(shop: Shop, cli: CommandLine, nowhere: Path) -> None:
    app = f"{shop.module}:app"
    run(cli, "contract", app, "--typescript", "tasks.ts", "--json-schema", "tasks.json")
    assert "sendEmail: local<SendEmailData" in Path("tasks.ts").read_text()
    document = json.loads(Path("tasks.json").read_text())
    assert document["tasks"]["send_email"]["queue"]
    assert run(cli, "contract", app, "--check", "tasks.ts", "--check", "tasks.json") == ""
    assert run(cli, "contract", app, "--breaking", "tasks.json") == ""
    assert run(cli, "contract", app, "--json-schema", "-") == Path("tasks.json").read_text()


def test_a_file_that_is_out_of_date_is_shown(shop: Shop, cli: CommandLine, nowhere: Path) -> None:
    app = f"{shop.module}:app"
    run(cli, "contract", app, "--typescript", "tasks.ts")
    text = Path("tasks.ts").read_text().replace("subject: string", "subject: number")
    Path("tasks.ts").write_text(text)
    said = run(cli, "contract", app, "--check", "tasks.ts", code=1)
    assert "-  subject: number;\n+  subject: string;" in said
    assert Path("tasks.ts").read_text() == text


def test_breaks_are_listed_and_nothing_is_written(
    shop: Shop, cli: CommandLine, nowhere: Path
) -> None:
    app = f"{shop.module}:app"
    run(cli, "contract", app, "--json-schema", "old.json")
    document = json.loads(Path("old.json").read_text())
    document["tasks"]["gone"] = {**document["tasks"]["send_email"], "queue": "elsewhere"}
    del document["$defs"]["SendEmailData"]["properties"]["subject"]
    document["$defs"]["SendEmailData"]["required"] = ["to"]
    text = json.dumps(document)
    Path("old.json").write_text(text)
    said = run(cli, "contract", app, "--breaking", "old.json", "--json-schema", "old.json", code=1)
    assert said.splitlines() == [
        "send_email: data.subject is now required",
        "gone: the task was removed",
    ]
    assert Path("old.json").read_text() == text


def test_wrong_usage_is_explained(shop: Shop, cli: CommandLine, nowhere: Path) -> None:
    app = f"{shop.module}:app"
    assert "Pass --typescript" in fails(cli, "contract", app, code=2)
    same = ("--typescript", "-", "--json-schema", "-")
    assert "different files" in fails(cli, "contract", app, *same, code=2)
    assert "Cannot read none.ts" in fails(cli, "contract", app, "--check", "none.ts")
    assert "Cannot write" in fails(cli, "contract", app, "--typescript", "no/such/folder.ts")
    Path("wrong.json").write_text('{"tasks": {"a": 1}}')
    said = fails(cli, "contract", app, "--breaking", "wrong.json", code=2)
    assert "wrong.json is not a contract" in said


def test_a_type_that_cannot_be_mapped_is_refused(
    cli: CommandLine, nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("bad_types.py").write_text(
        "from taskbull import App\napp = App('bad')\n"
        "@app.task\ndef paint(color: complex) -> None: ...\n"
    )
    said = fails(cli, "contract", "bad_types:app", "--typescript", "out.ts", code=2)
    assert "Parameter 'color' of task 'paint'" in said
    assert "complex" in said
    assert not Path("out.ts").exists()


def test_remote_tasks_are_shown_and_not_served(cli: CommandLine, nowhere: Path) -> None:
    Path("far_away.py").write_text(
        "from taskbull import App\napp = App('far')\n"
        "@app.remote(queue='node')\nasync def translate(text: str) -> str: ...\n"
        "@app.task\ndef local() -> None: ...\n"
    )
    [_, remote] = json.loads(run(cli, "tasks", "far_away:app", "--json"))
    assert (remote["name"], remote["kind"], remote["runs_in"]) == ("translate", "remote", "remote")
    assert "remote" in run(cli, "tasks", "far_away:app")
    words = ("worker", "far_away:app", "-q", "node", "--no-supervisor")
    assert "only remote tasks in queue 'node'" in fails(cli, *words, code=2)
