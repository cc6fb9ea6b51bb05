"""The deployment files: each is read by the tool that it is for, as far as the machine has it."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml

from taskbull.cli.main import commands

FOLDER = Path(__file__).parents[2] / "examples" / "deployment"
GRACE = 15  # Seconds that a worker needs besides --shutdown-timeout.


def _yaml(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def _commands() -> Iterator[list[str]]:
    text = (FOLDER / "Dockerfile").read_text()
    for found in re.findall(r"^\s*CMD (\[.*\])$", text, re.MULTILINE):
        yield yaml.safe_load(found)
    services = _yaml("compose.yaml")[0]["services"]
    for service in services.values():
        for words in (service.get("command"), service.get("healthcheck", {}).get("test", [])[1:]):
            yield words or []
    unit = (FOLDER / "shop-worker.service").read_text()
    yield shlex.split(unit.partition("ExecStart=/srv/shop/.venv/bin/")[2].partition("\n")[0])
    for one in _yaml("kubernetes.yaml"):
        if one["kind"] == "Deployment":
            yield one["spec"]["template"]["spec"]["containers"][0]["command"]


def test_each_command_is_one_that_taskbull_has() -> None:
    found = [words for words in _commands() if words[:1] == ["taskbull"]]
    assert len(found) == 9
    for _, name, *arguments in found:
        command = commands.commands[name]
        with click.Context(commands, info_name="taskbull") as parent:
            command.make_context(name, list(arguments), parent=parent).close()


def test_kubernetes_accepts_the_manifests() -> None:
    manifests = _yaml("kubernetes.yaml")
    for one in manifests:
        if one["kind"] == "Deployment":
            kubernetes_validate.validate(one, "1.33", strict=True)
    assert [one["kind"] for one in manifests] == ["Deployment", "Deployment", "ScaledObject"]
    assert manifests[2]["spec"]["scaleTargetRef"]["name"] == manifests[0]["metadata"]["name"]


def test_nothing_is_killed_before_a_worker_has_stopped() -> None:
    pod = _yaml("kubernetes.yaml")[0]["spec"]["template"]["spec"]
    words = pod["containers"][0]["command"]
    limit = int(words[words.index("--shutdown-timeout") + 1])
    assert pod["terminationGracePeriodSeconds"] >= limit + GRACE
    unit = (FOLDER / "shop-worker.service").read_text()
    [timeout] = re.findall(r"--shutdown-timeout (\d+)", unit)
    [stop] = re.findall(r"TimeoutStopSec=(\d+)", unit)
    assert int(stop) >= int(timeout) + GRACE
    assert _yaml("compose.yaml")[0]["services"]["worker"]["stop_grace_period"] == "45s"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = (FOLDER / "shop-worker.service").read_text()
    program = shutil.which("true")
    unit = tmp_path / "shop-worker.service"
    unit.write_text(text.replace("/srv/shop/.venv/bin/taskbull", str(program)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    ours = [line for line in done.stderr.splitlines() if "shop-worker" in line]
    assert ours == []
