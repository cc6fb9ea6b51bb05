"""Python samples of Markdown pages, and the files that they show."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"^# ([\w/]+\.py)\n", re.MULTILINE)


class Sample(NamedTuple):
    """A block of Python in a page."""

    page: Path
    line: int
    source: str

    @property
    def where(self) -> str:
        """The place, for messages."""
        return f"{self.page.name}:{self.line}"

    def files(self) -> dict[str, str]:
        """Return the files that the block shows. Each begins with a comment that names it."""
        if _FILE.match(self.source) is None:
            return {}
        _, *parts = _FILE.split(self.source)
        return dict(zip(parts[::2], parts[1::2], strict=True))

    def compiled(self, flags: int) -> object:
        """Compile the block. Errors have the line of the page."""
        padded = "\n" * self.line + self.source
        return compile(padded, str(self.page), "exec", flags=flags, dont_inherit=True)


def samples_of(page: Path, url: str | None = None) -> list[Sample]:
    """Return the Python blocks of a page. They use the server at `url` if there is one."""
    text = page.read_text()
    for address in ("redis://localhost:6379/0", "embedded://") if url else ():
        text = text.replace(address, str(url))
    return [
        Sample(page, text.count("\n", 0, match.start()) + 1, match[1])
        for match in _BLOCK.finditer(text)
    ]


PAGES_WITH_SAMPLES = [page for page in PAGES if samples_of(page)]
