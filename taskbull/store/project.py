"""The folder of the project in which a program was started, and whether its files are trusted."""

from __future__ import annotations

import grp
import logging
import os
import pwd
import stat
from functools import cache
from pathlib import Path

logger = logging.getLogger(__name__)

FOLDER = ".taskbull"

IDLE = 3600.0
"""Seconds without a client after which the server of a project ends by itself."""

_MARKS = ("pyproject.toml", ".git")


def project_folder() -> Path:
    """Return the folder for the embedded server of the project where the program was started.

    It is the nearest one upwards with a `pyproject.toml` or `.git`, else the working directory.
    Folders and files of other users are skipped: anybody may put such a file into /tmp.
    """
    here = Path.cwd()
    for place in (here, *here.parents):
        for mark in (place / name for name in _MARKS):
            if not os.path.lexists(mark):
                continue
            if (reason := distrust(place, mark)) is not None:
                _warn(f"Ignored {mark} when looking for the project's folder: {reason}")
            elif place.stat().st_uid == os.geteuid():
                return place / FOLDER
    return here / FOLDER


def distrust(*paths: Path) -> str | None:
    """Return why files or folders that were found by searching are not used; None if they are.

    Each must belong to this user or to root, and must not be writable by other users. A symbolic
    link is checked along with its target and the folder of its target.
    """
    for path in paths:
        try:
            places = [path]
            if path.is_symlink():
                real = path.resolve(strict=True)
                places += [real] if real.is_dir() else [real, real.parent]
            for place in places:
                if (reason := _suspicion(place)) is not None:
                    return reason
        except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, before 3.13
            return f"{path} cannot be examined ({error})"
    return None


def _suspicion(path: Path) -> str | None:
    found = path.lstat()
    if found.st_uid not in {0, os.geteuid()}:
        return f"{path} is owned by another user (uid {found.st_uid})"
    if stat.S_ISLNK(found.st_mode):
        return None  # its mode means nothing
    if found.st_mode & stat.S_IWOTH:
        return f"{path} is writable by other users"
    if found.st_mode & stat.S_IWGRP and not _is_own_group(found.st_gid):
        return f"{path} is writable by the users of group {found.st_gid}"
    return None


def _is_own_group(gid: int) -> bool:
    """Return True if only this user and root are in a group.

    With the umask 002 of many systems, a user's files are writable by a group of the same name.
    """
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container may run under any number
        user = ""
    try:
        group = grp.getgrgid(gid)
    except KeyError:
        return False
    return (gid == 0 or group.gr_name == user) and set(group.gr_mem) <= {user, "root"}


@cache
def _warn(message: str) -> None:
    """Log a warning, once for each message."""
    logger.warning(message)
