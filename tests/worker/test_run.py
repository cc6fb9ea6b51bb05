"""The runs that a worker holds: which are running, and whose lock is lost."""

from __future__ import annotations

import pytest

from taskbull.core.job import Job
from taskbull.core.outcome import Discard, Loss, Release
from taskbull.worker.run import Run, Runs

GONE = Discard(Loss.TAKEN)


def run(name: str = "1") -> Run:
    return Run(Job(id=name), "token", 0.0)


def held(*some: Run) -> Runs:
    runs = Runs()
    runs.add(*some)
    return runs


def test_a_run_that_ends_without_a_decision_gives_its_job_back() -> None:
    assert run().outcome == Release()
    assert not run().decided


def test_only_runs_that_have_begun_are_running() -> None:
    waiting, running = run("1"), run("2")
    running.began = 5.0
    runs = held(waiting, running)
    assert (len(runs), runs.running()) == (2, 1)


def test_a_copy_does_not_change() -> None:
    one = run()
    runs = held(one)
    copy = runs.copy()
    runs.drop(one)
    assert (copy, len(runs)) == ([one], 0)


def test_of_two_runs_of_a_job_the_newer_one_is_held() -> None:
    old, new = run(), run()
    runs = held(old, new)
    assert runs.copy() == [new]
    runs.drop(old)
    assert runs.copy() == [new]


@pytest.mark.parametrize(
    ("is_held", "is_decided", "is_news"),
    [
        (True, False, True),
        (True, True, False),  # The call that writes its outcome reports if the lock existed.
        (False, False, False),
        (False, True, False),
    ],
)
def test_a_lock_is_lost_only_while_its_job_runs(
    is_held: bool, is_decided: bool, is_news: bool
) -> None:
    one = run()
    runs = held(one) if is_held else Runs()
    one.decided = is_decided
    assert runs.revoke(one, GONE) is is_news
    assert one.lost is (GONE if is_news else None)
    assert len(runs) == (is_held and not is_news)


def test_an_older_run_of_the_same_job_is_not_taken_for_it() -> None:
    old, new = run(), run()
    runs = held(old, new)
    assert not runs.revoke(old, GONE)
    assert runs.copy() == [new]
