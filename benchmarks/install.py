"""Brings the peers by pip and npm, each into a folder of its own: their requirements differ."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

from benchmarks.catalogue import ROOT, Peer

CACHE = ROOT / ".benchmarks"
_STAMP = "installed.txt"


class NotInstalled(Exception):
    """Says why a peer is not there."""


def ensure(name: str, peer: Peer, cache: Path = CACHE) -> Path:
    """Give the folder of a peer, with what it needs in it."""
    folder = cache / name
    wanted = "\n".join(peer.npm + peer.pip)
    stamp = folder / _STAMP
    if not wanted or (stamp.exists() and stamp.read_text() == wanted):
        return folder
    print(f"installing {name}: {wanted.replace(chr(10), ', ')}", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if peer.npm:
        _with_npm(folder, peer.npm)
    else:
        _with_pip(folder, peer.pip)
    stamp.write_text(wanted)
    return folder


def _with_npm(folder: Path, packages: list[str]) -> None:
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise NotInstalled("Node and npm are not installed")
    (folder / "package.json").write_text('{"name": "benchmark", "private": true}\n')
    _run([npm, "install", "--no-audit", "--no-fund", "--save-exact", *packages], folder)


def _with_pip(folder: Path, packages: list[str]) -> None:
    venv.create(folder, with_pip=True)
    _run([str(folder / "bin" / "python"), "-m", "pip", "install", "-q", *packages], folder)


def _run(words: list[str], folder: Path) -> None:
    done = subprocess.run(
        words, check=False, cwd=folder, capture_output=True, text=True, timeout=600
    )
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no reason given").splitlines()[-1]
        raise NotInstalled(f"{Path(words[0]).name} failed: {last}")
