"""A command is packed in the same way whatever the length of its words."""

from __future__ import annotations

from typing import Any

import hiredis
import pytest

from taskbull.scripts.call import Word
from taskbull.store.protocol import pack

LONG = 1 << 20


@pytest.mark.parametrize(
    "words",
    [
        ("PING",),
        ("SET", "key", b"x" * LONG),
        ("SET", "ключ", b"\r\n$3\r\n" * LONG),
        ("EVALSHA", "sha", 1, "key", b"", b"y" * LONG, "", 2**53 - 1, -1, 0.1, 1e300, b"short"),
    ],
    ids=["short", "long", "of line ends", "among others"],
)
def test_a_command_has_the_bytes_that_hiredis_gives_it(words: tuple[Word, ...]) -> None:
    packer: Any = hiredis
    assert pack(words) == packer.pack_command(words)
