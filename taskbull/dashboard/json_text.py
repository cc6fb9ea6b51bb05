"""JSON as it is stored, indented for people, with what is secret masked.

It is read by tokens and never parsed: numbers, spellings and repeated keys are shown as they stand
in Redis. What is not JSON, or was cut off, is shown as far as it makes sense.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any, Final, cast

import msgspec

MASK: Final = "•••"
"""Stands for a value that is not shown."""

SECRET: Final = (
    *("password", "passwd", "passphrase", "secret", "token", "authorization", "credential"),
    *("apikey", "accesskey", "privatekey", "cookie", "sessionid", "cardnumber", "cvv"),
)
"""Parts of the names whose values are masked; case and punctuation do not count."""

_TOKEN = re.compile(
    r"""
    (?P<string>"(?:[^"\\]|\\.)*+(?:"|\\?$))
    | (?P<open>[\[{]) | (?P<close>[\]}]) | (?P<colon>:) | (?P<comma>,)
    | (?P<space>[\ \t\n\r]+)
    | (?P<other>[^\[\]{}:,"\s]+|\S)
    """,
    re.VERBOSE | re.DOTALL,
)
_DEEPEST = 30
"""Levels that are indented: what is deeper stays at that depth."""


class Redactor:
    """Knows which names have secret values."""

    def __init__(self, words: Collection[str] = SECRET) -> None:
        self._words = tuple(_plain(word) for word in words)

    def hides(self, name: str) -> bool:
        """Return whether the value under a name is secret."""
        plain = _plain(name)
        return any(word in plain for word in self._words)

    def show(self, text: str) -> str:
        """Return JSON indented, with secrets masked."""
        return _Layout(self).of(text)

    def restore(self, edited: Any, original: Any) -> Any:
        """Return what a person has edited, with what was masked as it was."""
        if edited == MASK:
            return original
        if isinstance(edited, dict) and isinstance(original, dict):
            old = cast("dict[str, Any]", original)
            pairs = cast("dict[str, Any]", edited).items()
            return {key: self.restore(value, old.get(key, value)) for key, value in pairs}
        if isinstance(edited, list) and isinstance(original, list):
            return self._restore_items(
                cast("Sequence[Any]", edited), cast("Sequence[Any]", original)
            )
        return cast("Any", edited)

    def _restore_items(self, edited: Sequence[Any], original: Sequence[Any]) -> list[Any]:
        """Do the same for lists; if one was made longer or shorter, nobody knows which is which."""
        if len(edited) != len(original):
            return list(edited)
        return [self.restore(*pair) for pair in zip(edited, original, strict=True)]


class _Layout:
    """The state of one reading: how deep it is, and whether what comes is secret."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._out: list[str] = []
        self._depth = 0
        self._hidden_at: int | None = None
        """The depth at which a secret value began; None: what comes is shown."""
        self._pending: str | None = None
        """A string that is a key, if a colon follows."""
        self._after_open = False
        self._after_word = False
        """Whether a value came last: between two of them is a space, in what is not JSON."""

    def of(self, text: str) -> str:
        for token in _TOKEN.finditer(text):
            kind, word = str(token.lastgroup), token[0]
            if kind == "space":
                continue
            getattr(self, f"_{kind}")(word)
            self._after_word = kind in {"string", "other"}
        self._flush()
        return "".join(self._out)

    def _string(self, word: str) -> None:
        self._flush()
        self._begin()
        self._pending = word

    def _other(self, word: str) -> None:
        self._flush()
        self._begin()
        self._put(word)

    def _open(self, word: str) -> None:
        self._flush()
        self._begin()
        self._put(word)
        self._depth += 1
        self._after_open = True

    def _close(self, word: str) -> None:
        self._flush()
        self._depth = max(0, self._depth - 1)
        if self._hidden_at is not None and self._depth < self._hidden_at:
            self._hidden_at = None
        if not self._after_open:
            self._line()
        self._after_open = False
        self._put(word)

    def _colon(self, word: str) -> None:
        key, self._pending = self._pending, None
        if key is None:
            self._put(word)
            return
        self._put(f"{key}: ")
        if self._hidden_at is None and self._redactor.hides(_decoded(key)):
            self._put(f'"{MASK}"')
            self._hidden_at = self._depth

    def _comma(self, word: str) -> None:
        self._flush()
        if self._hidden_at is not None and self._depth <= self._hidden_at:
            self._hidden_at = None
        self._put(word)
        self._line()

    def _flush(self) -> None:
        if self._pending is not None:
            word, self._pending = self._pending, None
            self._put(word)

    def _begin(self) -> None:
        if self._after_open:
            self._after_open = False
            self._line()
        elif self._after_word:
            self._put(" ")

    def _line(self) -> None:
        self._put("\n" + "  " * min(self._depth, _DEEPEST))

    def _put(self, word: str) -> None:
        if self._hidden_at is None:
            self._out.append(word)


def _decoded(key: str) -> str:
    try:
        return msgspec.json.decode(key.encode("utf-8", "replace"), type=str)
    except ValueError:
        return key


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())
