"""The packages of `package.json`, installed once."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import pytest

from tests.interop.node import HERE

_LOCK_FILE: Final = HERE / "package-lock.json"
_INSTALLED: Final = HERE / "node_modules" / ".package-lock.json"  # npm writes it at its end
_LIMIT: Final = 300.0


def require_node_modules() -> None:
    """Install what `package-lock.json` says, if it is not there; skip the test where that fails.

    Under CI a machine without Node is a failure: the comparison with BullMQ is not optional there.
    """
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            _lacks(f"{program} is not installed")
    with _beside_other_runs().open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _current():
            _install()


def _current() -> bool:
    return _INSTALLED.exists() and _INSTALLED.stat().st_mtime >= _LOCK_FILE.stat().st_mtime


def _beside_other_runs() -> Path:
    """Give the file to lock: not in `node_modules`, which npm deletes."""
    folder = hashlib.sha256(str(HERE).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"taskbull-npm-{folder}.lock"


def _install() -> None:
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run(
        command, cwd=HERE, capture_output=True, text=True, timeout=_LIMIT, check=False
    )
    if done.returncode:
        _lacks(f"npm could not install BullMQ:\n{done.stderr.strip()}")
    _INSTALLED.touch()


def _lacks(reason: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
