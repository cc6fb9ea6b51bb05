"""`taskbull restore`: jobs that were downloaded before they were removed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import click
from msgspec.structs import replace

from taskbull.app.app import App
from taskbull.cli.app_loading import find_app_of_server, server_options
from taskbull.cli.errors import CommandFailed, WrongUsage
from taskbull.cli.server import open_server
from taskbull.cli.terminal import cell, json_option, show_json
from taskbull.core.keys import check_queue_name
from taskbull.core.wire.copy import JobCopy, check_copy, read_copy
from taskbull.errors import MaybeExecuted, TaskbullError
from taskbull.queue.copies import parts_of
from taskbull.queue.handle import JobHandle
from taskbull.queue.sync_server import SyncServer


@click.command()
@click.argument("file", type=click.File("rb"))
@click.option("--queue", help="Add all of them to this queue, not to the one each came from.")
@server_options
@json_option
def restore(
    file: BinaryIO, queue: str | None, as_json: bool, prefix: str | None, **where: str | None
) -> None:
    """Add the jobs of a file again that the dashboard has written; - reads standard input.

    Nothing is added unless every line can be. A job whose id was not the queue's own keeps it, and
    is not added twice; others get new ids. Up to 250 of them go in one call.
    """
    app = find_app_of_server(**where)
    lines: list[int] = []
    copies: list[JobCopy] = []
    for number, copy in _read_copies(file, app, queue):
        lines.append(number)
        copies.append(copy)
    server = open_server(app, where["redis"], prefix)
    server.ping()
    added: list[dict[str, Any]] = []
    try:
        for part in parts_of(copies):
            for copy, handle in zip(
                part, _add(server, part, lines[len(added) :], file), strict=True
            ):
                added.append(_describe(copy, handle))
                if not as_json:
                    click.echo(cell(_sentence(copy, handle)))
    finally:
        if as_json:
            show_json(added)


def _add(
    server: SyncServer, part: Sequence[JobCopy], lines: Sequence[int], file: BinaryIO
) -> list[JobHandle[Any]]:
    """Add the jobs of some lines; say which they are if that fails."""
    try:
        return server.queue(part[0].queue).add_copies(part)
    except TaskbullError as error:
        where = f"{file.name}, lines {lines[0]} to {lines[len(part) - 1]}"
        not_known = "whether these were is not known. Those after them were not"
        others = not_known if isinstance(error, MaybeExecuted) else "these and those after them not"
        raise CommandFailed(f"{where}: {error}. The lines before were added, {others}") from error


def _read_copies(
    file: BinaryIO, app: App | None, queue: str | None
) -> Iterator[tuple[int, JobCopy]]:
    """Read the lines of a file; refuse what could not be added, before anything is."""
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            copy = read_copy(line)
            if queue is not None:
                copy = replace(copy, queue=queue)
            check_queue_name(copy.queue)
            check_copy(copy)
            if app is not None:
                app.check_data(copy.name, bytes(copy.data))
        except TaskbullError as error:
            raise WrongUsage(f"{file.name}, line {number}: {error}. Nothing was added") from error
        yield number, copy


def _sentence(copy: JobCopy, handle: JobHandle[Any]) -> str:
    if handle.deduplicated:
        return f"job {handle.id} is in queue {handle.queue} already"
    return f"job {handle.id} ({handle.name}) added to queue {handle.queue}; it was {copy.id}"


def _describe(copy: JobCopy, handle: JobHandle[Any]) -> dict[str, Any]:
    return {
        "id": handle.id,
        "queue": handle.queue,
        "name": handle.name,
        "was": copy.id,
        "deduplicated": handle.deduplicated,
    }
