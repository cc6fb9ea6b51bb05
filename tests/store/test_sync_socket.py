"""Waiting at a socket without an event loop."""

from __future__ import annotations

import socket
from collections.abc import Generator

import pytest

from taskbull.store.protocol import PlainSocket


@pytest.fixture
def pair() -> Generator[tuple[PlainSocket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield PlainSocket(one), other


def test_what_has_come_is_received(pair: tuple[PlainSocket, socket.socket]) -> None:
    own, peer = pair
    assert not own.readable()
    peer.sendall(b"hello")
    assert own.readable()
    assert own.receive(5) == b"hello"


def test_the_end_can_be_read(pair: tuple[PlainSocket, socket.socket]) -> None:
    own, peer = pair
    peer.close()
    assert own.readable()
    assert own.receive(5) == b""


@pytest.mark.parametrize("seconds", [0.01, 0, -1])
def test_no_caller_waits_longer_than_its_limit(
    pair: tuple[PlainSocket, socket.socket], seconds: float
) -> None:
    with pytest.raises(TimeoutError):
        pair[0].receive(seconds)


def test_sending_waits_for_room_and_no_longer(pair: tuple[PlainSocket, socket.socket]) -> None:
    own, peer = pair
    sent: list[int] = []

    def fill() -> None:
        while True:
            sent.append(own.send(b"x" * 65536, 0.01))

    with pytest.raises(TimeoutError):  # The peer does not read.
        fill()
    left = sum(sent)
    while left:
        left -= len(peer.recv(left))
    assert own.send(b"y", 0.01) == 1
