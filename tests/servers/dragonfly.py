"""A server with Dragonfly's rules: a real server runs commands, and Lua 5.4 here runs scripts.

Dragonfly itself needs a container. Two of its rules break scripts that work on Redis. This server
applies both:

- Lua 5.4 has integers and floats. A float that a script returns is not cut to an integer, and a
  float that is concatenated with a string becomes `5.0`.
- With `--cluster_mode=emulated --lock_on_hashtags`, a script may access a key that it does not
  declare only if a declared key has the same hash tag.
"""

from __future__ import annotations

import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha1
from io import BufferedRWPair
from typing import Any, Self

import msgspec
from lupa.lua54 import LuaRuntime, lua_type

from taskbull.scripts import call

_BLOCKING = frozenset({b"BZPOPMIN", b"XREAD"})
_ALL_KEYS = frozenset({b"DEL", b"UNLINK", b"EXISTS", b"MGET", b"SUNIONSTORE"})
_TWO_KEYS = frozenset({b"RENAME", b"RPOPLPUSH"})
_FLOAT_TEXT = re.compile(rb"(?:.*:)?-?\d+\.0", re.DOTALL)

_PRELUDE = """
unpack = table.unpack
local send, decode, encode, unpack_bytes, pack_bytes = ...
local function is_error(reply) return type(reply) == "table" and reply.err ~= nil end
redis = {
  pcall = function(...) return send(...) end,
  call = function(...)
    local reply = send(...)
    if is_error(reply) then error(reply, 0) end
    return reply
  end,
  error_reply = function(text) return {err = text} end,
  status_reply = function(text) return {ok = text} end,
}
cjson = {decode = decode, encode = encode, null = io.stdout}
cmsgpack = {unpack = unpack_bytes, pack = pack_bytes}
io, os, require, package, dofile, loadfile = nil, nil, nil, nil, nil, nil
return cjson.null, function(script)
  local fine, result = pcall(script)
  if not fine and not is_error(result) then
    result = {err = "ERR Error running script: " .. tostring(result)}
  end
  return result
end
"""


class _Error(bytes):
    """An error reply."""


class _Status(bytes):
    """A status reply."""


class DragonflyRules:
    """A server on another port, until the end of its `with` block.

    Args:
        port: Port of the real server.
        check_tags: Refuse undeclared keys without the hash tag of a declared one.
    """

    def __init__(self, port: int, *, check_tags: bool) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()  # a script is atomic
        self._sockets = [self._listener]
        self._threads: list[threading.Thread] = []
        self._scripts = _Scripts(check_tags=check_tags)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"

    @property
    def runs(self) -> Counter[str]:
        """The number of runs of each script, by its name."""
        return self._scripts.runs

    @property
    def violations(self) -> list[str]:
        """Commands and replies that Dragonfly refuses, or reads differently than Redis."""
        return self._scripts.violations

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(timeout=60)

    def _connect(self) -> BufferedRWPair:
        made = socket.create_connection(self._target)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sockets.append(made)
        return made.makefile("rwb")

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets.append(client)
                thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, client: socket.socket) -> None:
        with (
            suppress(OSError, EOFError, ValueError),
            client.makefile("rwb") as stream,
            self._connect() as upstream,
        ):
            while True:
                words = _read(stream)
                stream.write(_encoded(self._answer(upstream, words)))
                stream.flush()

    def _answer(self, upstream: BufferedRWPair, words: list[bytes]) -> Any:
        name = words[0].upper()
        if name in _BLOCKING:
            return _exchange(upstream, words)
        with self._lock:
            if name in {b"EVALSHA", b"EVAL"}:
                return self._scripts.run(upstream, name, words[1:])
            if name == b"SCRIPT":
                return self._scripts.manage(words[1:])
            return _exchange(upstream, words)


class _Scripts:
    """Runs scripts in Lua 5.4."""

    def __init__(self, *, check_tags: bool) -> None:
        self.runs: Counter[str] = Counter()
        self.violations: list[str] = []
        self._upstream: BufferedRWPair  # of the client whose script runs
        self._check_tags = check_tags
        self._names = {one.sha: one.name for one in map(call.load, call.names())}
        self._name = ""
        self._tags: set[bytes] = set()
        self._lua = lua = LuaRuntime(encoding=None, unpack_returned_tuples=True)
        prelude = lua.execute(b"return function(...) " + _PRELUDE.encode() + b" end")
        functions = (self._send, self._from_json, self._to_json, self._unpack, self._pack)
        self._null, self._run_safely = prelude(*functions)
        self._compiled: dict[bytes, Callable[[], Any]] = {}

    def manage(self, words: list[bytes]) -> Any:
        if words[0].upper() == b"EXISTS":
            return [int(sha in self._compiled) for sha in words[1:]]
        if words[0].upper() == b"FLUSH":
            self._compiled.clear()
            return _Status(b"OK")
        sha = _sha(words[1].decode())
        self._compile(sha, words[1])
        return sha

    def run(self, upstream: BufferedRWPair, command: bytes, words: list[bytes]) -> Any:
        self._upstream = upstream
        sha, count, *rest = words
        if command == b"EVAL":
            source, sha = sha, _sha(sha.decode())
            self._compile(sha, source)
        if sha not in self._compiled:
            return _Error(b"NOSCRIPT No matching script. Please use EVAL.")
        keys, args = rest[: int(count)], rest[int(count) :]
        self._name = self._names.get(sha.decode(), "?")
        self.runs[self._name] += 1
        self._tags = {tag for key in keys if (tag := _tag(key))}
        scope = self._lua.globals()
        scope[b"KEYS"], scope[b"ARGV"] = self._table(keys), self._table(args)
        return self._reply(self._run_safely(self._compiled[sha]))

    def _compile(self, sha: bytes, source: bytes) -> None:
        self._compiled[sha] = self._lua.execute(b"return function() " + source + b"\nend")

    def _table(self, values: list[Any]) -> Any:
        return self._lua.table(*values)

    def _send(self, *given: Any) -> Any:
        words = [self._word(each) for each in given]
        name = words[0].upper()
        keys = words[1:2]
        if name in _ALL_KEYS:
            keys = words[1:]
        elif name in _TWO_KEYS:
            keys = words[1:3]
        strange = [key for key in keys if _tag(key) not in self._tags]
        if self._check_tags and strange:
            self._violation(f"{name.decode()} accesses {strange[0].decode()}")
            return self._to_lua(_Error(b"ERR script tried accessing undeclared key"))
        return self._to_lua(_exchange(self._upstream, words))

    def _word(self, value: Any) -> bytes:
        if isinstance(value, bytes):
            if _FLOAT_TEXT.fullmatch(value):
                self._violation(f"a float as text: {value!r}")
            return value
        return f"{value:.17g}".encode() if isinstance(value, float) else b"%d" % value

    def _violation(self, what: str) -> None:
        self.violations.append(f"{self._name}: {what}")

    def _to_lua(self, reply: Any) -> Any:
        if isinstance(reply, _Error):
            return self._lua.table_from({b"err": bytes(reply)})
        if isinstance(reply, _Status):
            return self._lua.table_from({b"ok": bytes(reply)})
        if isinstance(reply, list):
            return self._table([self._to_lua(each) for each in reply])
        return False if reply is None else reply

    def _reply(self, value: Any) -> Any:
        if isinstance(value, bool) or value is None:
            return 1 if value else None
        if isinstance(value, float):
            self._violation(f"returns the float {value}")
            return f"{value:.17g}".encode()
        if lua_type(value) != "table":
            return value
        if value[b"err"] is not None:
            return _Error(value[b"err"])
        if value[b"ok"] is not None:
            return _Status(value[b"ok"])
        found: list[Any] = []
        while (each := value[len(found) + 1]) is not None:
            found.append(self._reply(each))
        return found

    # JSON and msgpack. A JSON number is a float, as it is in some versions of cjson.

    def _from_json(self, text: bytes) -> Any:
        return self._built(msgspec.json.decode(text), floats=True)

    def _to_json(self, value: Any) -> bytes:
        return msgspec.json.encode(_as_json(self._plain(value)))

    def _unpack(self, raw: bytes) -> Any:
        value, end = _msgpack(raw, 0)
        assert end == len(raw)
        return self._built(value)

    def _pack(self, value: Any) -> bytes:
        return _packed(self._plain(value))

    def _built(self, value: Any, *, floats: bool = False) -> Any:
        if value is None:
            return self._null if floats else None
        if isinstance(value, int) and not isinstance(value, bool):
            return float(value) if floats else value
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, list):
            return self._table([self._built(each, floats=floats) for each in value])
        if isinstance(value, dict):
            items = value.items()
            return self._lua.table_from(
                {self._built(key): self._built(each, floats=floats) for key, each in items}
            )
        return value

    def _plain(self, value: Any) -> Any:
        if lua_type(value) != "table":
            return None if lua_type(value) == "userdata" else value
        items = dict(value.items())
        if list(items) == list(range(1, len(items) + 1)):
            return [self._plain(each) for each in items.values()]
        return {
            key.decode() if isinstance(key, bytes) else key: self._plain(each)
            for key, each in items.items()
        }


def _as_json(value: Any) -> Any:
    """Return a value as cjson writes it: with texts, and with 14 digits of a number."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 1e14 else value
    if isinstance(value, list):
        return [_as_json(each) for each in value]
    if isinstance(value, dict):
        return {key: _as_json(each) for key, each in value.items()}
    return value


def _sha(source: str) -> bytes:
    return sha1(source.encode(), usedforsecurity=False).hexdigest().encode()


def _tag(key: bytes) -> bytes:
    start = key.find(b"{")
    end = key.find(b"}", start + 1)
    return key[start + 1 : end] if 0 <= start < end - 1 else b""


# Redis's protocol.


def _exchange(upstream: BufferedRWPair, words: list[bytes]) -> Any:
    upstream.write(_encoded(words))
    upstream.flush()
    return _read(upstream)


def _read(stream: BufferedRWPair) -> Any:
    line = stream.readline()
    if not line:
        raise EOFError
    kind, rest = line[:1], line[1:-2]
    if kind == b"+":
        return _Status(rest)
    if kind == b"-":
        return _Error(rest)
    if kind == b":":
        return int(rest)
    if int(rest) < 0:
        return None
    if kind == b"$":
        return stream.read(int(rest) + 2)[:-2]
    return [_read(stream) for _ in range(int(rest))]


def _encoded(value: Any) -> bytes:
    if isinstance(value, _Error):
        return b"-" + value + b"\r\n"
    if isinstance(value, _Status):
        return b"+" + value + b"\r\n"
    if isinstance(value, bytes):
        return b"$%d\r\n%s\r\n" % (len(value), value)
    if isinstance(value, int):
        return b":%d\r\n" % value
    if value is None:
        return b"$-1\r\n"
    return b"*%d\r\n" % len(value) + b"".join(map(_encoded, value))


# Msgpack with texts as bytes, because a job's data need not be UTF-8.

_FIXED = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
_TEXTS = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I", 0xC4: ">B", 0xC5: ">H", 0xC6: ">I"}
_ARRAYS = {0xDC: ">H", 0xDD: ">I"}
_MAPS = {0xDE: ">H", 0xDF: ">I"}
_ATOMS = {0xC0: None, 0xC2: False, 0xC3: True}


def _msgpack(raw: bytes, at: int) -> tuple[Any, int]:  # noqa: PLR0911
    head, at = raw[at], at + 1
    if head < 0x80:
        return head, at
    if head >= 0xE0:
        return head - 0x100, at
    if head in _ATOMS:
        return _ATOMS[head], at
    if head in _FIXED:
        return _number(_FIXED[head], raw, at)
    if head in _TEXTS or 0xA0 <= head < 0xC0:
        size, at = _number(_TEXTS[head], raw, at) if head in _TEXTS else (head & 0x1F, at)
        return raw[at : at + size], at + size
    if head in _ARRAYS or 0x90 <= head < 0xA0:
        size, at = _number(_ARRAYS[head], raw, at) if head in _ARRAYS else (head & 0x0F, at)
        items: list[Any] = []
        for _ in range(size):
            item, at = _msgpack(raw, at)
            items.append(item)
        return items, at
    size, at = _number(_MAPS[head], raw, at) if head in _MAPS else (head & 0x0F, at)
    found: dict[Any, Any] = {}
    for _ in range(size):
        key, at = _msgpack(raw, at)
        found[key], at = _msgpack(raw, at)
    return found, at


def _number(form: str, raw: bytes, at: int) -> tuple[Any, int]:
    size = struct.calcsize(form)
    return struct.unpack(form, raw[at : at + size])[0], at + size


def _packed(value: Any) -> bytes:
    if isinstance(value, bytes):
        return _head(len(value), 0xA0, 32, 0xDA, 0xDB) + value
    if isinstance(value, list):
        return _head(len(value), 0x90, 16, 0xDC, 0xDD) + b"".join(map(_packed, value))
    if isinstance(value, dict):
        pairs = b"".join(
            _packed(key.encode() if isinstance(key, str) else key) + _packed(each)
            for key, each in value.items()
        )
        return _head(len(value), 0x80, 16, 0xDE, 0xDF) + pairs
    return msgspec.msgpack.encode(value)


def _head(size: int, short: int, limit: int, medium: int, long: int) -> bytes:
    if size < limit:
        return bytes([short + size])
    return struct.pack(">BH", medium, size) if size < 1 << 16 else struct.pack(">BI", long, size)
