"""The parts, in the order in which they are run and told of."""

from __future__ import annotations

from benchmarks.parts import (
    backlog,
    batches,
    cluster,
    dashboard,
    drain,
    due,
    enqueue,
    flows,
    idle,
    latency,
    memory,
    payloads,
    processes,
    processes_cpu,
    starvation,
    threads,
    viewers,
)
from benchmarks.parts.part import Part

PARTS: dict[str, Part] = {
    module.PART.name: module.PART
    for module in (
        drain,
        enqueue,
        threads,
        latency,
        due,
        payloads,
        flows,
        batches,
        idle,
        backlog,
        memory,
        processes,
        processes_cpu,
        cluster,
        dashboard,
        viewers,
        starvation,
    )
}
