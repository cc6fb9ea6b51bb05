"""The private server of `embedded://`: one Valkey per folder, started by its first client.

- **A locked lock file means that the server is running.** The starter locks it and passes the
  descriptor to the program `run_server.py`, which passes it to its child, the server. The kernel
  releases the lock when the server exits, even after kill -9. No pid is ever trusted, two starters
  cannot both start a server, and a dead starter blocks no one.
- Every write is on disk before its reply (`appendfsync always`). With `everysec`, Valkey delays the
  write for up to two seconds while a sync is in progress, but still replies. A kill -9 would then
  lose acknowledged jobs.
- The program and its server have their own session. They outlive the starter and do not receive
  Ctrl-C. The program ends the server if it is idle for a while or its folder is gone, and exits
  with it. If the program is killed, the server continues and no longer stops when it is idle.
- Starting never kills a running server. If one answers without holding the lock, its folder was
  removed, and it is asked to shut down.
- The folder, its lock and the process that answers must belong to this user. Otherwise another user
  could pretend to be the server and receive every job.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import shlex
import shutil
import signal
import socket
import stat
import struct
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from msgspec import Struct

from taskbull.errors import ConfigurationError, ConnectionLost
from taskbull.store import server_process
from taskbull.store.address import FOLDER, IDLE, project_folder
from taskbull.store.run_server import ask

# The files of an embedded server.


_SOCKET_PATH_LIMIT = 100  # bytes; the system's limit is 104 on macOS and 108 on Linux


class ServerFiles(Struct, frozen=True):
    """Paths of one embedded server's files."""

    folder: Path
    socket: Path

    @property
    def lock(self) -> Path:
        return self.folder / "lock"

    @property
    def config(self) -> Path:
        return self.folder / "valkey.conf"

    @property
    def log(self) -> Path:
        return self.folder / "valkey.log"

    def check(self) -> None:
        """Raise `ConfigurationError` if another user owns or can write to the folder or the lock.

        That user could pretend to be the server and receive every job.
        """
        for path, is_kind in ((self.folder, stat.S_ISDIR), (self.lock, stat.S_ISREG)):
            found = path.lstat()
            if not is_kind(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
                raise ConfigurationError(
                    f"embedded:// cannot use {self.folder}: {path} belongs to another user, or "
                    "other users can write to it. Use your own folder, such as "
                    "embedded:///path/to/folder"
                )


def find_files(folder: Path | str, *, create: bool = True) -> ServerFiles:
    """Return the paths of the server's files in a folder.

    With `create`, the folder and its lock are created if necessary. Raises `ConfigurationError` if
    another user owns or can write to them, or if a new server's folder contains other files.
    """
    path = Path(folder).resolve()
    socket_path = path / "valkey.sock"
    if len(os.fsencode(socket_path)) > _SOCKET_PATH_LIMIT:
        socket_path = _short_socket(path)
    files = ServerFiles(path, socket_path)
    if create and not files.lock.exists():
        server_process.valkey_binary()  # raises before a folder is created
        _make(files)
    if files.lock.exists():
        files.check()
    return files


def _make(files: ServerFiles) -> None:
    files.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(files.folder.iterdir()) and not files.lock.exists():
        raise ConfigurationError(
            f"embedded:// needs a dedicated folder, but {files.folder} contains other files:"
            f" use {files.folder / FOLDER}"
        )
    files.lock.touch(mode=0o600)  # first, because the lock marks the folder as taskbull's
    files.folder.chmod(0o700)
    (files.folder / ".gitignore").write_text("*\n")


def _short_socket(folder: Path) -> Path:
    # A fixed path, because `tempfile.gettempdir()` may differ between processes.
    place = Path("/tmp") / f"taskbull-{os.getuid()}"  # noqa: S108 - checked below
    place.mkdir(mode=0o700, exist_ok=True)
    found = place.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigurationError(
            f"{place} (for the sockets of folders with a long path) belongs to another user, or"
            " other users can access it: remove it, or use a folder with a shorter path"
        )
    return place / f"{hashlib.sha256(os.fsencode(folder)).hexdigest()[:24]}.sock"


# Starting and stopping.


logger = logging.getLogger(__name__)

_LOG_LIMIT, _LOG_KEPT = 256 * 1024, 64 * 1024
_POLL = 0.005

_DYING = 10.0
"""Seconds that a killed server may take to exit. On a busy machine it is not immediate."""


@cache
def _not_forking() -> threading.Lock:
    """Return the lock that delays forks of this process.

    A child forked while this process holds the lock file would hold it as long as the child lives.
    Fork hooks cannot be removed, so they are registered on first use.
    """
    lock = threading.Lock()
    os.register_at_fork(
        before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
    )
    return lock


def start_or_join(
    folder: Path | str | None = None, deadline: float = 30.0, idle: float = IDLE
) -> Path:
    """Return the Unix socket of the folder's server, starting the server if necessary.

    A server started here shuts down after `idle` seconds without a client, unless `idle` is 0.

    Raises `ConfigurationError` if the server cannot start, and `ConnectionLost` if it does not
    answer within `deadline` seconds.
    """
    folder = project_folder() if folder is None else folder
    limit = time.monotonic() + deadline
    log_start: int | None = None
    with _explaining(folder):
        files = find_files(folder)
        while True:
            with _trying_lock(files) as lock:
                if lock is not None and log_start is not None:
                    raise _died(files, log_start)
                if lock is not None:
                    log_start = _launch(files, lock, idle, limit)
            reply = ask(files.socket, "PING") if lock is None else None
            if server_process.is_ready(reply):
                _check_listener(files)
                if log_start is not None:
                    ends = f" It stops after {idle:g} s without a client." if idle else ""
                    stopping = shlex.join(["taskbull", "stop", str(files.folder)])
                    logger.info(
                        "Embedded server running in %s.%s To stop it: %s",
                        files.folder,
                        ends,
                        stopping,
                    )
                return files.socket
            if time.monotonic() > limit:
                raise _silent(files, reply, deadline)
            time.sleep(_POLL)


def stop(folder: Path | str | None = None, deadline: float = 10.0) -> bool:
    """Stop the folder's server and return True, or return False if none is running.

    The server is killed after `deadline` seconds.
    """
    folder = project_folder() if folder is None else folder
    limit = time.monotonic() + deadline
    with _explaining(folder):
        files = find_files(folder, create=False)
        if not files.lock.exists() or not _is_running(files):
            return False
        while _is_running(files):
            ask(files.socket, "SHUTDOWN NOSAVE")  # it still flushes the append-only file
            if time.monotonic() > limit:
                _kill(files)
                limit = time.monotonic() + _DYING
            time.sleep(_POLL)
        files.socket.unlink(missing_ok=True)
    return True


@contextmanager
def _trying_lock(files: ServerFiles) -> Generator[int | None, None, None]:
    """Yield the locked descriptor, or None if a server or a starter holds the lock."""
    with _not_forking():
        descriptor = os.open(
            files.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield descriptor
        finally:
            os.close(descriptor)


def _is_running(files: ServerFiles) -> bool:
    with _trying_lock(files) as lock:
        return lock is None


def _launch(files: ServerFiles, lock: int, idle: float, limit: float) -> int:
    """Start the server with the lock; return the log position where its lines start."""
    binary = server_process.valkey_binary()
    # A server that answers without holding the lock has lost its folder.
    while ask(files.socket, "SHUTDOWN NOSAVE") is not None and time.monotonic() < limit:
        time.sleep(_POLL)
    files.log.touch(mode=0o600)
    _shorten(files.log)
    server_process.write_config(files.config, files.socket, _options(files))
    log_start = server_process.log_size(files.log)
    words = (files.lock, lock, files.socket, idle, binary, files.config)
    program, _ = server_process.start_program("shared", *words, log=files.log, lock=lock)
    program.wait()  # it has moved to the background
    return log_start


def _options(files: ServerFiles) -> dict[str, str]:
    return {
        "port": "0",
        "pidfile": server_process.quoted(
            files.folder / "valkey.pid"
        ),  # for people; taskbull does not read it
        "appendonly": "yes",
        "appendfsync": "always",
        "aof-load-truncated": "yes",  # a crash may leave an incomplete command at the end
        "auto-aof-rewrite-min-size": "16mb",
        "save": '""',
        "maxmemory-policy": "noeviction",
    }


def _shorten(log: Path) -> None:
    if server_process.log_size(log) > _LOG_LIMIT:
        with log.open("rb") as file:
            file.seek(-_LOG_KEPT, os.SEEK_END)
            kept = file.read()
        log.write_bytes(kept)


def _check_listener(files: ServerFiles) -> None:
    """Raise `ConfigurationError` if another user runs the server."""
    _, uid = _listener(files)
    if uid != os.getuid():
        raise ConfigurationError(
            f"embedded:// cannot use {files.folder}: another user's process answers there"
        )


def _kill(files: ServerFiles) -> None:
    pid, _ = _listener(files)
    os.kill(pid, signal.SIGKILL)


def _listener(files: ServerFiles) -> tuple[int, int]:
    """Return the pid and uid of the process that listens on the socket, as the kernel reports."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(1.0)
        try:
            line.connect(str(files.socket))
        except OSError as error:
            raise ConnectionLost(
                f"The embedded server in {files.folder} runs, but its socket {files.socket} is"
                f" gone: {_by_hand(files)}"
            ) from error
        if sys.platform == "linux":
            credentials = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            pid, uid, _ = struct.unpack("iII", credentials)
        else:
            # SOL_LOCAL: LOCAL_PEERPID, then LOCAL_PEERCRED (a version, followed by the uid).
            pid = line.getsockopt(0, 2)
            _, uid = struct.unpack("II", line.getsockopt(0, 1, 76)[:8])
        return int(pid), int(uid)


def _by_hand(files: ServerFiles) -> str:
    return f"end it by hand (its process number is in {files.folder / 'valkey.pid'})"


def _died(files: ServerFiles, log_start: int) -> ConfigurationError:
    tail = server_process.log_tail(files.log, log_start)
    advice = "its last words were"
    if shutil.disk_usage(files.folder).free < 1 << 20:
        advice = "its disk is full: free some space. Its last words were"
    elif "Bad file format" in tail or "Unexpected end of file" in tail:
        advice = (
            f"its data is damaged: restore {files.folder} from a copy, or move it away to start"
            " empty. Its last words were"
        )
    return ConfigurationError(
        f"The embedded server in {files.folder} cannot start; {advice}:\n{tail}"
    )


def _silent(files: ServerFiles, reply: str | None, deadline: float) -> ConnectionLost:
    trouble = f"runs, but does not answer after {deadline:g} s: {_by_hand(files)}"
    if reply is not None:
        trouble = f"is still loading its data after {deadline:g} s: try again later"
    return ConnectionLost(
        f"The embedded server in {files.folder} {trouble}. Its last words were:"
        f"\n{server_process.log_tail(files.log)}"
    )


@contextmanager
def _explaining(folder: Path | str) -> Generator[None, None, None]:
    try:
        yield
    except OSError as error:
        advice = "give a folder that this user may write to, as embedded:///path/to/folder"
        if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            advice = "free some space on its disk"
        raise ConfigurationError(
            f"embedded:// cannot use the folder {Path(folder).absolute()}"
            f" ({error.strerror or error}: {error.filename or folder}): {advice}"
        ) from error
