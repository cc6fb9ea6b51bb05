"""A Node producer and a Python worker: Node adds a job, the task here runs it.

    pip install 'taskbull[embedded]' && npm install
    taskbull worker thumbnails:app     # in one terminal, in this folder
    node order_thumbnail.mjs           # in another

The job's name is the task's, and its data is an object with the task's arguments. Node gets the
result, the progress and the errors as from a Node worker.
"""

from __future__ import annotations

import os
from pathlib import Path

from taskbull import App, current_job

# In this folder, where connection.mjs looks for it.
EMBEDDED = f"embedded://{Path(__file__).resolve().parent / '.taskbull'}"

app = App("thumbnails", redis=os.environ.get("TASKBULL_REDIS_URL", EMBEDDED))


@app.task(queue="thumbnails")
def make_thumbnail(path: str, width: int = 100) -> dict[str, str | int]:
    """Make a small picture of a big one."""
    current_job().progress(50)
    return {"path": f"{path}.{width}.png", "width": width}
