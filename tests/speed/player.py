"""Runs plain jobs through the scripts with fixed data and times, so that each run is identical."""

from __future__ import annotations

from itertools import count

from msgspec.structs import replace

from taskbull.core.job import Job, NewJob
from taskbull.core.keys import QueueKeys
from taskbull.core.options import JobOptions
from taskbull.core.outcome import Complete
from taskbull.core.wire.flow import ChildEncoder
from taskbull.core.wire.job import encode_job
from taskbull.scripts.add import CallSequence, FlowChunk, FlowNode, Waits, add_flow, add_jobs
from taskbull.scripts.cycle import FetchOptions, Packed, cycle, pack_outcome
from taskbull.store.sync_store import SyncStore

NOW = 1_800_000_000_000
LATER = NOW + 3_600_000
ADDED_PER_CALL = 250
DATA = {"to": "ann@example.org", "subject": "Hi", "n": 1}
PLAIN = JobOptions(attempts=3, backoff=None, keep_completed=None, keep_failed=None, keep_logs=None)
DELAYED = JobOptions(
    attempts=3, backoff=None, keep_completed=None, keep_failed=None, keep_logs=None, delay=60
)
_TAKING = FetchOptions(30_000, worker_name="host-1234-abcdef")


class Player:
    """Adds plain jobs and runs them, like a worker with two calls in flight."""

    def __init__(self, store: SyncStore, queue: str = "counted") -> None:
        self.keys = QueueKeys(queue)
        self.store = store
        self._sequence = CallSequence("0d7b4a52-52a2-4f86-ae37-6a2a0a0d7c11", 0)
        self._calls = count(1)

    def add(self, jobs: int, per_call: int = ADDED_PER_CALL, options: JobOptions = PLAIN) -> None:
        """Add this many jobs."""
        job = encode_job(NewJob("noop", DATA, options), NOW)
        for first in range(0, jobs, per_call):
            self._sequence.begin_call()
            part = [job] * min(per_call, jobs - first)
            self.store.run(add_jobs(self.keys, part, NOW, self._sequence))

    def add_family(self, children: int, per_call: int = ADDED_PER_CALL) -> None:
        """Add a flow with this many children. The parent is in a queue that no worker serves."""
        parents = QueueKeys(f"{self.keys.queue}-parents")
        parent_id = f"parent-{next(self._calls)}"
        job = NewJob("noop", DATA, PLAIN)
        root = replace(encode_job(job, NOW), job_id=parent_id)
        words = ChildEncoder(parents, parent_id, "fail")
        nodes = [FlowNode(parents, root, Waits.FOR_MORE)]
        nodes += [
            FlowNode(self.keys, words.encode(job, f"{parent_id}-{number}", NOW))
            for number in range(children)
        ]
        sequence = CallSequence(f"flow-{parent_id}", 0)
        for first in range(0, len(nodes), per_call):
            is_last = first + per_call >= len(nodes)
            chunk = FlowChunk(
                nodes[first : first + per_call],
                [(parents, parent_id)] if is_last else (),
                None if is_last else LATER,
            )
            sequence.begin_call()
            self.store.run(add_flow(nodes[0], chunk, NOW, sequence))

    def drain(self, at_once: int, *, from_ms: int = NOW) -> None:
        """Run all jobs, this many per call."""
        running: list[list[Packed]] = [[], []]
        while True:
            now = from_ms + next(self._calls)
            tokens = [f"3f1c1d1e-aaaa-bbbb-cccc-1234567890a{n}:{now - from_ms}" for n in range(2)]
            calls = [
                cycle(self.keys, now, ends, at_once, token, _TAKING)
                for ends, token in zip(running, tokens, strict=True)
            ]
            taken = self.store.run_all(calls)
            running = [
                [_done(job, token, now) for job in cycled.jobs]
                for cycled, token in zip(taken, tokens, strict=True)
            ]
            if not any(running):
                return

    def take(self, at_once: int) -> None:
        """Fetch all jobs, and leave them running."""
        token = "3f1c1d1e-aaaa-bbbb-cccc-1234567890ab:1"
        while self.store.run(cycle(self.keys, NOW, [], at_once, token, _TAKING)).jobs:
            pass


def _done(job: Job, token: str, now_ms: int) -> Packed:
    return pack_outcome(job, token, Complete(b"null"), 1, now_ms)
