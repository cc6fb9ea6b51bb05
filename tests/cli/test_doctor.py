"""`taskbull doctor`: each thing it looks at, well and not."""

from __future__ import annotations

import shlex
import time
from functools import partial
from typing import Any

import anyio
import pytest
import redis

from taskbull import App, Every
from taskbull.cli.commands.doctor import acl_of, key_rule
from taskbull.core.worker_record import WorkerRecord
from taskbull.monitor.server import SyncServer
from taskbull.scripts import records
from taskbull.store.server_process import ServerProcess
from tests.cli.conftest import CommandLine, OpenCli, Shop
from tests.servers.cluster import Cluster
from tests.servers.kinds import PrivateServers, Reachable
from tests.servers.sentinel import SentinelSet

GOOD = {"maxmemory-policy": "noeviction", "appendonly": "yes"}


def findings(cli: CommandLine, code: int = 0) -> dict[str, list[tuple[str, str]]]:
    """Give levels and messages by check."""
    found: dict[str, list[tuple[str, str]]] = {}
    for finding in cli.json("doctor", code=code):
        assert set(finding) == {"check", "level", "message", "advice"}
        found.setdefault(finding["check"], []).append((finding["level"], finding["message"]))
    return found


def admin(server: ServerProcess) -> redis.Redis:
    return redis.Redis(unix_socket_path=str(server.socket))


def test_a_server_as_it_should_be_has_no_problem(
    private_server: PrivateServers, open_cli: OpenCli
) -> None:
    cli = open_cli(private_server(GOOD).url, "bull")
    found = findings(cli)
    assert {level for each in found.values() for level, _ in each} == {"ok"}
    assert list(found) == [
        *("app", "redis", "topology", "server", "memory", "persistence", "latency", "clock"),
        *("permissions", "queues"),
    ]
    text = cli("doctor")
    assert text.splitlines()[-1] == "No problems found."
    assert all(line.startswith("ok") for line in text.splitlines()[:-1])


def test_every_kind_of_server_is_named(server: Reachable, prefix: str, open_cli: OpenCli) -> None:
    [(level, message)] = findings(open_cli(server.url, prefix))["server"]
    assert level == "ok"
    assert {"valkey-9": "Valkey 9", "redis-6.2": "Redis 6.2", "redis-7": "Redis 7"}.get(
        server.kind, "runs"
    ) in message


@pytest.mark.parametrize(
    ("options", "check", "level", "message"),
    [
        ({"maxmemory-policy": "allkeys-lru", "maxmemory": "100mb"}, "memory", "problem", "evict"),
        ({"maxmemory-policy": "allkeys-lru"}, "memory", "warning", "if it had a memory limit"),
        ({"appendonly": "no", "save": ""}, "persistence", "warning", "saves nothing"),
        ({"appendonly": "no", "save": "900 1"}, "persistence", "warning", "snapshots only"),
        ({"cluster-enabled": "yes"}, "topology", "problem", "use a redis+cluster:// URL"),
    ],
)
def test_problems_of_a_server_are_reported_with_advice(
    private_server: PrivateServers,
    open_cli: OpenCli,
    options: dict[str, str],
    check: str,
    level: str,
    message: str,
) -> None:
    cli = open_cli(private_server({**GOOD, **options}).url, "bull")
    result = cli.run("doctor", *cli.where)
    assert result.exit_code == (1 if level == "problem" else 0)
    place = result.stdout.index(message)
    line = result.stdout[:place].splitlines()[-1]
    if line.lstrip().startswith("→"):
        line = result.stdout[:place].splitlines()[-2]
    assert line.split()[:2] == [level, check]
    assert "→" in result.stdout


def test_a_replica_is_a_problem(private_server: PrivateServers, open_cli: OpenCli) -> None:
    primary, replica = private_server(GOOD), private_server(GOOD)
    with admin(replica) as client:
        client.replicaof("127.0.0.1", str(primary.port))
    found = findings(open_cli(replica.url, "bull"), code=1)
    assert any("is a replica" in message for level, message in found["topology"])


def test_what_an_acl_rule_forbids_is_reported(
    private_server: PrivateServers, open_cli: OpenCli
) -> None:
    server = private_server(GOOD)
    with admin(server) as client:
        client.execute_command(
            *("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all"),
            *("-info", "-config", "-script", "-client", "+client|setname", "-time"),
        )
    url = f"redis://app:secret@127.0.0.1:{server.port}"
    cli = open_cli(url, "bull")
    result = cli.run("doctor", *cli.where)
    assert result.exit_code == 1
    assert "problem  writing" in result.stdout
    assert "INFO is forbidden" in result.stdout
    assert "TIME is forbidden" in result.stdout
    assert "secret" not in result.output


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://:wrong@127.0.0.1:{port}", "into the URL"),
        ("redis://127.0.0.1:{port}", "into the URL"),
        ("rediss://127.0.0.1:{port}", "use redis:// instead of rediss://"),
        ("redis://:secret@127.0.0.1:1", "-A module:app names the app"),
        ("http://127.0.0.1", "must start with one of"),
    ],
)
def test_a_server_that_cannot_be_used_is_one_problem(
    private_server: PrivateServers, open_cli: OpenCli, url: str, said: str
) -> None:
    server = private_server({"requirepass": "secret"})
    cli = open_cli(url.format(port=server.port), "bull")
    result = cli.run("doctor", *cli.where)
    assert result.exit_code == 1
    assert result.stdout.count("problem ") == 1
    assert said in result.stdout
    assert "secret" not in result.output.replace("requirepass", "")


def test_an_app_that_cannot_be_loaded_is_a_problem_beside_the_others(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKBULL_APP", "no_such_module:app")
    monkeypatch.setenv("TASKBULL_REDIS_URL", shop.url)
    found = findings(shop, code=1)
    assert found["app"][0][0] == "problem"
    assert found["redis"][0][0] == "ok"


def test_a_cluster_is_examined_node_by_node(cluster: Cluster, open_cli: OpenCli) -> None:
    found = findings(open_cli(cluster.url, "bull"))
    assert found["topology"][0] == (
        "ok",
        (
            "a Redis Cluster with 3 masters, complete; "
            "the names of queues are hash tags, as in {emails}"
        ),
    )
    assert len(found["server"]) == 3


def test_the_primary_that_sentinels_name_is_examined(
    sentinels: SentinelSet, open_cli: OpenCli
) -> None:
    found = findings(open_cli(sentinels.url, "bull"))
    assert "the sentinels name" in found["topology"][0][1]


def about(cli: CommandLine, part: str) -> tuple[str, str]:
    [found] = [each for each in findings(cli)["queue"] if part in each[1]]
    return found


def test_queues_are_reported_with_who_uses_them(cli: CommandLine) -> None:
    for name, version in [("old", "bullmq:5.62.0"), ("new", "bullmq:6.7.1"), ("odd", "foo:1")]:
        cli.queue(name).add("x")
        with redis.Redis.from_url(cli.url) as client:
            client.hset(f"{cli.prefix}:{name}:meta", "version", version)
    assert about(cli, "old: 1 waiting; used by Node BullMQ 5 (bullmq:5.62.0)")[0] == "ok"
    assert about(cli, "new: 1 waiting; used by Node BullMQ 6 (bullmq:6.7.1)")[0] == "ok"
    assert about(cli, "odd: 1 waiting; used by foo:1")[0] == "ok"


def test_jobs_that_nobody_runs_are_reported(cli: CommandLine) -> None:
    cli.queue("emails").add("x")
    assert about(cli, "no worker is connected")[0] == "warning"
    cli.queue("emails").pause()
    level, message = about(cli, "emails: paused")
    assert (level, message) == ("warning", "emails: paused; 1 job cannot run")
    cli("pause", "emails", "--reason", "the move")
    assert about(cli, "emails: paused")[1].endswith(": the move; 1 job cannot run")


def test_stalled_jobs_are_reported(cli: CommandLine) -> None:
    cli.queue("emails").add_bulk([("x", {})] * 2)
    with redis.Redis.from_url(cli.url) as client:
        for _ in range(2):
            client.rpoplpush(f"{cli.prefix}:emails:wait", f"{cli.prefix}:emails:active")
        client.set(f"{cli.prefix}:emails:2:lock", "token")
    assert about(cli, "stalled") == (
        "warning",
        "emails: 1 running job without a lock (stalled): 1",
    )


def test_a_mixed_pause_that_loses_jobs_in_version_5_is_reported(cli: CommandLine) -> None:
    queue = cli.queue("emails")
    queue.add_bulk([("x", {})] * 2)
    queue.pause()
    with redis.Redis.from_url(cli.url) as client:
        client.hset(f"{cli.prefix}:emails:meta", "version", "bullmq:5.62.0")
        client.rpoplpush(f"{cli.prefix}:emails:paused", f"{cli.prefix}:emails:wait")
    assert about(cli, "BullMQ 5 would lose some")[0] == "warning"


def test_the_summary_counts(cli: CommandLine) -> None:
    cli.queue("emails").add("x")
    last: Any = cli("doctor").splitlines()[-1]
    assert last.startswith("Problems: 0, warnings: ")


def test_a_schedule_whose_next_run_is_overdue_is_a_warning(
    private_server: PrivateServers, open_cli: OpenCli
) -> None:
    server = private_server(GOOD)
    cli = open_cli(server.url, "bull")
    queue = cli.queue("reports")
    for name in ("late", "gone", "soon"):
        queue.upsert_schedule(name, Every(60), queue.job("report", {"name": name}))
    queue.upsert_schedule("ended", Every(60, limit=1), queue.job("report"))
    assert "schedules" not in findings(cli)
    with admin(server) as client:
        for schedule in queue.schedules():
            job_id = client.keys(queue.keys.job(f"repeat:{schedule.id}:*"))[0].decode()
            if schedule.id == "soon":
                continue
            client.zadd(queue.keys.repeat, {schedule.id: 1_700_000_000_000})
            if schedule.id == "late":
                client.rename(job_id, queue.keys.job("repeat:late:1700000000000"))
    [(level, message)] = findings(cli)["schedules"]
    assert (level, message[:57]) == (
        "warning",
        "reports: the next run of 2 schedules is overdue, since 20",
    )
    assert message.endswith("gone, late")
    assert "taskbull worker -q reports" in cli("doctor")


def test_the_run_of_a_late_schedule_that_was_given_back_is_not_gone(
    private_server: PrivateServers, open_cli: OpenCli
) -> None:
    server = private_server(GOOD)
    cli = open_cli(server.url, "bull")
    queue = cli.queue("reports")
    queue.upsert_schedule("begun", Every(60), queue.job("report"))
    run = queue.keys.job("repeat:begun:1700000000000")
    with admin(server) as client:
        [key] = client.keys(queue.keys.job("repeat:begun:*"))
        client.rename(key, run)
        client.zadd(queue.keys.repeat, {"begun": 1_700_000_000_000})
        # A worker began it, and stopped before it had added the next one.
        client.hset(run, "ats", 1)
        client.rpush(queue.keys.wait, "repeat:begun:1700000000000")
        said = cli("doctor")
        assert "the next run of 1 schedule is overdue" in said
        assert "taskbull worker -q reports" in said
        assert "is gone" not in said
        client.delete(run)
    assert "the job of the next run is gone" in cli("doctor")


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("x; touch pwned", "taskbull resume 'x; touch pwned'"),
        ("it's", """taskbull resume 'it'"'"'s'"""),
        ("x$(id)", "taskbull resume 'x$(id)'"),
        ("x\nrm -rf", r"taskbull resume 'x\nrm -rf'"),
        ("--all", "taskbull resume -- --all"),
        ("plain", "taskbull resume plain"),
    ],
)
def test_names_are_quoted_in_commands_to_copy(cli: CommandLine, name: str, command: str) -> None:
    cli.queue(name).add("x")  # K6
    advice = {each["advice"] for each in cli.json("doctor") if each["check"] == "queue"}
    assert f"taskbull worker -q {shlex.quote(name)}" in advice
    cli.queue(name).pause()
    assert f"→ {command}\n" in cli("doctor")


def test_the_name_of_a_queue_adds_no_rule_to_an_acl(cli: CommandLine) -> None:
    server = SyncServer(cli.url, prefix=cli.prefix)
    name = "x ~* +@all \t'\u2028"
    rule = key_rule(server, name)
    assert f" {rule} ~{cli.prefix}::tb:* resetchannels " in acl_of(server, [name])
    server.close()
    assert rule == f"~{cli.prefix}:x?~\\*?+@all??????:*"
    assert len(rule.split()) == 1


def test_a_server_that_does_not_know_info_is_used(  # K9
    private_server: PrivateServers, open_cli: OpenCli
) -> None:
    server = private_server({**GOOD, "rename-command": 'INFO ""'})
    cli = open_cli(server.url, "bull")
    cli.queue("emails").add("send")
    found = findings(cli)
    assert ("warning", "does not describe itself (INFO is unknown)") in [
        (level, message.partition(" ")[2].partition(":")[0]) for level, message in found["server"]
    ]
    assert "EVALSHA" not in cli("doctor")
    app = App("shop", redis=server.url)
    app.task(name="send", queue="emails")(lambda: 7)
    anyio.run(partial(app.run_worker, burst=True))
    assert app.job("emails", "1").result() == 7
    app.close()


def test_doctor_uses_the_rules_of_top(cli: CommandLine) -> None:
    cli.queue("emails").add("x")
    with redis.Redis.from_url(cli.url) as client:
        now_ms = time.time() * 1000
        ids = {str(number): now_ms for number in range(1000, 1200)} | {"1": now_ms - 3_600_000}
        client.zadd(f"{cli.prefix}:emails:failed", ids)
    [queue] = cli.json("top", "--once")["queues"]
    assert [each["code"] for each in queue["trouble"]] == ["no_worker", "failing"]
    found = [each for each in cli.json("doctor") if "failed in 10 min" in each["message"]]
    assert [each["level"] for each in found] == ["warning"]
    assert found[0]["advice"] == "taskbull errors emails"
    assert "No problems found." not in cli("doctor")


def test_jobs_that_were_cancelled_are_no_problem(cli: CommandLine) -> None:
    queue = cli.queue("emails")
    for _ in range(12):
        queue.cancel(queue.add("send").id, "not needed")
    assert queue.counts()["failed"] == 12
    assert "failed in 10 min" not in cli("doctor")
    assert cli.json("top", "--once")["queues"][0]["trouble"] == []


def test_jobs_whose_task_no_worker_has_are_reported(shop: Shop) -> None:
    shop.queue("default").add_bulk([("no_such", {})] * 3)
    shop.work()
    now_ms = int(time.time() * 1000)
    keys = shop.queue("default").keys
    record = WorkerRecord(id="w1", at_ms=now_ms, tasks=["resize"])
    shop.queue("default")._stores.sync_store().run(records.record_worker(keys, record))
    text = "3 jobs wait for task no_such, which no worker has"
    found = [each for each in shop.json("doctor") if text in each["message"]]
    assert [each["level"] for each in found] == ["warning"]
    queues = {each["name"]: each for each in shop.json("top", "--once")["queues"]}
    assert text in [each["text"] for each in queues["default"]["trouble"]]
    assert "3 jobs wait for task no_such, which no worker has." in shop("why", "default")
    record = WorkerRecord(id="w2", at_ms=now_ms, tasks=["no_such"])
    shop.queue("default")._stores.sync_store().run(records.record_worker(keys, record))
    assert text not in shop("doctor")


def test_a_worker_that_always_had_jobs_is_a_worker(cli: CommandLine) -> None:
    queue = cli.queue("emails")
    queue.add("x")
    record = WorkerRecord(id="w1", at_ms=int(time.time() * 1000), concurrency=9, running=1)
    queue._stores.sync_store().run(records.record_worker(queue.keys, record))
    assert "no worker is connected" not in cli("doctor")
