"""Redelivery of a call after an error, with its steps performed by hand."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Any

import pytest
from hiredis import ReplyError
from hypothesis import given
from hypothesis import strategies as st

from taskbull.errors import ConnectionLost, ServerRefused, ServerUnavailable
from taskbull.store.address import Endpoint
from taskbull.store.protocol import (
    LONGEST_PAUSE,
    PATIENCE,
    REDIRECTIONS,
    Deadline,
    Leave,
    Load,
    Moved,
    Pause,
    Send,
    Step,
    redeliver,
)

ONE, TWO, THREE = (Endpoint("host", port) for port in (1, 2, 3))
LOADING = ReplyError("LOADING not yet")
READONLY = ReplyError("READONLY not me")
NOSCRIPT = ReplyError("NOSCRIPT which one?")
MOVED = ReplyError("MOVED 7 host:2")
ASK = ReplyError("ASK 7 host:2")
ASK_THREE = ReplyError("ASK 7 host:3")
TRYAGAIN = ReplyError("TRYAGAIN not all of them are here")
LOST = ConnectionLost("nobody there")


class Postman:
    """Performs steps: replies come from a list, and time passes only in pauses."""

    def __init__(
        self, replies: Iterable[Any] = (), deadline: float = inf, *, keep_trying: bool = True
    ) -> None:
        self.now = 100.0
        self.steps: list[Step] = []
        self._replies = iter(replies)
        self._limit = Deadline(None if deadline == inf else deadline, lambda: self.now)
        self._insist = keep_trying

    def redeliver(self, first: Any) -> Any:
        """Return the final reply, or raise its error."""
        redelivery = redeliver((ONE, first), self._limit, keep_trying=self._insist)
        answer = None
        try:
            while True:
                step = redelivery.send(answer)
                self.steps.append(step)
                answer = self._perform(step)
        except StopIteration as end:
            return end.value

    def _perform(self, step: Step) -> tuple[Endpoint, Any] | None:
        match step:
            case Send(node, _):
                return node or ONE, next(self._replies)
            case Pause(seconds):
                self.now += seconds
        return None

    @property
    def without_pauses(self) -> list[Step]:
        return [step for step in self.steps if not isinstance(step, Pause)]

    @property
    def pauses(self) -> list[float]:
        return [step.seconds for step in self.steps if isinstance(step, Pause)]


@pytest.mark.parametrize("reply", [b"bytes", 7, None, [], [b"a", 1]])
def test_a_true_reply_needs_no_step(reply: Any) -> None:
    postman = Postman()
    assert postman.redeliver(reply) == reply
    assert postman.steps == []


def test_a_server_that_cannot_serve_now_is_asked_again_after_a_pause() -> None:
    postman = Postman([LOADING, b"there"])
    assert postman.redeliver(LOADING) == b"there"
    first, second = postman.pauses
    assert postman.steps == [Pause(first), Send(), Pause(second), Send()]
    assert 0 < first < second


def test_a_primary_no_more_is_left_before_the_next_try() -> None:
    postman = Postman([b"there"])
    assert postman.redeliver(READONLY) == b"there"
    assert postman.steps == [Leave(ONE, str(READONLY)), Pause(postman.pauses[0]), Send()]


def test_a_missing_script_is_loaded_where_it_is_missing() -> None:
    postman = Postman([b"ran"])
    assert postman.redeliver(NOSCRIPT) == b"ran"
    assert postman.steps == [Load(ONE), Send(ONE)]


def test_a_moved_slot_is_noted_and_followed() -> None:
    postman = Postman([b"there"])
    assert postman.redeliver(MOVED) == b"there"
    assert postman.steps == [Moved(TWO), Send(TWO)]


def test_a_slot_on_its_way_is_asked_for_this_once_and_not_noted() -> None:
    postman = Postman([b"there"])
    assert postman.redeliver(ASK) == b"there"
    assert postman.steps == [Send(TWO, asking=True)]


def test_a_node_that_is_asked_and_lacks_the_script_is_asked_again() -> None:
    postman = Postman([NOSCRIPT, b"ran"])
    assert postman.redeliver(ASK) == b"ran"
    assert postman.steps == [Send(TWO, asking=True), Load(TWO), Send(TWO, asking=True)]


def test_a_script_missing_on_the_way_after_a_move_is_loaded_there() -> None:
    postman = Postman([NOSCRIPT, b"ran"])
    assert postman.redeliver(MOVED) == b"ran"
    assert postman.steps == [Moved(TWO), Send(TWO), Load(TWO), Send(TWO)]


def test_one_node_asks_to_ask_the_next() -> None:
    postman = Postman([ASK_THREE, b"there"])
    assert postman.redeliver(ASK) == b"there"
    assert postman.steps == [Send(TWO, asking=True), Send(THREE, asking=True)]


def test_a_move_ends_the_asking() -> None:
    postman = Postman([MOVED, NOSCRIPT, b"ran"])
    assert postman.redeliver(ASK) == b"ran"
    assert postman.steps == [
        *(Send(TWO, asking=True), Moved(TWO), Send(TWO)),
        *(Load(TWO), Send(TWO)),
    ]


def test_after_a_pause_the_way_is_looked_for_again_without_asking() -> None:
    postman = Postman([TRYAGAIN, NOSCRIPT, b"ran"])
    assert postman.redeliver(ASK) == b"ran"
    assert postman.without_pauses == [Send(TWO, asking=True), Send(), Load(ONE), Send(ONE)]


def test_an_error_of_the_call_itself_is_raised_and_nothing_is_repeated() -> None:
    postman = Postman()
    with pytest.raises(ServerRefused) as caught:
        postman.redeliver(ReplyError("WRONGTYPE not that"))
    assert caught.value.code == "WRONGTYPE"
    assert postman.steps == []


def test_an_error_after_trouble_is_raised_too() -> None:
    postman = Postman([NOSCRIPT, ReplyError("OOM no")])
    with pytest.raises(ServerRefused) as caught:
        postman.redeliver(LOADING)
    assert caught.value.code == "OOM"


def test_patience_has_an_end() -> None:
    postman = Postman([LOADING] * 1000)
    with pytest.raises(ServerUnavailable) as caught:
        postman.redeliver(LOADING)
    assert caught.value.code == "LOADING"
    assert PATIENCE <= postman.now - 100 <= PATIENCE + LONGEST_PAUSE


def test_pauses_grow_and_have_a_longest() -> None:
    postman = Postman([LOADING] * 1000)
    with pytest.raises(ServerUnavailable):
        postman.redeliver(LOADING)
    *pauses, _rest = postman.pauses
    assert pauses == sorted(pauses)
    assert pauses[0] <= 0.01
    assert pauses[-1] == LONGEST_PAUSE


@pytest.mark.parametrize("refusal", [LOADING, READONLY, LOST])
@pytest.mark.parametrize("limit", [0.3, 1.0, 3.0, 10.0])
def test_a_limit_ends_it_while_an_answer_could_still_come(refusal: Any, limit: float) -> None:
    postman = Postman([refusal] * 1000, deadline=limit)
    with pytest.raises(
        ConnectionLost, match=f"{limit:g} s: {refusal}|{refusal}; tried for {limit:g} s"
    ):
        postman.redeliver(refusal)
    assert limit / 2 < postman.now - 100 < limit


class SlowPostman(Postman):
    """A postman on a busy machine: replies take a while, and so does waking up."""

    def _perform(self, step: Step) -> tuple[Endpoint, Any] | None:
        self.now += 0.25 if isinstance(step, Send) else 0.05
        return super()._perform(step)


@given(st.floats(0.31, 20))
def test_a_refused_call_is_never_sent_with_less_time_left_than_answers_take(limit: float) -> None:
    postman = SlowPostman([LOADING] * 1000, deadline=limit)  # N5
    with pytest.raises(ServerUnavailable) as caught:
        postman.redeliver(LOADING)
    assert caught.value.code == "LOADING"
    assert postman.now - 100 <= max(limit, 0.41)


def test_a_deadline_that_has_passed_allows_no_further_try() -> None:
    postman = Postman(deadline=0.0)
    with pytest.raises(ServerUnavailable):
        postman.redeliver(READONLY)
    assert postman.steps == [Leave(ONE, str(READONLY))]  # the next call need not find out again


@pytest.mark.parametrize(
    ("reply", "steps"),
    [(TRYAGAIN, []), (READONLY, [Leave(ONE, str(READONLY))]), (LOST, [Leave(ONE, str(LOST))])],
)
def test_a_caller_without_retries_fails_immediately(reply: Any, steps: list[Step]) -> None:
    postman = Postman(keep_trying=False)
    with pytest.raises((ServerUnavailable, ConnectionLost)):
        postman.redeliver(reply)
    assert postman.steps == steps


def test_a_caller_without_retries_still_follows_redirections() -> None:
    postman = Postman([NOSCRIPT, b"ran"], keep_trying=False)
    assert postman.redeliver(ASK) == b"ran"


def test_a_lost_connection_is_waited_out_without_end() -> None:
    away = 100 * int(PATIENCE / LONGEST_PAUSE)
    postman = Postman([*[LOST] * away, b"back"])
    assert postman.redeliver(LOST) == b"back"
    assert postman.now - 100 > 10 * PATIENCE
    assert postman.without_pauses == [Leave(ONE, str(LOST)), Send()] * (away + 1)


def test_endless_redirections_are_given_up() -> None:
    postman = Postman([ASK_THREE, MOVED] * 100)
    with pytest.raises(ServerRefused) as caught:
        postman.redeliver(MOVED)
    assert caught.value.code in {"ASK", "MOVED"}
    assert sum(isinstance(step, Send) for step in postman.steps) == REDIRECTIONS


def test_a_script_that_never_stays_loaded_is_given_up() -> None:
    postman = Postman([NOSCRIPT] * 100)
    with pytest.raises(ServerRefused) as caught:
        postman.redeliver(NOSCRIPT)
    assert caught.value.code == "NOSCRIPT"
    assert postman.steps == [Load(ONE), Send(ONE)] * REDIRECTIONS


_TROUBLES = [LOADING, READONLY, NOSCRIPT, MOVED, ASK, ASK_THREE, TRYAGAIN, LOST]


@given(st.lists(st.sampled_from(_TROUBLES), max_size=40))
def test_whatever_is_met_it_ends_and_each_try_has_a_reason(met: list[Any]) -> None:
    postman = Postman([*met, b"there"])
    try:
        reply = postman.redeliver(LOADING)
    except ServerRefused:
        assert postman.steps
    else:
        assert reply == b"there"
        assert sum(isinstance(step, Send) for step in postman.steps) == len(met) + 1
