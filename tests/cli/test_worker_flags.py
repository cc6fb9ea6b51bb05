"""What is typed after `taskbull worker` becomes one typed value."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import click
import msgspec
import pytest

from taskbull.cli.commands.worker import WorkerFlags, worker
from taskbull.core.options import WorkerKeywords, WorkerOptions


def flags(*words: str) -> WorkerFlags:
    context = worker.make_context("worker", list(words))
    return msgspec.convert(context.params, WorkerFlags)


def test_every_option_of_the_command_is_a_flag() -> None:
    names = {parameter.name for parameter in worker.params}
    assert names == set(WorkerFlags.__struct_fields__)


def test_a_flag_with_the_name_of_a_workers_option_has_its_type() -> None:
    given, known = get_type_hints(WorkerFlags), get_type_hints(WorkerKeywords)
    shared = given.keys() & known.keys()
    pool = {"process_pool", "process_max_jobs", "process_max_memory", "process_memory_limit"}
    assert shared == {"concurrency", "threads", "shutdown_timeout", "burst_wait", *pool}
    for name in shared:
        assert set(get_args(given[name])) - {type(None)} <= {*get_args(known[name]), known[name]}


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ([], {}),
        (["-c", "5", "--threads", "2"], {"concurrency": 5, "threads": 2}),
        (
            ["--shutdown-timeout", "0", "--burst-wait", "2m"],
            {"shutdown_timeout": 0.0, "burst_wait": 120.0},
        ),
    ],
)
def test_only_what_was_typed_is_given_to_the_worker(
    words: list[str], options: dict[str, Any]
) -> None:
    said = flags(*words).worker_options
    assert said == options
    WorkerOptions(**said)


@pytest.mark.parametrize(
    ("words", "supervises", "first"),
    [
        ([], True, True),
        (["--no-supervisor"], False, True),
        (["--lifeline", "3", "--process", "1"], False, True),
        (["--lifeline", "3", "--process", "2"], False, False),
    ],
)
def test_what_a_process_is_among_others(words: list[str], supervises: bool, first: bool) -> None:
    found = flags(*words)
    assert (found.is_supervisor, found.is_first) == (supervises, first)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--no-supervisor", "--reload"], "--reload needs the supervisor"),
        (["--no-supervisor", "--max-jobs", "1"], "--max-jobs needs the supervisor"),
        (["--uvloop", "--backend", "trio"], "--uvloop is for asyncio"),
        (["-q", "a:x"], "the number after the colon must be a concurrency"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(click.ClickException, match=message):
        flags(*words)
