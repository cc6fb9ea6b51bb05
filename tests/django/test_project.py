"""A real Django project, whose tests and workers run as separate processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.servers.kinds import KINDS, SharedServers

PROJECT = Path(__file__).parent / "project"
LIMIT = 300.0
LIVE = ("test", "live", "--testrunner", "conf.runner.LiveRunner")


class Project:
    """The project, with its databases and a Redis."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self.environment = {**_clean_environment(), **environment}
        self.folder = folder

    def manage(self, *words: str, fails: bool = False, **environment: str) -> str:
        """Run manage.py and return what it prints."""
        done = subprocess.run(
            [sys.executable, str(PROJECT / "manage.py"), *words],
            cwd=self.folder,
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        assert (done.returncode != 0) is fails, done.stdout
        return done.stdout

    @contextmanager
    def worker(self, *words: str) -> Generator[Path]:
        """Run a worker in the block, and yield the file of its log."""
        log = self.folder / "worker.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, str(PROJECT / "manage.py"), "taskbull", "worker", *words],
                cwd=self.folder,
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            yield log
            assert process.poll() is None, log.read_text()
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(LIMIT)
        assert code == 0, log.read_text()


def _clean_environment() -> dict[str, str]:
    of_others = ("TASKBULL", "REDIS_URL", "DJANGO", "PROJECT_")
    return {name: value for name, value in os.environ.items() if not name.startswith(of_others)}


def _free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


@pytest.fixture(scope="module")
def redis_url(shared_servers: SharedServers) -> str:
    return shared_servers.get(KINDS[0]).url


@pytest.fixture(scope="module")
def project(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder = tmp_path_factory.mktemp("project")
    where = {"PROJECT_REDIS": redis_url, "PROJECT_PREFIX": f"sqlite-{os.getpid()}"}
    made = Project({**where, "PROJECT_DATA": str(folder)}, folder)
    made.manage("migrate", "-v0")
    return made


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """Return the port of a private PostgreSQL server with the project's databases."""
    found = [shutil.which("initdb"), *map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb"))]
    programs = next((Path(each).resolve().parent for each in found if each), None)
    if programs is None:
        pytest.skip("PostgreSQL is not installed (on Debian: apt install postgresql)")
    user = "postgres" if os.geteuid() == 0 else None  # PostgreSQL does not run as root.
    folder = Path(tempfile.mkdtemp(prefix="taskbull-postgres-"))  # pytest's own are private
    if user:
        shutil.chown(folder, user)
    data, port = folder / "data", _free_port()

    def run(program: str, *words: str) -> None:
        subprocess.run(
            [programs / program, *words],
            check=True,
            user=user,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            timeout=LIMIT,
        )

    run("initdb", "-D", str(data), "-U", "tests", "-A", "trust", "--no-sync")
    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
    run("pg_ctl", "-D", str(data), "-o", options, "-l", str(folder / "log"), "-w", "start")
    try:
        for name in ("shop", "archive"):
            run("createdb", "-h", "127.0.0.1", "-p", port, "-U", "tests", name)
        yield port
    finally:
        run("pg_ctl", "-D", str(data), "-m", "immediate", "-w", "stop")
        shutil.rmtree(folder)


def test_the_tests_of_the_project(project: Project) -> None:
    project.manage("test", "shop")


def test_a_worker_on_sqlite(project: Project) -> None:
    with project.worker("-c", "4"):
        project.manage(*LIVE)


@pytest.mark.full
def test_a_worker_on_postgresql(
    postgres: str, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("project")
    where = {"PROJECT_REDIS": redis_url, "PROJECT_PREFIX": f"postgres-{os.getpid()}"}
    project = Project({**where, "PROJECT_POSTGRES": postgres}, folder)
    project.manage("migrate", "-v0")
    with project.worker("-c", "4"):
        project.manage(*LIVE)


@pytest.mark.full
def test_workers_on_trio_and_in_several_processes(project: Project) -> None:
    with project.worker("--backend", "trio", "--processes", "2"):
        parts = ("succeeds", "retries", "context", "connections_are", "all_kinds")
        words = [*LIVE, *(word for part in parts for word in ("-k", part))]
        project.manage(*words)


def test_a_worker_does_not_start_with_wrong_settings(project: Project) -> None:
    said = project.manage("taskbull", "worker", fails=True, PROJECT_REDIS="amqp://localhost")
    assert "amqp" in said
    said = project.manage("taskbull", "worker", "--settings=conf.nothing", fails=True)
    assert "No module named 'conf.nothing'" in said


def test_models_before_django_is_set_up(project: Project) -> None:
    environment = {**project.environment, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run(
        [sys.executable, "-m", "taskbull", "tasks", "-A", "shop.tasks:app"],
        cwd=project.folder,
        env={**environment, "DJANGO_SETTINGS_MODULE": "conf.settings"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode != 0
    assert "Django is not set up" in done.stderr
    assert "project/shop/models.py" in done.stderr


def test_health_asks_the_redis_of_the_settings(project: Project) -> None:
    assert project.manage("taskbull", "health").strip() == "ok"


def test_the_setting_of_the_app_has_to_be_text(project: Project) -> None:
    code = "from conf.settings import *\nTASKBULL_APP = 5\n"
    (project.folder / "numbered.py").write_text(code)
    words = ("--settings=numbered", f"--pythonpath={project.folder}")
    assert "TASKBULL_APP must be a string" in project.manage("check", *words, fails=True)
    assert "TASKBULL_APP must be a string" in project.manage(
        "taskbull", "queues", *words, fails=True
    )


def test_the_command_knows_the_app_of_the_project(project: Project) -> None:
    shown = json.loads(project.manage("taskbull", "tasks", "--json"))
    names = {task["name"]: task["queue"] for task in shown}
    places = {task["name"]: task["place"] for task in shown}
    assert f"{PROJECT}/shop/tasks.py:" in places["shop.tasks.confirm"]
    assert names["ship"] == "jobs"
    assert names["shop.tasks.confirm"] == "default"
    assert names["shop.tasks.flaky@retrying"] == "retries"
