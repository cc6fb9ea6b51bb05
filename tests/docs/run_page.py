"""Run the samples of one page in a process: `python -m tests.docs.run_page PAGE`.

The blocks of a page share their names, from top to bottom. Before each block, the file in
`contexts` with the page's name runs, which defines what the page takes for granted. While a block
runs, a worker runs the jobs of its `app` if the block waits for them.

A block that begins with the comment `# name.py` is that file, and its names are imported. Test
functions are called, or run by pytest if they have fixtures.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
import threading
from importlib import import_module, invalidate_caches, reload
from pathlib import Path
from types import CodeType
from typing import Any, cast

import anyio
import anyio.to_thread

from taskbull import App
from taskbull.errors import ConfigurationError
from taskbull.worker.worker import Worker
from tests.docs.samples import Sample, samples_of

CONTEXTS = Path(__file__).parent / "contexts"
WAITING = frozenset(
    {"result", "aresult", "gather", "agather", "events", "counts", "stream", "astream"}
)


def run_page(page: Path) -> None:
    """Run all samples of a page, in the current folder."""
    context = CONTEXTS / f"{page.stem.lower().replace('-', '_')}.py"
    setup = compile(context.read_text(), str(context), "exec") if context.exists() else None
    if context.exists():
        Path("context.py").write_text(context.read_text())
    names: dict[str, Any] = {"__name__": "page"}
    for sample in samples_of(page, os.environ.get("TASKBULL_REDIS_URL")):
        print(sample.where, flush=True)
        if setup is not None:
            exec(setup, names)
        if reason := _not_run(sample, names):
            print(f"  compiled only: {reason}")
            sample.compiled(ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        elif _is_for_pytest(sample):
            _run_tests(sample, has_context=setup is not None)
        elif files := sample.files():
            _import_files(files, names)
        else:
            _run_block(sample, names)


def _not_run(sample: Sample, names: dict[str, Any]) -> str | None:
    reasons: dict[str, str] = names.get("NOT_RUN", {})
    return next((why for text, why in reasons.items() if text in sample.source), None)


def _is_for_pytest(sample: Sample) -> bool:
    has_fixtures = re.search(r"def test_\w+\(\w", sample.source) is not None
    return has_fixtures or any(name.startswith("test_") for name in sample.files())


def _run_tests(sample: Sample, *, has_context: bool) -> None:
    opening = "from context import *\n" if has_context else ""
    alone = {f"test_line_{sample.line}.py": opening + sample.source}
    files = sample.files() or alone
    for name, source in files.items():
        Path(name).write_text(source)
    tests = [name for name in files if name.startswith("test_")]
    words = ["-q", "-p", "no:cacheprovider", "-p", "anyio", "-o", "anyio_mode=auto", *tests]
    subprocess.run([sys.executable, "-m", "pytest", *words], check=True)


def _import_files(files: dict[str, str], names: dict[str, Any]) -> None:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    for name, source in files.items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    invalidate_caches()
    for name in files:
        dotted = name.removesuffix(".py").replace("/", ".")
        module = reload(sys.modules[dotted]) if dotted in sys.modules else import_module(dotted)
        names.update({key: each for key, each in vars(module).items() if key[0] != "_"})


def _run_block(sample: Sample, names: dict[str, Any]) -> None:
    code = cast("CodeType", sample.compiled(ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
    done = threading.Event()
    runner: threading.Thread | None = None
    if _waits(sample):
        runner = threading.Thread(target=_run_jobs, args=(names, done), daemon=True)
        runner.start()
    try:
        if code.co_flags & inspect.CO_COROUTINE:
            anyio.run(_awaited, code, names)
        else:
            exec(code, names)
        for name in re.findall(r"^def (test_\w+)\(\)", sample.source, re.MULTILINE):
            names[name]()
    finally:
        done.set()
        if runner is not None:
            runner.join()


async def _awaited(code: CodeType, names: dict[str, Any]) -> None:
    await eval(code, names)


def _waits(sample: Sample) -> bool:
    calls = (node for node in ast.walk(ast.parse(sample.source)) if isinstance(node, ast.Call))
    return any(isinstance(call.func, ast.Attribute) and call.func.attr in WAITING for call in calls)


def _run_jobs(names: dict[str, Any], done: threading.Event) -> None:
    """Run the jobs of the app that the block uses or makes, until the block has ended."""
    while not done.is_set():
        app = names.get("app")
        if isinstance(app, App) and app.tasks:
            try:
                worker = app.worker()
            except ConfigurationError:
                continue
            anyio.run(_run_until, worker, done)
        done.wait(0.05)


async def _run_until(worker: Worker, done: threading.Event) -> None:
    """Run a worker until no job is left or the block has ended, maybe with its server."""
    async with anyio.create_task_group() as tasks:

        async def stop() -> None:
            await anyio.to_thread.run_sync(done.wait, abandon_on_cancel=True)
            tasks.cancel_scope.cancel()

        tasks.start_soon(stop)
        await worker.run(burst=True)
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    run_page(Path(sys.argv[1]))
