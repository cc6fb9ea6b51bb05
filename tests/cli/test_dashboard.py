"""`taskbull dashboard`: a page for whoever may see it, and a refusal for all else."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from taskbull import SyncQueue
from tests.cli.programs import run
from tests.servers.kinds import VALKEY_9, Reachable, SharedServers


@pytest.fixture
def server(shared_servers: SharedServers) -> Reachable:
    return shared_servers.get(VALKEY_9)


def start(cwd: Path, *words: str, **environment: str) -> tuple[subprocess.Popen[str], str]:
    """Start a dashboard; return its process and its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "taskbull", "dashboard", "--port", "0", *words],
        cwd=cwd,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    said = ""
    while not (found := re.search(r"http://\S+/", said)):
        line = process.stdout.readline()
        assert line, said
        said += line
    return process, found[0]


def test_it_shows_any_queue_without_an_app(tmp_path: Path, server: Reachable, prefix: str) -> None:
    queue = SyncQueue("emails", redis=server.url, prefix=prefix)
    queue.add("send")
    queue.close()
    where = ("--redis", server.url, "--prefix", prefix)
    process, address = start(tmp_path, *where, "--label", "PROD", "--read-only")
    try:
        page = httpx.get(address, timeout=20, trust_env=False)
        assert (page.status_code, "emails" in page.text, "PROD" in page.text) == (200, True, True)
        form = {"action": "pause", "q": "emails"}
        headers = {"sec-fetch-site": "same-origin"}
        refused = httpx.post(
            f"{address}confirm", data=form, headers=headers, timeout=20, trust_env=False
        )
        assert refused.status_code == 403
        with httpx.stream("GET", f"{address}live?page=", timeout=20, trust_env=False) as stream:
            assert next(stream.iter_lines()) == "retry: 3000"
            process.send_signal(signal.SIGTERM)  # streams do not hold it up
            process.wait(20)
    finally:
        process.kill()
        rest, _ = process.communicate()
    assert "Traceback" not in rest
    assert address not in rest  # there is no access log


def test_it_asks_for_the_password_of_the_environment(tmp_path: Path, server: Reachable) -> None:
    process, address = start(
        tmp_path, "--redis", server.url, "--auth-env", "DASH", "--host", "0.0.0.0", DASH="ann:x:y"
    )
    try:
        address = address.replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(address, timeout=20, trust_env=False).status_code == 401
        allowed = httpx.get(address, auth=("ann", "x:y"), timeout=20, trust_env=False)
        assert allowed.status_code == 200
    finally:
        process.terminate()
        process.communicate(timeout=20)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--host", "0.0.0.0"), "--auth-env NAME"),
        (("--host", "::"), "--auth-env NAME"),
        (("--host", "example.org"), "--auth-env NAME"),
        (("--auth-env", "NOT_SET_ANYWHERE"), "NOT_SET_ANYWHERE is not set"),
        (("--auth", "ann"), "must be user:password"),
        (("--auth", "a:b", "--auth-env", "X"), "give one of them"),
        (("--allow", "fly"), "there is no action 'fly'"),
        (("--redis", "nowhere://"), "nowhere"),
    ],
)
def test_what_cannot_be_right_is_refused(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    done = run("dashboard", "--redis", "redis://127.0.0.1:1", *words, cwd=tmp_path)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        where = ("--redis", "redis://127.0.0.1:1")
        done = run("dashboard", *where, "--port", str(port), cwd=tmp_path)
    assert done.returncode == 1
    assert str(port) in done.stderr
    assert "Traceback" not in done.stderr
