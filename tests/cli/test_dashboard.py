"""`taskbull dashboard`: pages for authorized users, and refusals for everything else."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from taskbull import SyncQueue
from tests.cli.conftest import CommandLine
from tests.cli.programs import run
from tests.dashboard.conftest import SAME_ORIGIN
from tests.servers.kinds import VALKEY_9, Reachable, SharedServers


@pytest.fixture
def server(shared_servers: SharedServers) -> Reachable:
    return shared_servers.get(VALKEY_9)


TOKEN = "fixed-token-of-the-tests"
BEARER = {"authorization": f"Bearer {TOKEN}"}


def start(
    cwd: Path, *words: str, program: tuple[str, ...] = ("-m", "taskbull"), **environment: str
) -> tuple[subprocess.Popen[str], str]:
    """Start a dashboard; return its process and its address."""
    process = subprocess.Popen(
        [sys.executable, *program, "dashboard", "--port", "0", *words],
        cwd=cwd,
        env={**os.environ, "TASKBULL_DASHBOARD_TOKEN": TOKEN, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    said = ""
    while not (found := re.search(r"http://\S+", said)):
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
        page = httpx.get(address, headers=BEARER, timeout=60, trust_env=False)
        assert (page.status_code, "emails" in page.text, "PROD" in page.text) == (200, True, True)
        form = {"action": "pause", "q": "emails"}
        headers = {"sec-fetch-site": "same-origin", **BEARER}
        refused = httpx.post(
            f"{address}confirm", data=form, headers=headers, timeout=20, trust_env=False
        )
        assert refused.status_code == 403
        live = f"{address}live?page="
        with httpx.stream("GET", live, headers=BEARER, timeout=60, trust_env=False) as stream:
            assert next(stream.iter_lines()) == "retry: 1000"
            process.send_signal(signal.SIGTERM)  # streams do not hold it up
            process.wait(60)
    finally:
        process.kill()
        rest, _ = process.communicate()
    assert "Traceback" not in rest
    assert address not in rest  # there is no access log
    assert TOKEN not in rest


def test_without_settings_it_asks_for_the_token_that_it_prints(  # S8, S11
    tmp_path: Path, server: Reachable, prefix: str
) -> None:
    queue = SyncQueue("emails", redis=server.url, prefix=prefix)
    queue.add("send")
    queue.close()
    where = ("--redis", server.url, "--prefix", prefix)
    process, printed = start(tmp_path, *where, TASKBULL_DASHBOARD_TOKEN="")
    try:
        address, _, query = printed.partition("?")
        token = query.removeprefix("token=")
        assert len(token) > 40
        with httpx.Client(base_url=address, timeout=20, trust_env=False) as other:
            for page in (
                "",
                "queue?q=emails",
                "live?page=",
                "static/style.css",
                "?token=",
                "?token=x",
            ):
                assert other.get(page).status_code == 401, page
            form = {"action": "pause", "q": "emails", "once": "0" * 32}
            assert other.post("act", data=form, headers=SAME_ORIGIN).status_code == 401
            assert other.get("", headers={"cookie": "taskbull-80=x"}).status_code == 401
        with httpx.Client(timeout=20, trust_env=False) as own:
            sent = own.get(printed)
            assert (sent.status_code, sent.headers["location"]) == (303, "./")
            cookie = sent.headers["set-cookie"]
            assert token not in cookie
            assert cookie.startswith(f"taskbull-{httpx.URL(address).port}=")
            assert {"HttpOnly", "SameSite=Strict"} <= set(cookie.split("; "))
            shown = own.get(address)
            assert (shown.status_code, token in shown.text) == (200, False)
            assert own.get(f"{address}queue?token={token}&q=emails").headers["location"] == (
                "queue?q=emails"
            )
            [once] = re.findall(
                r'name="once" value="(\w+)"',
                own.post(f"{address}confirm", data=form, headers=SAME_ORIGIN).text,
            )
            done = own.post(f"{address}act", data={**form, "once": once}, headers=SAME_ORIGIN)
            assert done.status_code == 303
        assert httpx.get(address, headers={"authorization": f"Bearer {token}"}).status_code == 200
    finally:
        process.terminate()
        said, _ = process.communicate(timeout=20)
    assert token not in said
    assert "wrong token: user='' from='127.0.0.1'" in said
    assert "pause queue='emails'" in said  # the audit log reaches the output


@pytest.mark.full
def test_a_request_that_never_arrives_whole_is_dropped(  # S15
    tmp_path: Path, server: Reachable
) -> None:
    impatient = (
        "from taskbull.cli.main import main; from taskbull.dashboard import serving; "
        "serving._SLOWEST = 0.5; main()"
    )
    process, address = start(tmp_path, "--redis", server.url, program=("-c", impatient))
    try:
        port = httpx.URL(address).port
        whole = f"GET / HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n".encode()
        for sent in (b"", b"GET / HTTP/1.1\r\nHost: a", whole + b"GET /queue"):
            with socket.create_connection(("127.0.0.1", port or 0), timeout=60) as client:
                client.sendall(sent)
                with suppress(ConnectionResetError):
                    while client.recv(65536):
                        pass
        assert httpx.get(address, headers=BEARER, timeout=20, trust_env=False).status_code == 200
    finally:
        process.terminate()
        process.communicate(timeout=20)


@pytest.mark.full
def test_the_token_can_be_switched_off(tmp_path: Path, server: Reachable) -> None:  # S8
    process, address = start(tmp_path, "--redis", server.url, "--no-token")
    try:
        assert "token" not in address
        assert httpx.get(address, timeout=20, trust_env=False).status_code == 200
    finally:
        process.terminate()
        process.communicate(timeout=20)


@pytest.mark.full
def test_it_asks_for_the_password_of_the_environment(tmp_path: Path, server: Reachable) -> None:
    process, address = start(
        tmp_path, "--redis", server.url, "--auth-env", "DASH", "--host", "0.0.0.0", DASH="ann:x:y"
    )
    try:
        address = address.replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(address, timeout=60, trust_env=False).status_code == 401
        allowed = httpx.get(address, auth=("ann", "x:y"), timeout=60, trust_env=False)
        assert allowed.status_code == 200
    finally:
        process.terminate()
        process.communicate(timeout=20)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--host", "0.0.0.0"), "--auth-env"),
        (("--host", "::"), "--auth-env"),
        (("--host", "example.org"), "--auth-env"),
        (("--auth-env", "NOT_SET_ANYWHERE"), "NOT_SET_ANYWHERE is not set"),
        (("--auth", "ann"), "must be user:password"),
        (("--auth", "a:b", "--auth-env", "X"), "cannot be used together"),
        (("--allow", "fly"), "there is no action 'fly'"),
        (("--redis", "nowhere://"), "nowhere"),
    ],
)
def test_what_cannot_be_right_is_refused(
    cli: CommandLine, words: tuple[str, ...], said: str
) -> None:
    done = cli.run("dashboard", "--redis", "redis://127.0.0.1:1", *words)
    assert (done.exit_code, said in done.stderr) == (2, True), done.stderr


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        where = ("--redis", "redis://127.0.0.1:1")
        done = run("dashboard", *where, "--port", str(port), cwd=tmp_path)
    assert done.returncode == 1
    assert str(port) in done.stderr
    assert "Traceback" not in done.stderr
