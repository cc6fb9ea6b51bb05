"""Every case run by taskbull together with BullMQ leaves the same state as BullMQ alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import pytest
from _pytest.mark import ParameterSet
from redis import Redis

from tests.interop.actor import Actor
from tests.interop.cases import BY_HAND, CASES, RUNNING
from tests.interop.compare import ANY_VERSION, OUR_MEMORY, OUR_WAKE_UP, Difference, Exempt
from tests.interop.conftest import MakeActor, Solo
from tests.interop.live import LIVE
from tests.interop.node import Node, Version
from tests.interop.pausing import SEQUENCES, PauseSequence, Role, perform
from tests.interop.runner import WAYS, Runner, running
from tests.interop.stage import Case, clear, compare, play
from tests.interop.taskbull_actor import TaskbullActor
from tests.interop.test_cases import report
from tests.selection import in_full

MakeTaskbull = Callable[[Version], TaskbullActor]

AS_BULLMQ_6 = {
    "priority_just_above_its_limit",
    "keeping_the_last_of_two_newcomers",
    "keeping_the_last_with_its_own_id_and_delay",
    "a_worker_runs_the_last_newcomer",
    "a_failed_job_lets_the_last_newcomer_run",
    "doomed_jobs_do_not_count_in_a_window",
    "the_owner_is_gone",
    "a_retry_that_asks_for_the_next_job",
    "retrying_a_finished_prioritized_job",
    "retrying_with_all_attempts_anew",
    "retrying_an_idof_child",
    "cutting_a_child_off_twice",
    "a_child_whose_parent_is_gone",
    "a_slot_missed_by_part_of_an_interval",
    "every_so_often_with_an_offset",
    "an_offset_that_falls_on_this_moment",
    "another_rule_after_the_last_run",
    "a_changed_rule",
    "a_child_that_was_completed_before_the_flow",
    "all_children_were_completed_before_the_flow",
    "some_children_were_completed_before_the_flow",
}
"""If the versions differ, taskbull does as 6 does, whichever version it runs with."""

AS_BULLMQ_5 = {"an_upsert_while_paused"}
"""Cases in which 6 has a bug that 5 lacks."""

ON_PURPOSE = {
    "delay_zero_absent_and_negative": "a negative delay is refused",
    "forbidden_and_allowed_ids": "an empty id is refused, and not taken for none",
    "unknown_options_survive_a_retry": "maxDelay is an option that we understand",
    "size_limit_counts_utf8_bytes": "our limit is for data and options together",
    "the_job_is_not_active": "an outcome that is refused writes nothing",
    "jobs_with_attempts_that_mean_nothing": "such a job has one attempt, whose end is its last",
    "messages_of_every_kind": "an empty message is told as its class, and a huge one is cut",
    "draining_with_an_iteration_that_is_not_the_oldest": "BullMQ removes the wrong job's id",
    "what_obliterate_leaves_behind": "we leave nothing",
    "a_run_at_once_beside_one_of_the_same_moment": "a run that is active is not overwritten",
    "an_offset_and_a_start": "the first run has the offset, too",
}
"""Cases in which taskbull deliberately differs from both versions."""

EXEMPT = (*ANY_VERSION, OUR_MEMORY)


def sampled(cases: Sequence[Case]) -> list[ParameterSet]:
    """Return all cases, every twentieth of them marked to run through each store by default."""
    return [
        pytest.param(case, marks=[pytest.mark.everywhere] * (number % 20 == 0))
        for number, case in enumerate(cases)
    ]


def by_version_5() -> list[ParameterSet]:
    """Return all cases; the full run has most of those that BullMQ 5 and 6 treat alike."""
    kept = {case.name for case in CASES[::4]} | AS_BULLMQ_6 | AS_BULLMQ_5
    return [
        pytest.param(case) if case.name in kept and case not in RUNNING else in_full(case)
        for case in CASES
    ]


@pytest.fixture(scope="module", params=WAYS)
def runner(request: pytest.FixtureRequest, interop_url: str) -> Iterator[Runner]:
    with running(request.param, interop_url) as made:
        yield made


@pytest.fixture
def new_taskbull(node: Node, redis: Redis, runner: Runner, prefix: str) -> Iterator[MakeTaskbull]:
    """Create taskbull actors, each with the queue `q` of its own prefix."""
    used: list[TaskbullActor] = []
    fresh = (f"{prefix}-{n:03}" for n in itertools.count())

    def make(version: Version) -> TaskbullActor:
        used.append(TaskbullActor(node, version, next(fresh), runner))
        return used[-1]

    yield make
    for actor in used:
        node.call("forget", prefix=actor.prefix)
        clear(redis, actor.prefix)
    node.call("realClock")


@pytest.mark.parametrize("case", sampled(BY_HAND), ids=str)
def test_a_case_gives_the_same_as_by_bullmq_6_alone(
    case: Case, redis: Redis, new_taskbull: MakeTaskbull, solo: Solo
) -> None:
    _assert_same(case, compare(solo(case, 6), play(case, redis, new_taskbull(6)), exempt=EXEMPT))


@pytest.mark.parametrize("runner", ["asyncio", "trio"], indirect=True)
@pytest.mark.parametrize("case", RUNNING, ids=str)
def test_a_worker_that_runs_leaves_the_same_as_that_of_bullmq_6(
    case: Case, redis: Redis, new_taskbull: MakeTaskbull, solo: Solo
) -> None:
    found = compare(solo(case, 6), play(case, redis, new_taskbull(6)), exempt=_exempt(case))
    _assert_same(case, found)


def _exempt(case: Case) -> tuple[Exempt, ...]:
    return (*EXEMPT, OUR_WAKE_UP) if case in RUNNING else EXEMPT


def _assert_same(case: Case, found: list[Difference]) -> None:
    if case.name in ON_PURPOSE or case.name in AS_BULLMQ_5:
        assert found, f"no difference any more: {ON_PURPOSE.get(case.name, 'as BullMQ 5')}"
    else:
        assert not found, report(found)


@pytest.mark.parametrize("runner", ["sync"], indirect=True)
@pytest.mark.parametrize("case", by_version_5(), ids=str)
def test_a_case_gives_the_same_as_by_bullmq_5_alone(
    case: Case, redis: Redis, new_taskbull: MakeTaskbull, solo: Solo
) -> None:
    found = compare(solo(case, 5), play(case, redis, new_taskbull(5)), exempt=_exempt(case))
    if case.name in ON_PURPOSE or case.name in AS_BULLMQ_6:
        assert found, "no difference any more"
    else:
        assert not found, report(found)


@pytest.mark.parametrize("runner", ["asyncio", "trio"], indirect=True)
@pytest.mark.parametrize(
    ("version", "first"),
    [(5, "ours"), (6, "theirs"), in_full(5, "theirs"), in_full(6, "ours")],
)
@pytest.mark.parametrize("live", LIVE, ids=lambda live: live.__name__)
def test_node_and_python_workers_share_a_queue(
    live: Callable[[Redis, Actor, Actor], None],
    version: Version,
    first: str,
    redis: Redis,
    new_taskbull: MakeTaskbull,
    new_actor: MakeActor,
) -> None:
    ours = new_taskbull(version)
    ours.follow_clock()
    theirs = new_actor(version, ours.prefix)
    live(redis, *((ours, theirs) if first == "ours" else (theirs, ours)))


@pytest.mark.parametrize("runner", ["sync"], indirect=True)
@pytest.mark.parametrize("role", ["5", "6"])
@pytest.mark.parametrize("sequence", SEQUENCES, ids=lambda sequence: sequence.name)
def test_a_pause_with_taskbull_in_place_of_either_loses_no_more(
    sequence: PauseSequence,
    role: Role,
    redis: Redis,
    new_taskbull: MakeTaskbull,
    new_actor: MakeActor,
) -> None:
    ours = new_taskbull(5 if role == "5" else 6)
    other: Role = "6" if role == "5" else "5"
    node = new_actor(6 if role == "5" else 5, ours.prefix)
    fleet: dict[Role, Actor] = {role: ours, other: node}
    lost = perform(sequence, redis, fleet)
    if role == "5" and sequence.steps[-1] == ("5", "resume"):
        assert not lost  # Our resume never overwrites.
    assert len(lost) <= sequence.loses
