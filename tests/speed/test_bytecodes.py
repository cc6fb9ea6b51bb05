"""Bytecode instructions per job: figures that do not depend on the machine's load.

Instructions of taskbull's code have narrower limits than all instructions, because new releases of
anyio and the event loops may change theirs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.kinds import KINDS, Reachable, SharedServers
from tests.speed.bounds import check_not_grown

Figures = dict[str, tuple[int, int]]
Found = dict[str, dict[str, float]]

WERE: dict[tuple[int, int], dict[str, Figures]] = {
    (3, 11): {
        "asyncio": {
            "delay": (1_231, 1_231),
            "enqueue": (377, 367),
            "adelay": (1_976, 1_282),
            "adelay from 100 tasks": (1_004, 674),
            "aenqueue": (380, 367),
            "worker at 1": (2_898, 2_204),
            "worker at 100": (955, 893),
        },
        "trio": {
            "adelay": (2_497, 1_383),
            "adelay from 100 tasks": (1_254, 767),
            "aenqueue": (383, 368),
            "worker at 1": (3_462, 2_309),
            "worker at 100": (997, 914),
        },
    },
}
"""By version of Python: per job in all, and in taskbull's own code. Write less when it is less."""

SLACK = 0.05
SLACK_IN_ALL = 0.12


@pytest.fixture
def server(shared_servers: SharedServers) -> Reachable:
    """One kind is enough: it is the interpreter's work that is counted."""
    return shared_servers.get(KINDS[0])


@pytest.mark.full
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_job_costs_no_more_bytecodes(loop: str, server: Reachable) -> None:
    found = measured(server.url, loop)
    version = sys.version_info[:2]
    if version not in WERE:
        told = {name: round(figures["all"]) for name, figures in found.items()}
        pytest.skip(f"no bounds are set for Python {version[0]}.{version[1]}: found {told}")
    try:
        check(found, WERE[version][loop])
    except AssertionError:  # on a busy machine an event loop wakes up more often: the least counts
        check(least(found, measured(server.url, loop)), WERE[version][loop])


def check(found: Found, were: Figures) -> None:
    ours = {f"{name}, in taskbull": float(most) for name, (_, most) in were.items()}
    check_not_grown({f"{k}, in taskbull": v["taskbull"] for k, v in found.items()}, ours, SLACK)
    in_all = {f"{name}, in all": float(most) for name, (most, _) in were.items()}
    check_not_grown({f"{k}, in all": v["all"] for k, v in found.items()}, in_all, SLACK_IN_ALL)


def least(one: Found, other: Found) -> Found:
    return {
        name: {key: min(figures[key], other[name][key]) for key in figures}
        for name, figures in one.items()
    }


def measured(url: str, loop: str) -> Found:
    command = [sys.executable, "-m", "tests.speed.bytecodes", url, loop]
    # Not what pytest-cov leaves behind for children: a second tracer would end the first.
    environment = {name: value for name, value in os.environ.items() if "COV" not in name}
    ran = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
        env=environment | {"PYTHONHASHSEED": "0"},
        check=False,
    )
    if "somebody else traces" in ran.stderr:
        pytest.skip(ran.stderr.strip())
    assert ran.returncode == 0, ran.stderr
    figures: Found = json.loads(ran.stdout)
    return figures
