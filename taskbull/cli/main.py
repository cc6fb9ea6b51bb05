"""The entry point: the group of all commands, its sectioned help and its error handling."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from io import TextIOWrapper
from typing import Any

import click

from taskbull import __version__
from taskbull.cli.app_loading import COMPLETING, VARIABLE
from taskbull.cli.commands import admin
from taskbull.cli.commands.call import call
from taskbull.cli.commands.contract import contract
from taskbull.cli.commands.dashboard import dashboard, exporter, health
from taskbull.cli.commands.demo import completion, demo, stop
from taskbull.cli.commands.doctor import doctor
from taskbull.cli.commands.jobs import errors, job, jobs, restore, stack, why
from taskbull.cli.commands.queues import events, groups, queues, tasks, workers
from taskbull.cli.commands.schedules import schedules
from taskbull.cli.commands.top import top
from taskbull.cli.commands.worker import worker
from taskbull.cli.errors import INTERRUPTED, SERVER, colour, failure_of
from taskbull.cli.output import printable
from taskbull.errors import TaskbullError

_UNCUT = 1000
"""Length limit above any summary's length, so that summaries wrap and are never truncated."""


class Commands(click.Group):
    """A command group that prints expected errors as one sentence.

    The exit code is 1 for a failure and 2 for wrong usage.
    """

    def __init__(self, *, parts: Mapping[str, Sequence[click.Command]], **settings: Any) -> None:
        super().__init__(**settings)
        self._parts = parts
        for command in (command for part in parts.values() for command in part):
            self.add_command(command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. For commands of other tools, name the one that does the same."""
        name = args[0]
        if name in ELSEWHERE and self.get_command(ctx, name) is None:
            raise click.UsageError(f"No such command '{name}'. {ELSEWHERE[name]}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the requested command and convert taskbull errors to messages."""
        ctx.color = colour()
        try:
            return super().invoke(ctx)
        except TaskbullError as error:
            raise failure_of(error, ctx.meta.get(SERVER)) from error
        except click.Abort:  # Ctrl-C at a prompt
            click.echo(err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, section by section."""
        width = max(map(len, self.commands), default=0)
        for title, part in self._parts.items():
            with formatter.section(title):
                formatter.write_dl(
                    [
                        (str(command.name).ljust(width), command.get_short_help_str(_UNCUT))
                        for command in part
                    ]
                )


PARTS: dict[str, tuple[click.Command, ...]] = {
    "Run": (worker, demo, stop),
    "Inspect": (
        *(dashboard, top, why, tasks, queues, groups, workers, jobs, job, stack, errors, schedules),
        *(events, doctor, exporter, health),
    ),
    "Change jobs": (
        call,
        admin.retry,
        admin.retry_all,
        admin.promote,
        admin.signal,
        admin.cancel,
        admin.remove,
        restore,
    ),
    "Change queues": (admin.pause, admin.resume, admin.drain, admin.clean, admin.obliterate),
    "Change workers": (admin.quiet, admin.resume_worker),
    "Other": (contract, completion),
}
"""All commands, in the sections and order of the help."""

ELSEWHERE = {
    "purge": "To delete the waiting jobs of a queue, use taskbull drain QUEUE.",
    "beat": "No separate process is needed: workers run schedules, and taskbull schedules lists "
    "them.",
    "flower": "The web page is taskbull dashboard.",
    "inspect": "Use taskbull top for all queues, taskbull jobs QUEUE --state active for running "
    "jobs, and taskbull tasks for the tasks of an app.",
    "status": "Use taskbull workers for the connected workers, and taskbull doctor for a check.",
    "shell": "In Python, import your app and call its tasks; in a terminal, use taskbull call "
    "TASK.",
    "multi": "Use taskbull worker --processes N, or start several workers.",
    "control": "Use taskbull cancel, pause, resume and quiet.",
    "result": "Use taskbull job QUEUE ID.",
    "report": "Use taskbull doctor.",
}
"""Answers for commands that Celery has."""

_SETTINGS = {"help_option_names": ["-h", "--help"], "show_default": True}


@click.group(cls=Commands, parts=PARTS, context_settings=_SETTINGS)
@click.version_option(__version__, prog_name="taskbull")
@click.option("-A", "--app", metavar="MODULE:ATTRIBUTE", hidden=True)
def commands(app: str | None) -> None:
    """BullMQ-compatible background jobs for Python.

    Most commands find your app and Redis on their own. The app comes from -A module:attribute,
    $TASKBULL_APP, [tool.taskbull] in pyproject.toml, or the only App in the current directory.
    Redis comes from --redis, the app, $TASKBULL_REDIS_URL, $REDIS_URL, or localhost:6379.

    Exit codes: 0 success, 1 failure, 2 usage error, 130 interrupted.
    """
    if app is not None:  # given before the command, as with Celery
        os.environ[VARIABLE] = app


def main() -> None:
    """Run a command and exit with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # Never fail on characters that the encoding lacks.
            stream.reconfigure(errors="backslashreplace")
    _show_the_embedded_server()
    commands(complete_var=COMPLETING)


def _show_the_embedded_server() -> None:
    """Print the embedded server's log messages if the command sets up no logging."""

    class Shown(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if not (logging.root.handlers or logging.getLogger("taskbull").handlers):
                click.echo(printable(record.getMessage()), err=True)

    of_the_server = logging.getLogger("taskbull.store.embedded")  # by name, to avoid the import
    of_the_server.addHandler(Shown())
    of_the_server.setLevel(logging.INFO)
