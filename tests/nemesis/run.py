"""One run: start the actors, inject faults, drain the queues, and check the results."""

from __future__ import annotations

import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Final, Literal

import msgspec
from msgspec import Struct

from taskbull import App
from tests.nemesis import ledger
from tests.nemesis.actors import Actor, Command, node, python
from tests.nemesis.faults import FAULTS, Lane, Scene, keep_trying
from tests.nemesis.kinds import KINDS, MAIN, PREFIX, QUEUES, probe_queue
from tests.nemesis.place import Place, keep_all_events
from tests.nemesis.plan import Planned, make_plan
from tests.nemesis.rules import check_all
from tests.nemesis.rules.case import Case, Violation
from tests.nemesis.rules.run import count_extra
from tests.nemesis.truth import open_jobs, read_truth, ticks
from tests.servers.waiting import wait_until

DRAIN_LIMIT: Final = 120.0
PROBE_LIMIT: Final = 60.0
NODE_PRODUCER: Final = "node-producer"
STARVED: Final = 1.0
"""Delay of the machine, in seconds, that counts as a fault."""


class Script(Struct, frozen=True, kw_only=True):
    """Configuration of a run. The same seed draws the same faults."""

    seed: int
    seconds: float = 50.0
    rate: float = 40.0
    """Jobs per second of each producer."""
    workers: tuple[str, ...] = ("asyncio", "trio", "asyncio")
    producers: tuple[str, ...] = ("sync", "asyncio", "trio")
    followers: tuple[str, ...] = ("asyncio", "trio")
    faults: tuple[str, ...] = tuple(FAULTS)
    kinds: tuple[str, ...] = tuple(KINDS)
    node: Literal[5, 6] | None = None
    """Version of BullMQ used by the Node actors."""


class Report(Struct):
    """Result of a run."""

    script: Script
    folder: Path
    acknowledged: int
    runs: int
    extra: int
    """Runs in addition to those that the kinds of jobs require."""
    faults: int
    violations: list[Violation]
    remarks: list[Violation]
    """Problems that taskbull did not cause."""


def perform(script: Script, place: Place) -> Report:
    """Run a script in a dedicated environment."""
    folder = Path(tempfile.mkdtemp(prefix=f"taskbull-nemesis-{script.seed}-"))
    run = Run(script, place, folder)
    with run.stack:
        run.begin()
        run.torment()
        run.settle()
    book = ledger.read(folder)
    found = run.troubles + check_all(run.truth, book)
    (folder / "violations.txt").write_text("\n\n".join(str(one) for one in found))
    return Report(
        script,
        folder,
        acknowledged=sum(
            any(one.said == "added" for one in answers) for answers in book.answers.values()
        ),
        runs=sum(len(runs) for runs in book.runs.values()),
        extra=count_extra(Case(run.truth, book)),
        faults=sum(fault.name != "starved" for fault in book.faults),
        violations=[one for one in found if not one.theirs],
        remarks=[one for one in found if one.theirs],
    )


class Run:
    """The processes and threads of one run."""

    def __init__(self, script: Script, place: Place, folder: Path) -> None:
        self.stack = ExitStack()
        self.troubles: list[Violation] = []
        self._script = script
        self._place = place
        self._folder = folder
        self._ledger = ledger.Ledger(folder, "nemesis")
        self._over = threading.Event()
        self._ended = threading.Event()
        self._operator = self._make_app(place.url)
        self._prober = self._make_app(place.direct_url)
        self.stack.callback(self._ledger.close)
        common = (place.url, str(folder))
        numbers = (str(script.rate), str(script.seed), ",".join(script.kinds))
        self._workers = [
            self._actor(name, python("worker", *common, after=(name, backend)))
            for name, backend in ((f"worker-{n}-{b}", b) for n, b in enumerate(script.workers, 1))
        ]
        self._producers = [
            self._actor(f"producer-{one}", python("producer", *common, after=(one, *numbers)))
            for one in script.producers
        ]
        self._followers = [
            self._actor(f"follower-{n}-{backend}", python("follower", *common, after=(backend,)))
            for n, backend in enumerate(script.followers, 1)
        ]
        if script.node is not None:
            self._workers.append(self._node("worker"))
            self._producers.append(self._node("producer"))

    def begin(self) -> None:
        """Start all actors, and return when every worker has run a job."""
        watch = threading.Thread(target=self._watch_machine)
        watch.start()
        self.stack.callback(watch.join)
        self.stack.callback(self._ended.set)
        for queue in QUEUES:
            keep_all_events(self._place, queue)
        self._ledger.note(ledger.Intent, intent="beat", kind="beat", queue=MAIN)
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
        """Inject the planned faults for the duration of the script."""
        script = self._script
        possible = [name for name in script.faults if FAULTS[name].possible(self._place.kind)]
        plan = make_plan(script.seed, script.seconds, possible)
        (self._folder / "plan.json").write_bytes(
            msgspec.json.format(msgspec.json.encode(plan), indent=1)
        )
        scene = Scene(self._place, self._operator, self._workers, self._producers, self._over)
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
        """Repair everything, drain the queues, check the workers again, and stop all processes."""
        self._place.heal()
        if surprise := self._place.surprise():
            self._trouble(0, f"{surprise}: this run proves nothing")
        for queue in QUEUES:
            keep_trying(self._prober.sync_queue(queue).resume)
        for actor in self._producers:  # Stop Node last, because it removes its scheduler.
            if actor.name == NODE_PRODUCER:
                self._await_ticks("tick")
            self._expect_end(actor, actor.finish())
        self._await_ticks("beat")
        self._ledger.note(ledger.Called, what=ledger.END_OF_SCHEDULE, deadline=0.0, took=0.0)
        try:
            wait_until(self._is_drained, "the queues are drained", DRAIN_LIMIT)
        except AssertionError as error:
            self._trouble(2, f"{error}: {open_jobs(self._place)}")
        self._probe_workers()
        for actor in self._workers:
            self._expect_end(actor, actor.terminate())
        self.truth = read_truth(self._place)
        self._await_followers()

    def _is_drained(self) -> bool:
        """Return True if all jobs except those of the schedule have finished.

        A worker that starts during faults may declare the schedule again.
        """
        keep_trying(self._end_schedule)
        return not open_jobs(self._place)

    def _end_schedule(self) -> None:
        self._prober.sync_queue(MAIN).remove_schedule("beat")

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
        """Record when the machine is so busy that processes stop making progress."""
        while not self._ended.is_set():
            began = time.time()
            time.sleep(0.1)
            if time.time() - began > STARVED:
                self._ledger.note(ledger.Fault, name="starved", target="the machine", began=began)

    def _probe_workers(self) -> None:
        """Let every worker run a new job that reports its state."""
        seen = {actor.who: self._vitals(actor) for actor in self._workers}
        for actor in self._workers:
            probe = self._prober.tasks["probe"].options(queue=probe_queue(actor.name))
            keep_trying(lambda probe=probe: probe.delay(added=time.time()))  # type: ignore[misc]
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

    def _await_ticks(self, schedule: str) -> None:
        """Check that the schedule still runs after all faults."""
        seen = ticks(self._place, schedule)
        what = f"the schedule {schedule} ticks"
        try:
            wait_until(lambda: ticks(self._place, schedule) > seen + 1, what, PROBE_LIMIT)
        except AssertionError as error:
            self._trouble(2, str(error))

    def _await_followers(self) -> None:
        """Give the followers time to read the streams to the end."""
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
        self.troubles.append(Violation(rule, what, []))

    def _actor(self, name: str, command: Command) -> Actor:
        actor = Actor(name, self._folder, command)
        self.stack.callback(actor.close)
        return actor

    def _node(self, role: str) -> Actor:
        name, script = f"node-{role}", self._script
        where = msgspec.json.encode(self._place.for_node()).decode()
        after = (name, str(script.node), str(script.rate))
        return self._actor(name, node(role, where, str(self._folder), after=after))

    def _make_app(self, url: str) -> App:
        app = App("operator", redis=url, prefix=PREFIX, enqueue_timeout=10.0)
        app.task(name="probe")(_probe)
        self.stack.callback(app.close)
        return app


def _probe(added: float) -> None:
    """Placeholder for the workers' task of this name."""
