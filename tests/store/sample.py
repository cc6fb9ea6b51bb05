"""Calls for tests of the transport, and a peer with scripted replies."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha1
from typing import Any, Self, TypeAlias

from hiredis import Reader

from taskbull.scripts.call import Call, Command, Script


def script(source: str) -> Script:
    """Make a script of its text alone."""
    return Script("sample", source, sha1(source.encode()).hexdigest(), (), ())


def unchanged(reply: Any) -> Any:
    return reply


COUNT = script("return redis.call('HINCRBY', KEYS[1], ARGV[1], 1)")
ECHO = script("return ARGV[1]")
HALF_WAY = script("redis.call('SET', KEYS[1], 'done') return redis.call('LPUSH', KEYS[1], 'x')")


def count(key: str, field: str = "runs") -> Call[int]:
    """Count one run in a field of the hash `key`; give the count."""
    return Call(COUNT, (key,), (field,), int)


def echo(key: str, text: str) -> Call[str]:
    """Give `text` back; `key` only says where."""
    return Call(ECHO, (key,), (text,), bytes.decode)


def stop_half_way(key: str) -> Call[Any]:
    """Write `key`, then fail in the middle of the script."""
    return Call(HALF_WAY, (key,), (), unchanged)


def command(*words: str | int, key: str = "") -> Command[Any]:
    """A plain command, its reply as it is."""
    return Command(words, key, unchanged)


Words: TypeAlias = list[bytes]


def greet(words: Words) -> bytes:
    """Answer a client's first commands as a server would; anything else with its first word."""
    match words[0]:
        case b"INFO":
            return bulk(b"# Server\r\nredis_version:7.0.15\r\n")
        case b"PING":
            return b"+PONG\r\n"
        case b"ROLE":
            return b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n"
        case b"AUTH" | b"SELECT" | b"CLIENT":
            return b"+OK\r\n"
        case first:
            return bulk(first)


def bulk(text: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(text), text)


class Peer:
    """A TCP server for a `with` block. `answer` returns the bytes for each command.

    None closes the connection. `heard` contains the received commands.
    """

    def __init__(self, answer: Callable[[Words], bytes | None] = greet) -> None:
        self.heard: list[Words] = []
        self.accepted = 0
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ended = False
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads.pop(0).join()
        for line in self._open:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def _accept(self) -> None:
        while not self._ended:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            self._open.append(line)
            self._threads.append(thread := threading.Thread(target=self._talk, args=(line,)))
            thread.start()

    def _talk(self, line: socket.socket) -> None:
        reader = Reader()
        with line, suppress(OSError):
            while data := line.recv(1 << 16):
                reader.feed(data)
                while (words := reader.gets()) is not False:
                    self.heard.append(words)
                    reply = self._answer(words)
                    if reply is None:
                        return
                    line.sendall(reply)
