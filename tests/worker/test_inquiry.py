from __future__ import annotations

import pytest

from taskbull.errors import MaybeExecuted, ServerRefused, TaskbullError
from taskbull.worker.cycle import pause_after


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (MaybeExecuted("the link was cut"), [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]),
        (ServerRefused("OOM", "OOM"), [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6]),
    ],
)
def test_a_link_that_was_cut_is_tried_again_sooner_than_a_server_that_refuses(
    error: TaskbullError, seconds: list[float]
) -> None:
    pauses = [pause_after(failures, error, chance=0.5) for failures in range(1, 10)]
    assert pauses == pytest.approx(seconds)
