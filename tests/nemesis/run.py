"""One run: actors begin, faults come and go, the queues drain, and all of it is checked."""

from __future__ import annotations

import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec
from msgspec import Struct

from taskbull import App
from tests.nemesis import checks, ledger
from tests.nemesis.actors import Actor, python
from tests.nemesis.faults import FAULTS, Lane, Scene, insist
from tests.nemesis.kinds import KINDS, PREFIX, QUEUES, probe_queue
from tests.nemesis.place import Place, keep_all_events
from tests.nemesis.plan import Planned, make_plan
from tests.nemesis.truth import open_jobs, read_truth
from tests.servers.waiting import wait_until

DRAIN_LIMIT: Final = 120.0
PROBE_LIMIT: Final = 60.0
STARVED: Final = 1.0
"""Seconds by which the machine may be late before that counts as a fault of its own."""


class Script(Struct, frozen=True, kw_only=True):
    """What a run is to be: with the same seed the same faults are drawn."""

    seed: int
    seconds: float = 50.0
    rate: float = 25.0
    """Jobs per second of each producer."""
    workers: tuple[str, ...] = ("asyncio", "trio", "asyncio")
    producers: tuple[str, ...] = ("sync", "asyncio", "trio")
    followers: tuple[str, ...] = ("asyncio", "trio")
    faults: tuple[str, ...] = tuple(FAULTS)
    kinds: tuple[str, ...] = tuple(KINDS)


class Report(Struct):
    """What came of it."""

    script: Script
    folder: Path
    figures: checks.Figures
    violations: list[checks.Violation]


def perform(script: Script, place: Place) -> Report:
    """Play a script in a place that has been made for it alone."""
    folder = Path(tempfile.mkdtemp(prefix=f"taskbull-nemesis-{script.seed}-"))
    run = Run(script, place, folder)
    with run.stack:
        run.begin()
        run.torment()
        run.settle()
    book = ledger.read(folder)
    truth = run.truth
    violations = run.troubles + checks.check_all(truth, book)
    (folder / "violations.txt").write_text("\n\n".join(str(one) for one in violations))
    return Report(script, folder, checks.figures(truth, book), violations)


class Run:
    """The processes and threads of one run."""

    def __init__(self, script: Script, place: Place, folder: Path) -> None:
        self.stack = ExitStack()
        self.troubles: list[checks.Violation] = []
        self._script = script
        self._place = place
        self._folder = folder
        self._ledger = ledger.Ledger(folder, "nemesis")
        self._over = threading.Event()
        self._ended = threading.Event()
        self._app = App("operator", redis=place.url, prefix=PREFIX, enqueue_timeout=10.0)
        self._app.task(name="probe")(_probe)
        self.stack.callback(self._ledger.close)
        self.stack.callback(self._app.close)
        common = (place.url, str(folder))
        self._workers = [
            self._actor(f"worker-{n}-{backend}", "worker", common, _worker(n, backend))
            for n, backend in enumerate(script.workers, 1)
        ]
        self._producers = [
            self._actor(
                f"producer-{flavour}",
                "producer",
                common,
                (flavour, str(script.rate), str(script.seed), ",".join(script.kinds)),
            )
            for flavour in script.producers
        ]
        self._followers = [
            self._actor(f"follower-{n}-{backend}", "follower", common, (backend,))
            for n, backend in enumerate(script.followers, 1)
        ]

    def begin(self) -> None:
        """Start all actors; return when every worker has run a job."""
        watch = threading.Thread(target=self._watch_machine)
        watch.start()
        self.stack.callback(watch.join)
        self.stack.callback(self._ended.set)
        for queue in QUEUES:
            keep_all_events(self._place, queue)
        for actor in (*self._workers, *self._followers):
            actor.start()
        for actor in (*self._workers, *self._followers):
            actor.await_running()
        self._probe_workers()
        for actor in self._producers:
            actor.start()
        for actor in self._producers:
            actor.await_running()

    def torment(self) -> None:
        """Let the faults of the plan happen, for as long as the script says."""
        script = self._script
        plan = make_plan(script.seed, script.seconds, script.faults)
        (self._folder / "plan.json").write_bytes(
            msgspec.json.format(msgspec.json.encode(plan), indent=1)
        )
        scene = Scene(self._place, self._app, self._workers, self._over)
        lanes = [
            threading.Thread(target=self._go_through, args=(scene, lane, plan[lane]))
            for lane in plan
        ]
        for thread in lanes:
            thread.start()
        self._over.wait(script.seconds)
        self._over.set()
        for thread in lanes:
            thread.join()

    def settle(self) -> None:
        """Mend everything, let the queues drain, look at the workers once more, and end all."""
        self._place.heal()
        for queue in QUEUES:
            insist(self._app.sync_queue(queue).resume)
        for actor in self._producers:
            self._expect_end(actor, actor.finish())
        try:
            wait_until(lambda: not open_jobs(self._place), "the queues are drained", DRAIN_LIMIT)
        except AssertionError as error:
            self._trouble(2, f"{error}: {open_jobs(self._place)}")
        self._probe_workers()
        for actor in self._workers:
            self._expect_end(actor, actor.terminate())
        self.truth = read_truth(self._place)
        self._await_followers()

    def _go_through(self, scene: Scene, lane: Lane, planned: list[Planned]) -> None:
        for one in planned:
            if self._over.wait(one.pause):
                return
            began = time.time()
            try:
                target = FAULTS[one.fault].act(scene, Random(one.seed))
            except Exception as error:  # noqa: BLE001 - whatever it is, the run must be told
                self._trouble(0, f"the fault {one.fault} could not be made: {error!r}")
                return
            self._ledger.note(ledger.Fault, name=one.fault, target=target, began=began)

    def _watch_machine(self) -> None:
        """Note when the machine is so busy that processes stand still by themselves."""
        while not self._ended.is_set():
            began = time.time()
            time.sleep(0.1)
            if time.time() - began > STARVED:
                self._ledger.note(ledger.Fault, name="starved", target="the machine", began=began)

    def _probe_workers(self) -> None:
        """Let every worker run a fresh job, which tells how it is."""
        seen = {actor.who: self._vitals(actor) for actor in self._workers}
        for actor in self._workers:
            probe = self._app.tasks["probe"].options(queue=probe_queue(actor.name))
            insist(lambda probe=probe: probe.delay(added=time.time()))  # type: ignore[misc]
        for actor in self._workers:
            try:
                wait_until(
                    lambda actor=actor: self._vitals(actor) > seen[actor.who],  # type: ignore[misc]
                    f"{actor.who} takes a fresh job",
                    PROBE_LIMIT,
                )
            except AssertionError as error:
                self._trouble(7, str(error))

    def _vitals(self, actor: Actor) -> int:
        file = self._folder / f"{actor.who}.jsonl"
        return file.read_bytes().count(b'"Vitals"') if file.exists() else 0

    def _await_followers(self) -> None:
        """Give the followers time to hear the end of the streams."""
        last = [
            f'"queue":"{name}","id":"{queue.stream[-1].id}"'.encode()
            for name, queue in self.truth.queues.items()
            if queue.stream
        ]

        def caught_up() -> bool:
            files = [
                (self._folder / f"{actor.who}.jsonl").read_bytes() for actor in self._followers
            ]
            return all(one in file for file in files for one in last)

        try:
            wait_until(caught_up, "the followers have heard everything", PROBE_LIMIT)
        except AssertionError as error:
            self._trouble(5, str(error))

    def _expect_end(self, actor: Actor, code: int) -> None:
        if code != 0:
            self._trouble(7, f"{actor.who} ended with exit code {code}")

    def _trouble(self, rule: int, what: str) -> None:
        self.troubles.append(checks.Violation(rule, what, []))

    def _actor(
        self, name: str, module: str, before: tuple[str, ...], after: tuple[str, ...]
    ) -> Actor:
        actor = Actor(name, self._folder, python(module, *before, after=after))
        self.stack.callback(actor.close)
        return actor


def _worker(number: int, backend: str) -> tuple[str, str]:
    return f"worker-{number}-{backend}", backend


def _probe(added: float) -> Any:
    """Stand for the task of that name in the workers."""
