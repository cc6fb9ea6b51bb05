"""Two versions of BullMQ at one queue: running workers, listeners, and pausing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from redis import Redis

from tests.interop.actor import Actor
from tests.interop.conftest import MakeActor
from tests.interop.live import LIVE
from tests.interop.node import Version
from tests.interop.pausing import SEQUENCES, PauseSequence, perform

pytestmark = pytest.mark.full  # BullMQ alone, without taskbull.

PAIRS = [(5, 5), (5, 6), (6, 5), (6, 6)]


@pytest.mark.parametrize(("first", "second"), PAIRS)
@pytest.mark.parametrize("live", LIVE, ids=lambda live: live.__name__)
def test_two_implementations_at_one_queue(
    live: Callable[[Redis, Actor, Actor], None],
    first: Version,
    second: Version,
    redis: Redis,
    new_actor: MakeActor,
) -> None:
    a = new_actor(first)
    live(redis, a, new_actor(second, a.prefix))


@pytest.mark.parametrize("sequence", SEQUENCES, ids=lambda sequence: sequence.name)
def test_a_pause_in_a_mixed_fleet(
    sequence: PauseSequence, redis: Redis, new_actor: MakeActor
) -> None:
    five = new_actor(5)
    lost = perform(sequence, redis, {"5": five, "6": new_actor(6, five.prefix)})
    assert len(lost) == sequence.loses
