"""Finding the app and Redis, and the messages if that fails."""

from __future__ import annotations

import grp
import json
import os
import pwd
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete

from taskbull.app.discovery import distrust
from taskbull.cli import app_loading
from taskbull.cli.app_loading import COMPLETING, find_app, find_server
from taskbull.cli.main import commands
from tests.cli.conftest import CommandLine
from tests.cli.programs import run


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


def test_without_an_app_the_error_lists_what_was_tried(
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
        ("[tool.taskbull]\napp = 5\n", "app must be module:attribute, got 5"),
        ("[tool", "Cannot read "),
        ('[tool.taskbull]\napp = "nope:app"\n', "no module named 'nope'"),
        ("[tool]\ntaskbull = 5\n", "No app found"),
    ],
)
def test_a_wrong_project_file_is_reported(nowhere: Path, content: str, said: str) -> None:
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
    assert (
        f"({first}:app, {second}:app): choose one with -A, such as -A {first}:app"
        in caught.value.message
    )


def test_an_app_that_fails_to_import_is_reported_with_the_place(nowhere: Path) -> None:
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
    assert "no module named" in cli.run("queues").stderr


def test_the_app_can_be_an_argument_where_there_is_no_other(
    cli: CommandLine, write_shop: Callable[[], str]
) -> None:
    target = f"{write_shop()}:app"
    for command in ("tasks", "queues"):
        shown = cli.run(command, target, "--json")
        assert shown.exit_code == 0
        assert shown.stdout == cli.run(command, "-A", target, "--json").stdout
    assert "shop has 4 tasks" in cli.run("doctor", target).stdout


GUESSED = "from taskbull import App\napp = App('guessed', redis='redis://127.0.0.1:1')\n"
ENDLESS = "import time\nwhile True:\n    try:\n        time.sleep(60)\n    "


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import os\nos.environ['NOT_SET_ANYWHERE']", "KeyError: 'NOT_SET_ANYWHERE'"),
        ("raise SystemExit('usage: shop')", "SystemExit: usage: shop"),
        ("import no_such_module_here", "no_such_module_here"),
        ("app.include_nothing()", "AttributeError"),
        ("app = 5", "must be an App, got int"),
        ("app = App('x', include=['broken_part'])", "SyntaxError"),
        (f"{ENDLESS}except Exception:\n        pass", "Its import took more than 0.1 s"),
        (f"{ENDLESS}except:\n        time.sleep(60)", "Its import took more than 0.1 s"),
    ],
)
def test_a_guessed_app_that_fails_is_ignored_where_none_is_needed(
    cli: CommandLine, nowhere: Path, monkeypatch: pytest.MonkeyPatch, source: str, said: str
) -> None:
    if source.startswith(ENDLESS):  # The others exit on their own, later on a busy machine.
        monkeypatch.setattr(app_loading, "_IMPORT_LIMIT", 0.1)
    monkeypatch.setenv("TASKBULL_REDIS_URL", cli.url)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    (nowhere / "broken_part.py").write_text("def (")
    (nowhere / "shop.py").write_text(f"{GUESSED}{source}\n")
    path = list(sys.path)
    result = cli.run("queues", "--json", "--prefix", cli.prefix)
    assert (result.exit_code, result.stdout) == (0, "[]\n")
    assert result.stderr.startswith("taskbull: ignored shop:app, the only app in this folder")
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert sys.path == path
    named = cli.run("tasks") if "sleep" not in source else None
    assert named is None or (named.exit_code, named.stdout) == (2, "")


def test_a_guessed_app_that_ends_the_process_is_ignored(cli: CommandLine, nowhere: Path) -> None:
    (nowhere / "shop.py").write_text(
        GUESSED + "import os, multiprocessing\n"
        "child = multiprocessing.get_context('fork').Process(target=print)\n"
        "child.start()\nchild.join()\n"  # It also exits with os._exit.
        "assert child.exitcode == 0\nos._exit(0)\n"
    )
    done = run("queues", "--json", "--prefix", cli.prefix, cwd=nowhere, env={"REDIS_URL": cli.url})
    assert (done.returncode, done.stdout) == (0, "[]\n")
    assert "SystemExit: os._exit(0)" in done.stderr


@pytest.mark.parametrize("words", [(), ("-A", "shop:app")])
def test_what_an_app_prints_while_it_is_imported_is_not_in_the_json(
    nowhere: Path, words: tuple[str, ...]
) -> None:
    (nowhere / "shop.py").write_text(
        f"{GUESSED}import os, subprocess, sys\nprint('one')\nos.write(1, b'two\\n')\n"
        "sys.__stdout__.write('three\\n')\nsubprocess.run(['echo', 'four'])\n"
    )
    done = run("tasks", "--json", *words, cwd=nowhere)
    assert (json.loads(done.stdout), done.returncode) == ([], 0)
    assert {"one", "two", "three", "four"} <= set(done.stderr.split())


def test_of_several_apps_none_is_used_where_none_is_needed(
    cli: CommandLine, write_shop: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKBULL_REDIS_URL", cli.url)
    first, second = sorted([write_shop(), write_shop()])
    result = cli.run("queues", "--json", "--prefix", cli.prefix)
    assert (result.exit_code, result.stdout) == (0, "[]\n")
    assert (
        f"({first}:app, {second}:app): choose one with -A, such as -A {first}:app" in result.stderr
    )


def test_apps_of_tests_and_benchmarks_are_not_guessed(nowhere: Path) -> None:
    for folder in ("tests", "benchmarks", "examples", "docs"):
        (nowhere / folder).mkdir()
        (nowhere / folder / "__init__.py").touch()
        (nowhere / folder / "app.py").write_text(GUESSED)
    with pytest.raises(click.ClickException, match="No app found"):
        find_app(None)


@pytest.fixture
def project(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose app is named by its `pyproject.toml`; the working directory is below."""
    (nowhere / "pyproject.toml").write_text('[tool.taskbull]\napp = "part.shop_s4:app"\n')
    (nowhere / "part").mkdir()
    (nowhere / "part" / "__init__.py").touch()
    (nowhere / "part" / "shop_s4.py").write_text(GUESSED)
    (nowhere / "work").mkdir()
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return nowhere


# S4. Only root can test files of another user. Any user can test files writable by others.
_PARTS = (".", "pyproject.toml", "part", "part/__init__.py", "part/shop_s4.py", "work")
_TRIALS = [(part, "mode") for part in _PARTS]
if os.geteuid() == 0:
    _TRIALS += [(part, "owner") for part in _PARTS]


@pytest.mark.parametrize(("part", "trial"), _TRIALS)
def test_a_project_that_others_could_have_written_is_ignored(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    part: str,
    trial: str,
) -> None:
    monkeypatch.chdir(project / "work")
    path = (project / part).resolve()
    if trial == "owner":
        os.chown(path, 54321, 54321)
    else:
        path.chmod(0o1777 if path.is_dir() else 0o666)  # Like /tmp.
    with pytest.raises(click.ClickException, match="No app found"):
        find_app(None)
    said = capsys.readouterr().err
    reason = "owned by another user (uid 54321)" if trial == "owner" else "writable by other users"
    assert f"{path} is {reason}. To use it, pass the app with -A or TASKBULL_APP" in said
    assert len(said.splitlines()) == 1
    # An explicit app is used wherever it is: containers run as root in folders of other users.
    monkeypatch.chdir(project)
    assert find_app("part.shop_s4:app").name == "guessed"


@pytest.mark.parametrize("part", [part for part in _PARTS if part != "work"])
def test_an_app_that_others_could_have_written_is_not_guessed(
    project: Path, capsys: pytest.CaptureFixture[str], part: str
) -> None:
    (project / "pyproject.toml").unlink()
    assert find_app(None).name == "guessed"
    capsys.readouterr()
    if part == "pyproject.toml":  # A link to a folder that others may write to.
        (project / "part").rename(project / ".real")
        (project / "part").symlink_to(".real")
        part = ".real"
    path = (project / part).resolve()
    path.chmod(0o777)
    with pytest.raises(click.ClickException, match="No app found"):
        find_app(None)
    said = capsys.readouterr().err
    assert f"ignored part.shop_s4:app: {path} is writable by other users" in said
    assert len(said.splitlines()) == 1


def test_a_link_is_trusted_as_its_target_is(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = project / "other"
    other.mkdir()
    monkeypatch.chdir(project / "work")
    (project / "pyproject.toml").rename(other / "pyproject.toml")
    (project / "pyproject.toml").symlink_to("other/pyproject.toml")
    assert find_app(None).name == "guessed"
    other.chmod(0o777)
    with pytest.raises(click.ClickException, match="which is ignored"):
        find_app(None)


def test_files_of_root_and_of_a_group_of_root_alone_are_trusted(project: Path) -> None:
    assert distrust(Path("/"), Path(os.__file__)) is None
    path = project / "pyproject.toml"
    path.chmod(0o664)
    if os.geteuid() == 0:
        assert distrust(path) is None
        os.chown(path, 0, 54321)
        assert distrust(path) == f"{path} is writable by the users of group 54321"
    else:
        assert (distrust(path) is None) == _is_private(path.stat().st_gid)


def _is_private(gid: int) -> bool:
    """Return True if a group belongs to the user who runs this test."""
    group = grp.getgrgid(gid)
    name = pwd.getpwuid(os.geteuid()).pw_name
    return group.gr_name == name and group.gr_mem in ([], [name])


def test_a_tab_imports_nothing_that_was_only_found(  # S4
    project: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKBULL_REDIS_URL", "redis://127.0.0.1:1")
    asked = BashComplete(commands, {}, "taskbull", COMPLETING)
    for _ in ("named by the project", "the only one in the folder"):
        assert asked.get_completions(["call"], "") == []
        assert asked.get_completions(["jobs"], "") == []
        (project / "pyproject.toml").unlink(missing_ok=True)
    assert "part" not in sys.modules
    assert capfd.readouterr() == ("", "")
