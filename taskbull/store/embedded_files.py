"""Where the embedded server of a project has its files, and whose they are."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from msgspec import Struct

from taskbull.errors import ConfigurationError
from taskbull.store.project import FOLDER
from taskbull.store.server_process import valkey_binary

_SOCKET_PATH_LIMIT = 100  # bytes; the system's own is 104 on macOS, 108 on Linux


class ServerFiles(Struct, frozen=True):
    """Where the files of one embedded server are."""

    folder: Path
    socket: Path

    @property
    def lock(self) -> Path:
        return self.folder / "lock"

    @property
    def config(self) -> Path:
        return self.folder / "valkey.conf"

    @property
    def log(self) -> Path:
        return self.folder / "valkey.log"

    def check(self) -> None:
        """Refuse a folder or a lock that another user has made, or may change.

        Their owner could pretend to be the server, and get every job.
        """
        for path, is_kind in ((self.folder, stat.S_ISDIR), (self.lock, stat.S_ISREG)):
            found = path.lstat()
            if not is_kind(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
                raise ConfigurationError(
                    f"embedded:// does not use {self.folder}: {path} belongs to another user, or "
                    "others may write to it. Use a folder of your own, such as "
                    "embedded:///path/to/folder"
                )


def find_files(folder: Path | str, *, create: bool = True) -> ServerFiles:
    """Return the files in a folder; refuse one that is not this user's alone."""
    path = Path(folder).resolve()
    socket_path = path / "valkey.sock"
    if len(os.fsencode(socket_path)) > _SOCKET_PATH_LIMIT:
        socket_path = _short_socket(path)
    files = ServerFiles(path, socket_path)
    if create and not files.lock.exists():
        valkey_binary()  # where it is missing, no folder is left behind
        _make(files)
    if files.lock.exists():
        files.check()
    return files


def _make(files: ServerFiles) -> None:
    files.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(files.folder.iterdir()) and not files.lock.exists():
        raise ConfigurationError(
            f"embedded:// needs a folder of its own, and {files.folder} has other files in it:"
            f" use {files.folder / FOLDER}"
        )
    files.lock.touch(mode=0o600)  # first: with it the folder is known to be ours
    files.folder.chmod(0o700)
    (files.folder / ".gitignore").write_text("*\n")


def _short_socket(folder: Path) -> Path:
    # The same for everybody: the directory for temporary files may differ between processes.
    place = Path("/tmp") / f"taskbull-{os.getuid()}"  # noqa: S108 - checked to be ours alone
    place.mkdir(mode=0o700, exist_ok=True)
    found = place.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigurationError(
            f"{place}, for the sockets of folders with a long path, is not a folder of this user"
            " alone: remove it, or use a folder with a shorter path"
        )
    return place / f"{hashlib.sha256(os.fsencode(folder)).hexdigest()[:24]}.sock"
