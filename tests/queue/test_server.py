"""All queues of a server, by the async and by the sync one, against real servers."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taskbull import App, JobState, Server, SyncServer
from taskbull.core.keys import QueueKeys
from taskbull.core.validation import instant_from_ms
from taskbull.errors import ConfigurationError, ConnectionLost, JobNotFound, ServerRefused
from taskbull.queue.failures import FailureGroup, group_failures
from taskbull.queue.queue import SyncQueue
from taskbull.scripts.browse import After, FailedJob, list_clients
from taskbull.store.address import parse
from tests.queue.conftest import signatures
from tests.servers.cluster import Cluster
from tests.servers.kinds import Reachable
from tests.servers.proxy import Proxy


class Both:
    """Calls the async or the sync server; what is called is awaited by the test either way."""

    def __init__(self, server: Server | SyncServer) -> None:
        self.server = server

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.server, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            return await result if isinstance(result, Awaitable) else result

        return call


@pytest.fixture(params=[Server, SyncServer])
def all_queues(request: pytest.FixtureRequest, server: Reachable, prefix: str) -> Both:
    return Both(request.param(server.url, prefix=prefix))


@pytest.fixture
def emails(server: Reachable, prefix: str) -> Iterator[SyncQueue]:
    queue = SyncQueue("emails", redis=server.url, prefix=prefix)
    yield queue
    queue.close()


def fail(admin: Any, keys: QueueKeys, job_id: str, reason: str, at_ms: int = 1) -> None:
    """Do to a job what the end of its last attempt does."""
    admin.hset(keys.job(job_id), mapping={"name": "send", "data": "{}", "failedReason": reason})
    admin.hset(keys.job(job_id), "finishedOn", at_ms)
    admin.zadd(keys.failed, {job_id: at_ms})


def run(admin: Any, keys: QueueKeys, worker: str) -> str:
    """Do to the next job what a worker does when it takes one."""
    job_id = admin.rpoplpush(keys.wait, keys.active).decode()
    admin.set(keys.lock(job_id), "token", px=30_000)
    admin.hset(keys.job(job_id), "pb", worker)
    return str(job_id)


def test_both_servers_have_the_same_methods() -> None:
    sync = signatures(SyncServer)
    for name in ("close", "wait_for_events", "follow_items"):
        # The connections of an async server end with their event loop. Async code reads the events
        # of a queue and the items of a job with `Queue.events` and `JobHandle.astream`.
        sync.pop(name)
    theirs = signatures(Server)
    assert sync.keys() == theirs.keys()
    for name in sync.keys() - {"queue"}:
        assert sync[name] == theirs[name], name


async def test_queues_are_found_by_their_keys(
    all_queues: Both, emails: SyncQueue, admin: Any, prefix: str
) -> None:
    assert await all_queues.queues() == []
    emails.add("send")
    admin.hset(f"{prefix}:a:b:meta", "x", "1")  # of another prefix
    admin.set(f"{prefix}:text:meta", "x")
    assert await all_queues.queues() == ["emails"]
    assert await all_queues.exists("emails")
    assert not await all_queues.exists("reports")


async def test_the_queues_of_a_cluster_are_found_on_all_its_nodes(
    cluster: Cluster, prefix: str
) -> None:
    names = [f"q{number}" for number in range(6)]
    everywhere = SyncServer(cluster.url, prefix=prefix)
    for name in names:
        everywhere.queue(name).add("send")
    assert everywhere.queues() == names
    assert [each.counts["waiting"] for each in everywhere.survey()] == [1] * 6
    everywhere.close()
    in_a_loop = Server(cluster.url, prefix=prefix)
    assert await in_a_loop.queues() == names
    assert [each.counts["waiting"] for each in await in_a_loop.survey()] == [1] * 6
    assert await in_a_loop.workers(names) == {name: [] for name in names}


async def test_a_survey_tells_what_matters_of_each_queue(
    all_queues: Both, emails: SyncQueue, admin: Any
) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    emails.add("send")
    emails.pause()
    [summary] = await all_queues.survey()
    assert (summary.name, summary.paused, summary.workers) == ("emails", True, 0)
    assert summary.counts[JobState.WAITING] + summary.counts[JobState.PAUSED] == 1
    assert before < summary.waiting_since < datetime.now(UTC) + timedelta(seconds=1)
    [other] = await all_queues.survey(["reports"])
    assert (other.name, other.waiting_since) == ("reports", None)


async def test_a_worker_is_found_by_the_name_of_its_connection(
    all_queues: Both, emails: SyncQueue, admin: Any
) -> None:
    emails.add("send")
    admin.client_setname(emails.keys.connection_name("web1"))
    [worker] = (await all_queues.workers())["emails"]
    assert worker.name == "web1"
    assert [each.workers for each in await all_queues.survey()] == [1]
    admin.client_setname("")


async def test_the_last_event_is_known(all_queues: Both, emails: SyncQueue) -> None:
    assert await all_queues.last_event_id("emails") == "0-0"
    emails.add("send")
    assert await all_queues.last_event_id("emails") > "0-0"


async def test_jobs_are_listed_in_pages(all_queues: Both, emails: SyncQueue) -> None:
    emails.add_bulk([("send", {"n": n}) for n in range(3)])
    emails.add("send", {"n": 3}, delay=3600)
    page = await all_queues.jobs("emails", "waiting", after=After(place=1), limit=2, whole=True)
    assert (page.total, [row.job.data["n"] for row in page.rows]) == (3, [1, 2])
    [later] = (await all_queues.jobs("emails", "delayed")).rows
    assert later.state is JobState.DELAYED
    assert later.due > datetime.now(UTC)
    with pytest.raises(ConfigurationError, match="state must be one of"):
        await all_queues.jobs("emails", "unknown")


async def test_a_job_is_described_as_json(all_queues: Both, emails: SyncQueue, admin: Any) -> None:
    handle = emails.add("send", {"to": "ann"}, attempts=5)
    admin.rpush(emails.keys.logs(handle.id), "one", "two")
    run(admin, emails.keys, "web1")
    details = await all_queues.inspect("emails", handle.id, whole=True)
    told = json.loads(json.dumps(details.describe()))
    assert (told["id"], told["state"], told["data"]) == (handle.id, "active", {"to": "ann"})
    assert (told["attempts"], told["options"]["attempts"], told["worker"]) == (5, 5, "web1")
    assert told["children"] == {"processed": 0, "unprocessed": 0, "ignored": 0, "failed": 0}
    assert told["logs"] == ["one", "two"]
    assert 0 < told["lock_seconds"] <= 30
    admin.persist(emails.keys.lock(handle.id))
    lasting = await all_queues.inspect("emails", handle.id, whole=True)
    assert lasting.describe()["lock_seconds"] is None  # JSON has no infinity
    admin.delete(emails.keys.lock(handle.id))
    stalled = await all_queues.inspect("emails", handle.id, whole=True)
    assert stalled.describe()["lock_seconds"] == 0
    assert (await all_queues.inspect("emails", handle.id)).logs == []


@pytest.mark.parametrize("job_id", ["42", "meta"])
async def test_what_is_not_a_job_is_not_found(all_queues: Both, job_id: str) -> None:
    with pytest.raises(JobNotFound):
        await all_queues.inspect("emails", job_id)


async def test_the_jobs_that_run_longest_come_first(
    all_queues: Both, emails: SyncQueue, admin: Any
) -> None:
    emails.add_bulk([("send", {})] * 120)
    taken = [run(admin, emails.keys, "web1") for _ in range(110)]
    admin.delete(emails.keys.lock(taken[0]))
    found = await all_queues.active("emails", 105)
    assert [row.job.id for row in found] == taken[:105]
    assert {row.job.processed_by for row in found} == {"web1"}
    assert [row.job.id for row in found if row.lock_seconds is None] == taken[:1]
    assert len(await all_queues.active("emails", 1000)) == 110


async def test_failures_are_grouped_by_task_and_error(
    all_queues: Both, emails: SyncQueue, admin: Any
) -> None:
    for number in range(150):
        fail(admin, emails.keys, str(number), f"no user {number}", at_ms=number)
    fail(admin, emails.keys, "odd", "disk full", at_ms=500)
    found = await all_queues.failures("emails")
    assert (found.total, found.examined) == (151, 151)
    users, disk = found.groups
    assert (users.task, users.error, users.count) == ("send", "no user <…>", 150)
    assert (users.newest, users.reason) == ("149", "no user 149")
    assert (users.first, users.last) == (instant_from_ms(0), instant_from_ms(149))
    assert (disk.error, disk.count) == ("disk full", 1)
    some = await all_queues.failures("emails", 10)
    assert (some.total, some.examined) == (151, 10)


def test_the_next_events_are_waited_for(server: Reachable, prefix: str, emails: SyncQueue) -> None:
    emails.add("send")
    sync = SyncServer(server.url, prefix=prefix)
    events = sync.wait_for_events("emails", "0")
    assert (events[0].name, events[-1].id) == ("added", sync.last_event_id("emails"))
    assert "jobId" not in events[0].details
    sync.close()


def test_the_largest_group_comes_first() -> None:
    jobs = [FailedJob("3", "a", "x 1", None), FailedJob("2", "b", "x", None)]
    jobs.append(FailedJob("1", "b", "x", None))
    two, one = group_failures(jobs)
    assert two == FailureGroup("b", "x", 2, None, None, "2", "x", two.fingerprint, about=2)
    assert one == FailureGroup("a", "x 1", 1, None, None, "3", "x 1", one.fingerprint, about=1)
    assert len({one.fingerprint, two.fingerprint, ""}) == 3


async def test_what_is_known_of_a_failed_job_is_not_worked_out_again(
    all_queues: Both, emails: SyncQueue, admin: Any
) -> None:
    for number in range(3):
        fail(admin, emails.keys, f"f{number}", "TimeoutError: no answer")
    before = await all_queues.failures("emails")
    fail(admin, emails.keys, "new", "KeyError: 7", 2)
    after = await all_queues.failures("emails", before=before)
    assert [group.error for group in after.groups] == ["TimeoutError: no answer", "KeyError: 7"]
    assert all(after.likeness[job] is before.likeness[job] for job in before.window)
    assert set(after.likeness) == {"f0", "f1", "f2", "new"}


async def test_what_many_calls_asked_is_asked_again_when_the_answers_were_lost(
    server: Reachable, prefix: str, emails: SyncQueue
) -> None:
    emails.add("send")
    endpoint = parse(server.url).endpoints[0]
    with Proxy((endpoint.host, endpoint.port)) as proxy:
        looked = Server(proxy.url, prefix=prefix, call_timeout=30)
        await looked.survey(["emails"])
        proxy.cut_before_reply(b"EVALSHA")
        samples = await looked.survey(["emails", "other"])
        assert [each.counts["waiting"] for each in samples] == [1, 0]
        assert proxy.cuts == 1


async def test_an_app_knows_its_queues_and_attempts(
    server: Reachable, prefix: str, emails: SyncQueue, admin: Any
) -> None:
    app = App("shop", redis=server.url, prefix=prefix, attempts=7)

    @app.task(queue="emails")
    def send() -> None: ...

    assert app.sync_server().queues() == await app.server().queues() == ["emails"]
    handle = emails.add("send")
    admin.hset(emails.keys.job(handle.id), "opts", "{}")  # as of a producer that says nothing
    [row] = app.sync_server().jobs("emails", "waiting").rows
    assert row.attempts == 7
    [row] = (await app.server().jobs("emails", "waiting")).rows
    assert row.attempts == 7
    app.close()


async def test_each_server_tells_about_itself(all_queues: Both, server: Reachable) -> None:
    [only] = await all_queues.servers()
    await all_queues.ping()
    await all_queues.ping(only)
    assert "redis_version" in await all_queues.info(only)
    assert abs(await all_queues.time(only) - datetime.now(UTC).timestamp()) < 5
    assert isinstance(await all_queues.save_points(only), str)
    assert await all_queues.server_of("emails") == only
    assert await all_queues.refused_commands("emails") == {}
    with pytest.raises(ServerRefused):
        await all_queues.cluster_info(only)


@pytest.mark.parametrize("kind", [Server, SyncServer])
async def test_an_unavailable_redis_is_reported_in_time(kind: type[Any]) -> None:
    away = Both(kind("redis://127.0.0.1:1", call_timeout=0.3))
    with pytest.raises(ConnectionLost, match="refused"):
        await away.ping()
    with pytest.raises(ConnectionLost):
        await away.survey()


async def test_one_queue_or_state_may_be_given_by_its_name(
    all_queues: Both, emails: SyncQueue
) -> None:
    emails.add("send", {})
    assert [found.name for found in await all_queues.survey("emails")] == ["emails"]
    assert list(await all_queues.workers("emails")) == ["emails"]
    for state in ("waiting", JobState.WAITING):
        assert (await all_queues.jobs("emails", state)).total == 1


@pytest.mark.parametrize("address", ["/run/a.sock:0", "[/run/a.sock:0]:0"])
def test_a_worker_at_a_unix_socket_has_its_path_as_address(address: str) -> None:
    reply = f"id=1 addr={address} name=x age=1 idle=1\nid=2 addr=[::1]:5 name=y age=1 idle=1\n"
    found = list_clients().parse(reply.encode())
    assert [client.address for client in found] == ["/run/a.sock", "[::1]:5"]


@pytest.mark.parametrize("kind", [Server, SyncServer])
def test_a_server_and_its_queues_say_where_they_are(kind: type[Server | SyncServer]) -> None:
    server = kind("redis://:secret@example.org:6379/1", prefix="shop")
    queue = "Queue" if kind is Server else "SyncQueue"
    assert repr(server) == f"<{kind.__name__} example.org:6379/1, prefix shop>"
    assert repr(server.queue("emails")) == f"<{queue} emails, keys shop:emails:*>"
