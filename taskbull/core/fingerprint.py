"""What like errors have in common: those that differ only in such parts have one fingerprint."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final

from msgspec import Struct

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

_CLASS: Final = re.compile(r"(?:Uncaught )?([A-Za-z_$][\w$]*(?:\.[A-Za-z_$][\w$]*)*)(?:: |:?$)")
_PYTHON_FRAME: Final = re.compile(r'File "([^"\n]{1,300})", line (\d{1,9})(?:, in ([^\n]{1,80}))?')
_NODE_FRAME: Final = re.compile(
    r"^ {1,8}at (?:([^\n(]{1,80}) \()?([^\n()]{1,300}):(\d{1,9}):\d", re.MULTILINE
)


class Alike(Struct, frozen=True):
    """What errors have in common that are taken for one."""

    task: str
    kind: str
    """The class of the error; empty where nobody wrote it down."""
    message: str
    """What their messages have in common; `<…>` stands for what differs."""

    @property
    def error(self) -> str:
        """The error in one line."""
        return ": ".join(part for part in (self.kind, self.message) if part)

    @property
    def fingerprint(self) -> str:
        """Ten digits by which such errors are known, on all machines and for good."""
        whole = "\0".join((self.task, self.kind, self.message)).encode("utf-8", "backslashreplace")
        return blake2b(whole, digest_size=5).hexdigest()


def common_part(message: str) -> str:
    """Return the first line of a message, with what differs from job to job left open."""
    line = message.strip().partition("\n")[0][:_LONGEST]
    return _VARIABLES.sub(VARIABLE, line)


def alike(task: str, reason: str, head: str = "", tail: str = "") -> Alike:
    """Return what a failure has in common with others: its reason, and both ends of its stack."""
    kind = _kind(reason, head, tail)
    message = reason
    if kind and reason.startswith(kind):
        message = reason[len(kind) :].lstrip(": ")
    return Alike(task, kind.rpartition(".")[2], common_part(message))


def frame_of(head: str, tail: str) -> str:
    """Return the frame nearest to where it broke, such as `mail.py:88 in render`; or nothing."""
    if found := [*_PYTHON_FRAME.finditer(tail)]:
        path, line, name = found[-1].groups()
    elif node := _NODE_FRAME.search(head):
        name, path, line = node.groups()
    else:
        return ""
    file = re.split(r"[/\\]", path)[-1]
    where = f"{file}:{line}"
    return f"{where} in {name}" if name else where


def _kind(reason: str, head: str, tail: str) -> str:
    first = head.partition("\n")[0]
    if "Traceback (most recent call last)" not in first:
        # Node's stacks begin with the error, and so do ours that have no frames.
        return _class(first)
    if own := _class(reason.partition("\n")[0]):
        return own
    lines = [line for line in tail.split("\n") if line[:1].strip()]
    found = [kind for line in lines if (kind := _class(line))]
    return found[-1] if found else ""


def _class(line: str) -> str:
    found = _CLASS.match(line)
    return found[1] if found else ""
