"""`taskbull events`: following a queue."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import redis

from tests.cli.conftest import CommandLine, OpenCli
from tests.servers.kinds import PrivateServers
from tests.servers.waiting import wait_until


@contextmanager
def following(*words: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """Follow a queue in a separate process during the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "taskbull", "events", *words],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def line(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline()


def test_events_are_followed_from_the_first_on(cli: CommandLine, nowhere: Path) -> None:
    queue = cli.queue("emails")
    queue.add("send", {"x": 1})
    with following("emails", "--last-id", "0", "--json", *cli.where, cwd=nowhere) as process:
        added = json.loads(line(process.stdout))
        assert set(added) == {"id", "at", "queue", "event", "job_id", "fields"}
        assert (added["queue"], added["event"], added["job_id"]) == ("emails", "added", "1")
        assert json.loads(line(process.stdout))["event"] == "waiting"
        queue.pause()
        assert json.loads(line(process.stdout))["event"] == "paused"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert line(process.stderr) == ""


def test_events_are_lines_for_people(cli: CommandLine, nowhere: Path) -> None:
    cli.queue("emails").add("se\x1bnd")
    with following("emails", "--last-id", "0", *cli.where, cwd=nowhere) as process:
        clock, name, job_id, fields = line(process.stdout).split()
        assert (name, job_id, fields) == ("added", "1", r"name=se\x1bnd")
        assert clock.count(":") == 2


def test_a_queue_that_is_not_there_yet_is_waited_for(cli: CommandLine, nowhere: Path) -> None:
    with following("emails", *cli.where, cwd=nowhere) as process:
        assert "does not exist yet" in line(process.stderr)
        # Once its connection is blocked, it knows where the stream ended.
        wait_until(lambda: "xread" in commands_at(cli.url), "it follows")
        cli.queue("emails").add("send")
        assert " added " in line(process.stdout)


def commands_at(url: str) -> set[str]:
    """Give what the clients of a server have asked last."""
    with redis.Redis.from_url(url) as client:
        return {each["cmd"] for each in client.client_list()}


def test_an_outage_is_reported_and_waited_out(
    private_server: PrivateServers, open_cli: OpenCli, nowhere: Path
) -> None:
    server = private_server({"appendonly": "yes", "appendfsync": "always"})
    cli = open_cli(server.url, "bull")
    cli.queue("emails").add("send")
    with following("emails", "--last-id", "0", *cli.where, cwd=nowhere) as process:
        assert " added " in line(process.stdout)
        assert " waiting " in line(process.stdout)
        server.kill()
        assert "retrying until it is available" in line(process.stderr)
        server.start()
        cli.queue("emails").add("send")
        assert "Reconnected to Redis" in line(process.stderr)
        assert " added " in line(process.stdout)


def test_an_id_that_is_none_is_wrong_usage(cli: CommandLine) -> None:
    assert "last_id must" in cli.fails("events", "emails", "--last-id", "yesterday", code=2)
