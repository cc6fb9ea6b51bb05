"""(1) Acknowledged jobs exist once, and definitely refused ones do not exist."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.nemesis.kinds import KINDS
from tests.nemesis.ledger import Intent
from tests.nemesis.rules.case import Case, Violation

FORGETTING: Final = {"flush_scripts", "crash_server", "fail_over", "kill_master"}
"""Faults after which a server lacks scripts."""

FLOWS: Final = "BullMQ's FlowProducer does not look at the answers inside its MULTI"


RESENT: Final = "BullMQ's FlowProducer sends its MULTI again after a lost reply"


def acknowledged_once(case: Case) -> Iterator[Violation]:
    """Compare the replies to producers with the jobs that exist or existed."""
    for intent, intended in case.book.intents.items():
        if KINDS[intended.kind].many:
            continue
        said = {answer.said for answer in case.book.answers[intent]}
        jobs = case.jobs[intent]
        if "added" in said:
            yield from _added_once(case, intent)
        elif said == {"refused"} and jobs:
            yield case.violation(1, f"{intent} was refused, and is there", min(jobs), intent)
        if len(jobs) > 1:
            yield case.violation(1, f"{intent} is there {len(jobs)} times", min(jobs), intent)
    for key in case.takings:
        names = case.names(key)
        if names["added"] > 1:
            yield case.violation(1, f"job {key} was added {names['added']} times", key)
        if len(case.intents[key]) > 1:
            yield case.violation(1, f"job {key} is of two intents: {case.intents[key]}", key)


def _added_once(case: Case, intent: str) -> Iterator[Violation]:
    kind = KINDS[case.book.intents[intent].kind]
    queue = case.book.intents[intent].queue
    ids = {one.job for one in case.book.answers[intent] if one.said == "added" and one.job}
    theirs = FLOWS if is_lost_flow(case, intent) else ""
    if len(ids) > 1:
        yield case.violation(1, f"{intent} was acknowledged as {sorted(ids)}", None, intent)
    for job in ids:
        key = (queue, job)
        names = case.names(key)
        if not names["added"]:
            what = f"{intent} was acknowledged, and never added"
            yield case.violation(1, what, key, intent, theirs)
        elif names["removed"] and kind.name == "debounced":
            continue  # A later one replaced it.
        elif not case.stored(key) and kind.kept:
            yield case.violation(1, f"{intent} was acknowledged, and is gone", key, intent)
    if not ids and not case.jobs[intent]:
        yield case.violation(1, f"{intent} was acknowledged, and is not there", None, intent)


def is_lost_flow(case: Case, intent: str) -> bool:
    """Return True if BullMQ's producer lost a part of this flow."""
    intended = case.book.intents[intent]
    if not KINDS[intended.kind].flow:
        return False
    family = _family(case, intent)
    if all(case.names((one.queue, one.intent))["added"] for one in family):
        return False
    answered = max((one.at for one in case.book.answers[intent]), default=intended.at)
    return any(
        fault.began < answered
        and (fault.name in FORGETTING or (fault.name == "fill_memory" and fault.at > intended.at))
        for fault in case.book.faults
    )


def is_resent_flow(case: Case, intent: str) -> bool:
    """Return whether BullMQ added a job of this flow twice.

    That gives new children to a parent that may have started.
    """
    by_node = case.book.intents[intent].who.startswith("node-")
    return by_node and any(
        case.names((one.queue, one.intent))["duplicated"] for one in _family(case, intent)
    )


def _family(case: Case, intent: str) -> list[Intent]:
    root = case.book.intents[intent].parent or intent
    return [one for one in case.book.intents.values() if root in (one.intent, one.parent)]
