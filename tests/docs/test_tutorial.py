"""The tutorial, step by step, as a reader types it: embedded server, worker, Node, tests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml

from taskbull.store import embedded
from tests.docs.samples import ROOT, samples_of
from tests.examples.programs import JobEnvironment
from tests.interop.install import require_node_modules
from tests.interop.node import HERE

PAGE = ROOT / "docs" / "tutorial.md"
TEXT = PAGE.read_text()
PRODUCER = re.search(r"^```js\n// order\.mjs\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


@pytest.fixture
def shop() -> Iterator[JobEnvironment]:
    """Return a folder with the reader's environment. The path of a unix socket must be short."""
    with TemporaryDirectory(prefix="taskbull-") as name:
        place = JobEnvironment(Path(name), "embedded://")
        yield place
        embedded.stop(Path(name) / ".taskbull")


@pytest.mark.full
def test_the_tutorial(shop: JobEnvironment) -> None:
    require_node_modules()
    tasks = [files for each in samples_of(PAGE) if (files := each.files())]
    versions = [files["tasks.py"] for files in tasks if "tasks.py" in files]
    schedule = next(each.source for each in samples_of(PAGE) if "morning_report" in each.source)
    assert len(versions) == 3
    for version in versions:
        (shop.folder / "tasks.py").write_text(version)
        with shop.worker("tasks:app") as worker:
            call = ("call", "send_email", "to=ann@example.org", "subject=Hi", "--wait")
            assert "sent 'Hi' to ann@example.org" in shop.python("-m", "taskbull", *call).run()
            worker.stop()
    (shop.folder / "tasks.py").write_text(versions[-1] + schedule)
    assert PRODUCER is not None
    (shop.folder / "order.mjs").write_text(PRODUCER[1])
    (shop.folder / "node_modules").mkdir()
    (shop.folder / "node_modules" / "bullmq").symlink_to(HERE / "node_modules" / "bullmq6")
    with shop.worker("tasks:app") as worker:
        said = shop.node("order.mjs").run()
        assert "page 3 of 3" in said
        assert "Python built 3 pages for Bob" in said
        assert "morning_report" in shop.python("-m", "taskbull", "schedules").run()
        shop.python("-m", "taskbull", "schedules", "run", "reports", "morning_report").run()
        worker.read_until(r"\(morning_report\) in queue reports completed")
        worker.stop()
    (test,) = [files for files in tasks if "test_shop.py" in files]
    (shop.folder / "test_shop.py").write_text(test["test_shop.py"])
    assert "1 passed" in shop.python("-m", "pytest", "-q", "-p", "no:cacheprovider").run()


def test_the_commands_exist() -> None:
    from taskbull.cli.main import commands  # noqa: PLC0415 - the command line is slow to import

    used = set(re.findall(r"^\$ taskbull ([\w-]+)", TEXT, re.MULTILINE))
    assert {"demo", "worker", "call", "doctor"} <= used
    assert used <= set(commands.commands)


def test_the_compose_file_is_yaml() -> None:
    (source,) = re.findall(r"^```yaml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    services = yaml.safe_load(source)["services"]
    assert services["worker"]["environment"]["TASKBULL_REDIS_URL"] == "redis://redis:6379/0"
