"""Faults of processes, network and servers.

A fault is a function that breaks something, waits, repairs it, and returns the name of its target.
Three lanes run concurrently. Each injects one fault after another.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Final, Literal, TypeAlias

import redis
from msgspec import Struct

from taskbull import App, TaskbullError
from tests.nemesis.actors import Actor
from tests.nemesis.kinds import QUEUES
from tests.nemesis.place import Clustered, Place, Sentinels, Single, client, keys_of
from tests.nemesis.worker import LOCK
from tests.servers.proxy import Proxy

Lane: TypeAlias = Literal["process", "network", "server"]


class Scene(Struct, frozen=True):
    """Targets of faults."""

    place: Place
    app: App
    workers: Sequence[Actor]
    producers: Sequence[Actor]
    over: threading.Event
    """Set when the fault phase ends."""

    def wait(self, seconds: float) -> None:
        """Keep a fault active for this long, or until the fault phase ends."""
        self.over.wait(seconds)

    @property
    def proxy(self) -> Proxy:
        assert isinstance(self.place, Single)
        return self.place.proxy


Act: TypeAlias = Callable[[Scene, Random], str]


class Fault(Struct, frozen=True):
    """A fault that the plan can contain."""

    name: str
    lane: Lane
    act: Act
    where: Literal["anywhere", "single", "replicated", "cluster"] = "anywhere"

    def possible(self, kind: str) -> bool:
        """Return True if the fault is possible in this kind of environment."""
        replicated = self.where == "replicated" and kind != "single"
        return self.where in {"anywhere", kind} or replicated


def kill(scene: Scene, random: Random) -> str:
    worker = random.choice(scene.workers)
    who = worker.who
    worker.kill()
    worker.start()
    return who


def kill_producer(scene: Scene, random: Random) -> str:
    producer = random.choice(scene.producers)
    who = producer.who
    producer.kill()
    producer.start()
    return who


def freeze(scene: Scene, random: Random) -> str:
    """SIGSTOP for longer than a lock lives: other workers take over its jobs before it resumes."""
    worker = random.choice(scene.workers)
    worker.freeze()
    scene.over.wait(LOCK * random.uniform(1.2, 1.8))
    worker.thaw()
    return worker.who


def terminate(scene: Scene, random: Random) -> str:
    worker = random.choice(scene.workers)
    who = worker.who
    code = worker.terminate()
    worker.start()
    return who if code == 0 else f"{who} (exit code {code})"


def cut_all(scene: Scene, random: Random) -> str:
    scene.proxy.cut()
    return "all connections"


def cut_one(scene: Scene, random: Random) -> str:
    scene.proxy.cut_one(random)
    return "one connection"


def cut_in_request(scene: Scene, random: Random) -> str:
    count = random.randint(1, 20_000)
    scene.proxy.cut_after_requests(count)
    scene.wait(0.5)
    scene.proxy.heal()
    return f"after {count} bytes of requests"


def deliver_late(scene: Scene, random: Random) -> str:
    """Delay requests until their senders have timed out and continued, then deliver them."""
    seconds = random.uniform(0.5, 2 * LOCK)
    scene.proxy.hold_requests()
    scene.wait(seconds)
    scene.proxy.deliver()
    return f"{seconds:.1f} s"


def cut_in_reply(scene: Scene, random: Random) -> str:
    count = random.randint(1, 20_000)
    scene.proxy.cut_after(count)
    scene.wait(0.5)
    scene.proxy.heal()
    return f"after {count} bytes of replies"


def cut_before_reply(scene: Scene, random: Random) -> str:
    scene.proxy.cut_before_reply(b"EVALSHA")
    scene.wait(0.5)
    scene.proxy.heal()
    return "a script was executed, its reply lost"


def black_hole(scene: Scene, random: Random) -> str:
    seconds = random.uniform(0.3, 2.5)
    scene.proxy.black_hole()
    scene.wait(seconds)
    scene.proxy.heal()
    return f"{seconds:.1f} s"


def half_open(scene: Scene, random: Random) -> str:
    """Silently kill every link, while new links work immediately."""
    scene.proxy.forget()
    return "all connections"


def throttle(scene: Scene, random: Random) -> str:
    rate = random.uniform(20_000, 200_000)
    scene.proxy.throttle(rate)
    scene.wait(random.uniform(0.5, 2.0))
    scene.proxy.heal()
    return f"{rate / 1000:.0f} kB/s"


def slow(scene: Scene, random: Random) -> str:
    delay = random.uniform(0.01, 0.2)
    scene.proxy.slow_down(delay)
    scene.wait(random.uniform(0.5, 2.0))
    scene.proxy.heal()
    return f"{delay * 1000:.0f} ms each way"


def refuse(scene: Scene, random: Random) -> str:
    scene.proxy.refuse()
    scene.proxy.cut()
    scene.wait(random.uniform(0.2, 1.5))
    scene.proxy.heal()
    return "new connections"


def kill_clients(scene: Scene, random: Random) -> str:
    with _admin(scene, random) as admin:
        admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    return "all clients"


def kill_client(scene: Scene, random: Random) -> str:
    with _admin(scene, random) as admin:
        one = random.choice(admin.client_list())
        admin.execute_command("CLIENT", "KILL", "ID", one["id"])
    return f"client {one['name'] or one['id']}"


def pause_clients(scene: Scene, random: Random) -> str:
    seconds = random.uniform(0.2, 1.5)
    with _admin(scene, random) as admin:
        # A monitored server must keep answering, or it is considered dead.
        which = "ALL" if isinstance(scene.place, Single) else "WRITE"
        admin.execute_command("CLIENT", "PAUSE", int(seconds * 1000), which)
    scene.wait(seconds)
    return f"{seconds:.1f} s"


def debug_sleep(scene: Scene, random: Random) -> str:
    seconds = random.uniform(0.1, 1.5)
    with _admin(scene, random) as admin:
        admin.execute_command("DEBUG", "SLEEP", f"{seconds:.2f}")
    return f"{seconds:.1f} s"


def flush_scripts(scene: Scene, random: Random) -> str:
    for server in scene.place.masters():
        with client(server) as admin:
            admin.script_flush()
    return "all scripts"


def rewrite_log(scene: Scene, random: Random) -> str:
    with _admin(scene, random) as admin, suppress(redis.ResponseError):  # One is in progress.
        admin.bgrewriteaof()
    return "append-only file"


def fill_memory(scene: Scene, random: Random) -> str:
    seconds = random.uniform(0.3, 2.0)
    with _admin(scene, random) as admin:
        admin.config_set("maxmemory", 1_000_000)
        scene.wait(seconds)
        admin.config_set("maxmemory", 0)
    return f"{seconds:.1f} s"


def pause_queue(scene: Scene, random: Random) -> str:
    """Pause a queue as an operator would, with our own script."""
    name = random.choice(QUEUES)
    queue = scene.app.sync_queue(name)
    keep_trying(queue.pause)
    scene.wait(random.uniform(0.2, 1.5))
    keep_trying(queue.resume)
    return name


def crash_server(scene: Scene, random: Random) -> str:
    [server] = scene.place.masters()
    server.kill()
    scene.wait(random.uniform(0.0, 1.0))
    server.start(60.0)
    return "the server"


def fail_over(scene: Scene, random: Random) -> str:
    assert isinstance(scene.place, Sentinels | Clustered)
    scene.place.fail_over()
    return "a master and its replica"


def kill_master(scene: Scene, random: Random) -> str:
    assert isinstance(scene.place, Sentinels | Clustered)
    scene.place.kill_master()
    return "a master with a replica"


def migrate(scene: Scene, random: Random) -> str:
    """Leave a queue split between two masters for a while."""
    assert isinstance(scene.place, Clustered)
    queue, seconds = random.choice(QUEUES), random.uniform(0.2, 2.0)
    scene.place.migrate(keys_of(scene.place, queue).meta, lambda: scene.wait(seconds))
    return queue


FAULTS: Final = {
    fault.name: fault
    for fault in (
        Fault("kill", "process", kill),
        Fault("kill_producer", "process", kill_producer),
        Fault("freeze", "process", freeze),
        Fault("terminate", "process", terminate),
        Fault("cut_all", "network", cut_all, where="single"),
        Fault("cut_one", "network", cut_one, where="single"),
        Fault("cut_in_request", "network", cut_in_request, where="single"),
        Fault("deliver_late", "network", deliver_late, where="single"),
        Fault("cut_in_reply", "network", cut_in_reply, where="single"),
        Fault("cut_before_reply", "network", cut_before_reply, where="single"),
        Fault("black_hole", "network", black_hole, where="single"),
        Fault("half_open", "network", half_open, where="single"),
        Fault("throttle", "network", throttle, where="single"),
        Fault("slow", "network", slow, where="single"),
        Fault("refuse", "network", refuse, where="single"),
        Fault("kill_clients", "server", kill_clients),
        Fault("kill_client", "server", kill_client),
        Fault("pause_clients", "server", pause_clients),
        Fault("debug_sleep", "server", debug_sleep, where="single"),
        Fault("flush_scripts", "server", flush_scripts),
        Fault("rewrite_log", "server", rewrite_log, where="single"),
        Fault("fill_memory", "server", fill_memory),
        Fault("pause_queue", "server", pause_queue),
        Fault("crash_server", "server", crash_server, where="single"),
        Fault("fail_over", "server", fail_over, where="replicated"),
        Fault("kill_master", "server", kill_master, where="replicated"),
        Fault("migrate", "server", migrate, where="cluster"),
    )
}


def keep_trying(action: Callable[[], None]) -> None:
    """Repeat an idempotent action until it succeeds."""
    limit = time.monotonic() + 60.0
    while True:
        try:
            return action()
        except TaskbullError:
            if time.monotonic() > limit:
                raise
            time.sleep(0.05)


def _admin(scene: Scene, random: Random) -> redis.Redis:
    return client(random.choice(scene.place.masters()))
