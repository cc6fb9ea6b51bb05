"""The dashboard and the alert rules: every metric and label that they name is in a real scrape."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from anyio import Event, to_thread

from taskbull.cli.commands.dashboard import ServerMetrics
from taskbull.core import events
from taskbull.core.retry import CircuitBreaker
from taskbull.monitor.server import SyncServer
from taskbull.observability.exporters import OwnMetrics, render
from taskbull.observability.http_server import MetricsServer
from taskbull.observability.metrics import ALL
from taskbull.worker import records
from tests.observability.scraping import Scrape, scrape
from tests.worker.bed import WorkerBed, until

FOLDER = Path(__file__).parents[2] / "examples" / "observability"
PROMTOOL = shutil.which("promtool")

_NAMED = re.compile(r"(bullmq_[a-z_]+)(?:\{([^}]*)\})?")


def expressions() -> list[str]:
    """Give all queries of both files."""
    board = json.loads((FOLDER / "dashboard.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    queries += [
        variable["query"]["query"]
        for variable in board["templating"]["list"]
        if isinstance(variable["query"], dict)
    ]
    rules = (FOLDER / "rules.yml").read_text()
    blocks = re.findall(r"^ +expr: (?:\|\n((?: {10}.*\n)+)|(.*)\n)", rules, re.MULTILINE)
    assert len(blocks) == rules.count("- alert:") == rules.count("expr:")
    return queries + [block or line for block, line in blocks]


async def real_scrape(bed: WorkerBed, monkeypatch: pytest.MonkeyPatch) -> Scrape:
    """Scrape a worker that has every metric."""
    monkeypatch.setattr(records, "CHECK_INTERVAL", 0.02)
    release = Event()

    async def handler(job: Any) -> None:
        if job.name == "held":
            await release.wait()

    await bed.queue.add_bulk([("held", {}), ("quick", {}), ("quick", {}, {"group": "paused"})])
    await bed.queue.set_group("paused", paused=True)
    breaker = CircuitBreaker(threshold=2, duration=60)
    worker = bed.worker(handler, heartbeat_interval=0.05, circuit_breaker=breaker)
    own = OwnMetrics()
    worker.measure(own.metrics)
    with MetricsServer(own, "127.0.0.1", 0) as endpoint:
        async with worker.running():
            await bed.record.wait_for(events.LocksRenewed)
            await bed.record.wait_for(events.Completed)
            await until(lambda: bool(own.snapshot().numbers["bullmq_group_jobs"]))
            await until(lambda: bool(own.snapshot().distributions["bullmq_event_loop_lag_seconds"]))
            found = await to_thread.run_sync(scrape, endpoint.url)
            release.set()
    return found


def exported(bed: WorkerBed) -> Scrape:
    """Give what an exporter shows of the same server."""
    with closing(SyncServer(bed.url, prefix=bed.prefix)) as server:
        metrics = ServerMetrics(server)
        metrics.sample()
        return Scrape(render(metrics.snapshot())[0].decode())


async def test_what_is_shown_and_watched_is_there(
    bed: WorkerBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await real_scrape(bed, monkeypatch)
    labels: dict[str, set[str]] = {"up": {"job"}}
    for name, given in (*found.samples, *exported(bed).samples):
        labels.setdefault(name, set()).update(label for label, _ in given)
    shown = {pair for query in expressions() for pair in _NAMED.findall(query)}
    for name, matchers in shown:
        assert name in labels, f"{name} is not in the scrape"
        wanted = set(re.findall(r"(\w+)(?:=~|!~|!=|=)", matchers))
        assert wanted <= labels[name], f"{name} has no {wanted - labels[name]}"
    for query in expressions():
        for grouped in re.findall(r"by \(([^)]*)\)", query):
            known = set().union(*(labels[name] for name, _ in _NAMED.findall(query)))
            assert set(grouped.split(", ")) <= known | {"instance"}
    # Every metric is shown.
    bases = {re.sub(r"_(bucket|sum|count)$", "", name) for name, _ in shown}
    assert bases == {metric.name for metric in ALL}
    assert "active" in found.label("bullmq_queue_length", "state")
    assert "retried" in found.label("bullmq_jobs_processed_total", "status")


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
async def test_promtool_accepts_the_text_and_the_rules(
    bed: WorkerBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (await real_scrape(bed, monkeypatch)).text
    check("metrics", given=text)
    check("rules", str(FOLDER / "rules.yml"))


def check(*words: str, given: str = "") -> None:
    command = [str(PROMTOOL), "check", *words]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
