"""Delivery of events to listeners. Events without a listener are not created."""

from __future__ import annotations

import logging

import pytest

from taskbull.core import events
from taskbull.core.job import Job
from taskbull.core.outcome import Complete, Release, Written
from taskbull.observability.logs import LogLines
from taskbull.worker.run import Listeners, Reporter, Run

LOGGER = "taskbull.worker"
DONE = Complete()


class Choosy:
    """Hears what it says it hears."""

    def __init__(self, *kinds: type[events.Event]) -> None:
        self.kinds = set(kinds)
        self.heard: list[events.Event] = []

    def wants(self, kind: type[events.Event]) -> bool:
        return kind in self.kinds

    def __call__(self, event: events.Event) -> None:
        self.heard.append(event)


def ended(count: int = 1, outcome: Written = DONE) -> list[Run]:
    return [Run(Job(id=str(n)), "t", 0.0, outcome=outcome) for n in range(count)]


def test_what_nobody_listens_to_is_not_wanted() -> None:
    listeners = Listeners()
    assert not listeners.wanted(events.Started)
    listeners.on(events.Ended, lambda _: None)
    assert listeners.wanted(events.Completed)
    assert not listeners.wanted(events.Started)
    listeners.on(events.Event, lambda _: None)
    assert listeners.wanted(events.Started)


def test_a_listener_that_chooses_is_asked_each_time() -> None:
    listeners, choosy = Listeners(), Choosy()
    listeners.on(events.Event, choosy)
    assert not listeners.wanted(events.Completed)
    choosy.kinds.add(events.Completed)
    assert listeners.wanted(events.Completed)
    assert not listeners.wanted(events.Started)


def test_a_listener_that_fails_when_asked_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Choosy):
        def wants(self, kind: type[events.Event]) -> bool:
            raise ValueError(kind)

    listeners = Listeners()
    listeners.on(events.Event, Broken())
    assert listeners.wanted(events.Completed)
    assert "A listener failed on Completed" in caplog.text


def test_log_lines_are_wanted_at_their_level(caplog: pytest.LogCaptureFixture) -> None:
    listeners = Listeners()
    listeners.on(events.Event, LogLines())
    for level, started, failed in (
        (logging.INFO, True, True),
        (logging.WARNING, False, True),
        (logging.CRITICAL, False, False),
    ):
        caplog.set_level(level, LOGGER)
        assert listeners.wanted(events.Started) is started
        assert listeners.wanted(events.Failed) is failed
    assert not listeners.wanted(events.Swept)  # it has no line


def test_each_job_of_a_batch_has_events(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, LOGGER)
    listeners, choosy = Listeners(), Choosy(events.Completed)
    listeners.on(events.Event, LogLines())
    listeners.on(events.Event, choosy)
    Reporter(listeners, "me", "q").written(ended(3))
    told = [event for event in choosy.heard if isinstance(event, events.Completed)]
    assert [(event.job.id, event.worker_id, event.queue) for event in told] == [
        (str(n), "me", "q") for n in range(3)
    ]


def test_completed_events_without_a_listener_are_not_emitted() -> None:
    listeners, choosy = Listeners(), Choosy()
    listeners.on(events.Event, choosy)
    reporter = Reporter(listeners, "me", "q")
    [run] = ended()
    reporter.started(run)
    reporter.written([run])
    assert choosy.heard == []
    reporter.written(ended(outcome=Release()))
    assert [type(event) for event in choosy.heard] == [events.Released]


def test_a_counter_that_fails_hinders_nobody(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def count_started(self, *_: object) -> None:
            raise ValueError("started")

        def count_ended(self, *_: object) -> None:
            raise ValueError("ended")

    listeners, choosy = Listeners(), Choosy(events.Completed)
    listeners.on(events.Event, choosy)
    listeners.counters.append(Broken())
    reporter = Reporter(listeners, "me", "q")
    [run] = ended()
    reporter.started(run)
    reporter.written([run])
    assert len(choosy.heard) == 1
    assert caplog.text.count("Could not count jobs") == 2
