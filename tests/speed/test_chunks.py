"""No call blocks the server: with any backlog, each call does bounded work.

The duration of a call depends on the machine. Its commands and bytes do not, so the tests count
them for each call of an operation, with few jobs and with many. The maximum per call must not grow.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec import structs

from taskbull.store.address import parse
from taskbull.store.server_process import ServerProcess
from tests.servers.kinds import KINDS
from tests.speed.bounds import check_not_grown
from tests.speed.chunks import OPERATIONS, play
from tests.speed.counting import Counter, Counts

WERE = {
    # Jobs that are encoded in the same ms share what they have in common. The bytes here are those
    # of jobs that do not, on a very slow machine; it was 4,641 and 126 received and sent.
    "add in bulk": Counts(commands=759, scripts=1, received=30_000, sent=7_000),
    "add 100 kB in bulk": Counts(commands=39, scripts=1, received=1_001_731, sent=300),
    "run what waits": Counts(commands=416, scripts=1, received=3_938, sent=6_480),
    "run what is due at one moment": Counts(commands=722, scripts=1, received=3_938, sent=7_180),
    "promote all": Counts(commands=209, scripts=1, received=280, sent=18),
    "retry all": Counts(commands=408, scripts=1, received=334, sent=14),
    "clean completed": Counts(commands=54, scripts=1, received=207, sent=633),
    "drain": Counts(commands=56, scripts=1, received=189, sent=614),
    "obliterate": Counts(commands=54, scripts=1, received=376, sent=633),
    "sweep, all alive": Counts(commands=14, scripts=1, received=420, sent=25),
    "sweep, all dead": Counts(commands=421, scripts=1, received=417, sent=1_219),
}
"""The most that one call does, when the bounds were set. Write less when it is less."""

BYTES_SLACK = 0.01
"""The number of jobs that are left is longer where there are more of them."""


def most(calls: Sequence[Counts]) -> Counts:
    """Give the most that a call did of each kind."""
    return Counts(*map(max, zip(*map(structs.astuple, calls), strict=True)))


@pytest.mark.full
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("kind", KINDS[:1], indirect=True)  # it was the same on all kinds
def test_a_call_does_no_more_however_many_jobs_there_are(
    operation: str, lone_server: ServerProcess
) -> None:
    url = lone_server.url
    counter = Counter(parse(url))
    jobs = OPERATIONS[operation].many
    play(operation, url, counter.count, 2)  # Loads the scripts. A single job has a separate one.
    few = most(play(operation, url, counter.count, jobs // 10))
    many = most(play(operation, url, counter.count, jobs))
    counter.close()
    print(f"{jobs // 10:,} jobs: {few}\n{jobs:,} jobs: {many}")
    assert many.commands == few.commands, f"{many} of {jobs:,} jobs, {few} of {jobs // 10:,}"
    found, were = structs.asdict(many), structs.asdict(WERE[operation])
    check_not_grown(found, {name: were[name] for name in ("commands", "scripts")})
    check_not_grown(found, {name: were[name] for name in ("received", "sent")}, BYTES_SLACK)
