"""The least rights of a user of Redis: enough for everything, and no command too many."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
import redis
from anyio import create_task_group, fail_after

import taskbull
from taskbull import events
from taskbull.app.app import App
from taskbull.cli.commands.doctor import acl_of, rules
from taskbull.core.job import Children
from taskbull.core.options import WorkerOptions
from taskbull.dashboard import Dashboard
from taskbull.monitor.server import SyncServer
from taskbull.queue.queue import Queue
from taskbull.scripts import call
from taskbull.scripts.browse import PROBE_COMMANDS
from taskbull.store.server_process import ServerProcess
from taskbull.worker.running_job import RunningJob
from taskbull.worker.worker import Worker
from tests.cli.conftest import CommandLine, OpenCli, Shop
from tests.dashboard.conftest import Visitor
from tests.servers.kinds import REDIS_6, REDIS_7, VALKEY_9, PrivateServers, binary
from tests.worker.bed import Recorder, until

PACKAGE = Path(taskbull.__file__).parent

NOT_NEEDED = {
    "keys": "a heading in the scripts",
    "config": "only doctor asks, and does without the answer",
    "eval": "a word in a pattern",
    "evalsha_ro": "for users who may only read, where Redis has it",
    "auth": "everybody may",
    "fcall": "a name in the slow log",
    "flushall": "for test servers",
    "sentinel": "asked of sentinels, where another user is logged in",
    "shutdown": "for the embedded server",
    "acl": "a word of advice",
    "readonly": "an error",
    "replicaof": "a word of advice",
    "bgsave": "for the embedded server",
    "save": "for the embedded server",
    "script": "by its subcommands",
    "client": "by its subcommands",
    "cluster": "by its subcommands",
}


@pytest.fixture(scope="module")
def commands() -> set[str]:
    """The commands that Redis has: of the newest server there is, in small letters."""
    with (
        ServerProcess(binary(VALKEY_9)) as server,
        redis.Redis(unix_socket_path=str(server.socket)) as r,
    ):
        return {str(name).lower() for name in r.command()}


def in_lua(commands: set[str]) -> set[str]:
    words = {
        word.lower()
        for file in call.LUA.rglob("*.lua")
        if file.stem != PROBE_COMMANDS.name
        for word in re.findall(r'"([A-Z]+)"', file.read_text())
    }
    return (words & commands) - {"readonly"}  # an error


def in_python(commands: set[str]) -> set[str]:
    words: set[str] = set()
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words |= {node.value.lower()} if node.value.isupper() else set()
    return (words & commands) - set(NOT_NEEDED)


def granted() -> set[str]:
    return {rule.removeprefix("+").partition("|")[0] for rule in rules()}


def test_the_file_grants_what_scripts_and_code_use(commands: set[str]) -> None:
    missing = (in_lua(commands) | in_python(commands)) - granted()
    assert not missing, f"add to least_rights.acl: {' '.join(f'+{m}' for m in sorted(missing))}"


def test_the_file_grants_nothing_else(commands: set[str]) -> None:
    spare = granted() - in_lua(commands) - in_python(commands) - {"script", "client", "cluster"}
    assert not spare, f"take out of least_rights.acl: {sorted(spare)}"


def test_the_doctor_tries_what_scripts_use(commands: set[str]) -> None:
    tried = {word.lower() for word in re.findall(r'\{ "([A-Z]+)", a', PROBE_COMMANDS.source)}
    missing = in_lua(commands) - tried
    assert not missing, f"add to lua/probe_commands.lua: {sorted(missing)}"
    assert tried <= granted()


def test_the_rules_name_the_queues_of_the_app(shop: Shop, open_cli: OpenCli, url: str) -> None:
    line = shop("doctor", "--acl")
    assert line.startswith("user taskbull on >PASSWORD resetkeys ~")
    assert f" ~{shop.prefix}:emails:* " in line
    assert f" ~{shop.prefix}:default:* " in line
    assert f" ~{shop.prefix}::tb:* " in line
    line = open_cli(url, "odd*")("doctor", "--acl", "setuser")
    assert line.startswith("ACL SETUSER taskbull on >PASSWORD resetkeys ~odd\\*:* resetchannels")


def test_the_line_can_be_read_from_a_file(tmp_path: Path, open_cli: OpenCli, url: str) -> None:
    line = open_cli(url, "bull")("doctor", "--acl").replace("PASSWORD", "secret")
    (tmp_path / "users.acl").write_text(f"user default on nopass ~* &* +@all\n{line}")
    with (
        ServerProcess(binary(VALKEY_9), {"aclfile": str(tmp_path / "users.acl")}) as server,
        redis.Redis(
            host="127.0.0.1", port=server.port, username="taskbull", password="secret"
        ) as client,
    ):
        assert client.ping()
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.flushall()


@pytest.fixture(params=[VALKEY_9, REDIS_6, REDIS_7])
def confined(
    request: pytest.FixtureRequest, private_server: PrivateServers, open_cli: OpenCli
) -> Iterator[tuple[str, redis.Redis]]:
    """The URL of a user who has just these rights, and a client who may do all."""
    server = private_server(kind=request.param)
    line = open_cli(server.url, "bull")("doctor", "--acl", "setuser").replace("PASSWORD", "secret")
    with redis.Redis(unix_socket_path=str(server.socket), decode_responses=True) as admin:
        admin.execute_command(*line.split())
        yield f"redis://taskbull:secret@127.0.0.1:{server.port}", admin
        denied = [entry for entry in _acl_log(admin) if entry["username"] == "taskbull"]
        assert denied == []


def _acl_log(admin: redis.Redis) -> list[dict[str, Any]]:
    return list(admin.acl_log())


def test_doctor_finds_nothing_wrong(confined: tuple[str, redis.Redis], open_cli: OpenCli) -> None:
    url, admin = confined
    cli = open_cli(url, "bull")
    found = cli.json("doctor")
    assert {"check": "permissions", "level": "ok"}.items() <= {
        (key, value)
        for each in found
        if each["check"] == "permissions"
        for key, value in each.items()
    }
    admin.acl_log_reset()  # it asks for CONFIG, and does without it


async def test_a_worker_and_all_of_a_queue_work(confined: tuple[str, redis.Redis]) -> None:
    url, admin = confined
    record = Recorder()

    async def handler(job: RunningJob) -> Any:
        if job.name == "fail":
            raise ValueError("on purpose")
        if job.name == "wait":
            await anyio.sleep_forever()
        await job.aprogress(50)
        await job.alog("a line")
        return job.data

    queue = Queue("work", redis=url)
    options = WorkerOptions(
        lock_duration=30,
        heartbeat_interval=0.1,
        stalled_interval=0.2,
        metrics_data_points=10,
        shutdown_timeout=0,
    )
    worker = Worker("work", handler, redis=url, options=options, on={events.Event: record})
    async with worker.running():
        handles = await queue.add_bulk([("echo", {"n": n}) for n in range(5)])
        assert await handles[0].aresult(timeout=60) == {"n": 0}
        failing = await queue.add("fail", attempts=2)
        await record.wait_for(events.Failed)
        await queue.add("delayed", delay=0.1)
        await queue.add("urgent", priority=1)
        await queue.add("once", dedup="key")
        await record.wait_for(events.Completed, 8)
        await queue.retry(failing.id)
        await record.wait_for(events.Failed, 2)
        stopped = await queue.add("wait")
        await record.wait_for(events.Started, where=lambda event: event.job.id == stopped.id)
        await queue.cancel(stopped.id)
        await record.wait_for(events.Failed, where=lambda event: event.job.id == stopped.id)
        await queue.add("wait")
        await record.wait_for(events.LocksRenewed)
        admin.client_kill_filter(_type="normal", skipme=True)  # recovery, after lost replies
        await (await queue.add("echo", {})).aresult(timeout=60)
        # As a dead worker leaves it: the sweep finds it.
        lost = await queue.add("echo", {}, delay=60)
        admin.zrem("bull:work:delayed", lost.id)
        admin.lpush("bull:work:active", lost.id)
        await record.wait_for(events.Stalled)


async def test_all_that_administers_a_queue_works(confined: tuple[str, redis.Redis]) -> None:
    url, _ = confined
    queue = Queue("desk", redis=url)
    async with create_task_group() as tasks:
        seen = anyio.Event()

        async def follow() -> None:
            async for _ in queue.events(last_id="0"):
                seen.set()

        tasks.start_soon(follow)
        first = await queue.add("x", {"a": 1})
        with fail_after(60):
            await seen.wait()
        tasks.cancel_scope.cancel()
    late = await queue.add("x", delay=60)
    high = await queue.add("x", priority=5)
    await queue.pause()
    assert await queue.is_paused()
    await queue.resume()
    await queue.change_priority(high.id, 3)
    await queue.change_delay(late.id, 90)
    await queue.promote(late.id)
    await queue.promote_all()
    await queue.counts()
    await queue.get_job(first.id)
    await queue.get_jobs("waiting", 0, 10)
    await queue.get_jobs("prioritized", 0, 10)
    await queue.logs(first.id)
    await queue.metrics()
    await queue.workers()
    await queue.set_global_concurrency(3)
    await queue.set_global_rate_limit(5, 1)
    await queue.rate_limit(0.1)
    await queue.trim_events(5)
    await queue.retry_all("failed")
    await queue.cancel(high.id)
    below = Children((queue.job("below"),), "fail")
    [parent] = await queue.add_bulk([queue.job("top").after(below)])
    await queue.cancel(parent.id)
    await queue.remove(first.id)
    await queue.clean(0, 10, "waiting")
    await queue.drain(delayed=True)
    await queue.obliterate(force=True)


@pytest.fixture
def named_queues(
    private_server: PrivateServers, open_cli: OpenCli
) -> Iterator[tuple[CommandLine, redis.Redis]]:
    """A user who may access two queues by name, as `doctor --acl` prints for an app."""
    server = private_server()
    with (
        closing(SyncServer(server.url)) as asked,
        redis.Redis(unix_socket_path=str(server.socket), decode_responses=True) as admin,
    ):
        line = acl_of(asked, ["work", "desk"]).replace("PASSWORD", "secret")
        _set_user(admin, line)
        yield open_cli(f"redis://taskbull:secret@127.0.0.1:{server.port}", "bull"), admin


def _set_user(admin: Any, line: str) -> None:
    admin.execute_command("ACL", "SETUSER", *line.split())


async def _page(cli: CommandLine, address: str) -> str:
    return (await Visitor(Dashboard(redis=cli.url)).get(address)).text


async def test_a_user_of_named_queues_sees_them_everywhere(
    named_queues: tuple[CommandLine, redis.Redis],
) -> None:
    cli, _ = named_queues
    cli.queue("work").add("x")
    [shown] = cli.json("top", "--once")["queues"]
    assert (shown["name"], shown["problem"]) == ("work", None)
    assert cli.json("why", "work")["reasons"][0]["code"] == "no_worker"
    assert {each["level"] for each in cli.json("doctor") if each["check"] == "permissions"} == {
        "ok"
    }
    for address in ("", "queue?q=work", "workers", "operations"):
        assert "Forbidden" not in await _page(cli, address)
    assert "work" in await _page(cli, "")


async def test_what_a_user_may_not_read_is_named(
    named_queues: tuple[CommandLine, redis.Redis], open_cli: OpenCli
) -> None:
    cli, admin = named_queues
    _set_user(admin, "taskbull resetkeys ~bull:work:* ~bull:desk:*")
    cli.queue("work").add("x")
    found = [each for each in cli.json("doctor", code=1) if each["check"] == "permissions"]
    assert [each["level"] for each in found if "bull::tb:*" in (each["advice"] or "")] == [
        "problem"
    ]
    _set_user(admin, "viewer on >secret +ping +select")
    nobody = open_cli(cli.url.replace("taskbull", "viewer"), "bull")
    for page in (await _page(cli, "operations"), await _page(nobody, "")):
        assert "Redis is unavailable" not in page
        assert "Redis denies access" in page
        assert "taskbull doctor" in page


async def test_hooks_of_jobs_that_end_without_a_worker_run(
    confined: tuple[str, redis.Redis],
) -> None:
    url, _ = confined
    app = App("shop", redis=url)
    ended: list[str] = []

    @app.task(on_failure=lambda job, failure: ended.append(job.id))
    async def pay() -> None: ...

    job = await pay.options(delay=60).adelay()
    async with app.worker().running():
        await job.acancel()
        await until(lambda: ended == [job.id])
    app.close()


def test_an_app_enqueues_and_waits(confined: tuple[str, redis.Redis]) -> None:
    url, _ = confined
    app = App("shop", redis=url)

    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    job = add.delay(1, b=2)
    anyio.run(lambda: app.run_worker(burst=True))
    assert job.result(timeout=60) == 3
    app.close()


@pytest.mark.parametrize("kind", [VALKEY_9, REDIS_6])
def test_what_a_rule_forbids_is_reported_while_it_works(
    private_server: PrivateServers, tmp_path: Path, kind: str
) -> None:
    server = private_server(kind=kind)
    with redis.Redis(unix_socket_path=str(server.socket)) as admin:
        admin.execute_command("ACL", "SETUSER", "u", "on", ">s", "~*", "+@all", "-zadd", "-mget")
    queue = taskbull.SyncQueue("q", redis=f"redis://u:s@127.0.0.1:{server.port}")
    with pytest.raises(taskbull.TaskbullError) as caught:
        queue.add("x", delay=5)
    assert "taskbull doctor says what the user lacks" in str(caught.value)
    if kind != REDIS_6:
        assert "'zadd'" in str(caught.value)
    queue.close()
