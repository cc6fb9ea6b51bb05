"""How big the process pool of a worker is, and how many jobs its queues take for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from taskbull.app.batch import is_batch
from taskbull.app.pool.source import AppSource
from taskbull.app.task import Task
from taskbull.core.job import Site
from taskbull.core.options import QueueOptions, WorkerOptions
from taskbull.worker.pool.pool_plan import PoolPlan


def plan_pool(
    tasks: Iterable[Task[..., Any]],
    queues: Collection[str],
    options: WorkerOptions,
    source: Callable[[Iterable[str]], AppSource],
) -> PoolPlan | None:
    """Return what pool a worker of these queues has; None: no task wants one.

    Its processes start with the worker if one of its queues is the home of such a task.
    """
    wanted = [task for task in tasks if task.site is Site.PROCESS]
    if not wanted:
        return None
    found = source(task.function.__module__ for task in wanted)
    return PoolPlan(
        size=options.process_pool or pool_size(1),
        app=found.app,
        modules=found.modules,
        script=found.script,
        tasks=[task.name for task in wanted],
        at_once=any(task.queue in queues for task in wanted),
        max_jobs=options.process_max_jobs,
        max_memory=options.process_max_memory,
        memory_limit=options.process_memory_limit,
    )


def pool_size(workers: int) -> int:
    """Return how many processes a pool has where nobody says: the cores, shared by the workers."""
    affinity = getattr(os, "sched_getaffinity", None)  # macOS has none
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return max(1, cores // workers)


def with_pool(
    rules: Mapping[str, QueueOptions],
    options: WorkerOptions,
    tasks: Collection[Task[..., Any]],
    size: int,
) -> dict[str, QueueOptions]:
    """Return the rules of queues, those with process tasks only taking no more jobs than run.

    What waited for a process here might run in another worker. Only what is gathered for the next
    call of a batch task waits.
    """
    found = dict(rules)
    for name, rule in rules.items():
        here = [task for task in tasks if task.queue == name]
        if here and all(task.site is Site.PROCESS for task in here):
            most = max(_most_of(task, size) for task in here)
            concurrency = min(rule.over(options).concurrency, most)
            found[name] = replace(rule, concurrency=concurrency)
    return found


def _most_of(task: Task[..., Any], size: int) -> int:
    """Return how many jobs of a task a pool can run, and of a batch task gather meanwhile."""
    if not is_batch(task):
        return size
    return task.batch.size * (min(task.batch.parallel, size) + 1)
