"""What became of jobs, on its way to Redis."""

from __future__ import annotations

from taskbull.core.job import Job
from taskbull.core.outcome import Complete
from taskbull.core.retry import NO_POLICY
from taskbull.worker.demand import BATCH
from taskbull.worker.ending import Ending
from taskbull.worker.lease import Lease
from taskbull.worker.outbox import BATCH_BYTES, Outbox


def ending(name: str, value: bytes = b"null") -> Ending:
    return Ending(Lease(Job(id=name), "token", 0.0), Complete(value), NO_POLICY)


def filled(*endings: Ending) -> Outbox:
    outbox = Outbox()
    outbox.extend(endings)
    return outbox


def ids(batch: list[Ending]) -> list[str]:
    return [one.lease.job.id for one in batch]


def test_outcomes_go_together_in_their_order() -> None:
    outbox = filled(ending("1"), ending("2"))
    outbox.append(ending("3"))
    assert ids(outbox.gather()) == ["1", "2", "3"]
    assert not outbox


def test_a_call_carries_a_bounded_number() -> None:
    outbox = filled(*(ending(str(number)) for number in range(BATCH + 3)))
    assert len(outbox.gather()) == BATCH
    assert len(outbox.gather()) == 3


def test_a_call_carries_a_bounded_number_of_bytes() -> None:
    large = b"x" * (BATCH_BYTES // 2)
    outbox = filled(*(ending(str(number), large) for number in range(5)))
    assert [len(outbox.gather()) for _ in range(3)] == [2, 2, 1]


def test_what_comes_back_is_before_all_others() -> None:
    outbox = filled(ending("1"), ending("2"), ending("3"))
    batch = outbox.gather()
    outbox.append(ending("4"))
    outbox.put_back(batch)
    assert ids(outbox.gather()) == ["1", "2", "3", "4"]


def test_after_a_refusal_those_that_wait_go_one_by_one() -> None:
    outbox = filled(ending("1"), ending("2"))
    outbox.separate()
    outbox.extend([ending("3"), ending("4")])
    batches = [ids(outbox.gather()) for _ in range(3)]
    assert batches == [["1"], ["2"], ["3", "4"]]
    assert not outbox.apart


def test_one_that_was_sent_by_itself_and_comes_back_goes_by_itself_again() -> None:
    outbox = filled(ending("1"), ending("2"))
    outbox.separate()
    batch = outbox.gather()
    outbox.put_back(batch, apart=True)
    assert ids(outbox.gather()) == ["1"]


def test_the_next_one_can_be_withdrawn() -> None:
    first, second = ending("1"), ending("2")
    outbox = filled(first, second)
    assert not outbox.withdraw(second)
    assert outbox.withdraw(first)
    assert ids(outbox.gather()) == ["2"]
