"""The app and its task, imported by both sides: web.py adds jobs, the worker runs them."""

from __future__ import annotations

from datetime import timedelta

import anyio
from settings import ENQUEUE_TIMEOUT, PAGES_PER_SECOND, REDIS_URL

from taskbull import App, Keep, current_job

app = App(
    "reports",
    redis=REDIS_URL,
    queue="reports",
    keep_completed=Keep(age=timedelta(hours=1)),
    enqueue_timeout=ENQUEUE_TIMEOUT,
)


@app.task(timeout=60)
async def build_report(customer: str, pages: int = 10) -> dict[str, str | int]:
    """Write a report page by page, and report the progress."""
    job = current_job()
    for page in range(1, pages + 1):
        await anyio.sleep(1 / PAGES_PER_SECOND)  # The work.
        await job.aprogress({"page": page, "of": pages})
    return {"customer": customer, "pages": pages}
