"""The command line as a separate process, with pipes or in a terminal that a test types into."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

_DEADLINE = 60.0


def run(
    *words: str, cwd: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command with pipes until it exits."""
    return subprocess.run(
        [sys.executable, "-m", "taskbull", *words],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


class Terminal:
    """A command in a pseudo-terminal, until the end of the block."""

    def __init__(
        self, *words: str, cwd: Path, env: Mapping[str, str] | None = None, width: int = 100
    ) -> None:
        self._words = words
        self._cwd = cwd
        self._env = {"TERM": "xterm-256color", **(env or {})}
        self._width = width
        self._hung_up = False
        self.seen = ""

    def __enter__(self) -> Self:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, self._width, 0, 0))
        inherited = {k: v for k, v in os.environ.items() if k not in {"NO_COLOR", "COLUMNS"}}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "taskbull", *self._words],
            cwd=self._cwd,
            env={**inherited, **self._env},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            # Ctrl-C must reach it. No other thread runs in these tests.
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
        )
        os.close(slave)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if not self._hung_up:
            os.close(self._master)

    def hang_up(self) -> None:
        """Close the terminal, as when its window is closed."""
        self._hung_up = True
        os.close(self._master)

    def wait(self) -> int:
        """Wait until a program whose terminal is closed exits."""
        return self._process.wait(_DEADLINE)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process alone."""
        self._process.send_signal(number)

    def interrupt(self) -> int:
        """Press Ctrl-C, repeatedly if nothing happens, until it exits. Return the exit code.

        Python misses a signal that arrives just before it starts to wait for a key.
        """
        self.type("\x03")
        limit = time.monotonic() + _DEADLINE
        while self._process.poll() is None:
            assert time.monotonic() < limit, f"it goes on; seen was:\n{self.seen}"
            if not select.select([self._master], [], [], 2.0)[0]:
                self.type("\x03")
            elif not self._read():
                break
        return self.end()

    def read_until(self, text: str, times: int = 1) -> str:
        """Read until `text` has appeared this many times. Return all output."""
        while self.seen.count(text) < times:
            assert self._read(), f"{text!r} never came; seen was:\n{self.seen}"
        return self.seen

    def end(self) -> int:
        """Read to the end, and return the exit code."""
        while self._read():
            pass
        return self._process.wait(_DEADLINE)

    def _read(self) -> bool:
        limit = time.monotonic() + _DEADLINE
        ready, _, _ = select.select([self._master], [], [], limit - time.monotonic())
        assert ready, f"nothing more came; seen was:\n{self.seen}"
        try:
            data = os.read(self._master, 65536)
        except OSError:  # Linux raises EIO when the other side is closed.
            return False
        self.seen += data.decode(errors="replace").replace("\r\n", "\n")
        return bool(data)
