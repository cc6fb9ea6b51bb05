"""`taskbull restore`: jobs come back from a file, all of them or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis
from msgspec import Raw
from msgspec.structs import replace

from taskbull.core.wire.job import JobCopy, write_copy
from taskbull.queue.operations import parts_of
from taskbull.queue.queue import SyncQueue
from tests.cli.conftest import CommandLine, Shop
from tests.servers.kinds import PrivateServers


def saved(queue: SyncQueue, *ids: str) -> list[JobCopy]:
    """Copy jobs, and remove them."""
    copies = [copy for job_id in ids if (copy := queue.copy_job(job_id)) is not None]
    assert all(queue.remove(job_id) for job_id in ids)
    return copies


def write(folder: Path, copies: list[JobCopy]) -> str:
    file = folder / "jobs.jsonl"
    file.write_bytes(b"".join(map(write_copy, copies)) + b"\n")
    return str(file)


def test_removed_jobs_come_back(cli: CommandLine, tmp_path: Path) -> None:
    queue = cli.queue("emails")
    queue.add("send", {"to": "ann"}, attempts=7)
    queue.add("send", {"to": "bob"}, job_id="mine", priority=3)
    file = write(tmp_path, saved(queue, "1", "mine"))
    assert cli("restore", file).splitlines() == [
        "job 3 (send) added to queue emails (was 1)",
        "job mine (send) added to queue emails (was mine)",
    ]
    third = queue.get_job("3")
    assert third is not None
    assert (third.data, third.options.attempts) == ({"to": "ann"}, 7)
    assert cli.json("restore", file)[1] == {
        "id": "mine",
        "queue": "emails",
        "name": "send",
        "was": "mine",
        "deduplicated": True,
    }


def test_they_may_go_to_another_queue_and_come_from_a_pipe(
    cli: CommandLine, tmp_path: Path
) -> None:
    cli.queue("emails").add("send", {"to": "ann"})
    file = write(tmp_path, saved(cli.queue("emails"), "1"))
    piped = Path(file).read_bytes()
    result = cli.run("restore", "-", "--queue", "others", *cli.where, input=piped)
    assert (result.exit_code, cli.queue("others").counts()["waiting"]) == (0, 1)
    assert cli.queue("emails").counts()["waiting"] == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"masked": True}, "are masked"),
        ({"unreadable": "x"}, "cannot be added again"),
        ({"name": ""}, "job name"),
        ({"options": Raw(b'{"jobId":"7"}')}, "job_id"),
        ({"queue": "a:b"}, "queue name"),  # S26
        ({"queue": ""}, "queue name"),
    ],
)
def test_one_line_that_cannot_be_added_keeps_all_out(
    cli: CommandLine, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    queue = cli.queue("emails")
    queue.add_bulk([("send", {}), ("send", {})])
    good, bad = saved(queue, "1", "2")
    file = write(tmp_path, [good, replace(bad, **change)])
    said = cli.fails("restore", file, code=2)
    assert f"{file}, line 2:" in said
    assert words in said
    assert "Nothing was added" in said
    assert queue.counts()["waiting"] == 0


def test_a_file_of_something_else_is_refused(cli: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"[1, 2]\n")
    assert "line 1: not a copy of a job" in cli.fails("restore", str(file), code=2)
    assert "No such file" in cli.fails("restore", str(tmp_path / "none"), code=2)


def test_the_tasks_of_an_app_check_the_data(shop: Shop, tmp_path: Path) -> None:
    queue = shop.queue("emails")
    queue.add("send_email", {"to": 1})
    file = write(tmp_path, saved(queue, "1"))
    assert "send_email" in shop.fails("restore", file, code=2)
    assert queue.counts()["waiting"] == 0


def many(cli: CommandLine, jobs: int) -> list[JobCopy]:
    queue = cli.queue("emails")
    queue.add("send", {"to": "ann"})
    [copy] = saved(queue, "1")
    return [replace(copy, id=f"job-{number}") for number in range(jobs)]


def test_many_go_in_few_calls(cli: CommandLine, tmp_path: Path) -> None:
    copies = many(cli, 600)
    copies.insert(300, replace(copies[0], id="other", queue="others"))
    file = write(tmp_path, copies)
    lines = cli("restore", file).splitlines()
    assert [line.split()[-1].rstrip(")") for line in lines] == [copy.id for copy in copies]
    assert cli.queue("emails").counts()["waiting"] == 600
    assert cli.queue("others").counts()["waiting"] == 1


def test_parts_are_of_one_queue_and_of_bounded_size(cli: CommandLine) -> None:
    [copy] = many(cli, 1)
    large = replace(copy, data=Raw(b'"' + b"x" * 600_000 + b'"'))
    other = replace(copy, queue="others")
    parts = [len(part) for part in parts_of([copy] * 600 + [other] * 2 + [copy] + [large] * 3)]
    assert parts == [250, 250, 100, 2, 2, 1, 1]


def test_the_lines_are_named_that_could_not_be_added(
    cli: CommandLine, tmp_path: Path, private_server: PrivateServers
) -> None:
    copies = many(cli, 300)
    file = write(tmp_path, [*copies[:250], replace(copies[0], queue="closed"), *copies[250:]])
    server = private_server()
    with redis.Redis.from_url(server.url) as admin:
        admin.acl_setuser(
            "narrow", enabled=True, nopass=True, categories=["+@all"],
            keys=["bull:emails:*", "bull::tb:*"],
        )  # fmt: skip
        url = server.url.replace("redis://", "redis://narrow:x@")
        result = cli.run("restore", file, "--redis", url, "--prefix", "bull")
        assert result.exit_code == 1
        assert len(result.stdout.splitlines()) == 250
        assert f"{file}, lines 251 to 251: " in result.stderr
        assert "Earlier lines were added. These and later lines were not added" in result.stderr
        assert admin.llen("bull:emails:wait") == 250
