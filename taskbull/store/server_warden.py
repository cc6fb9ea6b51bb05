"""The end of servers whose maker was killed: after `kill -9`, no `finally` of ours runs.

A shell reads from a pipe that the kernel closes when this process ends, however it ends. Then the
shell kills the servers that it was told of and removes their folders. (`PR_SET_PDEATHSIG` would end
a server with the *thread* that started it, and only Linux has it.)
"""

from __future__ import annotations

import os
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

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
