"""Outcomes of jobs on their way to Redis."""

from __future__ import annotations

from taskbull.core.job import Job
from taskbull.core.outcome import Complete
from taskbull.worker.demand import BATCH, BATCH_BYTES, Outbox
from taskbull.worker.run import Run


def run(name: str, value: bytes = b"null") -> Run:
    return Run(Job(id=name), "token", 0.0, outcome=Complete(value))


def filled(*runs: Run) -> Outbox:
    outbox = Outbox()
    outbox.extend(runs)
    return outbox


def ids(batch: list[Run]) -> list[str]:
    return [one.job.id for one in batch]


def test_outcomes_go_together_in_their_order() -> None:
    outbox = filled(run("1"), run("2"))
    outbox.append(run("3"))
    assert ids(outbox.gather()) == ["1", "2", "3"]
    assert not outbox


def test_a_call_carries_a_bounded_number() -> None:
    outbox = filled(*(run(str(number)) for number in range(BATCH + 3)))
    assert len(outbox.gather()) == BATCH
    assert len(outbox.gather()) == 3


def test_a_call_carries_a_bounded_number_of_bytes() -> None:
    large = b"x" * (BATCH_BYTES // 2)
    outbox = filled(*(run(str(number), large) for number in range(5)))
    assert [len(outbox.gather()) for _ in range(3)] == [2, 2, 1]


def test_what_comes_back_is_before_all_others() -> None:
    outbox = filled(run("1"), run("2"), run("3"))
    batch = outbox.gather()
    outbox.append(run("4"))
    outbox.put_back(batch)
    assert ids(outbox.gather()) == ["1", "2", "3", "4"]


def test_after_a_refusal_those_that_wait_go_one_by_one() -> None:
    outbox = filled(run("1"), run("2"))
    outbox.unbatched = len(outbox)
    outbox.extend([run("3"), run("4")])
    batches = [ids(outbox.gather()) for _ in range(3)]
    assert batches == [["1"], ["2"], ["3", "4"]]
    assert not outbox.unbatched


def test_one_that_was_sent_by_itself_and_comes_back_goes_by_itself_again() -> None:
    outbox = filled(run("1"), run("2"))
    outbox.unbatched = len(outbox)
    batch = outbox.gather()
    outbox.put_back(batch, unbatched=True)
    assert ids(outbox.gather()) == ["1"]


def test_the_next_one_can_be_withdrawn() -> None:
    first, second = run("1"), run("2")
    outbox = filled(first, second)
    assert not outbox.withdraw(second)
    assert outbox.withdraw(first)
    assert ids(outbox.gather()) == ["2"]
