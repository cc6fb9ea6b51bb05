"""The processes of a run: they are started, killed, frozen, stopped and restarted."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
NODE: Final = Path(__file__).parent / "node.mjs"
START_LIMIT: Final = 120.0
END_LIMIT: Final = 60.0

Command = Callable[[str], list[str]]
"""Returns the command line of a process, for its name in the ledger."""


class Actor:
    """A role in the run. Each process in that role has its own name, `who`."""

    def __init__(self, name: str, folder: Path, command: Command) -> None:
        self.name = name
        self.who = ""
        self._folder = folder
        self._command = command
        self._started = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the next process. The previous one has exited."""
        self.close()
        self._started += 1
        self.who = f"{self.name}.{self._started}"
        with (self._folder / f"{self.who}.log").open("wb") as log:
            self._process = subprocess.Popen(
                self._command(self.who),
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    def await_running(self) -> None:
        """Wait until the process reports that it is running."""
        output = self._living.stdout
        assert output is not None
        said: list[bytes] = []
        reader = threading.Thread(target=lambda: said.append(output.readline()), daemon=True)
        reader.start()
        reader.join(START_LIMIT)
        assert said == [b"running\n"], f"{self.who} did not start: see {self._folder}"

    def kill(self) -> None:
        """Kill the process, as a crash would."""
        self._living.kill()
        self._living.wait()

    def freeze(self) -> None:
        self._living.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._living.send_signal(signal.SIGCONT)

    def terminate(self) -> int:
        """Stop the process gracefully. Return its exit code, or -9 if it had to be killed."""
        self._living.send_signal(signal.SIGTERM)
        return self._await_end()

    def finish(self) -> int:
        """Close stdin, so that a producer exits when it has its replies. Return the exit code."""
        assert self._living.stdin is not None
        self._living.stdin.close()
        return self._await_end()

    def close(self) -> None:
        """Kill the process and close its files."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()

    @property
    def _living(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"{self.name} was not started"
        return self._process

    def _await_end(self) -> int:
        try:
            return self._living.wait(END_LIMIT)
        except subprocess.TimeoutExpired:
            self.kill()
            return -signal.SIGKILL


def python(module: str, *before: str, after: tuple[str, ...] = ()) -> Command:
    """Return the command of a taskbull process. Its name follows the URL and folder."""
    return lambda who: [sys.executable, "-m", f"tests.nemesis.{module}", *before, who, *after]


def node(role: str, *before: str, after: tuple[str, ...]) -> Command:
    """Return the command of a BullMQ process."""
    return lambda who: ["node", str(NODE), role, *before, who, *after]
