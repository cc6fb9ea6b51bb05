"""Licenses of the packages that are installed with taskbull, and the lock file."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, metadata, requires
from pathlib import Path

from packaging.requirements import Requirement

ALLOWED = ("MIT", "BSD", "Apache", "PSF", "MPL-2.0", "Mozilla Public License 2.0")
EXTRAS = ("dashboard", "django", "embedded", "metrics", "sentry", "trio", "uvloop")


def _installed(name: str, extras: tuple[str, ...], found: dict[str, str]) -> dict[str, str]:
    """Return the licenses of the packages that a package needs, by name."""
    for line in requires(name) or ():
        need = Requirement(line)
        key = re.sub(r"[-_.]+", "-", need.name).lower()
        chosen = [{"extra": extra} for extra in ("", *extras)]
        if need.marker is not None and not any(map(need.marker.evaluate, chosen)):
            continue
        if key in found or key == "taskbull":
            continue
        found[key] = _license(need.name)
        _installed(need.name, tuple(need.extras), found)
    return found


def _license(name: str) -> str:
    try:
        about = metadata(name)
    except PackageNotFoundError:
        return f"{name} is not installed"
    named = [
        kind.rpartition(" :: ")[2]
        for kind in about.get_all("Classifier") or ()
        if kind.startswith("License :: ")
    ]
    stated = about.get_all("License-Expression") or named or about.get_all("License")
    return ", ".join(stated or ["unknown"])


def test_all_licenses_are_permissive() -> None:
    found = _installed("taskbull", EXTRAS, {})
    assert {"anyio", "redis", "django", "sentry-sdk"} <= found.keys()
    assert {name: kind for name, kind in found.items() if not _is_allowed(kind)} == {}


def _is_allowed(kind: str) -> bool:
    return any(each in kind for each in ALLOWED) and "GPL" not in kind


def test_the_lock_file_has_a_suitable_version_of_each_package() -> None:
    lines = (Path(__file__).parent.parent / "requirements-dev.lock").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    locked = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pinned.items()}
    wrong = []
    for line in requires("taskbull") or ():
        need = Requirement(line)
        name = re.sub(r"[-_.]+", "-", need.name).lower()
        if name != "taskbull" and not need.specifier.contains(locked.get(name, "0")):
            wrong.append(line)
    assert wrong == []
