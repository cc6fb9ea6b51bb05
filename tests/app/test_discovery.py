"""Finding apps and tasks by name: what works, and what is said when it does not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskbull.app.app import App, load_app
from taskbull.errors import ConfigurationError

APP = "from taskbull import App\napp = App('shop', redis='redis://localhost:1')\n"


class Project:
    """A folder with modules, which is the working directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, path: str, text: str = "") -> Path:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    before = set(sys.modules)
    yield Project(tmp_path)
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_an_app_is_found_in_the_working_directory(project: Project) -> None:
    project.write("shop_one.py", APP + "class settings:\n    app = app\n")
    assert isinstance(load_app("shop_one:app"), App)
    assert load_app("shop_one:settings.app") is load_app("shop_one:app")


@pytest.mark.parametrize("target", ["shop_one", "shop_one:", ":app", ""])
def test_what_is_no_target_is_refused_with_an_example(project: Project, target: str) -> None:
    with pytest.raises(ConfigurationError, match=r"must be module:attribute, such as '.*:app'"):
        load_app(target)


def test_a_module_that_is_not_there_is_named_with_where_it_was_sought(project: Project) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load_app("no_such_shop:app")
    message = str(refused.value)
    assert "no module named 'no_such_shop'" in message
    assert str(project.folder) in message
    project.write("package_one/__init__.py")
    with pytest.raises(ConfigurationError, match=r"no module named 'package_one\.tasks'"):
        load_app("package_one.tasks:app")


def test_an_error_in_the_module_is_reported_with_its_place(project: Project) -> None:
    file = project.write("broken_one.py", "import os\nimport no_such_dependency\n")
    with pytest.raises(ConfigurationError) as refused:
        load_app("broken_one:app")
    message = str(refused.value)
    assert "ModuleNotFoundError: No module named 'no_such_dependency'" in message
    assert f"{file}:2" in message
    assert isinstance(refused.value.__cause__, ModuleNotFoundError)


def test_any_error_in_the_module_is_reported_with_its_place(project: Project) -> None:
    file = project.write("broken_two.py", "def f():\n    1 / 0\nf()\n")
    with pytest.raises(ConfigurationError, match="ZeroDivisionError: division by zero at") as told:
        load_app("broken_two:app")
    assert f"{file}:2" in str(told.value)
    file = project.write("broken_three.py", "x = 1\nif x\n")
    with pytest.raises(ConfigurationError, match="SyntaxError") as told:
        load_app("broken_three:app")
    assert f"{file}:2" in str(told.value)


def test_an_attribute_that_is_missing_or_no_app_is_reported(project: Project) -> None:
    project.write("shop_two.py", APP + "def make():\n    return app\n")
    with pytest.raises(ConfigurationError, match=r"shop_two \(.*shop_two.py\) has no attribute"):
        load_app("shop_two:ap")
    with pytest.raises(ConfigurationError, match="must be an App, got function"):
        load_app("shop_two:make")


def test_included_modules_are_imported_by_load_tasks_only(project: Project) -> None:
    project.write("shop_three/__init__.py")
    project.write("shop_three/app.py", APP.replace("1')", "1', include=['shop_three.mail'])"))
    project.write(
        "shop_three/mail.py",
        "from shop_three.app import app\n@app.task(queue='mail')\ndef send(to: str): ...\n",
    )
    app = load_app("shop_three.app:app")
    assert not app.tasks
    app.load_tasks()
    app.load_tasks()
    assert list(app.tasks) == ["send"]
    assert app.worker().queues == ["mail"]


def test_an_included_module_that_is_not_there_is_reported(project: Project) -> None:
    app = App("shop", redis="redis://localhost:1", include=["no_such_module"])
    with pytest.raises(ConfigurationError, match="App shop: include 'no_such_module': no module"):
        app.load_tasks()


@pytest.mark.parametrize(
    ("name", "expected"),
    [("tasks", ["mail", "pictures"]), ("jobs", ["other"]), (None, ["mail", "other", "pictures"])],
)
def test_the_modules_of_a_package_are_discovered(
    project: Project, name: str | None, expected: list[str]
) -> None:
    task = "from shop_four.app import app\n@app.task\ndef {0}(): ...\n"
    project.write("shop_four/__init__.py")
    project.write("shop_four/app.py", APP)
    project.write("shop_four/tasks.py", task.format("mail"))
    project.write("shop_four/deep/__init__.py")
    project.write("shop_four/deep/tasks.py", task.format("pictures"))
    project.write("shop_four/deep/jobs.py", task.format("other"))
    project.write("shop_four/__main__.py", "raise SystemExit\n")
    app = load_app("shop_four.app:app")
    modules = app.autodiscover("shop_four", name)
    assert sorted(app.tasks) == expected
    assert "shop_four.__main__" not in modules
    with pytest.raises(ConfigurationError, match="no module named 'no_such_package'"):
        app.autodiscover("no_such_package")


def test_a_module_that_fails_while_discovered_is_named(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(project.folder)
    project.write("shop_five/__init__.py")
    file = project.write("shop_five/tasks.py", "oops\n")
    app = App("shop", redis="redis://localhost:1")
    with pytest.raises(ConfigurationError, match=r"autodiscover\('shop_five'\): module") as told:
        app.autodiscover("shop_five")
    assert f"NameError: name 'oops' is not defined at {file}:1" in str(told.value)


def test_a_file_is_no_module_and_the_hint_says_what_is() -> None:
    with pytest.raises(ConfigurationError, match=r"did you mean shop\.tasks:app\?"):
        load_app("./shop/tasks.py:app")


def test_a_module_that_exits_when_imported_is_reported(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(project.folder)
    file = project.write("script_one.py", "import sys\nsys.exit(3)\n")
    with pytest.raises(ConfigurationError, match=f"SystemExit: 3 at {file}:2"):
        load_app("script_one:app")
