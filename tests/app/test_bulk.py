"""A bulk that is interrupted reports the added jobs, and the rest can be added once."""

from __future__ import annotations

import gc
import json
import pickle
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from anyio import fail_after
from msgspec.structs import replace

from taskbull.app.app import App
from taskbull.app.producer import JobSpec
from taskbull.errors import ConfigurationError, EnqueueError, SerializationError
from taskbull.queue import add_bulk
from taskbull.queue.add_bulk import describe_missing
from taskbull.scripts.add import ADD
from taskbull.store.address import parse
from taskbull.testing import connected
from tests.servers.kinds import Reachable
from tests.servers.proxy import Proxy

LIMIT = 60.0
PATIENCE = 2.0

shop = App("shop", redis="redis://localhost:1", enqueue_timeout=PATIENCE)


@shop.task(queue="rows")
def row(n: int) -> int:
    return n


@shop.task(queue="others")
def other(n: int) -> int:
    return n


@pytest.fixture
def proxy(server: Reachable, admin: Any) -> Iterator[Proxy]:
    admin.script_load(ADD.source)  # else a second connection would load it
    endpoint = parse(server.url).endpoints[0]
    with Proxy((endpoint.host, endpoint.port)) as running, connected(shop, running.url):
        yield running


class Watched(dict[str, Any]):
    """Data that holds on to something else."""

    def __init__(self, data: dict[str, Any], held: object) -> None:
        super().__init__(data)
        self.held = held


def stored(admin: Any, *queues: str) -> Counter[int]:
    """Count the jobs in the queues by their number."""
    found: Counter[int] = Counter()
    for queue in queues or ("rows",):
        with admin.pipeline(transaction=False) as pipe:
            for job_id in admin.lrange(f"bull:{queue}:wait", 0, -1):
                pipe.hget(f"bull:{queue}:{job_id.decode()}", "data")
            found.update(json.loads(data)["n"] for data in pipe.execute())
    return found


def once(numbers: range) -> Counter[int]:
    return Counter(dict.fromkeys(numbers, 1))


def break_off(proxy: Proxy, how: str, at: int = 1000) -> Callable[[int], None]:
    """Return a callback that breaks the connection permanently after this many added jobs."""

    def told(number: int) -> None:
        if number == at:
            proxy.refuse()
            match how:
                case "executed":
                    proxy.cut_before_reply(b"bull:")
                case "not executed":
                    proxy.cut_before_request(b"bull:")
                case "swallowed":
                    proxy.black_hole()
                case _:
                    proxy.cut()

    return told


HOW = ["executed", "not executed", "between", "swallowed"]


def broken_off(proxy: Proxy, how: str, jobs: Any) -> EnqueueError:
    with pytest.raises(EnqueueError) as failed:
        shop.enqueue(jobs, progress=break_off(proxy, how))
    proxy.heal()
    return failed.value


# D3


@pytest.mark.parametrize("how", HOW)
def test_what_was_not_added_is_enqueued_again_and_nothing_is_doubled(
    proxy: Proxy, admin: Any, how: str
) -> None:
    error = broken_off(proxy, how, [row.job(n) for n in range(3000)])
    first = len(error.added)
    assert first in (1000, 1250)  # the next part was under way, and may have been answered
    assert [spec.data["n"] for spec in error.spec] == list(range(first, 3000))
    assert [job.id for job in error.added] == [str(n + 1) for n in range(first)]
    unsure = sum(spec.job.ticket.sent_ms is not None for spec in error.spec)
    assert unsure in (0, 250, 500)
    told = describe_missing(3000 - first - unsure, unsure, 3000)
    assert str(error).startswith(f"Queue 'rows': {told}: ")
    assert error.may_be_added is (unsure > 0)
    assert unsure or how == "between"
    handles = shop.enqueue(error.spec)
    assert stored(admin) == once(range(3000))
    assert [handle.info().data["n"] for handle in handles[::100]] == list(range(first, 3000, 100))
    assert [job.id for job in shop.enqueue(error.spec)] == [job.id for job in handles]
    assert stored(admin) == once(range(3000))


@pytest.mark.parametrize("how", ["executed", "not executed"])
async def test_the_same_from_async_code(proxy: Proxy, admin: Any, how: str) -> None:
    with fail_after(LIMIT), pytest.raises(EnqueueError) as failed:
        await shop.aenqueue([row.job(n) for n in range(1600)], progress=break_off(proxy, how))
    proxy.heal()
    with fail_after(LIMIT):
        await shop.aenqueue(failed.value.spec)
    assert stored(admin) == once(range(1600))


@pytest.mark.full
@pytest.mark.parametrize("how", ["executed", "not executed"])
def test_one_by_one_from_another_thread_and_in_another_order(
    proxy: Proxy, admin: Any, how: str
) -> None:
    error = broken_off(proxy, how, [row.job(n) for n in range(1300)])
    again = [*reversed(error.spec), *error.spec]

    def send() -> None:
        for spec in again:
            shop.enqueue([spec])

    thread = threading.Thread(target=send)
    thread.start()
    thread.join(LIMIT)
    assert stored(admin) == once(range(1300))
    shop.enqueue(again)
    assert stored(admin) == once(range(1300))


@pytest.mark.parametrize("how", ["executed", "not executed"])
def test_from_another_process_after_pickling(proxy: Proxy, admin: Any, how: str) -> None:
    error = pickle.loads(pickle.dumps(broken_off(proxy, how, [row.job(n) for n in range(1300)])))
    assert error.may_be_added
    handles = shop.enqueue(error.spec)
    assert stored(admin) == once(range(1300))
    assert handles[0].name == "row"
    assert error.spec[0].read(b"5") == 5


def test_a_second_failure_keeps_what_the_first_one_knew(proxy: Proxy, admin: Any) -> None:
    error = broken_off(proxy, "executed", [row.job(n) for n in range(1600)])
    proxy.refuse()
    proxy.cut()
    unsure = sum(spec.job.ticket.sent_ms is not None for spec in error.spec)
    total = len(error.spec)
    told = describe_missing(total - unsure, unsure, total)
    with pytest.raises(EnqueueError, match=f"Queue 'rows': {told}: ") as no:
        shop.enqueue(error.spec)
    assert no.value.may_be_added
    proxy.heal()
    shop.enqueue(no.value.spec)
    shop.enqueue(error.spec)
    assert stored(admin) == once(range(1600))


def test_of_two_queues_in_one_bulk(proxy: Proxy, admin: Any) -> None:
    jobs: list[JobSpec[int]] = [(row, other)[n % 2].job(n) for n in range(3000)]
    error = broken_off(proxy, "executed", jobs)
    numbers = {spec.data["n"] for spec in error.spec}
    assert len(numbers) == len(error.spec) == 3000 - len(error.added)
    assert 1000 <= len(error.added) <= 1250
    shop.enqueue(error.spec)
    assert stored(admin, "rows", "others") == once(range(3000))


def test_a_single_job_is_sent_again_without_doubling_it(proxy: Proxy, admin: Any) -> None:
    row.delay(1)
    proxy.refuse()
    proxy.cut_before_reply(b"bull:")
    with pytest.raises(EnqueueError, match="Job may have been added") as failed:
        row.delay(2)
    proxy.heal()
    [handle] = shop.enqueue(failed.value.spec)
    assert handle.info().data == {"n": 2}
    assert stored(admin) == once(range(1, 3))


def test_what_redis_may_have_forgotten_is_not_sent_again_by_itself(
    proxy: Proxy, admin: Any
) -> None:
    proxy.refuse()
    proxy.cut_before_reply(b"bull:")
    with pytest.raises(EnqueueError) as failed:
        row.delay(1)
    proxy.heal()
    [spec] = failed.value.spec
    long_ago = replace(spec.job.ticket, sent_ms=(spec.job.ticket.sent_ms or 10**12) - 11 * 60_000)
    old = spec.with_ticket(long_ago)
    with pytest.raises(EnqueueError, match="sent more than 10 minutes ago") as failed:
        shop.enqueue([old])
    assert failed.value.may_be_added
    assert failed.value.spec == [old]
    shop.enqueue([old.without_ticket()])
    assert stored(admin)[1] >= 1


def test_the_time_limit_is_for_getting_on_and_not_for_the_whole(
    proxy: Proxy, admin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(add_bulk, "BULK", 1)
    monkeypatch.setattr(shop.producer, "_timeout", 1.5)
    proxy.slow_down(0.03)
    shop.enqueue([row.job(n) for n in range(40)])
    assert stored(admin) == once(range(40))


def test_a_generator_is_streamed_and_progress_is_reported(proxy: Proxy, admin: Any) -> None:
    told: list[int] = [0]
    held: list[int] = []

    def rows() -> Iterator[JobSpec[int]]:
        for n in range(5000):
            held.append(n - told[-1])
            yield row.job(n)

    handles = shop.enqueue(rows(), progress=told.append)
    assert told[1:] == list(range(250, 5001, 250))
    # Two parts are under way while the third is made, and no more.
    assert max(held) == 3 * add_bulk.BULK - 1
    assert [handle.id for handle in handles] == [str(n + 1) for n in range(5000)]
    assert stored(admin) == once(range(5000))


def test_a_handle_does_not_keep_what_was_sent(proxy: Proxy) -> None:
    class Big:
        """A placeholder for a large object, with weak references."""

    seen: list[weakref.ref[Big]] = []

    def rows() -> Iterator[JobSpec[int]]:
        for n in range(3):
            big = Big()
            seen.append(weakref.ref(big))
            spec = row.job(n)
            yield replace(spec, job=replace(spec.job, data=Watched({"n": n}, big)))

    handles = shop.enqueue(rows())
    gc.collect()
    assert len(handles) == 3
    assert [each() for each in seen] == [None] * 3


async def test_a_generator_is_streamed_by_async_code(proxy: Proxy, admin: Any) -> None:
    told: list[int] = []
    handles = await shop.aenqueue((row.job(n) for n in range(600)), progress=told.append)
    assert (told, len(handles)) == ([250, 500, 600], 600)
    assert stored(admin) == once(range(600))


@pytest.mark.full
def test_of_a_generator_with_many_queues_few_jobs_wait_and_handles_are_in_order(
    proxy: Proxy, admin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(add_bulk, "_OPEN_JOBS", 300)
    told: list[int] = [0]
    held: list[int] = []
    kinds = [row.options(queue=f"q{number}") for number in range(40)]

    def rows() -> Iterator[JobSpec[int]]:
        for n in range(2000):
            held.append(n - told[-1])
            yield kinds[n % 40].job(n)

    handles = shop.enqueue(rows(), progress=told.append)
    assert max(held) <= 3 * 302
    assert [handle.queue for handle in handles] == [f"q{n % 40}" for n in range(2000)]
    assert stored(admin, *(f"q{n}" for n in range(40))) == once(range(2000))


def test_a_generator_that_raises_reports_the_jobs_added_before(proxy: Proxy, admin: Any) -> None:
    def rows() -> Iterator[JobSpec[int]]:
        for n in range(600):
            yield row.job(n)
        raise LookupError("no more rows")

    with pytest.raises(
        EnqueueError, match=r"500 jobs were added, the next 100 .* LookupError: no more rows"
    ) as failed:
        shop.enqueue(rows())
    assert isinstance(failed.value.__cause__, LookupError)
    assert (len(failed.value.added), failed.value.may_be_added) == (500, False)
    assert stored(admin) == once(range(500))
    shop.enqueue(failed.value.spec)
    assert stored(admin) == once(range(600))


def test_a_generator_that_raises_before_anything_was_added_is_heard_as_it_is(
    proxy: Proxy, admin: Any
) -> None:
    def rows() -> Iterator[JobSpec[int]]:
        yield row.job(1)
        raise LookupError("no rows")

    with pytest.raises(LookupError, match="no rows"):
        shop.enqueue(rows())
    with pytest.raises(SerializationError):
        shop.enqueue(each for each in [row.job(1), row.job(float("nan"))])  # type: ignore[arg-type]
    assert stored(admin) == Counter()


def test_a_wrong_job_in_a_stream_is_reported_with_what_was_added(proxy: Proxy, admin: Any) -> None:
    jobs: list[Any] = [row.job(n) for n in range(260)]
    with pytest.raises(
        EnqueueError, match=r"250 jobs were added, the next 10 .* must be created with task"
    ) as failed:
        shop.enqueue(iter([*jobs, "row", row.job(261)]))
    assert isinstance(failed.value.__cause__, ConfigurationError)
    shop.enqueue(failed.value.spec)
    assert stored(admin) == once(range(260))


@pytest.mark.full
@pytest.mark.parametrize("kind", [list, iter])
def test_a_progress_callback_that_raises_breaks_the_bulk_off(
    proxy: Proxy, admin: Any, kind: Any
) -> None:
    def told(number: int) -> None:
        if number == 500:
            raise RuntimeError("stop")

    jobs = kind([row.job(n) for n in range(1000)])
    with pytest.raises(EnqueueError, match="stop") as failed:
        shop.enqueue(jobs, progress=told)
    assert len(failed.value.added) == 750  # one part was under way
    assert stored(admin) == once(range(750))
    shop.enqueue([*failed.value.spec, *(jobs if kind is iter else ())])
    assert stored(admin) == once(range(1000))


@pytest.mark.full
def test_the_rest_of_a_stream_stays_with_the_caller(proxy: Proxy, admin: Any) -> None:
    rows = (row.job(n) for n in range(3000))
    error = broken_off(proxy, "executed", rows)
    assert str(error).startswith(f"Queue 'rows': {len(error.added)} jobs were added, ")
    assert len(error.added) in (1000, 1250)
    shop.enqueue(error.spec)
    shop.enqueue(rows)
    assert stored(admin) == once(range(3000))


def test_queues_do_the_same(proxy: Proxy, admin: Any) -> None:
    queue = shop.sync_queue("rows")
    with pytest.raises(EnqueueError) as failed:
        queue.add_bulk(
            (("row", {"n": n}) for n in range(1600)), progress=break_off(proxy, "executed")
        )
    proxy.heal()
    queue.add_bulk(failed.value.spec)
    queue.add_bulk(failed.value.spec)
    assert stored(admin) == once(range(len(failed.value.spec) + len(failed.value.added)))


async def told_later(number: int) -> None: ...


@pytest.mark.parametrize(
    ("jobs", "progress", "told"),
    [
        (row.job(1), None, "jobs must be a list or another iterable"),
        (5, None, "jobs must be a list or another iterable"),
        ([], told_later, "progress must be a sync function"),
        ([], 5, "progress must be a sync function"),
    ],
)
def test_what_is_no_bulk_is_refused(jobs: Any, progress: Any, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        shop.enqueue(jobs, progress=progress)
    with pytest.raises(ConfigurationError, match=told):
        shop.sync_queue("rows").add_bulk(jobs, progress=progress)


@pytest.mark.parametrize(
    ("missing", "unsure", "total", "told"),
    [
        (1, 0, 1, "the job was not added"),
        (0, 1, 1, "the job may have been added"),
        (1, 0, 3, "1 of 3 jobs was not added"),
        (2, 0, 3, "2 of 3 jobs were not added"),
        (0, 2, 3, "2 of 3 jobs may or may not have been added"),
        (2, 1, 3, "2 of 3 jobs were not added, and 1 more may have been added"),
    ],
)
def test_jobs_that_were_not_added_are_reported(
    missing: int, unsure: int, total: int, told: str
) -> None:
    assert describe_missing(missing, unsure, total) == told
