"""The size of a worker's process pool, and the concurrency of the queues that use it."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from taskbull.app.batch import is_batch
from taskbull.app.pool.source import AppSource
from taskbull.app.task import Task
from taskbull.core.job import ExecutionMode
from taskbull.core.options import QueueOptions, WorkerOptions
from taskbull.worker.pool.pool import PoolPlan


def plan_pool(
    tasks: Iterable[Task[..., Any]],
    queues: Collection[str],
    options: WorkerOptions,
    source: Callable[[Iterable[str]], AppSource],
) -> PoolPlan | None:
    """Return the pool configuration for a worker of these queues.

    Return `None` if no task has `process=True`. The processes start with the worker if one of its
    queues is the home queue of such a task, otherwise with the first job.
    """
    wanted = [task for task in tasks if task.execution_mode is ExecutionMode.PROCESS]
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
    """Return the default pool size: the available cores divided by the number of workers."""
    affinity = getattr(os, "sched_getaffinity", None)  # not available on macOS
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return max(1, cores // workers)


def with_pool(
    rules: Mapping[str, QueueOptions],
    options: WorkerOptions,
    tasks: Collection[Task[..., Any]],
    size: int,
) -> dict[str, QueueOptions]:
    """Return the queue options with concurrency limited by the pool size.

    The limit applies to queues that only have process tasks. Without it, jobs would wait here for a
    process while another worker could run them. Batch tasks may fetch jobs for one more call.
    """
    found = dict(rules)
    for name, rule in rules.items():
        here = [task for task in tasks if task.queue == name]
        if here and all(task.execution_mode is ExecutionMode.PROCESS for task in here):
            most = max(_most_of(task, size) for task in here)
            concurrency = min(rule.over(options).concurrency, most)
            found[name] = replace(rule, concurrency=concurrency)
    return found


def _most_of(task: Task[..., Any], size: int) -> int:
    """Return how many jobs of a task the pool can use, with one more batch for batch tasks."""
    if not is_batch(task):
        return size
    return task.batch.size * (min(task.batch.parallel, size) + 1)
