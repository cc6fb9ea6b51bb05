"""Everything that is checked, each by one session: `nox -l` lists them.

All sessions but `pythons`, `django6` and `package` share the environment that nox itself runs in,
which `pip install -e '.[dev]'` makes. CONTRIBUTING.md says what runs when.
"""

from __future__ import annotations

import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nox

nox.needs_version = ">=2025.2"
nox.options.sessions = ["lint", "prose", "types", "lua", "docs", "tests"]
nox.options.default_venv_backend = "none"

# Most tests wait for servers and other processes, so run three per core. Files are not split,
# because the tests of one file share servers; tests/conftest.py starts with the longest.
AT_ONCE = ("-n", str(min(3 * (os.cpu_count() or 1), 8)))
PARALLEL = (*AT_ONCE, "--dist", "loadfile", "--no-loadscope-reorder", "--durations=20")

# That BullMQ 5 and 6 themselves behave as the cases say is left to `interop`: both are pinned.
SUITE = ("--ignore", "tests/interop/test_cases.py")
FULL = {"TASKBULL_FULL": "1"}

# The tests that run for longer when TASKBULL_WORKER_SOAK is set: see tests/worker/scale.py.
WORKER_SOAK = (
    *("cut_connections", "races", "stopping", "redis_trouble", "killed", "leaks"),
    *("in_a_cluster", "under_sentinel"),
)

CODE = ("taskbull", "tests", "benchmarks", "docs/conf.py", "examples", "noxfile.py")

PYTHONS = ("3.11", "3.12", "3.13", "3.14")

# Container images of Python often turn byte code off. Then each of the thousands of processes that
# the tests start would compile all modules again.
BYTE_CODE = {"PYTHONDONTWRITEBYTECODE": ""}


def run(session: nox.Session, module: str, *arguments: str, **environment: str) -> None:
    run_by(session, sys.executable, module, *arguments, **environment)


def run_by(
    session: nox.Session, python: str, module: str, *arguments: str, **environment: str
) -> None:
    env = {**os.environ, **BYTE_CODE, **environment}
    session.run(python, "-m", module, *arguments, env=env)


@nox.session
def lint(session: nox.Session) -> None:
    """Style and common faults."""
    run(session, "ruff", "check", *CODE)
    run(session, "ruff", "format", "--check", *CODE)


@nox.session
def prose(session: nox.Session) -> None:
    """Phrases that a native speaker would not write: no file may gain any."""
    run(session, "tests.prose", *session.posargs)


@nox.session
def types(session: nox.Session) -> None:
    """Types, by mypy and pyright concurrently: users have either, and neither uses two cores."""
    with ThreadPoolExecutor() as threads:
        checkers = [
            threads.submit(run, session, "mypy"),
            threads.submit(run, session, "pyright", "--pythonpath", sys.executable),
        ]
    for checker in checkers:
        checker.result()


@nox.session
def lua(session: nox.Session) -> None:
    """Syntax, headers and format of the Lua scripts."""
    run(session, "pytest", "-q", "tests/scripts/test_lua.py", "tests/scripts/test_loader.py")


@nox.session
def lua54(session: nox.Session) -> None:
    """The tests of the scripts again, in Lua 5.4 with Dragonfly's rules for numbers."""
    # That server does not check the permissions of scripts.
    files = ("tests/scripts", "--ignore", "tests/scripts/test_confinement.py")
    run(session, "pytest", *PARALLEL, *files, *session.posargs, TASKBULL_TEST_LUA54="1")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation into .nox/docs. Every warning is an error."""
    run(session, "sphinx", "-q", "-E", "-W", "--keep-going", "-b", "dirhtml", "docs", ".nox/docs")


@nox.session
def tests(session: nox.Session) -> None:
    """Run every case once, on one of the servers and event loops: see tests/selection.py."""
    run(session, "pytest", *PARALLEL, *(session.posargs or SUITE))


@nox.session
def full(session: nox.Session) -> None:
    """Run every case on each server and each event loop, and the slow and statistical tests."""
    run(session, "pytest", *PARALLEL, *(session.posargs or SUITE), **FULL)


@nox.session
def pythons(session: nox.Session) -> None:
    """Run the tests by every Python from 3.11 on that is found, each in its own environment."""
    failed = []
    found = {version: path for version in PYTHONS if (path := find_python(version))}
    for version, python in found.items():
        place = Path(".nox", f"python-{version}").absolute()
        own = str(place / "bin" / "python")
        session.run(python, "-m", "venv", str(place), external=True)
        run_by(session, own, "pip", "install", "-q", "-e", ".[dev]")
        try:
            run_by(session, own, "pytest", *PARALLEL, *(session.posargs or SUITE))
        except nox.command.CommandFailed:
            failed.append(version)
    session.log(f"Pythons: {', '.join(found)}; failed: {', '.join(failed) or 'none'}")
    if failed or not found:
        session.error(f"the tests fail with Python {', '.join(failed)}" if found else "no Python")


@nox.session
def django6(session: nox.Session) -> None:
    """Run the Django tests with Django 6, by the newest Python from 3.12 on that is found."""
    found = [path for version in PYTHONS[1:] if (path := find_python(version))]
    if not found:
        session.error("Django 6 needs Python 3.12 or newer, and none is found")
    place = Path(".nox", "django6").absolute()
    own = str(place / "bin" / "python")
    session.run(found[-1], "-m", "venv", "--clear", str(place), external=True)
    run_by(session, own, "pip", "install", "-q", "-e", ".[dev]", "django>=6")
    run_by(session, own, "pytest", *(session.posargs or ("tests/django",)))


@nox.session
def package(session: nox.Session) -> None:
    """Build the wheel and the sdist into .nox/package/dist, check them, and try the wheel."""
    place = Path(".nox", "package").absolute()
    shutil.rmtree(place, ignore_errors=True)
    tools, user = (str(place / name / "bin" / "python") for name in ("tools", "user"))
    for name in ("tools", "user"):
        session.run(sys.executable, "-m", "venv", str(place / name), external=True)
    run_by(session, tools, "pip", "install", "-q", "build", "twine")
    run_by(session, tools, "build", "--outdir", str(place / "dist"))  # The wheel is the sdist's.
    wheel, sdist = (str(next((place / "dist").glob(each))) for each in ("*.whl", "*.tar.gz"))
    run_by(session, tools, "twine", "check", "--strict", wheel, sdist)
    run_by(session, user, "pip", "install", "-q", f"{wheel}[embedded,trio]")
    with session.chdir(place):  # The source cannot be imported here.
        run_by(session, user, "taskbull", "--help")
        run_by(session, user, "taskbull", "demo")


def find_python(version: str) -> str | None:
    """Return the newest interpreter of `version`: pyenv's, or the one on the path."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    installed = versions.glob(f"{version}.*/bin/python")
    newest = max(installed, key=lambda path: int(path.parts[-3].split(".")[2]), default=None)
    return str(newest) if newest else shutil.which(f"python{version}")


@nox.session
def coverage(session: nox.Session) -> None:
    """The full run, with a count of the lines and branches."""
    cover = ("--cov", "--cov-report=term", "--cov-fail-under=90")
    run(session, "pytest", *PARALLEL, *cover, **FULL)


@nox.session
def interop(session: nox.Session) -> None:
    """The comparison with real BullMQ on every kind of server, with many random sequences."""
    for kind in ("valkey-9", "redis-6.2", "redis-7"):
        servers = {"TASKBULL_INTEROP_SERVER": kind, "TASKBULL_SEQUENCES": "200"}
        run(session, "pytest", "tests/interop", *session.posargs, **FULL, **servers)


@nox.session
def soak(session: nox.Session) -> None:
    """Over a million replies through broken connections, and workers under all kinds of trouble."""
    replies = "600000"  # on each event loop
    run(session, "pytest", "-rA", "tests/store/test_soak.py", TASKBULL_SOAK_REPLIES=replies)
    files = [f"tests/worker/test_{name}.py" for name in WORKER_SOAK]
    files.append("tests/interop/test_cancelling.py")
    run(session, "pytest", *PARALLEL, "-rP", *files, TASKBULL_WORKER_SOAK="1", **FULL)


@nox.session
def nemesis(session: nox.Session) -> None:
    """All kinds of jobs under all kinds of faults, and a ledger: see tests/nemesis/README.md."""
    run(session, "tests.nemesis", *session.posargs)


@nox.session
def benchmarks(session: nox.Session) -> None:
    """How fast, beside the others; parts by name, `-- --help` says more. Nothing is asserted."""
    run(session, "benchmarks", *session.posargs)
