"""The files that pages load: a style sheet, scripts, an icon; all from this package."""

from __future__ import annotations

from functools import cache
from hashlib import blake2b
from importlib.resources import files
from typing import Final

from taskbull.dashboard.messages import Refused, Request, Response

_KINDS: Final = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@cache
def _content() -> dict[str, tuple[bytes, str]]:
    """Return all files with their marks, read once."""
    found: dict[str, tuple[bytes, str]] = {}
    for file in files("taskbull.dashboard").joinpath("static").iterdir():
        if file.name.rpartition(".")[2] in _KINDS:
            content = file.read_bytes()
            found[file.name] = content, f'"{blake2b(content, digest_size=8).hexdigest()}"'
    return found


def serve_file(request: Request, name: str) -> Response:
    """Return a file; browsers keep it, and ask whether it has changed."""
    if name not in _content():
        raise Refused(404, "There is no such file.")
    content, mark = _content()[name]
    headers = {"etag": mark, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == mark:
        return Response(b"", 304, headers=headers)
    return Response(content, content_type=_KINDS[name.rpartition(".")[2]], headers=headers)
