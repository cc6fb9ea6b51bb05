from __future__ import annotations

import gc
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from random import Random

import pytest

from taskbull.store.run_server import ask
from taskbull.store.server_process import ServerProcess, valkey_binary
from tests.servers.certificates import Certificates, tls_in_front_of
from tests.servers.proxy import Proxy
from tests.servers.waiting import wait_until

PONG = b"+PONG\r\n"


@pytest.fixture(scope="module")
def target() -> Iterator[ServerProcess]:
    with ServerProcess(valkey_binary()) as server:
        yield server


@pytest.fixture
def proxy(target: ServerProcess) -> Iterator[Proxy]:
    with Proxy(target.socket) as proxy:
        yield proxy


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(proxy.address, timeout=5)


def talk(line: socket.socket, command: bytes = b"PING") -> bytes:
    line.sendall(command + b"\r\n")
    return line.recv(4096)


def test_bytes_pass_both_ways_and_connections_are_counted(proxy: Proxy) -> None:
    with connect(proxy) as first, connect(proxy) as second:
        assert talk(first) == talk(second) == PONG
        assert proxy.connections == 2
    wait_until(lambda: proxy.connections == 0, "both are closed")
    assert proxy.accepted == 2


def test_a_tcp_address_is_forwarded_to_as_well(target: ServerProcess) -> None:
    with Proxy(("127.0.0.1", target.port)) as proxy, connect(proxy) as line:
        assert talk(line) == PONG


def test_a_cut_resets_every_connection_and_new_ones_work(proxy: Proxy) -> None:
    with connect(proxy) as first, connect(proxy) as second:
        assert talk(first) == talk(second) == PONG
        proxy.cut()
        for line in (first, second):
            with pytest.raises(ConnectionResetError):
                line.recv(1)
    with connect(proxy) as third:
        assert talk(third) == PONG


def test_a_request_can_be_executed_without_its_reply(proxy: Proxy) -> None:
    proxy.cut_before_reply(b"INCR")
    with connect(proxy) as line:
        assert talk(line) == PONG
        with pytest.raises(ConnectionResetError):
            talk(line, b"INCR executed")
    assert proxy.cuts == 1
    with connect(proxy) as line:
        assert talk(line, b"GET executed") == b"$1\r\n1\r\n"


def test_a_request_can_be_lost_on_its_way(proxy: Proxy) -> None:
    proxy.cut_before_request(b"INCR")
    with connect(proxy) as line:
        assert talk(line) == PONG
        with pytest.raises(ConnectionResetError):
            talk(line, b"INCR lost")
    with connect(proxy) as line:
        assert talk(line, b"GET lost") == b"$-1\r\n"


def test_a_reply_can_be_cut_in_its_middle(proxy: Proxy) -> None:
    proxy.cut_after(len(PONG) + 3)
    with connect(proxy) as line:
        assert talk(line) == PONG
        assert talk(line) == PONG[:3]
        assert line.recv(10) == b""
    assert proxy.cuts == 1


def test_a_request_can_be_cut_in_its_middle(proxy: Proxy) -> None:
    proxy.cut_after_requests(len(b"PING\r\nINCR"))
    with connect(proxy) as line:
        assert talk(line) == PONG
        assert talk(line, b"INCR torn") == b""
    assert proxy.cuts == 1
    with connect(proxy) as line:
        assert talk(line, b"GET torn") == b"$-1\r\n"


def test_one_of_several_connections_can_be_cut(proxy: Proxy) -> None:
    with connect(proxy) as first, connect(proxy) as second:
        assert talk(first) == talk(second) == PONG
        proxy.cut_one(Random(1))
        assert proxy.connections == 1


def test_a_request_can_arrive_after_its_client_has_gone(proxy: Proxy) -> None:
    with connect(proxy) as line:
        assert talk(line) == PONG
        proxy.hold_requests()
        line.sendall(b"INCR late\r\n")
    with connect(proxy) as line:
        line.settimeout(0.05)
        with pytest.raises(TimeoutError):
            talk(line)
        line.settimeout(5)
        proxy.deliver()
        assert line.recv(100) == PONG
        wait_until(lambda: talk(line, b"GET late") == b"$1\r\n1\r\n", "it has arrived")


def test_a_black_hole_swallows_and_closes_nothing(proxy: Proxy) -> None:
    with connect(proxy) as before:
        assert talk(before) == PONG
        proxy.black_hole()
        with connect(proxy) as during:
            for line in (before, during):
                line.settimeout(0.05)
                with pytest.raises(TimeoutError):
                    talk(line)
        proxy.heal()
        with pytest.raises(TimeoutError):  # Lost bytes stay lost.
            talk(before)
        with connect(proxy) as after:
            assert talk(after) == PONG


def test_a_server_does_not_hear_that_a_dead_connection_was_closed(
    proxy: Proxy, target: ServerProcess
) -> None:
    with connect(proxy) as line:
        assert talk(line, b"CLIENT SETNAME ghost") == b"+OK\r\n"
        proxy.forget()

    def is_served() -> bool:
        return "name=ghost" in (ask(target.socket, "CLIENT LIST") or "")

    with connect(proxy) as line:
        assert talk(line) == PONG
    assert is_served()
    proxy.cut()
    wait_until(lambda: not is_served(), "the server has heard")


def test_bytes_can_be_late_and_stay_in_order(proxy: Proxy) -> None:
    with connect(proxy) as line:
        proxy.slow_down(0.05)
        begun = time.monotonic()
        for number in (1, 2, 3):
            line.sendall(b"ECHO %d\r\n" % number)
        received = b""
        while len(received) < 21:
            received += line.recv(100)
        assert received == b"$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n"
        assert time.monotonic() - begun >= 0.1  # there and back


def test_new_connections_can_be_refused_while_old_ones_continue(proxy: Proxy) -> None:
    with connect(proxy) as old:
        assert talk(old) == PONG
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            connect(proxy)
        assert talk(old) == PONG
    proxy.accept()
    with connect(proxy) as new:
        assert talk(new) == PONG


def test_a_server_that_is_not_there_is_a_reset(tmp_path: Path) -> None:
    with (
        Proxy(tmp_path / "nobody") as proxy,
        pytest.raises(ConnectionResetError),  # it may come while we connect
        connect(proxy) as line,
    ):
        line.recv(1)


def test_what_nobody_reads_does_not_pile_up(proxy: Proxy, target: ServerProcess) -> None:
    big = b"x" * 1_000_000
    with connect(proxy) as line:
        line.sendall(b"*3\r\n$3\r\nSET\r\n$3\r\nbig\r\n$1000000\r\n" + big + b"\r\n")
        assert line.recv(100) == b"+OK\r\n"
        asked = 100
        line.sendall(b"GET big\r\n" * asked)
        expected = asked * (len(big) + len(b"$1000000\r\n\r\n"))
        received = 0
        while received < expected:
            received += len(line.recv(1 << 20))
        assert received == expected


def test_the_end_of_the_block_ends_thread_and_connections(target: ServerProcess) -> None:
    before = threading.active_count()
    with Proxy(target.socket) as proxy:
        line = connect(proxy)
        assert talk(line) == PONG
    with closing(line), pytest.raises(ConnectionResetError):
        line.recv(1)
    assert threading.active_count() == before


def test_tls_is_spoken_for_a_server_that_cannot(target: ServerProcess, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    context = ssl.create_default_context(cafile=str(certificates.ca_file))
    with (
        tls_in_front_of(target.socket, certificates) as proxy,
        context.wrap_socket(connect(proxy), server_hostname="127.0.0.1") as line,
    ):
        assert talk(line) == PONG


def test_a_client_without_certificate_is_turned_away(target: ServerProcess, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    context = ssl.create_default_context(cafile=str(certificates.ca_file))
    with tls_in_front_of(target.socket, certificates, client_must_have_one=True) as proxy:
        with context.wrap_socket(connect(proxy), server_hostname="127.0.0.1") as line:
            reply = b""
            with suppress(OSError):  # an alert, a reset or an end, by the version of TLS
                reply = talk(line)
            assert reply == b""
        context.load_cert_chain(certificates.client_file)
        with context.wrap_socket(connect(proxy), server_hostname="127.0.0.1") as line:
            assert talk(line) == PONG


def test_a_closed_connection_with_late_bytes_ends_with_the_proxy(target: ServerProcess) -> None:
    _leave_late_bytes(target)
    gc.collect()  # warns of a socket that is still open


def _leave_late_bytes(target: ServerProcess) -> None:
    with Proxy(target.socket) as proxy:
        with connect(proxy) as line:
            assert talk(line) == PONG
            proxy.slow_down(3600)
            line.sendall(b"PING\r\n")
        wait_until(lambda: proxy.connections == 0, "the client's end is closed")
