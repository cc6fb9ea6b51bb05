"""Node follows a job with XREAD, in the example's program."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator

import pytest
from anyio import fail_after, to_thread

from taskbull import App, current_job
from tests.examples.programs import EXAMPLES
from tests.interop.install import require_node_modules
from tests.interop.node import HERE


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_node_reads_items_restarts_and_the_end(interop_url: str) -> None:
    require_node_modules()
    app = App("chat", redis=interop_url, queue="chat", backoff=None)

    @app.task
    async def complete() -> AsyncIterator[str]:
        yield "a"
        yield "b"
        if current_job().attempt == 1:
            raise ValueError("no luck")
        yield "c"

    job = await complete.options(attempts=2).adelay()
    program = (EXAMPLES / "streaming" / "follow.mjs").read_text()

    def follow() -> str:
        words = ["node", "--input-type=module", "-e", program, "--", job.id]
        # Without a file, the arguments begin one place earlier.
        words[3] = program.replace("slice(2)", "slice(1)")
        environment = {**os.environ, "TASKBULL_REDIS_URL": interop_url}
        return subprocess.run(
            words, cwd=HERE, env=environment, check=True, capture_output=True, text=True, timeout=60
        ).stdout

    with fail_after(60):
        async with app.worker().running():
            said = await to_thread.run_sync(follow)
    assert said.splitlines() == ["ab", "(the job was restarted)", "abc", "(completed)"]
    await app.queue("chat").obliterate(force=True)
    app.close()
