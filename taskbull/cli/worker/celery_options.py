"""What fingers type that are used to Celery: taken as it is meant, or answered with our word."""

from __future__ import annotations

import click

from taskbull.cli.errors import note

_SAME = {
    "-Q": "--queue",
    "--queues": "--queue",
    "--loglevel": "--log-level",
    "-l": "--log-level",
}
_POOL = (
    "async tasks run in the event loop, plain functions in threads, or in processes with "
    "@app.task(process=True); --process-pool says in how many"
)
_BEAT = "the schedules of a queue need no process of their own"
_NAME = "a worker's name is its host, its process and six random digits"
_TIME = "it is timeout= of a task; with process=True, grace= is the time up to the kill"
_BACKGROUND = "run it in the background with systemd or your shell"

_NEEDLESS = {
    "-P": _POOL,
    "--pool": _POOL,
    "-E": "events are always written",
    "--events": "events are always written",
    "-O": "a job is taken when there is room for it, and no sooner",
    "--without-gossip": "workers do not gossip",
    "--without-mingle": "workers do not mingle",
    "--without-heartbeat": "a heartbeat keeps the locks of running jobs",
}
_WITH_VALUE = {"-P", "--pool", "-O"}
_OTHER = {
    "--autoscale": "-c, the jobs at once, is an upper limit: idle slots cost nothing",
    "-B": _BEAT,
    "--beat": _BEAT,
    "-n": _NAME,
    "--hostname": _NAME,
    "--max-tasks-per-child": "it is --process-max-jobs, or --max-jobs of whole workers",
    "--max-memory-per-child": "it is --process-max-memory, or --max-memory of workers, in MB",
    "--time-limit": _TIME,
    "--soft-time-limit": _TIME,
    "-D": _BACKGROUND,
    "--detach": _BACKGROUND,
}


class WorkerCommand(click.Command):
    """A command that knows Celery's options for a worker."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line."""
        return super().parse_args(ctx, _translated(args))


def _translated(args: list[str]) -> list[str]:
    words: list[str] = []
    rest = iter(args)
    for word in rest:
        if word[:2] in _SAME and len(word) > 2:  # -Qemails
            word = f"{word[:2]}={word[2:].removeprefix('=')}"  # noqa: PLW2901
        option, equals, value = word.partition("=")
        if option in _SAME:
            words.append(_SAME[option] + equals + value)
        elif option in _NEEDLESS:
            note(f"{option} is not needed: {_NEEDLESS[option]}")
            if option in _WITH_VALUE and not equals:
                next(rest, None)
        elif option in _OTHER:
            raise click.UsageError(f"There is no {option} here: {_OTHER[option]}")
        else:
            words.append(word)
    return words
