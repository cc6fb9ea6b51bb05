"""How pool processes start and retire: imports, lifespans, and failures of both."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from anyio import create_task_group

from taskbull.app.app import App
from taskbull.core import events
from taskbull.core.options import WorkerOptions
from taskbull.errors import ConfigurationError
from tests.pool.conftest import PoolBed, pool_processes
from tests.worker.bed import until

LIFESPANS = """
@app.lifespan
async def around(app):
    note(f"entered-{os.getpid()}")
    yield
    note(f"left-{os.getpid()}")

@app.lifespan(process=True)
async def model():
    import threading
    global loaded
    loaded = [os.getpid(), (HERE / f"entered-{os.getpid()}").exists()]
    yield
    note(f"unloaded-{os.getpid()}", str((HERE / f"left-{os.getpid()}").exists()))

@app.task(process=True)
def use() -> list:
    return loaded
"""


async def test_lifespans_surround_each_process_and_are_left_at_a_graceful_stop(
    make_bed: Callable[[str], PoolBed],
) -> None:
    bed = make_bed(LIFESPANS)
    async with bed.working(process_pool=2) as worker:
        pids = worker.pids
        pid, entered_before = await bed.result("use")
        assert pid in pids
        assert entered_before is True
    for pid in pids:
        assert (bed.folder / f"left-{pid}").exists()
        assert (bed.folder / f"unloaded-{pid}").read_text() == "False"  # the inner one first
    assert (bed.folder / f"left-{os.getpid()}").exists()
    assert not (bed.folder / f"unloaded-{os.getpid()}").exists()


async def _refused(bed: PoolBed, **options: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        async with bed.working(**options):
            pass
    return "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])


@pytest.mark.full
async def test_a_lifespan_that_raises_keeps_the_worker_from_starting(
    make_bed: Callable[[str], PoolBed],
) -> None:
    bed = make_bed("""
@app.lifespan(process=True)
async def model():
    raise RuntimeError("no such model")
    yield
""")
    told = await _refused(bed)
    assert told.startswith("A process of the pool cannot start: RuntimeError: no such model\n")
    assert 'raise RuntimeError("no such model")' in told


async def test_a_module_that_fails_in_the_process_only_keeps_the_worker_from_starting(
    make_bed: Callable[[str], PoolBed],
) -> None:
    bed = make_bed("""
if "taskbull.app.pool.child" in getattr(sys, "orig_argv", []):
    1 / 0
""")
    told = await _refused(bed)
    assert "ZeroDivisionError" in told
    assert "1 / 0" in told


async def test_a_process_that_dies_at_its_start_keeps_the_worker_from_starting(
    make_bed: Callable[[str], PoolBed],
) -> None:
    bed = make_bed("""
if "taskbull.app.pool.child" in getattr(sys, "orig_argv", []):
    print("last words", file=sys.stderr)
    os._exit(4)
""")
    told = await _refused(bed)
    assert "exit code 4" in told
    assert "last words" in told


async def test_signals_that_reach_a_process_while_it_starts_do_not_end_it(bed: PoolBed) -> None:
    signalled: set[int] = set()

    async def send_signals() -> None:
        await until(lambda: len(pool_processes()) == 2)
        for pid in pool_processes():
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGINT)
            signalled.add(pid)

    async with create_task_group() as tasks:
        tasks.start_soon(send_signals)
        async with bed.working(process_pool=2) as worker:
            assert worker.pids == signalled
            assert (await bed.result("who"))[0] in signalled


@pytest.mark.full
async def test_a_limit_that_is_too_low_keeps_the_worker_from_starting(bed: PoolBed) -> None:
    told = await _refused(bed, process_memory_limit=1)
    assert told.startswith("A process of the pool cannot start: ")


@pytest.mark.full
async def test_later_a_start_that_fails_is_repeated_and_jobs_are_put_off(
    make_bed: Callable[[str], PoolBed], caplog: pytest.LogCaptureFixture
) -> None:
    bed = make_bed("""
@app.lifespan(process=True)
async def model():
    if (HERE / "broken").exists():
        raise RuntimeError("not now")
    yield
""")
    async with bed.working(process_pool=1) as worker:
        (bed.folder / "broken").touch()
        await bed.ended("crash", "exit")
        handle = await bed.who.adelay(8)
        [released] = await bed.record.wait_for(
            events.Released, where=lambda event: event.job.id == handle.id
        )
        assert released.delay > 0
        assert "not now" in caplog.text
        (bed.folder / "broken").unlink()
        assert (await handle.aresult(timeout=60))[1] == 8
        await until(lambda: len(worker.pids) == 1)
    assert "Pool process could not start; retrying in 1 s" in caplog.text


def test_an_async_def_cannot_run_in_a_process(app_without_redis: App) -> None:
    with pytest.raises(ConfigurationError, match="process=True needs a sync function"):

        @app_without_redis.task(process=True)
        async def wrong() -> None: ...


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"grace": 3}, "grace needs process=True"),
        ({"process": 1}, "process must be True or False, got 1"),
        ({"process": True, "grace": -1}, "grace must be 0 or more"),
    ],
)
def test_wrong_options_are_refused(
    app_without_redis: App, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigurationError, match=told):
        app_without_redis.task(**options)(lambda_with_a_name)


def lambda_with_a_name() -> None: ...


@pytest.fixture
def app_without_redis() -> App:
    return App("shop", redis="redis://127.0.0.1:1")


def test_an_app_that_no_module_has_is_refused(app_without_redis: App) -> None:
    @app_without_redis.task(process=True)
    def compute() -> None: ...

    with pytest.raises(ConfigurationError, match="create it at the top level of a module"):
        app_without_redis.worker()


def test_two_lifespans_for_processes_are_refused(app_without_redis: App) -> None:
    async def model() -> Any:
        yield

    app_without_redis.lifespan(process=True)(model)
    app_without_redis.lifespan(model)
    with pytest.raises(ConfigurationError, match="already has a lifespan for processes"):
        app_without_redis.lifespan(process=True)(model)


async def test_a_task_that_exists_only_in_the_worker_keeps_it_from_starting(bed: PoolBed) -> None:
    @bed.app.task(process=True)
    def only_here() -> None: ...

    told = await _refused(bed)
    assert "has no task 'only_here' when a pool process imports" in told


@pytest.mark.full
def test_the_app_may_be_in_the_program_itself(
    write_app: Callable[[str], str], tmp_path: Path, anyio_backend_name: str
) -> None:
    module = write_app(f"""
if __name__ == "__main__":
    handle = who.delay(5)
    app.run(burst=True, process_pool=1, backend={anyio_backend_name!r})
    pid, n = handle.result(timeout=60)
    print(pid != os.getpid(), n)
""").partition(":")[0]
    done = _run_program(tmp_path, f"{module}.py")
    assert done.stdout == "True 5\n", done.stderr
    done = _run_program(tmp_path, "-m", module)
    assert done.stdout == "True 5\n", done.stderr


@pytest.mark.full
def test_a_program_without_a_main_guard_gets_an_error(
    write_app: Callable[[str], str], tmp_path: Path
) -> None:
    module = write_app("\napp.run(burst=True, process_pool=1)\n").partition(":")[0]
    done = _run_program(tmp_path, f"{module}.py")
    assert done.returncode == 1
    assert 'put the call under if __name__ == "__main__":' in done.stderr


def _run_program(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.full
async def test_nothing_is_left_of_a_start_that_is_cancelled(
    make_bed: Callable[[str], PoolBed],
) -> None:
    bed = make_bed("""
@app.lifespan(process=True)
async def model():
    note(f"starts-{os.getpid()}")
    import anyio
    await anyio.sleep_forever()
    yield
""")
    worker = bed.app.worker(process_pool=2)
    async with create_task_group() as tasks:
        tasks.start_soon(worker.run)
        await until(lambda: len(list(bed.folder.glob("starts-*"))) == 2)
        tasks.cancel_scope.cancel()
    assert pool_processes() == set()


async def test_each_process_has_its_own_number_in_its_environment(bed: PoolBed) -> None:
    env = {"GPU": "{n}", "OTHER": "-x"}
    async with bed.working(process_pool=2, process_env=env, process_max_jobs=1):
        jobs = [await bed.app.tasks["gpu"].adelay(wait="w") for _ in range(2)]
        for number in ("w0", "w1"):
            await until((bed.folder / number).exists)
        (bed.folder / "go").touch()
        assert sorted(await bed.app.agather(jobs, timeout=60)) == ["0-x", "1-x"]
        # Replacements get the numbers of the processes that they replace.
        await bed.record.wait_for(events.ProcessRecycled, 2)
        assert await bed.result("gpu") in {"0-x", "1-x"}


@pytest.mark.parametrize("env", [["GPU=1"], {"A=B": "1"}, {"": "1"}, {"A": 1}, {"A": "\0"}])
def test_a_wrong_environment_is_refused(env: object) -> None:
    with pytest.raises(ConfigurationError, match="process_env"):
        WorkerOptions(process_env=env)  # type: ignore[arg-type]
