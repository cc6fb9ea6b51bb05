"""A task that reports its progress, and a terminal that shows it live:

    pip install 'taskbull[embedded]'
    taskbull worker video:app          # in one terminal, in this folder
    python follow.py                   # in another

`taskbull events videos -A video:app` shows all events of the queue.
"""

from __future__ import annotations

import os
import time

from taskbull import App, current_job

app = App("videos", redis=os.environ.get("TASKBULL_REDIS_URL", "embedded://"), queue="videos")

FRAMES = 20


@app.task(timeout=600)
def encode(path: str) -> str:
    """Work for a second or two. A sync function runs in a thread."""
    job = current_job()
    for frame in range(1, FRAMES + 1):
        time.sleep(0.05)  # The work.
        job.progress({"frame": frame, "of": FRAMES})
    job.log(f"{FRAMES} frames of {path}")
    return path.replace(".mov", ".mp4")
