"""The private server of `embedded://`: one Valkey per folder, started by whoever comes first.

Its rules:

- **The lock file tells whether the server lives.** Its starter locks it and hands the descriptor on
  to the server, which holds it to its end, kill -9 included: the kernel frees it, nobody else can.
  So no pid is ever believed, two starters cannot both start, and a dead starter blocks nobody.
- Every write is on the disk before its reply (`appendfsync always`). With `everysec`, Valkey puts
  off the write while a sync is under way, up to two seconds, and replies all the same: a kill -9
  would then lose acknowledged jobs.
- The server is a daemon, in a session of its own: it outlives its starter and hears no Ctrl-C.
- Nothing is killed in order to start; only `stop` ends a server.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from taskbull.errors import ConfigurationError, ConnectionLost
from taskbull.store.server import (
    ask,
    is_ready,
    log_size,
    log_tail,
    quoted,
    valkey_binary,
    write_config,
)

DEFAULT_FOLDER = ".taskbull"

_SOCKET_PATH_LIMIT = 100  # bytes; the system's own is 104 on macOS, 108 on Linux
_LOG_LIMIT, _LOG_KEPT = 256 * 1024, 64 * 1024
_POLL = 0.005

# A fork of this process, while it holds the lock, would hold it too, for as long as it lives.
_not_forking = threading.Lock()
os.register_at_fork(
    before=_not_forking.acquire,
    after_in_parent=_not_forking.release,
    after_in_child=_not_forking.release,
)


class _Home(Struct, frozen=True):
    """Where the files of one embedded server are."""

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


def start_or_join(folder: Path | str = DEFAULT_FOLDER, deadline: float = 30.0) -> Path:
    """Give the unix socket of the folder's server, which is started if none runs."""
    limit = time.monotonic() + deadline
    log_start: int | None = None
    with _explaining(folder):
        home = _find(folder)
        while True:
            with _trying_lock(home) as lock:
                if lock is not None and log_start is not None:
                    raise _died(home, log_start)
                if lock is not None:
                    log_start = _launch(home, lock, limit)
            reply = ask(home.socket, "PING") if lock is None else None
            if is_ready(reply):
                return home.socket
            if time.monotonic() > limit:
                raise _silent(home, reply, deadline)
            time.sleep(_POLL)


def stop(folder: Path | str = DEFAULT_FOLDER, deadline: float = 10.0) -> bool:
    """End the folder's server, by force after `deadline`; tell whether there was one."""
    limit = time.monotonic() + deadline
    with _explaining(folder):
        home = _find(folder, create=False)
        if not home.lock.exists() or not _lives(home):
            return False
        while _lives(home):
            ask(home.socket, "SHUTDOWN NOSAVE")  # the append-only file is written to its end
            if time.monotonic() > limit:
                _kill(home)
                limit += deadline
            time.sleep(_POLL)
        home.socket.unlink(missing_ok=True)
    return True


def _find(folder: Path | str, *, create: bool = True) -> _Home:
    path = Path(folder).resolve()
    socket_path = path / "valkey.sock"
    if len(os.fsencode(socket_path)) > _SOCKET_PATH_LIMIT:
        socket_path = _short_socket(path)
    home = _Home(path, socket_path)
    if create and not home.lock.exists():
        valkey_binary()  # where it is missing, no folder is left behind
        _make(home)
    return home


def _make(home: _Home) -> None:
    home.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(home.folder.iterdir()) and not home.lock.exists():
        raise ConfigurationError(
            f"embedded:// needs a folder of its own, and {home.folder} has other files in it:"
            f" use {home.folder / DEFAULT_FOLDER}"
        )
    home.lock.touch(mode=0o600)  # first: with it the folder is known to be ours
    home.folder.chmod(0o700)
    (home.folder / ".gitignore").write_text("*\n")


def _short_socket(folder: Path) -> Path:
    # The same for everybody: the directory for temporary files may differ between processes.
    place = Path("/tmp") / f"taskbull-{os.getuid()}"  # noqa: S108 - checked to be ours alone
    place.mkdir(mode=0o700, exist_ok=True)
    found = place.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigurationError(
            f"{place}, for the sockets of folders with a long path, is not a folder of this user"
            " alone: remove it, or use a folder with a shorter path"
        )
    return place / f"{hashlib.sha256(os.fsencode(folder)).hexdigest()[:24]}.sock"


@contextmanager
def _trying_lock(home: _Home) -> Generator[int | None, None, None]:
    """Give the locked descriptor, or None when a server or a starter holds the lock."""
    with _not_forking:
        descriptor = os.open(home.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield descriptor
        finally:
            os.close(descriptor)


def _lives(home: _Home) -> bool:
    with _trying_lock(home) as lock:
        return lock is None


def _launch(home: _Home, lock: int, limit: float) -> int:
    """Start the server, which gets the lock; give where its part of the log begins."""
    binary = valkey_binary()
    # It answers, but does not hold the lock: its folder was removed under it.
    while ask(home.socket, "SHUTDOWN NOSAVE") is not None and time.monotonic() < limit:
        time.sleep(_POLL)
    home.log.touch(mode=0o600)
    _shorten(home.log)
    write_config(home.config, _options(home))
    log_start = log_size(home.log)
    with home.log.open("ab") as log:
        daemon = subprocess.Popen(  # noqa: S603 - our own binary, no shell
            [binary, home.config],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            umask=0o077,
            cwd="/",
            pass_fds=(lock,),
            start_new_session=True,
        )
    try:
        daemon.wait(max(limit - time.monotonic(), 1.0))  # it forks the server and ends
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
    return log_start


def _options(home: _Home) -> dict[str, str]:
    return {
        "port": "0",
        "unixsocket": quoted(home.socket),
        "unixsocketperm": "600",
        "daemonize": "yes",
        "pidfile": quoted(home.folder / "valkey.pid"),  # for people; nothing here reads it
        "dir": quoted(home.folder),
        "logfile": quoted(home.log),
        "appendonly": "yes",
        "appendfsync": "always",
        "aof-load-truncated": "yes",  # a crash may leave half a command at the end
        "auto-aof-rewrite-min-size": "16mb",
        "save": '""',
        "maxmemory-policy": "noeviction",
    }


def _shorten(log: Path) -> None:
    if log_size(log) > _LOG_LIMIT:
        with log.open("rb") as file:
            file.seek(-_LOG_KEPT, os.SEEK_END)
            kept = file.read()
        log.write_bytes(kept)


def _kill(home: _Home) -> None:
    os.kill(_listener(home), signal.SIGKILL)


def _listener(home: _Home) -> int:
    """Give the process that listens on the server's socket: the kernel knows which it is."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(1.0)
        try:
            line.connect(str(home.socket))
        except OSError as error:
            raise ConnectionLost(
                f"The embedded server in {home.folder} runs, but its socket {home.socket} is gone:"
                f" {_by_hand(home)}"
            ) from error
        if sys.platform == "linux":
            credentials = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            pid = int(struct.unpack("iII", credentials)[0])
        else:
            pid = line.getsockopt(0, 2)  # SOL_LOCAL, LOCAL_PEERPID
    return pid


def _by_hand(home: _Home) -> str:
    return f"end it by hand (its process number is in {home.folder / 'valkey.pid'})"


def _died(home: _Home, log_start: int) -> ConfigurationError:
    tail = log_tail(home.log, log_start)
    advice = "its last words were"
    if shutil.disk_usage(home.folder).free < 1 << 20:
        advice = "its disk is full: free some space. Its last words were"
    elif "Bad file format" in tail or "Unexpected end of file" in tail:
        advice = (
            f"its data is damaged: restore {home.folder} from a copy, or move it away to start"
            " empty. Its last words were"
        )
    return ConfigurationError(
        f"The embedded server in {home.folder} cannot start; {advice}:\n{tail}"
    )


def _silent(home: _Home, reply: str | None, deadline: float) -> ConnectionLost:
    trouble = f"runs, but does not answer after {deadline:g} s: {_by_hand(home)}"
    if reply is not None:
        trouble = f"is still loading its data after {deadline:g} s: try again later"
    return ConnectionLost(
        f"The embedded server in {home.folder} {trouble}. Its last words were:"
        f"\n{log_tail(home.log)}"
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
