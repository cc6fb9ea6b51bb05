"""Messages of doctor and of workers when Redis answers but refuses to work."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
import redis

from taskbull.app.app import App
from taskbull.cli.worker_process import show_banner
from taskbull.store.server_process import ServerProcess
from tests.cli.conftest import OpenCli
from tests.cli.programs import run
from tests.servers.certificates import Certificates, tls_in_front_of
from tests.servers.kinds import REDIS_6, VALKEY_9, PrivateServers
from tests.servers.waiting import wait_until


def work() -> None: ...


def admin(server: ServerProcess) -> redis.Redis:
    return redis.Redis(unix_socket_path=str(server.socket))


def panel(url: str) -> str:
    """Give the line about Redis that a worker shows when it starts."""
    app = App("shop", redis=url)
    app.task(name="work")(work)
    with redirect_stdout(StringIO()) as shown:
        show_banner(app, app.worker(), "asyncio")
    app.close()
    [line] = [line for line in shown.getvalue().splitlines() if line.startswith("  redis")]
    return line


def diagnose(open_cli: OpenCli, url: str) -> str:
    cli = open_cli(url, "bull")
    result = cli.run("doctor", *cli.where)
    assert result.exit_code == 1, result.output
    return result.stdout


@pytest.mark.parametrize("kind", [VALKEY_9, REDIS_6])
@pytest.mark.parametrize(
    ("options", "said", "advice"),
    [
        ({"min-replicas-to-write": "1"}, "NOREPLICAS", "lower min-replicas-to-write"),
        ({"maxmemory": "1mb", "maxmemory-policy": "noeviction"}, "OOM", "raise maxmemory"),
        ({"rename-command": "EVALSHA nothing"}, "unknown command", "needs scripts (EVALSHA"),
    ],
)
def test_a_server_that_refuses_to_write_is_a_problem(  # G4.
    private_server: PrivateServers,
    open_cli: OpenCli,
    kind: str,
    options: dict[str, str],
    said: str,
    advice: str,
) -> None:
    server = private_server(options, kind=kind)
    if "maxmemory" in options:
        with admin(server) as client:
            client.config_set("maxmemory", "1")
    text = diagnose(open_cli, server.url)
    assert re.search(rf"problem +writing +.*{said}", text)
    assert advice in text
    line = panel(server.url)
    assert said in line
    assert "fine" not in line
    assert "not reachable yet" not in line


@pytest.mark.parametrize("kind", [VALKEY_9, REDIS_6])
def test_a_replica_does_not_look_fine(
    private_server: PrivateServers, open_cli: OpenCli, tmp_path: Path, kind: str
) -> None:
    primary, replica = private_server(kind=kind), private_server(kind=kind)
    with admin(replica) as client:
        client.replicaof("127.0.0.1", str(primary.port))
        wait_until(lambda: client.info("replication")["master_link_status"] == "up", "replicates")
    text = diagnose(open_cli, replica.url)
    assert "connect to its primary" in text
    assert "became unavailable" not in text  # Doctor makes the other checks.
    assert "READONLY" in panel(replica.url)


def test_a_disk_that_cannot_be_written_is_a_problem(
    private_server: PrivateServers, open_cli: OpenCli, tmp_path: Path
) -> None:
    server = private_server({"save": "1 1", "enable-protected-configs": "local"})
    cli = open_cli(server.url, "bull")
    cli.queue("emails").add("send")
    with admin(server) as client:
        client.config_set("dir", "/proc")
        client.bgsave()
        wait_until(lambda: client.info()["rdb_last_bgsave_status"] == "err", "it fails to save")
    text = diagnose(open_cli, server.url)
    assert re.search(r"problem +writing .*MISCONF", text)
    assert "its disk space" in text
    assert "MISCONF" in panel(server.url)
    assert "Redis refuses writes: it cannot save its data" in cli("why", "emails")
    assert "! Redis refuses writes (it cannot save its data" in cli("top", "--once")


@pytest.mark.parametrize("kind", [VALKEY_9, REDIS_6])
@pytest.mark.parametrize("command", ["mget", "smismember", "xadd", "bzpopmin", "xread"])
def test_a_command_that_is_forbidden_is_named(
    private_server: PrivateServers, open_cli: OpenCli, tmp_path: Path, kind: str, command: str
) -> None:
    server = private_server(kind=kind)
    with admin(server) as client:
        rules = ("on", ">secret", "~*", "&*", "+@all", f"-{command}")
        client.execute_command("ACL", "SETUSER", "app", *rules)
    url = f"redis://app:secret@127.0.0.1:{server.port}"
    text = diagnose(open_cli, url)
    assert f"forbids {command.upper()}" in text
    assert f"ACL SETUSER <user> +{command}" in text
    assert f"forbids {command.upper()}" in panel(url)
    with admin(server) as client:
        assert client.keys("*doctor*") == []


def test_keys_that_are_forbidden_are_named(
    private_server: PrivateServers, open_cli: OpenCli
) -> None:
    server = private_server()
    with admin(server) as client:
        client.execute_command("ACL", "SETUSER", "app", "on", ">s", "~other:*", "&*", "+@all")
    text = diagnose(open_cli, f"redis://app:s@127.0.0.1:{server.port}")
    assert "does not let the user access the keys" in text
    assert "~bull:default:*" in text


def test_a_server_that_does_not_tell_its_version_is_fine(
    private_server: PrivateServers, tmp_path: Path
) -> None:
    server = private_server()
    with admin(server) as client:
        client.execute_command(
            *("ACL", "SETUSER", "app", "on", ">s", "~*", "&*", "+@all", "-@dangerous")
        )
    line = panel(f"redis://app:s@127.0.0.1:{server.port}")
    assert "version unknown" in line
    assert "not reachable yet" not in line


def test_too_many_clients_are_reported(
    private_server: PrivateServers, open_cli: OpenCli, tmp_path: Path
) -> None:
    server = private_server({"maxclients": "1"})
    with redis.Redis.from_url(server.url) as holder:
        holder.ping()
        assert "raise maxclients" in diagnose(open_cli, server.url)
        assert "raise maxclients" in panel(server.url)


def test_tls_and_none_mixed_up_are_reported(
    private_server: PrivateServers, open_cli: OpenCli, tmp_path: Path
) -> None:
    server = private_server()
    certificates = Certificates(tmp_path)
    with tls_in_front_of(("127.0.0.1", server.port), certificates) as proxy:
        plain = proxy.url.replace("rediss://", "redis://")
        assert "use rediss:// instead of redis://" in diagnose(open_cli, plain)
        assert "use rediss:// instead of redis://" in panel(plain)
        assert "?ssl_ca_certs=" in diagnose(open_cli, proxy.url)
    wrong = Certificates(tmp_path, host="elsewhere.example")
    with tls_in_front_of(("127.0.0.1", server.port), wrong) as proxy:
        url = f"{proxy.url}?ssl_ca_certs={wrong.ca_file}"
        assert "ssl_check_hostname" in diagnose(open_cli, url)


@contextmanager
def closing_proxy() -> Iterator[int]:
    """A listener that closes each connection at its first word, as twemproxy does at INFO."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                with client:
                    client.recv(1000)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_a_proxy_that_closes_is_reported(open_cli: OpenCli) -> None:
    with closing_proxy() as port:
        assert "twemproxy" in diagnose(open_cli, f"redis://127.0.0.1:{port}")


def test_protected_mode_is_reported(private_server: PrivateServers, open_cli: OpenCli) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            pytest.skip("this machine has only its loopback")
        host = probe.getsockname()[0]
    server = private_server({"bind": "0.0.0.0", "protected-mode": "yes"})
    text = diagnose(open_cli, f"redis://{host}:{server.port}")
    assert "requirepass" in text


def test_every_command_says_what_to_do(tmp_path: Path, private_server: PrivateServers) -> None:
    server = private_server({"requirepass": "secret"})
    done = run("queues", "--redis", f"redis://:wrong@127.0.0.1:{server.port}", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"taskbull: Cannot use Redis at 127.0.0.1:{server.port}: WRON")
    assert "into the URL" in done.stderr
    assert "wrong@" not in done.stderr
