"""Who is measured: the peers of peers.toml, and taskbull of one checkout or two."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

ROOT = Path(__file__).resolve().parent.parent
FILE = Path(__file__).with_name("peers.toml")
OWN = "taskbull"
BASELINE = "node"
EVERYBODY = "all"
YARDSTICK = "plain-set"
"""Is measured wherever it takes part, whoever was asked for."""


class Peer(Struct, frozen=True, forbid_unknown_fields=True):
    """What is installed and run under one name."""

    adapter: str
    how: str
    parts: list[str]
    can: list[str]
    variant: str = ""
    npm: list[str] = []
    pip: list[str] = []


class Side(Struct, frozen=True):
    """A peer in the rounds. Of taskbull there may be two, of different checkouts."""

    name: str
    peer: Peer
    tree: Path | None = None
    """The checkout of taskbull that is run."""

    @property
    def filling(self) -> str:
        """What sides that write the same jobs have in common."""
        return f"{self.peer.adapter} {self.peer.npm} {self.tree}"


def read(file: Path = FILE) -> dict[str, Peer]:
    """Read the catalogue."""
    return msgspec.toml.decode(file.read_bytes(), type=dict[str, Peer])


def choose(
    peers: dict[str, Peer], part: str, only: Sequence[str], against: Path | None = None
) -> list[Side]:
    """Give the sides of a part: the peers named in `only`; `taskbull` means all its forms."""
    sides = []
    for name, peer in peers.items():
        own = peer.adapter == OWN
        asked = {name, OWN if own else name, EVERYBODY} & {*only, YARDSTICK}
        if part not in peer.parts or not asked:
            continue
        sides.append(Side(name, peer, ROOT if own else None))
        if own and against is not None:
            tree = against.resolve()
            sides.append(Side(f"{name} {tree.name}", peer, tree))
    return sides
