"""The program that runs a private server as its child, and ends it when it is no longer needed.

    python -I -S run_server.py shared LOCK DESCRIPTOR SOCKET IDLE COMMAND...
    python -I -S run_server.py owned PARENT FOLDER COMMAND...

It runs as a script. It prints the pid of the server, which writes its log to the program's standard
error, and exits with the server.

- A **shared** server is that of `embedded://`. The program moves to the background. It shuts down
  the server after IDLE seconds without a client, unless IDLE is 0. It kills the server if LOCK is
  removed or replaced, because new clients can then no longer find the server. DESCRIPTOR is the
  locked LOCK. The server inherits it, so LOCK stays locked until the server exits.
- An **owned** server is that of a test. When the process PARENT has exited, even after kill -9, the
  program kills the server and removes its FOLDER. `PR_SET_PDEATHSIG` would act when the *thread*
  that started the program exits. A pipe would stay open in forks of PARENT.
"""

from __future__ import annotations

# Other modules are imported late: most double the time that the program needs to start.
import _thread
import os
import sys
import time

CHECK = 2.0
"""Maximum seconds between two checks of whether the server is still needed."""

SIGKILL, SIGPIPE, SIGXFSZ = 9, 13, 25


def run_shared(lock: str, descriptor: str, path: str, idle: str, *command: str) -> None:
    if os.fork():
        os._exit(0)
    os.chdir("/")
    server = _start(command)
    locked = os.fstat(int(descriptor))
    os.close(int(descriptor))  # only the server holds it, so the lock shows when the server exits
    _thread.start_new_thread(_end_unused, (server, lock, locked, path, float(idle)))
    os.waitpid(server, 0)


def run_owned(parent: str, folder: str, *command: str) -> None:
    server = _start(command)
    _thread.start_new_thread(_end_orphan, (server, int(parent)))
    os.waitpid(server, 0)
    if os.getppid() != int(parent):
        import shutil  # noqa: PLC0415 - see above

        shutil.rmtree(folder, ignore_errors=True)


def _start(command: tuple[str, ...]) -> int:
    server = os.posix_spawn(
        command[0],
        command,
        os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, 2, 1)],
        setsigdef=[SIGPIPE, SIGXFSZ],  # Python ignores them
    )
    print(server, flush=True)  # noqa: T201 - for the caller
    return server


def _end_orphan(server: int, parent: int) -> None:
    """Kill the server when the parent process has exited."""
    while os.getppid() == parent:
        time.sleep(CHECK / 2)
    os.kill(server, SIGKILL)


def _end_unused(server: int, lock: str, locked: os.stat_result, path: str, idle: float) -> None:
    """Shut down the server when it is idle, or kill it when its lock file is gone."""
    used_at, connections = time.monotonic(), 0
    while _is_file(lock, locked):
        clients, total = _count_clients(path) if idle else (0, 0)
        if clients != 1 or total != connections + 1:  # not only the connection that counts
            used_at = time.monotonic()
        elif time.monotonic() - used_at >= idle:
            ask(path, "SHUTDOWN NOSAVE")  # it still flushes the append-only file
        connections = total
        time.sleep(min(CHECK, idle / 10) or CHECK)
    # A shutdown would remove the socket, which may already belong to the next server.
    os.kill(server, SIGKILL)


def _is_file(path: str, file: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), file)
    except OSError:
        return False


def _count_clients(path: str) -> tuple[int, int]:
    """Return the number of connected clients and of all connections so far, or zeros."""
    rows = (ask(path, "INFO clients stats") or "").splitlines()
    fields = dict(row.split(":", 1) for row in rows if ":" in row)
    names = ("connected_clients", "total_connections_received")
    clients, total = (int(fields.get(name, 0)) for name in names)
    return clients, total


def ask(path: str | os.PathLike[str], command: str, timeout: float = 1.0) -> str | None:
    """Send a command to the server on a Unix socket; return its reply, or None without one."""
    import socket  # noqa: PLC0415 - see above

    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(timeout)
        try:
            line.connect(os.fspath(path))
            line.sendall(command.encode() + b"\r\n")
            reply = line.recv(65536)
        except OSError:
            return None
    return reply.decode(errors="replace").rstrip() or None


if __name__ == "__main__":
    (run_shared if sys.argv[1] == "shared" else run_owned)(*sys.argv[2:])
