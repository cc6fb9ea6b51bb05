"""Events about the availability of Redis, from tables of connection changes."""

from __future__ import annotations

import pytest

from taskbull.core import events
from taskbull.store.connection import Change, Connected, DialFailed, LinkLost
from taskbull.worker.run import Availability, Listeners, Reporter

GONE = LinkLost("here", "the connection was closed")


def failed(attempts: int = 1, part: str = "") -> DialFailed:
    return DialFailed("nobody answers", attempts, 0.1, part)


def back(part: str = "") -> Connected:
    return Connected("here", 1, part)


def told(*changes: Change) -> tuple[Availability, list[events.Event]]:
    listeners, heard = Listeners(), list[events.Event]()
    listeners.on(events.Event, heard.append)
    availability = Availability(Reporter(listeners, "me", ""))
    for change in changes:
        availability.notice(change)
    return availability, heard


LOST, TRIED, BACK = events.RedisLost, events.ReconnectFailed, events.RedisBack


@pytest.mark.parametrize(
    ("changes", "kinds", "is_lost"),
    [
        ([GONE], [], False),  # the next link may be there at once
        ([GONE, back()], [], False),
        ([back()], [], False),
        ([GONE, failed()], [LOST, TRIED], True),
        ([failed(), failed(2)], [LOST, TRIED, TRIED], True),
        ([failed(), back()], [LOST, TRIED, BACK], False),
        ([failed(), back(), back()], [LOST, TRIED, BACK], False),  # a second connection
        ([failed(), back(), failed()], [LOST, TRIED, BACK, LOST, TRIED], True),
        ([failed(part="a"), failed(part="b"), back("a")], [LOST, TRIED, TRIED], True),
        (
            [failed(part="a"), failed(part="b"), back("a"), back("b")],
            [LOST, TRIED, TRIED, BACK],
            False,
        ),
        ([failed(part="a"), back("b")], [LOST, TRIED], True),  # That part was never unavailable.
    ],
)
def test_an_outage_is_reported_once(
    changes: list[Change], kinds: list[type[events.Event]], is_lost: bool
) -> None:
    availability, heard = told(*changes)
    assert [type(event) for event in heard] == kinds
    assert availability.lost is is_lost


def test_the_end_of_an_outage_tells_the_most_tries_of_any_connection() -> None:
    _, heard = told(failed(1), failed(4), failed(2), back())
    [end] = [event for event in heard if isinstance(event, events.RedisBack)]
    assert end.attempts == 4
    _, heard = told(failed(4), back(), failed(1), back())
    assert [event.attempts for event in heard if isinstance(event, events.RedisBack)] == [4, 1]
