"""The examples as users run them: copied to a folder, as processes, and checked by their output."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

EXAMPLES = Path(__file__).parent.parent.parent / "examples"

_DEADLINE = 60.0
_OF_THE_DEVELOPER = {"TASKBULL_APP", "TASKBULL_REDIS_URL", "REDIS_URL", "DJANGO_SETTINGS_MODULE"}


class JobEnvironment:
    """A copy of one example, and the address of its Redis, or None for the embedded one."""

    def __init__(self, folder: Path, url: str | None) -> None:
        self.folder = folder
        self.env = {k: v for k, v in os.environ.items() if k not in _OF_THE_DEVELOPER}
        self.env["PYTHONUNBUFFERED"] = "1"
        if url is not None:
            self.env["TASKBULL_REDIS_URL"] = url

    def python(self, *words: str) -> Program:
        return Program([sys.executable, *words], self)

    def worker(self, *words: str) -> Program:
        return self.python("-m", "taskbull", "worker", *words)

    def node(self, *words: str) -> Program:
        return Program(["node", *words], self)


def copy_of(example: str, folder: Path, url: str | None) -> JobEnvironment:
    """Copy an example, a folder or a file, into `folder`."""
    source = EXAMPLES / example
    if source.is_dir():
        leave_out = shutil.ignore_patterns("__pycache__", ".taskbull", "node_modules", "*.sqlite3")
        shutil.copytree(source, folder, ignore=leave_out, dirs_exist_ok=True)
    else:
        shutil.copy(source, folder)
    return JobEnvironment(folder, url)


class Program:
    """A process whose output is read; it ends with the block at the latest."""

    def __init__(self, command: list[str], place: JobEnvironment) -> None:
        self._command = command
        self._place = place
        self.seen = ""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            cwd=self._place.folder,
            env=self._place.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self._process.stdout is not None
        self._output = self._process.stdout
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._output.close()

    def read_until(self, pattern: str) -> re.Match[str]:
        """Read until something like `pattern` has come, and give it."""
        while (found := re.search(pattern, self.seen)) is None:
            assert self._read(), f"{pattern!r} never came; seen was:\n{self.seen}"
        return found

    def end(self) -> str:
        """Read to the end, which must be a good one; give all that was seen."""
        assert self._exit_code() == 0, self.seen
        return self.seen

    def stop(self) -> str:
        """Ask it to end, as systemd or a container does; give all that was seen."""
        self._process.send_signal(signal.SIGTERM)
        # uvicorn ends well, and then by the signal after all.
        assert self._exit_code() in {0, -signal.SIGTERM}, self.seen
        return self.seen

    def run(self) -> str:
        """Run it to its end; give all that was seen."""
        with self:
            return self.end()

    def _exit_code(self) -> int:
        while self._read():
            pass
        return self._process.wait(_DEADLINE)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._output], [], [], _DEADLINE)
        assert ready, f"nothing more came; seen was:\n{self.seen}"
        data = os.read(self._output.fileno(), 65536)
        self.seen += data.decode(errors="replace")
        return bool(data)
