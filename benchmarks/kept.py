"""What was measured last of each part, kept so that one page can be made of several runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from benchmarks.install import CACHE
from benchmarks.rounds import Sample, Taken

FOLDER = CACHE / "results"


class Kept(Struct, frozen=True):
    """The result of a part: its tables, and the samples of which they are made."""

    part: str
    day: str
    command: str
    text: str
    samples: list[tuple[str, str, list[Sample]]]
    """Of each setting and side."""

    @property
    def taken(self) -> Taken:
        """The samples as the part gave them."""
        return Taken({(setting, side): samples for setting, side, samples in self.samples})

    def save(self) -> None:
        FOLDER.mkdir(parents=True, exist_ok=True)
        (FOLDER / f"{self.part}.json").write_bytes(msgspec.json.encode(self))


def keep(part: str, command: str, text: str, taken: Taken) -> Kept:
    """Keep the result of a part in place of the last one."""
    samples = [(*case, each) for case, each in taken.samples.items()]
    kept = Kept(part, f"{datetime.now(UTC):%Y-%m-%d}", command, text, samples)
    kept.save()
    return kept


def load(parts: Sequence[str]) -> list[Kept]:
    """Return what is known of the parts, in their order."""
    found = [FOLDER / f"{part}.json" for part in parts]
    return [msgspec.json.decode(path.read_bytes(), type=Kept) for path in found if path.exists()]
