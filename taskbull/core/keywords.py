"""Refusing keywords that do not exist, with the name of the one that was meant."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from taskbull.core.celery import OPTIONS, SETTINGS, celery_hint
from taskbull.core.checks import did_you_mean
from taskbull.errors import ConfigurationError


def check_keywords(
    where: str, given: Iterable[str], known: type, celery: Mapping[str, str] = OPTIONS
) -> None:
    """Refuse an option that a TypedDict does not know; name ours for one that Celery has."""
    names = known.__annotations__
    for name in given:
        if name not in names:
            hint = celery_hint(name, celery) or did_you_mean(name, names)
            known_names = f"; it has {', '.join(names)}"
            raise ConfigurationError(f"{where} has no option {name!r}{hint or known_names}")


def unknown_setting(where: str, name: str, known: Collection[str]) -> TypeError:
    """Return Python's own error for a keyword that a class does not take, with what was meant."""
    hint = celery_hint(name, SETTINGS) or did_you_mean(name, known)
    return TypeError(f"{where}() got an unexpected keyword argument {name!r}{hint}")
