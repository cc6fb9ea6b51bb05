"""Refusing keywords that do not exist, with the name of the one that was meant."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from taskbull.core.celery import OPTIONS, SETTINGS, celery_hint
from taskbull.core.checks import did_you_mean, refusal
from taskbull.errors import ConfigurationError


def check_keywords(
    where: str, given: Iterable[str], known: type, celery: Mapping[str, str] = OPTIONS
) -> None:
    """Refuse an option that a TypedDict does not know; name ours for one that Celery has."""
    names = known.__annotations__
    for name in given:
        if name not in names:
            if hint := celery_hint(name, celery):
                raise ConfigurationError(f"{where} has no option {name!r}{hint}")
            rule = f"be one of {', '.join(names)}{did_you_mean(name, names)}"
            raise refusal(f"an option of {where}", rule, name)


def unknown_setting(name: str, known: Collection[str]) -> TypeError:
    """Return Python's own error for a keyword that `App` does not take, with what was meant."""
    hint = celery_hint(name, SETTINGS) or did_you_mean(name, known)
    return TypeError(f"App() got an unexpected keyword argument {name!r}{hint}")
