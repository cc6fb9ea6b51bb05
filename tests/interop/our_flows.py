"""taskbull's flow producer behind BullMQ's interface."""

from __future__ import annotations

import uuid
from collections import deque
from typing import Any

from msgspec.structs import replace

from taskbull.core.keys import QueueKeys
from taskbull.scripts.add import FlowNode, Waits
from tests.interop.actor import Options
from tests.interop.our_producer import encode


def flow_nodes(flow: Options, prefix: str, now_ms: int) -> tuple[list[FlowNode], Options]:
    """Return the jobs of a flow, level by level, and the tree of their ids."""
    nodes: list[FlowNode] = []
    root: dict[str, Any] = {}
    left: deque[tuple[Options, Options | None, dict[str, Any]]] = deque([(flow, None, root)])
    while left:
        job, parent, ids = left.popleft()
        keys = QueueKeys(job["queueName"], job.get("prefix", prefix))
        opts: dict[str, Any] = {"parent": parent} if parent is not None else {}
        opts |= job.get("opts") or {}
        own = opts.get("jobId") or str(uuid.uuid4())
        children = job.get("children") or ()
        encoded = replace(encode({**job, "opts": opts}, now_ms), job_id=own)
        nodes.append(FlowNode(keys, encoded, Waits.FOR_THESE if children else Waits.FOR_NONE))
        ids |= {"id": own, "children": [{} for _ in children]}
        link = {"id": own, "queue": keys.qualified_name}
        left.extend((child, link, ids["children"][n]) for n, child in enumerate(children))
    return nodes, root
