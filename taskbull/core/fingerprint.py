"""What messages of like errors have in common: those that differ only in such parts are one."""

from __future__ import annotations

import re
from typing import Final

VARIABLE: Final = "<…>"
"""Stands for a part of a message that differs from job to job."""

_LONGEST: Final = 200

_VARIABLES: Final = re.compile(
    r"""
    [a-z][a-z0-9+.-]{1,20}://\S+                     # a URL
    | [\w.+-]{1,64}@[\w.-]{1,64}                     # an e-mail address
    | '[^']*' | "[^"]*" | `[^`]*`                    # what is quoted
    | (?<![\w.])/[\w.-]+(?:/[\w.-]*)+                # a path
    | \d{4}-\d\d-\d\d[T ][\d:.,]*(?:Z|[+-][\d:]*)?   # a date and a time
    | (?<!\w)(?:0x)?(?=[a-f-]*\d)[0-9a-f-]{6,}(?!\w) # a UUID, a digest, an address in memory
    | (?<![a-z_])\d[\d.,:_]*                         # a number, a time
    """,
    re.VERBOSE | re.IGNORECASE,
)


def common_part(message: str) -> str:
    """Return the first line of a message, with what differs from job to job left open."""
    line = message.strip().partition("\n")[0][:_LONGEST]
    return _VARIABLES.sub(VARIABLE, line)
