"""The command `contract`: TypeScript and JSON Schema of an app's tasks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from taskbull.app.contract import contract_of, typescript
from taskbull.app.contract_changes import breaks_of, read_contract
from taskbull.cli.app_loading import app_argument, app_option, find_app
from taskbull.cli.errors import WrongUsage

_FILE = click.Path(dir_okay=False, allow_dash=True, path_type=Path)


@click.command()
@app_argument
@app_option
@click.option("--typescript", "module", type=_FILE, help="Write a TypeScript module; - is stdout.")
@click.option("--json-schema", "schema", type=_FILE, help="Write a JSON Schema; - is stdout.")
@click.option(
    "--check",
    "checked",
    type=_FILE,
    multiple=True,
    help="Exit with 1 and print the difference if this file is out of date; repeatable.",
)
@click.option(
    "--breaking",
    "old",
    metavar="OLD",
    type=_FILE,
    help="Exit with 1 and list the changes that break users of this older JSON Schema.",
)
def contract(
    named: str | None,
    app: str | None,
    module: Path | None,
    schema: Path | None,
    checked: tuple[Path, ...],
    old: Path | None,
) -> None:
    """Generate TypeScript or JSON Schema for the app's tasks.

    The TypeScript module contains the types and a client for BullMQ 5 and 6. Nothing is written if
    --check or --breaking fails.
    """
    written = [file for file in (module, schema) if file is not None]
    if not (written or checked or old):
        raise WrongUsage("Pass --typescript, --json-schema, --check or --breaking")
    if len(written) == 2 and written[0] == written[1]:
        raise WrongUsage("--typescript and --json-schema need different files")
    made = contract_of(find_app(app or named))
    text = json.dumps(made, indent=2, ensure_ascii=False) + "\n"
    failed = [file for file in checked if _differs(file, text, typescript(made))]
    breaks = [] if old is None else breaks_of(read_contract(_read(old).encode(), str(old)), made)
    for each in breaks:
        click.echo(each)
    if failed or breaks:
        sys.exit(1)
    for file, content in ((module, typescript(made)), (schema, text)):
        if file is not None:
            _write(file, content)


def _differs(file: Path, schema: str, module: str) -> bool:
    """Print the difference between a file and what it should contain."""
    import difflib  # noqa: PLC0415 - other commands do not wait for it

    found = _read(file)
    wanted = schema if found.lstrip().startswith("{") else module
    difference = difflib.unified_diff(
        found.splitlines(), wanted.splitlines(), str(file), "the app's tasks", lineterm=""
    )
    lines = list(difference)
    for line in lines:
        click.echo(line)
    return bool(lines)


def _read(file: Path) -> str:
    try:
        return sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"Cannot read {file}: {error}") from None


def _write(file: Path, content: str) -> None:
    if str(file) == "-":
        click.echo(content, nl=False)
        return
    try:
        file.write_text(content, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"Cannot write {file}: {error}") from None
