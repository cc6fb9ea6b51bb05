"""Flows: count 1,000 pages, then run a summary. One page fails, under each policy.

pip install 'taskbull[embedded]'
python fan_out.py
"""

from __future__ import annotations

import logging
import os
from typing import Literal

import anyio

from taskbull import App, JobFailed, PermanentError, current_job, from_children

app = App("pages", redis=os.environ.get("TASKBULL_REDIS_URL", "embedded://"), queue="pages")

Policy = Literal["fail", "ignore", "continue", "drop", "wait"]
POLICIES: tuple[Policy, ...] = ("fail", "ignore", "continue", "drop", "wait")
PAGES = 1000
BROKEN = 500


@app.task
async def count(page: int) -> int:
    """Pretend to fetch a web page."""
    if page == BROKEN:
        raise PermanentError(f"page {page} is gone")
    return 1


@app.task(attempts=1)
async def summary(counts: list[int] = from_children(count)) -> str:
    """Add up the results of the pages."""
    # With "continue", it runs before all have finished.
    await current_job().adrop_pending_children()
    failed = await current_job().afailed_children()
    return f"{sum(counts)} pages counted, {len(failed)} known to have failed"


async def main() -> None:
    """Run a flow for each policy."""
    logging.getLogger("taskbull").setLevel(logging.CRITICAL)
    pages = [count.job(page) for page in range(PAGES)]
    for policy in POLICIES:
        job = await summary.after(pages, on_failure=policy).adelay()
        await app.run_worker(burst=True, concurrency=50)
        state = await job.astate()
        if state == "waiting-children":
            print(f"{policy}: the summary waits until the page is retried")
            continue
        try:
            print(f"{policy}: {await job.aresult()}")
        except JobFailed as error:
            print(f"{policy}: the summary failed, because a {error.reason.partition(' ')[0]} did")


if __name__ == "__main__":
    anyio.run(main)
