"""The rules detect violations: a small correct run, corrupted in many ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.nemesis.kinds import ITEMS, LIMITED, MAIN, SIGNAL_TIMEOUT, STEPS
from tests.nemesis.ledger import (
    END_OF_SCHEDULE,
    Answer,
    Book,
    Called,
    Fault,
    Heard,
    Intent,
    Record,
    Run,
    Signalled,
    StepNote,
    Streamed,
    Told,
    Vitals,
)
from tests.nemesis.rules import check_all
from tests.nemesis.rules.case import Case
from tests.nemesis.rules.continued import readers_get_all_items, steps_run_once, waits_get_signals
from tests.nemesis.rules.ended import (
    ended_as_asked,
    parents_after_children,
    parents_have_all_results,
    schedules_go_on,
)
from tests.nemesis.truth import STATES, Event, Queue, Truth

START = 1_700_000_000.0
WORKER = "worker-1-asyncio.1"


class Story:
    """One flaky job: added, taken, retried after a delay, taken again, completed."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.fields = {"data": '{"intent": "i"}', "atm": "2", "ats": "2", "returnvalue": '"i/2"'}
        self.states: dict[str, list[str]] = {state: [] for state in STATES}
        self.states["completed"] = ["1"]
        self.keys = {"meta": -1, "completed": -1, "1": -1, "tb:lane": 5000}
        self.names = ["added", "waiting", "active", "delayed", "waiting", "active", "completed"]
        self.note(Intent, 0.0, intent="i", kind="flaky", queue=MAIN)
        self.note(Answer, 0.1, intent="i", said="added", job="1")
        for number, end in ((1, "Retried"), (2, "Completed")):
            at = float(number)
            self.note(Run, at, queue=MAIN, job="1", kind="flaky", intent="i", number=number)
            value = '"i/2"' if end == "Completed" else ""
            self.tell(end, number, value)
        self.note(Called, 0.1, what="enqueue", deadline=2.0, took=0.1)
        for at in (0.0, 5.0):
            self.note(Vitals, at, threads=5, sockets=5, memory=50_000_000, late=0.01)
        for place in range(len(self.names)):
            self.note(Heard, 3.0 + place, queue=MAIN, id=_id(place), name="", job="1")

    def note(self, kind: type[Record], at: float, /, **fields: Any) -> None:
        self.records.append(kind(at=START + at, who=fields.pop("who", WORKER), **fields))

    def tell(self, event: str, number: int, value: str = "") -> None:
        self.note(Told, number + 0.5, event=event, queue=MAIN, job="1", number=number, value=value)

    def forget(self, kind: type[Record]) -> None:
        self.records = [one for one in self.records if not isinstance(one, kind)]

    def broken_rules(self) -> set[int]:
        book = Book()
        for record in self.records:
            book.add(record)  # type: ignore[arg-type]
        stream = [
            Event(_id(place), name, "1", {"event": name, "returnvalue": '"i/2"'})
            for place, name in enumerate(self.names)
        ]
        queue = Queue(self.states, {"1": self.fields}, self.keys, stream, {"1": stream})
        empty = Queue({state: [] for state in STATES}, {}, {}, [], {})
        return {one.rule for one in check_all(Truth({MAIN: queue, LIMITED: empty}), book)}


def _id(place: int) -> str:
    return f"{int(START + 1) * 1000 + place}-0"


def test_a_good_run_breaks_no_rule() -> None:
    assert Story().broken_rules() == set()


def _lose(story: Story) -> None:
    story.names = []
    story.forget(Run)
    story.forget(Told)
    story.forget(Heard)
    story.note(Answer, 0.2, intent="gone", said="added", job="2")
    story.note(Intent, 0.0, intent="gone", kind="plain", queue=MAIN)


def _refuse(story: Story) -> None:
    story.forget(Answer)
    story.note(Answer, 0.1, intent="i", said="refused")


def _double(story: Story) -> None:
    story.note(Run, 1.0, queue=MAIN, job="2", kind="flaky", intent="i", number=1)


def _begin_early(story: Story) -> None:
    story.forget(Intent)
    story.note(Intent, 0.0, intent="i", kind="flaky", queue=MAIN, delay=9.0)


def _stall(story: Story) -> None:
    story.names[3:4] = ["waiting", "stalled"]
    story.forget(Told)
    story.forget(Heard)
    story.tell("Completed", 2, '"i/2"')


def _run_too_often(story: Story) -> None:
    story.names[3:3] = ["delayed", "waiting", "active"]
    story.note(Run, 1.7, queue=MAIN, job="1", kind="flaky", intent="i", number=3)
    story.fields["returnvalue"] = '"i/3"'


def _begin_before_child(story: Story) -> None:
    story.note(Intent, 0.0, intent="1", kind="flow_child", queue=MAIN, parent="1")


def _tell_failure(story: Story) -> None:
    story.forget(Told)
    story.tell("Retried", 1)
    story.tell("Failed", 2)


def _tell_another_value(story: Story) -> None:
    story.forget(Told)
    story.tell("Retried", 1)
    story.tell("Completed", 2, '"i/1"')


SPOILT: list[tuple[int, Callable[[Story], Any]]] = [
    (1, _lose),
    (1, _refuse),
    (1, _double),
    (1, lambda story: story.names.insert(0, "added")),
    (2, lambda story: story.states.update(completed=[], wait=["1"])),
    (2, lambda story: story.states.update(completed=[], failed=["1"])),
    (2, lambda story: story.fields.update(atm="3")),
    (2, lambda story: story.names.append("completed")),
    (2, _begin_early),
    (3, lambda story: story.fields.update(returnvalue='"i/1"')),
    (3, _stall),
    (
        3,
        lambda story: story.note(Run, 1.5, queue=MAIN, job="1", kind="flaky", intent="i", number=1),
    ),
    (3, _run_too_often),
    (4, _begin_before_child),
    (5, lambda story: story.tell("Retried", 1)),
    (5, lambda story: story.forget(Told)),
    (5, _tell_failure),
    (5, _tell_another_value),
    (5, lambda story: story.note(Heard, 9.0, queue=MAIN, id=_id(0), name="", job="1")),
    (6, lambda story: story.keys.update({"1:lock": 100})),
    (6, lambda story: story.keys.update({"dn:key": -1})),
    (6, lambda story: story.states["completed"].append("9")),
    (7, lambda story: story.note(Vitals, 6.0, threads=50, sockets=5, memory=0, late=0.0)),
    (7, lambda story: story.note(Vitals, 6.0, threads=5, sockets=5, memory=0, late=60.0)),
    (8, lambda story: story.note(Called, 20.0, what="enqueue", deadline=2.0, took=12.0)),
]


@pytest.mark.parametrize(("rule", "spoil"), SPOILT)
def test_a_spoilt_run_breaks_the_rule(rule: int, spoil: Callable[[Story], Any]) -> None:
    story = Story()
    spoil(story)
    assert rule in story.broken_rules()


def case_of(jobs: dict[str, dict[str, str]], *records: Record) -> Case:
    """Make a run of these jobs, all in one queue."""
    book = Book()
    for record in records:
        book.add(record)  # type: ignore[arg-type]
    events = {job: [Event(_id(0), "active", job, {})] for job in jobs}
    queue = Queue({state: [] for state in STATES}, jobs, {}, [], events)
    return Case(Truth({MAIN: queue}), book)


@pytest.mark.parametrize(
    ("given", "broken"),
    [
        ('["p/1","a/1","b/2"]', 0),
        ('["p/1","a/1"]', 1),
        ('["p/1","a/1","b/1"]', 1),
        ('["p/1","a/1","b/2","b/2"]', 1),
    ],
)
def test_a_parent_has_the_result_of_each_child_once(given: str, broken: int) -> None:
    results = {"p": given, "a": '"a/1"', "b": '"b/2"'}
    jobs = {
        name: {"data": f'{{"intent": "{name}"}}', "returnvalue": value}
        for name, value in results.items()
    }
    kinds = {"p": "family", "a": "family_child", "b": "family_child"}
    intents = [
        Intent(
            at=START, who="", intent=name, kind=kind, queue=MAIN, parent="" if name == "p" else "p"
        )
        for name, kind in kinds.items()
    ]
    assert len(list(parents_have_all_results(case_of(jobs, *intents)))) == broken


@pytest.mark.parametrize(
    ("beats", "broken"),
    [([0, 500, 1000], 0), ([0, 500, 700], 1), ([0, 500, 2600], 0), ([0, 500, 10_000], 1)],
)
def test_a_schedule_keeps_its_beat(beats: list[int], broken: int) -> None:
    first = int(START) * 1000
    jobs = {f"repeat:beat:{first + beat}": {"data": '{"intent": "beat"}'} for beat in beats}
    assert len(list(schedules_go_on(case_of(jobs)))) == broken
    fault = Fault(at=START + 5, who="", name="freeze", target=WORKER, began=START + 1)
    assert len(list(schedules_go_on(case_of(jobs, fault)))) == (1 if 700 in beats else 0)


def test_what_a_fault_explains_is_no_violation() -> None:
    story = Story()
    _stall(story)
    story.note(Fault, 2.0, name="freeze", target=WORKER, began=START)
    assert story.broken_rules() == set()


def test_a_killed_worker_may_have_emitted_no_event() -> None:
    story = Story()
    story.forget(Told)
    story.note(Fault, 2.0, name="kill", target=WORKER, began=START)
    assert story.broken_rules() == set()


def test_a_schedule_that_is_declared_again_while_it_is_removed_is_no_violation() -> None:  # H10
    first = int(START) * 1000
    beats = (0, 500, 600)
    jobs = {f"repeat:beat:{first + beat}": {"data": '{"intent": "beat"}'} for beat in beats}
    end = Called(at=START + 0.55, who="", what=END_OF_SCHEDULE, deadline=0.0, took=0.0)
    assert list(schedules_go_on(case_of(jobs, end))) == []


@pytest.mark.parametrize(("who", "theirs"), [("node-producer.1", True), ("producer-sync.1", False)])
def test_a_flow_that_bullmq_has_sent_twice_is_not_ours(who: str, theirs: bool) -> None:  # H10
    parent = Intent(at=START, who=who, intent="p", kind="flow_parent", queue=MAIN)
    child = Intent(at=START, who=who, intent="c", kind="flow_child", queue=MAIN, parent="p")
    names = [("p", "active"), ("p", "duplicated"), ("c", "added"), ("c", "completed")]
    stream = [Event(_id(place), name, job, {}) for place, (job, name) in enumerate(names)]
    events = {job: [event for event in stream if event.job == job] for job in ("p", "c")}
    book = Book()
    book.add(parent)
    book.add(child)
    queue = Queue({state: [] for state in STATES}, {}, {}, stream, events)
    [found] = parents_after_children(Case(Truth({MAIN: queue}), book))
    assert bool(found.theirs) is theirs


@pytest.mark.parametrize(
    ("error", "theirs"),
    [
        ("Error: Too many Cluster redirections.", True),
        ("ReplyError: READONLY You can't write against a read only replica.", True),
        ("ValueError", False),
    ],
)
def test_an_attempt_that_the_client_of_node_has_failed_is_not_ours(
    error: str, theirs: bool
) -> None:
    job = {"data": '{"intent": "p"}', "atm": "2", "stacktrace": f'["{error}"]'}
    case = case_of({"1": job}, Intent(at=START, who="", intent="p", kind="chatty", queue=MAIN))
    case.truth.queues[MAIN].states["completed"].append("1")
    [found] = [one for one in ended_as_asked(case) if "attempts" in one.what]
    assert bool(found.theirs) is theirs


def continued_case(kind: str, result: list[Any], *records: Record) -> Case:
    """Make a run of one job with id "1" and intent "i", which slept from START for 300 ms."""
    job = {"data": '{"intent": "i"}', "returnvalue": msgspec.json.encode(result).decode()}
    intent = Intent(at=START, who="", intent="i", kind=kind, queue=MAIN)
    run = Run(at=START, who=WORKER, queue=MAIN, job="1", kind=kind, intent="i", number=1)
    case = case_of({"1": job}, intent, run, *records)
    due = {"delay": str(int(START * 1000) + 300)}
    case.truth.queues[MAIN].events["1-sleep-1"] = [Event(_id(0), "delayed", "1-sleep-1", due)]
    case.truth.queues[MAIN].events["1"].append(Event(_id(9), "completed", "1", {}))
    return case


def step_note(at: float, number: int, value: str = "") -> StepNote:
    """Make the note of an execution of step 0 in run `number`, or of its return."""
    own = value or f"i/{number}:0"
    returned = bool(value)
    return StepNote(
        at=START + at, who="", intent="i", number=number, place=0, value=own, returned=returned
    )


STEP = (step_note(0.0, 1), step_note(0.1, 1, "i/1:0"))


@pytest.mark.parametrize(
    ("notes", "broken"),
    [
        (STEP, False),
        ((*STEP, step_note(1.0, 2, "i/1:0")), False),
        ((*STEP, step_note(1.0, 1)), True),
        ((*STEP, step_note(1.0, 2)), True),
        ((*STEP, step_note(1.0, 2, "i/2:0")), True),
        ((step_note(0.0, 1), step_note(1.0, 2), step_note(1.1, 2, "i/2:0")), True),
    ],
)
def test_a_stored_step_is_not_executed_again(notes: tuple[StepNote, ...], broken: bool) -> None:
    others = [
        StepNote(at=START, who="", intent="i", number=1, place=place, value="i/1:0", returned=True)
        for place in range(1, STEPS)
    ]
    last = [note.value for note in notes if note.returned][-1]
    case = continued_case("steps", ["i/2", last, *["i/1:0"] * (STEPS - 1)], *notes, *others)
    assert any(steps_run_once(case)) is broken


def test_a_fault_explains_a_step_that_was_not_stored() -> None:
    notes = (step_note(0.0, 1), step_note(1.0, 2))
    fault = Fault(at=START, who="", name="kill", target=WORKER, began=START)
    assert len(list(steps_run_once(case_of({}, *notes)))) == 0
    returned = step_note(1.1, 2, "i/2:0")
    assert len(list(steps_run_once(case_of({}, *notes, returned)))) == 1
    assert len(list(steps_run_once(case_of({}, *notes, returned, fault)))) == 0


@pytest.mark.parametrize(
    ("values", "said", "at", "broken"),
    [
        ([0, 1], "added", 1.0, 0),
        ([0, 1], "maybe", 1.0, 0),
        ([0, None], "maybe", 1.0, 0),
        ([0, None], "added", SIGNAL_TIMEOUT + 1, 0),
        ([0, None], "added", 1.0, 1),
        ([0, 1], "refused", 1.0, 1),
        ([1, 0], "added", 1.0, 1),
        ([0, 0], "maybe", 1.0, 1),
    ],
)
def test_each_wait_gets_the_next_signal(
    values: list[int | None], said: Any, at: float, broken: int
) -> None:
    signals = (
        Signalled(at=START, who="", intent="i", value=0, said="added"),
        Signalled(at=START, who="", intent="i", value=1, said="maybe"),
        Signalled(at=START + at, who="", intent="i", value=1, said=said),
    )
    case = continued_case("waiting", ["i/1", *values], *signals)
    assert len(list(waits_get_signals(case))) == broken


def test_a_job_that_ends_before_its_sleep_is_over_is_a_violation() -> None:
    case = continued_case("waiting", ["i/1", None, None])
    assert list(waits_get_signals(case)) == []
    [slept] = case.truth.queues[MAIN].events.pop("1-sleep-1")
    assert len(list(waits_get_signals(case))) == 1
    late = Event(slept.id, "delayed", slept.job, {"delay": str(int(START + 60) * 1000)})
    case.truth.queues[MAIN].events["1-sleep-1"] = [late]
    assert len(list(waits_get_signals(case))) == 1


FIRST_RUN = [f"i/1:{number}" for number in range(ITEMS)]


@pytest.mark.parametrize(
    ("items", "broken"),
    [
        (FIRST_RUN, 0),
        (FIRST_RUN[1:], 1),
        (FIRST_RUN[:-1], 1),
        ([*FIRST_RUN, FIRST_RUN[-1]], 1),
        (FIRST_RUN[::-1], 1),
    ],
)
def test_a_reader_gets_each_item_once_and_in_order(items: list[str], broken: int) -> None:
    read = Streamed(at=START, who="", intent="i", items=items)
    case = continued_case("streaming", FIRST_RUN, read)
    assert len(list(readers_get_all_items(case))) == broken
    assert len(list(readers_get_all_items(continued_case("streaming", items)))) == broken
