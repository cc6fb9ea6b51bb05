"""With one Cluster master down, the queues of the others are shown, and its own as unreadable."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from itertools import count, islice

import pytest
import redis
from anyio import fail_after, to_thread
from anyio.lowlevel import checkpoint
from click.testing import CliRunner

from taskbull import SyncQueue
from taskbull.cli import server as cli_server
from taskbull.cli.commands.dashboard import ServerMetrics
from taskbull.cli.main import commands
from taskbull.core.keys import QueueKeys
from taskbull.dashboard import Dashboard
from taskbull.monitor.server import SyncServer
from taskbull.observability.exporters import render
from taskbull.scripts.records import queues_key
from tests.dashboard.conftest import Visitor
from tests.observability.scraping import Scrape
from tests.selection import in_full
from tests.servers.cluster import Cluster, Node
from tests.servers.waiting import wait_until

CALL_TIMEOUT = 3.0
"""Seconds to wait for the dead node."""


class Scene:
    """Queues on a master that goes down, and on one that stays, each with a job."""

    def __init__(self, cluster: Cluster, prefix: str, names_on: str) -> None:
        self.cluster = cluster
        self.names_on = names_on
        self.doomed, self.living = cluster.masters[1:]
        holder = self.doomed if names_on == "doomed" else self.living
        tried = (f"{prefix}-{number}" for number in count())
        self.prefix = next(each for each in tried if cluster.owner(queues_key(each)) is holder)
        self.dead = self._queues_on(self.doomed, 3)
        self.alive = self._queues_on(self.living, 2)
        for name in (*self.dead, *self.alive):
            queue = SyncQueue(name, redis=cluster.url, prefix=self.prefix)
            queue.add("send", {}, job_id=f"of-{name}")
            queue.close()
        # As a worker of these queues writes them down.
        written = [word for name in (*self.dead, *self.alive) for word in (1, name)]
        holder.run("ZADD", queues_key(self.prefix), *written)

    def strike(self, how: str) -> None:
        """Take the node down, and wait until the others know."""
        if how == "killed":
            self.doomed.server.kill()
        else:
            self.doomed.server.pause()
        others = [node for node in self.cluster.masters if node is not self.doomed]
        wait_until(lambda: all(self._is_failed(node) for node in others), "the others know")

    def _is_failed(self, node: Node) -> bool:
        lines = str(node.run("CLUSTER", "NODES")).splitlines()
        return any(self.doomed.id in line and "fail" in line.split()[2] for line in lines)

    def _queues_on(self, node: Node, number: int) -> list[str]:
        names = (f"q{each}" for each in count())
        keys = partial(QueueKeys, prefix=self.prefix, cluster=True)
        return list(islice((n for n in names if self.cluster.owner(keys(n).meta) is node), number))


@pytest.fixture
def scene(cluster: Cluster, prefix: str, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """The queues; their names are written down on the one node or the other."""
    for node in cluster.masters:  # the others serve without it
        node.run("CONFIG", "SET", "cluster-require-full-coverage", "no")
    yield Scene(cluster, prefix, request.param)
    cluster.mend()
    for node in cluster.masters:
        node.run("CONFIG", "SET", "cluster-require-full-coverage", "yes")


def open_dashboard(scene: Scene) -> Visitor:
    dashboard = Dashboard(redis=scene.cluster.url, prefix=scene.prefix)
    dashboard._server._call_timeout = CALL_TIMEOUT
    return Visitor(dashboard)


async def shown_by(visitor: Visitor) -> dict[str, bool]:
    """Return which queues the overview shows, and whether it says that they cannot be read."""
    page = await visitor.get("")
    assert page.status_code == 200
    rows = re.finditer(r'<tr id="queue-([^"]*)">(.*?)</tr>', page.text, re.DOTALL)
    return {row[1]: "cannot be read" in row[2] for row in rows}


KILLED = ("doomed", "killed")
FROZEN = ("living", "frozen")  # takes long: each read waits for its timeout
KILLED_BY_DEFAULT = pytest.mark.parametrize(
    ("scene", "how"), [KILLED, in_full(*FROZEN)], indirect=["scene"]
)


@KILLED_BY_DEFAULT
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # it is about nodes, and takes seconds
async def test_pages_show_the_queues_of_living_nodes(scene: Scene, how: str) -> None:  # S5
    old = open_dashboard(scene)
    everything = {name: name in scene.dead for name in (*scene.dead, *scene.alive)}
    assert await shown_by(old) == dict.fromkeys(everything, False)
    await to_thread.run_sync(scene.strike, how)
    new = open_dashboard(scene)
    for visitor in (old, new):
        page = await visitor.get(f"queue?q={scene.alive[0]}")
        assert page.status_code == 200
        assert f"of-{scene.alive[0]}" in page.text
        assert (await visitor.get("workers")).status_code == 200
        assert (await visitor.get("schedules")).status_code == 200
        with fail_after(60):  # a search whose time is up shows how far it came
            while (
                f"id=of-{scene.alive[1]}"
                not in (await visitor.post("search", {"text": "name:send"})).text
            ):
                await checkpoint()
        dead = await visitor.get(f"queue?q={scene.dead[0]}")
        assert dead.status_code == 503, dead.text
    assert await shown_by(old) == everything
    # Later visitors get the names from the node that stores them, if it is up.
    known = everything if scene.names_on == "living" else dict.fromkeys(scene.alive, False)
    assert await shown_by(new) == known


@KILLED_BY_DEFAULT
def test_commands_show_the_queues_of_living_nodes(  # S5
    scene: Scene, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_server, "CALL_TIMEOUT", CALL_TIMEOUT)
    scene.strike(how)
    where = ("--redis", scene.cluster.url, "--prefix", scene.prefix)
    alive = scene.alive[0]
    worker = QueueKeys(alive, scene.prefix, cluster=True).connection_name("ann")
    with redis.Redis(port=scene.living.port, client_name=worker) as connected:
        connected.ping()
        for words, shown in (
            (("queues",), alive),
            (("jobs",), f"of-{alive}"),
            (("workers",), "ann"),
            (("top", "--once"), alive),
            (("schedules",), "SCHEDULE"),
        ):
            done = CliRunner().invoke(commands, [*words, *where], prog_name="taskbull")
            assert done.exit_code == 0, (words, done.output, done.exception)
            assert shown in done.stdout, (words, done.output)
            assert f"cannot read the queues of 127.0.0.1:{scene.doomed.port}" in done.stderr
            if scene.names_on == "living" and words != ("workers",):
                for name in scene.dead:
                    assert re.search(rf"\b{name}\b", done.output), (words, done.output)


@pytest.mark.parametrize(("scene", "how"), [KILLED, FROZEN], indirect=["scene"])
def test_a_first_look_without_an_event_loop_finds_the_living_nodes(  # S5
    scene: Scene, how: str
) -> None:
    names = [*scene.dead, *scene.alive]
    server = SyncServer(scene.cluster.url, prefix=scene.prefix, call_timeout=CALL_TIMEOUT)
    assert not any(sample.problem for sample in server.survey(names))
    scene.strike(how)
    samples = server.survey(names)
    assert {each.name for each in samples if each.problem} == set(scene.dead)
    assert list(server.lost_servers()) == [server.server_of(scene.dead[0])]
    server.close()


@pytest.mark.parametrize(("scene", "how"), [KILLED], indirect=["scene"])
def test_the_doctor_examines_the_living_nodes(scene: Scene, how: str) -> None:  # V32
    scene.strike(how)
    where = ("--redis", scene.cluster.url, "--prefix", scene.prefix)
    done = CliRunner().invoke(commands, ["doctor", *where], prog_name="taskbull")
    assert done.exit_code == 1
    lost = f"127.0.0.1:{scene.doomed.port}, one of 3 masters, does not answer"
    assert lost in done.stdout
    assert "promote its replica" in done.stdout
    for name in scene.alive:
        assert f"{name}: 1 waiting" in done.stdout
        assert f"{name}: 1 job waiting, but no worker is connected" in done.stdout
    words = ["why", scene.dead[0], *where]
    done = CliRunner().invoke(commands, words, prog_name="taskbull")
    assert "Start this node of the Cluster, or promote its replica" in done.stderr


@pytest.mark.parametrize(("scene", "how"), [KILLED], indirect=["scene"])
def test_an_exporter_shows_the_living_nodes(scene: Scene, how: str) -> None:
    server = SyncServer(scene.cluster.url, prefix=scene.prefix, call_timeout=CALL_TIMEOUT)
    metrics = ServerMetrics(server)
    metrics.sample()
    scene.strike(how)
    metrics.sample()
    found = Scrape(render(metrics.snapshot())[0].decode())
    for name in scene.alive:
        assert found.value("bullmq_queue_readable", queue=name) == 1
        assert found.value("bullmq_queue_length", queue=name, state="waiting") == 1
    for name in scene.dead:
        assert found.value("bullmq_queue_readable", queue=name) == 0
        assert found.value("bullmq_queue_length", queue=name, state="waiting") is None
    assert found.value("bullmq_redis_connection_status") == 0
    assert len(found.label("bullmq_redis_memory_used_bytes", "node")) == 2
    assert metrics.health().ready
    server.close()
