"""The stopper: a small process that stops an embedded server when it is no longer used.

    python -I -S embedded_stopper.py SOCKET LOCK IDLE

It runs as a script, uses only the standard library, moves itself to the background and exits with
the server. It stops the server after IDLE seconds without a client other than the stopper. It kills
the server if LOCK is removed or replaced, because new clients can then no longer find the server.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import time

LOOK = 2.0
"""Maximum seconds between two checks of the lock."""

ASK = 30.0
"""Maximum seconds between two INFO commands."""


def main(path: str, lock: str, idle: float) -> None:
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(path)
        at_first = _identity(lock)
        if os.fork():
            os._exit(0)
        os.setsid()
        _forget_streams()
        _watch(line, lock, at_first, idle)


def _watch(line: socket.socket, lock: str, at_first: tuple[int, int], idle: float) -> None:
    used_at = time.monotonic()
    ask_at = 0.0
    connections = -1
    while True:
        now = time.monotonic()
        if _identity(lock) != at_first:
            # SHUTDOWN would remove the socket, which may already belong to the next server.
            os.kill(_server(line), signal.SIGKILL)
            return
        if now - used_at >= idle:
            line.sendall(b"SHUTDOWN NOSAVE\r\n")  # it still flushes the append-only file
            line.recv(1)
            return
        if now >= ask_at:
            clients, made = _ask(line)
            if clients > 1 or made != connections:
                used_at, connections = now, made
            ask_at = now + min(idle / 10, ASK)
        line.settimeout(max(0.01, min(LOOK, idle / 10)))
        try:
            line.recv(1)  # the server sends nothing until it closes the connection
            return
        except TimeoutError:
            continue


def _ask(line: socket.socket) -> tuple[int, int]:
    """Return the number of connected clients, and of all connections so far."""
    line.settimeout(None)
    line.sendall(b"INFO clients stats\r\n")
    said = b""
    while b"total_connections_received" not in said or not said.endswith(b"\r\n"):
        if not (more := line.recv(65536)):
            sys.exit()
        said += more
    fields = dict(row.split(b":", 1) for row in said.split(b"\r\n") if b":" in row)
    return int(fields[b"connected_clients"]), int(fields[b"total_connections_received"])


def _server(line: socket.socket) -> int:
    """Return the pid of the server process."""
    if sys.platform == "linux":
        credentials = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid, _, _ = struct.unpack("iII", credentials)
    else:
        pid = line.getsockopt(0, 2)  # LOCAL_PEERPID
    return int(pid)


def _identity(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0)
    return (found.st_dev, found.st_ino)


def _forget_streams() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
