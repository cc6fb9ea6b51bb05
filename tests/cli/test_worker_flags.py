"""Flags of `taskbull worker` become one typed value."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import click
import msgspec
import pytest

from taskbull.cli.commands.worker import WorkerFlags, worker
from taskbull.cli.worker_process import command_words
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
    own = {"process_env"}  # a dict, which is a Mapping
    assert shared == {"concurrency", "threads", "shutdown_timeout", "burst_wait", *pool, *own}
    for name in shared - own:
        assert set(get_args(given[name])) - {type(None)} <= {*get_args(known[name]), known[name]}


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ([], {}),
        (["-c", "5", "--threads", "2"], {"concurrency": 5, "threads": 2}),
        (
            ["--process-env", "CUDA_VISIBLE_DEVICES={n}", "--process-env", "A=b=c"],
            {"process_env": {"CUDA_VISIBLE_DEVICES": "{n}", "A": "b=c"}},
        ),
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


# A value of each option that needs one.
VALUES = {
    "named_app": "a:b", "queues": "a:5", "process_env": "A={n}=c", "backend": "trio",
    "burst_wait": "2m", "shutdown_timeout": "1.5", "log_level": "debug", "log_format": "json",
    "log_config": __file__, "metrics_host": "::1", "metrics_to": "path",
}  # fmt: skip


@pytest.mark.parametrize("parameter", worker.params, ids=lambda parameter: parameter.name)
def test_a_supervisor_passes_each_option_to_its_workers(parameter: click.Parameter) -> None:
    if isinstance(parameter, click.Option):
        times = 2 if parameter.multiple else 1
        value = [] if parameter.is_flag else [VALUES.get(parameter.name or "", "7")]
        words = [parameter.opts[-1], *value] * times
    else:
        words = ["shop:app"]
    context = worker.make_context("worker", list(words))
    again = worker.make_context("worker", command_words(context, set()))
    assert again.params == context.params
    assert context.params != worker.make_context("worker", []).params


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
