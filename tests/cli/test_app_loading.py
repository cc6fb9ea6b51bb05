"""Where the app and Redis are found, and what is said if they are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
import pytest

from taskbull.cli.app_loading import find_app, find_server
from tests.cli.conftest import CommandLine


def test_the_app_is_found_by_the_option_then_the_environment_then_the_project(
    write_shop: Callable[[], str], nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = write_shop(), write_shop(), write_shop()

    def module_of(given: str | None) -> str:
        return find_app(given).tasks["resize"].function.__module__

    (nowhere / "pyproject.toml").write_text(f'[tool.taskbull]\napp = "{third}:app"\n')
    assert module_of(None) == third
    monkeypatch.setenv("TASKBULL_APP", f"{second}:app")
    assert module_of(None) == second
    assert module_of(f"{first}:app") == first


def test_the_project_is_found_from_its_folders(
    write_shop: Callable[[], str], nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = write_shop()
    (nowhere / "pyproject.toml").write_text(f'[tool.taskbull]\napp = "{module}:app"\n')
    deeper = nowhere / "a" / "b"
    deeper.mkdir(parents=True)
    monkeypatch.chdir(deeper)
    assert find_app(None).name == "shop"


def test_without_an_app_it_is_told_what_was_tried(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nowhere / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    with pytest.raises(click.ClickException) as caught:
        find_app(None)
    said = caught.value.message
    assert "such as -A tasks:app" in said
    assert "TASKBULL_APP, which is not set" in said
    assert f"{nowhere}/pyproject.toml, which has no app under [tool.taskbull]" in said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[tool.taskbull]\napp = 5\n", "app must be module:attribute, not 5"),
        ("[tool", "cannot be read"),
        ('[tool.taskbull]\napp = "nope:app"\n', "there is no module 'nope'"),
        ("[tool]\ntaskbull = 5\n", "No app given"),
    ],
)
def test_a_wrong_project_file_is_told(nowhere: Path, content: str, said: str) -> None:
    (nowhere / "pyproject.toml").write_text(content)
    with pytest.raises(click.ClickException) as caught:
        find_app(None)
    assert said in caught.value.message
    assert caught.value.exit_code == 2


def test_the_only_app_in_the_working_directory_is_found(
    write_shop: Callable[[], str], nowhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (nowhere / "broken.py").write_text("import taskbull\nApp( oops")
    (nowhere / "test_it.py").write_text("from taskbull import App\napp = App('test')\n")
    (nowhere / "other.py").write_text("from flask import App  # not taskbull's\napp = App('x')\n")
    (nowhere / "dangerous.py").write_text("raise SystemExit('it was imported')\n")
    module = write_shop()
    assert find_app(None).name == "shop"
    assert f"taskbull: using {module}:app, the only app in this folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    "source",
    [
        "import taskbull as t\nmine: t.App = t.App('lone')\n",
        "from taskbull import App as A, events\nmine = A('lone')\n",
    ],
)
def test_an_app_in_a_package_is_found(nowhere: Path, source: str) -> None:
    package = nowhere / f"lone_{abs(hash(source))}"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "jobs.py").write_text(source)
    assert find_app(None).name == "lone"


def test_of_several_apps_in_the_working_directory_none_is_chosen(
    write_shop: Callable[[], str],
) -> None:
    first, second = sorted([write_shop(), write_shop()])
    with pytest.raises(click.ClickException) as caught:
        find_app(None)
    assert f"such as -A {first}:app; there is also {second}:app" in caught.value.message


def test_an_app_that_fails_to_import_is_told_with_the_place(nowhere: Path) -> None:
    (nowhere / "broken_app.py").write_text("x = 1\nraise RuntimeError('no database')\n")
    with pytest.raises(click.ClickException) as caught:
        find_app("broken_app:app")
    assert "RuntimeError: no database" in caught.value.message
    assert "broken_app.py:2" in caught.value.message


def test_redis_is_found_by_the_option_then_the_app_then_the_environment(
    write_shop: Callable[[], str],
    nowhere: Path,
    url: str,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TASKBULL_REDIS_URL", "redis://somewhere:1111/2")
    server = find_server(None, None, None)
    assert (server.address, server.prefix) == ("somewhere:1111/2", "bull")
    monkeypatch.setenv("TASKBULL_APP", f"{write_shop()}:app")
    server = find_server(None, None, None)
    assert (server.address in url, server.prefix) == (True, prefix)
    server = find_server(None, "redis://else:2222", None)
    assert (server.address, server.prefix) == ("else:2222", "bull")
    server = find_server(None, None, "other")
    assert server.prefix == "other"


def test_a_broken_app_does_not_keep_one_from_a_named_server(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKBULL_APP", "no_such_module:app")
    assert cli.json("queues") == []
    assert "there is no module" in cli.run("queues").stderr


def test_the_app_can_be_an_argument_where_there_is_no_other(
    cli: CommandLine, write_shop: Callable[[], str]
) -> None:
    target = f"{write_shop()}:app"
    for command in ("tasks", "queues"):
        shown = cli.run(command, target, "--json")
        assert shown.exit_code == 0
        assert shown.stdout == cli.run(command, "-A", target, "--json").stdout
    assert "shop has 4 tasks" in cli.run("doctor", target).stdout
