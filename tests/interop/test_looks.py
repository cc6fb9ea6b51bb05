"""Reading queues that only Node has written, with BullMQ 5 and 6, without a taskbull worker."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from redis import Redis

from taskbull import JobState, SyncServer
from taskbull.core.search import read_terms
from tests.interop.cases.finishing import run_one
from tests.interop.conftest import MakeActor
from tests.interop.node import Version
from tests.interop.stage import Stage


@pytest.mark.parametrize("version", [5, 6])
def test_the_queues_of_node_are_seen_and_explained(
    version: Version, new_actor: MakeActor, redis: Redis, interop_url: str
) -> None:
    actor = new_actor(version)
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    stage = Stage(redis, actor, start=now_ms - 60_000)
    worker = actor.worker()
    run_one(stage, worker, "fail", attempts=1)
    run_one(stage, worker, "complete")
    actor.add("send", {"user": {"id": 42}})
    actor.add("send", {}, {"delay": 3_600_000})
    actor.add("send", {}, {"priority": 3})
    server = SyncServer(interop_url, prefix=actor.prefix)
    [sample] = server.survey(["q"])
    counts = sample.counts
    assert [counts[state] for state in ("failed", "completed", "waiting", "delayed")] == [1] * 4
    assert sample.version is not None
    assert sample.version.startswith(f"bullmq:{version}.")
    assert server.queues() == ["q"]
    [failed] = server.jobs("q", JobState.FAILED).rows
    assert (failed.job.id, failed.attempts) == ("1", 1)
    [group] = server.failures("q").groups
    assert (group.count, group.newest) == (1, "1")
    terms = read_terms("data.user.id:42", datetime.now(UTC))
    assert [row.job.id for row in server.search("q", "waiting", terms).rows] == ["3"]
    codes = {
        job_id: [reason.code for reason in server.why("q", job_id).reasons]
        for job_id in ("1", "2", "4", "99")
    }
    assert codes["1"] == ["failed"]
    assert codes["2"] == ["completed"]
    assert codes["4"][0] == "delayed"
    assert codes["99"] == ["never_added"]
    actor.pause()
    paused = server.why("q", "3")
    assert paused.reasons[0].code == "paused"
    assert server.why("q", "5").reasons[-1].code == "behind"
    server.close()
