"""Children that a running job adds, wherever it runs."""

from __future__ import annotations

from uuid import uuid4

from taskbull.core.flow import Branch, Children, branches_of, queues_of
from taskbull.core.job import NewJob
from taskbull.core.keys import QueueKeys
from taskbull.scripts.call import Steps
from taskbull.scripts.spawn import Spawned, spawn
from taskbull.store.slot_map import check_slots
from taskbull.worker.run import Run, Spawning


def spawning(keys: QueueKeys, run: Run, children: Children, now_ms: int) -> Steps[Spawned]:
    """Return the operation that adds children to the job of a run."""
    parent = Branch(keys, NewJob("parent"), branches_of([children]))
    check_slots(queues_of(parent))
    return spawn(parent, run.job.id, run.spawned.new, now_ms, uuid4().hex, run.token)


def note_spawned(run: Run, spawned: Spawned) -> list[str]:
    """Note in a run what it has added; return the ids of the children."""
    run.spawned = Spawning(spawned.before, run.spawned.new + spawned.count)
    return spawned.ids
