"""The command `worker`: its options, and those of Celery that it recognizes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, cast

import click
from msgspec import Struct
from msgspec.structs import asdict

from taskbull.app.app import App
from taskbull.cli.arguments import read_seconds
from taskbull.cli.errors import WrongUsage, note
from taskbull.core.options import WorkerKeywords, WorkerOptions
from taskbull.core.validation import did_you_mean
from taskbull.observability.logs import LogFormat, LogOptions

# Celery options: translated, ignored with a note, or rejected with the taskbull equivalent.


_SAME = {
    "-Q": "--queue",
    "--queues": "--queue",
    "--loglevel": "--log-level",
    "-l": "--log-level",
}
_POOL = (
    "async tasks run in the event loop, sync functions in threads, or in processes with "
    "@app.task(process=True) and --process-pool"
)
_BEAT = "Workers run schedules themselves; no extra process is needed"
_NAME = "A worker's name consists of its host, its process id and six random digits"
_TIME = (
    "Set timeout= on the task; with process=True, grace= is the time until the process is killed"
)
_BACKGROUND = "Use systemd or your shell to run it in the background"

_NEEDLESS = {
    "-P": _POOL,
    "--pool": _POOL,
    "-E": "events are always written",
    "--events": "events are always written",
    "-O": "workers fetch a job only when they have a free slot for it",
    "--without-gossip": "workers do not gossip",
    "--without-mingle": "workers do not mingle",
    "--without-heartbeat": "heartbeats renew the locks of running jobs",
}
_WITH_VALUE = {"-P", "--pool", "-O"}
_OTHER = {
    "--autoscale": "Use -c: the concurrency is an upper limit, and idle slots cost nothing",
    "-B": _BEAT,
    "--beat": _BEAT,
    "-n": _NAME,
    "--hostname": _NAME,
    "--max-tasks-per-child": "Use --process-max-jobs, or --max-jobs for whole workers",
    "--max-memory-per-child": "Use --process-max-memory, or --max-memory for whole workers, in MB",
    "--time-limit": _TIME,
    "--soft-time-limit": _TIME,
    "-D": _BACKGROUND,
    "--detach": _BACKGROUND,
}


class WorkerCommand(click.Command):
    """A command that recognizes Celery's worker options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Translate Celery options, then parse the command line."""
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
            raise click.UsageError(f"No such option: {option}. {_OTHER[option]}")
        else:
            words.append(word)
    return words


# `taskbull worker`.


_LEVELS = ("debug", "info", "warning", "error")


_DEFAULT = WorkerOptions()


def _read_environment(
    _: click.Context, __: click.Parameter, words: Sequence[str]
) -> dict[str, str] | None:
    """Parse `--process-env NAME=VALUE`."""
    for word in words:
        if not word.partition("=")[0] or "=" not in word:
            raise click.BadParameter(f"{word!r} must be NAME=VALUE")
    return {name: value for name, _, value in (word.partition("=") for word in words)} or None


def _count_option(
    *flags: str,
    default: str = "no limit",
    help: str,  # noqa: A002 - as in click
) -> Callable[[click.Command | Callable[..., Any]], Any]:
    return click.option(*flags, type=click.IntRange(1), show_default=default, help=help)


@click.command(cls=WorkerCommand)
@click.argument("app", required=False)
@click.option(
    "-A",
    "--app",
    "named_app",
    metavar="APP",
    help="Same as APP.",
)
@click.option(
    "-q",
    "--queue",
    "queues",
    multiple=True,
    show_default="all queues of the app",
    help="Queue to process; repeatable, or a,b. a:5 sets a concurrency of 5.",
)
@click.option("--any-queue", is_flag=True, help="Accept queues for which the app has no task.")
@_count_option(
    "-c", "--concurrency", default=str(_DEFAULT.concurrency), help="Concurrent jobs per queue."
)
@_count_option(
    "--threads", default="the concurrency, at most 64", help="Threads for sync functions."
)
@click.option("--processes", type=click.IntRange(1), default=1, help="Number of worker processes.")
@_count_option(
    "--process-pool",
    default="CPU cores divided by --processes",
    help="Pool processes per worker, for tasks with process=True.",
)
@_count_option("--process-max-jobs", help="Replace a pool process after about this many jobs.")
@_count_option(
    "--process-max-memory",
    help="Replace a pool process that uses more than this many MB after a job.",
)
@_count_option("--process-memory-limit", help="Address-space limit per pool process, in MB.")
@click.option(
    "--process-env",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_read_environment,
    help="Set a variable of pool processes; {n} is the number of the process, from 0.",
)
@click.option(
    "--no-supervisor",
    is_flag=True,
    help="Run without the supervisor, which restarts crashed workers.",
)
@click.option(
    "--backend",
    type=click.Choice(["asyncio", "trio"]),
    default="asyncio",
    help="Event loop to use.",
)
@click.option("--uvloop", is_flag=True, help="Use uvloop with asyncio.")
@click.option("--burst", is_flag=True, help="Exit when the queues are empty.")
@click.option(
    "--burst-wait",
    metavar="SECONDS",
    callback=read_seconds,
    show_default=f"{_DEFAULT.burst_wait:g}",
    help="With --burst, also wait for retries and delayed jobs that are due within this time.",
)
@click.option("--reload", is_flag=True, help="Restart when a Python file changes.")
@click.option(
    "--shutdown-timeout",
    metavar="SECONDS",
    callback=read_seconds,
    show_default=f"{_DEFAULT.shutdown_timeout:g}",
    help="Time that running jobs get to finish when the worker stops.",
)
@_count_option("--max-jobs", help="Replace a process after this many jobs.")
@_count_option("--max-memory", help="Replace a process that uses more than this many MB.")
@click.option(
    "--log-level",
    type=click.Choice(_LEVELS, case_sensitive=False),
    show_default="info",
    help="Lowest level to log.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    show_default="text",
    help="Log format.",
)
@click.option(
    "--log-config",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Configure logging from this file: a dictConfig in JSON or TOML.",
)
@click.option("--no-logging", is_flag=True, help="Leave logging entirely to the application.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    show_default="none",
    help="Serve metrics and probes on this port.",
)
@click.option(
    "--metrics-host", default="127.0.0.1", help="Address to listen on; 0.0.0.0 means all."
)
@click.option("--metrics-to", hidden=True)
@click.option("--process", type=int, hidden=True)
@click.option("--lifeline", type=int, hidden=True)
@click.pass_context
def worker(context: click.Context, /, **_: Any) -> None:
    """Run the app's tasks until SIGTERM or Ctrl-C.

    The first signal waits for running jobs; the second returns them to the queue immediately.
    APP is module:attribute. Without it, the app comes from $TASKBULL_APP, [tool.taskbull] in
    pyproject.toml, or the only App in the current directory.
    """
    # Imported here because `taskbull --help` would otherwise take twice as long.
    from taskbull.cli.worker_process import run  # noqa: PLC0415

    sys.exit(run(context))


# `-q`: the queues of a worker, as in `-q a -q b`, `-q a,b` and `-q a:5`.


def read_queues(words: Sequence[str]) -> dict[str, int | None]:
    """Parse the queues and their concurrency, which may follow a colon."""
    queues: dict[str, int | None] = {}
    for part in (part.strip() for word in words for part in word.split(",")):
        name, colon, number = part.partition(":")
        if not name:
            raise WrongUsage(f"-q {','.join(words)}: a queue name is empty")
        if "*" in name or "?" in name:
            raise WrongUsage(f"-q {part}: patterns are not supported; list each queue")
        if colon and not (number.isdecimal() and int(number) > 0):
            raise WrongUsage(
                f"-q {part}: the number after the colon must be a concurrency, as in -q {name}:5"
            )
        queues[name] = int(number) if colon else queues.get(name)
    return queues


def check_known(queues: Sequence[str], app: App) -> None:
    """Raise `WrongUsage` for a queue that has neither a task nor rules in the app."""
    known = app.known_queues
    for name in queues:
        if name in app.queues and name not in app.registry.local_queues:
            raise WrongUsage(
                f"App '{app.name}' has only remote tasks in queue '{name}', which another program "
                "runs. Use --any-queue to serve it anyway"
            )
        if name not in known:
            raise WrongUsage(
                f"App '{app.name}' has no task in queue '{name}'{did_you_mean(name, known)}; its "
                f"queues are {', '.join(known) or 'none'}. Use --any-queue to serve it anyway"
            )


# The parsed options.


class WorkerFlags(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parsed options of `taskbull worker`. `None` means that an option was not given.

    A test checks that the fields match click's parameters.
    """

    app: str | None
    named_app: str | None
    queues: tuple[str, ...]
    any_queue: bool
    concurrency: int | None
    threads: int | None
    processes: int
    process_pool: int | None
    process_max_jobs: int | None
    process_max_memory: int | None
    process_memory_limit: int | None
    process_env: dict[str, str] | None
    no_supervisor: bool
    backend: Literal["asyncio", "trio"]
    uvloop: bool
    burst: bool
    burst_wait: float | None
    reload: bool
    shutdown_timeout: float | None
    max_jobs: int | None
    max_memory: int | None
    log_level: str | None
    log_format: LogFormat | None
    log_config: Path | None
    no_logging: bool
    metrics_port: int | None
    metrics_host: str
    metrics_to: str | None
    """Socket of the parent process, which serves the metrics of all its children."""
    process: int | None
    """Number of this process among the children of its parent."""
    lifeline: int | None
    """File descriptor for stop requests from the parent process."""

    def __post_init__(self) -> None:
        read_queues(self.queues)
        for name, wanted in (("trio", self.backend == "trio"), ("uvloop", self.uvloop)):
            if wanted and find_spec(name) is None:
                raise click.UsageError(f"{name} is not installed: pip install 'taskbull[{name}]'")
        if self.uvloop and self.backend == "trio":
            raise click.UsageError("--uvloop is for asyncio, not for trio")
        if self.processes > 1 and "{n}" in "".join((self.process_env or {}).values()):
            raise click.UsageError(
                "--process-env with {n} needs --processes 1: each worker process counts its own "
                "pool from 0"
            )
        if self.no_supervisor:
            self._check_alone()

    def _check_alone(self) -> None:
        wanted = {
            "--processes": self.processes > 1,
            "--reload": self.reload,
            "--max-jobs": self.max_jobs,
            "--max-memory": self.max_memory,
        }
        if asked := [name for name, is_wanted in wanted.items() if is_wanted]:
            raise click.UsageError(f"{asked[0]} needs the supervisor: leave out --no-supervisor")

    @property
    def is_supervisor(self) -> bool:
        """True if this process supervises worker processes."""
        return not self.no_supervisor and self.lifeline is None

    @property
    def is_first(self) -> bool:
        """True for the only process or the first of several, which prints the banner."""
        return self.process in {None, 1}

    @property
    def loop(self) -> str:
        """Name of the event loop."""
        return "uvloop" if self.uvloop else self.backend

    @property
    def log_options(self) -> LogOptions:
        """The options of logging that were given."""
        return LogOptions(self.log_level, self.log_format, self.log_config, self.no_logging)

    @property
    def worker_options(self) -> WorkerKeywords:
        """The worker options that were given."""
        known = WorkerKeywords.__annotations__
        given = {name: value for name, value in asdict(self).items() if name in known}
        said = {name: value for name, value in given.items() if value is not None}
        return cast("WorkerKeywords", said)  # A test checks that the types match.
