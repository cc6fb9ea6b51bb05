"""The folder of the project in which a program was started, for what belongs to it."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = ".taskbull"

IDLE = 3600.0
"""Seconds without a client after which the server of a project ends by itself."""

_MARKS = ("pyproject.toml", ".git")


def project_folder() -> Path:
    """Return the folder for the embedded server of the project where the program was started.

    It is the nearest one upwards with a `pyproject.toml` or `.git`, else the working directory.
    Folders of other users are passed over: anybody may put such a file into /tmp.
    """
    here = Path.cwd()
    for place in (here, *here.parents):
        if place.stat().st_uid == os.getuid() and any((place / mark).exists() for mark in _MARKS):
            return place / FOLDER
    return here / FOLDER
