"""Group similar errors: those that differ only in variable parts share a fingerprint."""

from __future__ import annotations

import re
from collections.abc import Collection
from hashlib import blake2b
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

VARIABLE: Final = "<…>"
"""Placeholder for a part of a message that differs from job to job."""

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
    | (?<=[a-z])\d+(?=[.][a-z])                      # the number of a host: smtp1.example.org
    """,
    re.VERBOSE | re.IGNORECASE,
)

_CLASS: Final = re.compile(r"(?:Uncaught )?([A-Za-z_$][\w$]*(?:\.[A-Za-z_$][\w$]*)*)(?:: |:?$)")
_PYTHON_FRAME: Final = re.compile(r'File "([^"\n]{1,300})", line (\d{1,9})(?:, in ([^\n]{1,80}))?')
_NODE_FRAME: Final = re.compile(
    r"^ {1,8}at (?:([^\n(]{1,80}) \()?([^\n()]{1,300}):(\d{1,9}):\d", re.MULTILINE
)


class ErrorFingerprint(Struct, frozen=True):
    """The common parts of a group of similar errors."""

    task: str
    kind: str
    """Class name of the error, or an empty string if it is not known."""
    message: str
    """Common part of the messages, with `<…>` for variable parts."""

    @property
    def error(self) -> str:
        """Class name and message in one line."""
        return ": ".join(part for part in (self.kind, self.message) if part)

    @property
    def fingerprint(self) -> str:
        """Ten hex digits that identify the group, on all machines and permanently."""
        whole = "\0".join((self.task, self.kind, self.message)).encode("utf-8", "backslashreplace")
        return blake2b(whole, digest_size=5).hexdigest()


def common_part(message: str) -> str:
    """Return the first line of a message, with `<…>` for variable parts."""
    return _VARIABLES.sub(VARIABLE, first_line(message))


def first_line(message: str) -> str:
    """Return the first line of a message, cut to the length that error groups show."""
    return message.strip().partition("\n")[0][:_LONGEST]


def make_fingerprint(task: str, reason: str, head: str = "", tail: str = "") -> ErrorFingerprint:
    """Return the group of a failure.

    Args:
        task: Name of the task.
        reason: Failure reason of the job.
        head: Start of the stack trace.
        tail: End of the stack trace.
    """
    kind = _kind(reason, head, tail)
    message = common_part(_without(kind, reason))
    return ErrorFingerprint(task, kind.rpartition(".")[2], message)


def describe(what: ErrorFingerprint, reasons: Collection[str]) -> str:
    """Return the error of a group in one line: its whole message if all jobs have the same one."""
    if len({first_line(reason) for reason in reasons}) != 1:
        return what.error
    [message] = {first_line(_without(what.kind, reason)) for reason in reasons}
    return replace(what, message=message).error


def _without(kind: str, reason: str) -> str:
    """Return the message in a failure reason, without the class of the error."""
    found = _class(reason.partition("\n")[0])
    if kind and found.rpartition(".")[2] == kind.rpartition(".")[2]:
        return reason[len(found) :].lstrip(": ")
    return reason


def frame_of(head: str, tail: str) -> str:
    """Return the innermost frame, such as `mail.py:88 in render`, or "" if there is none."""
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
        # Node's stacks start with the error, and so do taskbull's stacks without frames.
        return _class(first)
    if own := _class(reason.partition("\n")[0]):
        return own
    lines = [line for line in tail.split("\n") if line[:1].strip()]
    found = [kind for line in lines if (kind := _class(line))]
    return found[-1] if found else ""


def _class(line: str) -> str:
    found = _CLASS.match(line)
    return found[1] if found else ""
