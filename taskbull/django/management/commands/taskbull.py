"""`manage.py taskbull …`: the command line of taskbull, with Django set up."""

from __future__ import annotations

import os
import sys
from argparse import REMAINDER
from itertools import takewhile
from typing import Any

import click
from django.core.management.base import BaseCommand, CommandError, CommandParser

from taskbull.cli.app_loading import VARIABLE
from taskbull.cli.main import commands
from taskbull.cli.main import main as run_program
from taskbull.django.apps import has_address, names_app
from taskbull.django.connections import task_settings

_OF_DJANGO = ("--settings", "--pythonpath")


class Command(BaseCommand):
    """Runs a command of taskbull for the app that the settings name."""

    help = "Run a command of taskbull, such as: worker, dashboard, queues, doctor."
    requires_system_checks = ()  # `worker` runs them.

    def run_from_argv(self, argv: list[str]) -> None:
        """Run a command line. Django has already applied `--settings` and `--pythonpath`."""
        words = _without_options_of_django(argv[2:])
        _choose_app()
        if words[:1] == ["worker"] and "--help" not in words:
            self.check()
        if words[:1] == ["health"]:  # It does not load the app.
            _choose_redis()
        sys.argv = [f"{os.path.basename(argv[0])} taskbull", *words]
        run_program()

    def print_help(self, prog_name: str, subcommand: str) -> None:
        """Print the commands of taskbull."""
        with click.Context(commands, info_name=f"{prog_name} {subcommand}") as context:
            click.echo(commands.get_help(context))

    def add_arguments(self, parser: CommandParser) -> None:
        """Accept all words, for `call_command`."""
        parser.add_argument("words", nargs=REMAINDER)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run a command in this process, for `call_command("taskbull", "queues")`."""
        _choose_app()
        try:
            commands.main([*options["words"], *args], "taskbull", standalone_mode=False)
        except click.ClickException as error:
            raise CommandError(error.format_message(), returncode=error.exit_code) from error


def _choose_app() -> None:
    """Name the project's app for this process and for the workers that it starts."""
    if names_app():
        os.environ.setdefault(VARIABLE, "taskbull.django:app")
    # Workers are started with `python -m taskbull`, which does not have the folder of manage.py.
    folders = takewhile(lambda folder: not folder.endswith(".zip"), sys.path)  # Python's own
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, [*folders, *known])))


def _choose_redis() -> None:
    if not has_address():
        urls = [entry.get("OPTIONS", {}).get("redis") for entry in task_settings().values()]
        if url := next((url for url in urls if isinstance(url, str)), None):
            os.environ["TASKBULL_REDIS_URL"] = url


def _without_options_of_django(words: list[str]) -> list[str]:
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in _OF_DJANGO:
            next(rest, None)
        elif not word.startswith(tuple(f"{name}=" for name in _OF_DJANGO)):
            kept.append(word)
    return kept
