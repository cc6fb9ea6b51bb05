"""A FastAPI service that adds and runs jobs, and shows their progress live.

    pip install 'taskbull[embedded]' fastapi uvicorn
    uvicorn web:api                    # in this folder; see below for production

Then open http://127.0.0.1:8000/ (the dashboard is at http://127.0.0.1:8000/jobs/), or:

    curl -X POST 127.0.0.1:8000/reports -H 'content-type: application/json' -d '{"customer": "Ann"}'
    curl 127.0.0.1:8000/reports/1

The worker runs in the web server's event loop. To run it as a process, for CPU-bound tasks or to
scale it, set `RUN_WORKER=no` and start `taskbull worker reports:app`.

In production, add `--timeout-graceful-shutdown 20`: uvicorn otherwise waits for slow clients
indefinitely before it stops. `test_web.py` shows how to test such a service.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Header, HTTPException
from fastapi.responses import HTMLResponse, StreamingResponse
from pydantic import BaseModel, Field
from reports import app, build_report
from settings import RUN_WORKER, STREAM_SECONDS

from taskbull import Dashboard, EnqueueError, JobNotFound


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Run a worker while the web server runs, unless a separate process does."""
    if not RUN_WORKER:
        yield
        return
    async with app.lifespan_worker(concurrency=10):
        yield


api = FastAPI(lifespan=lifespan)
# Only for browsers on this machine, unless `access=` allows others.
api.mount("/jobs", Dashboard(app))
PAGE = (Path(__file__).parent / "page.html").read_text()


class Order(BaseModel):
    """A customer's order."""

    customer: str
    pages: int = Field(default=10, ge=1, le=100)


@api.post("/reports", status_code=202)
async def order_report(order: Order) -> dict[str, str]:
    """Add a job. The request waits neither for the job nor for an unavailable Redis."""
    try:
        job = await build_report.adelay(order.customer, pages=order.pages)
    except EnqueueError as error:
        raise HTTPException(503, "no reports for now, please try again") from error
    return {"id": job.id}


@api.get("/reports/{job_id}")
async def show_report(job_id: str) -> dict[str, Any]:
    """Return what is known about a job."""
    job = app.job(build_report.queue, job_id)
    try:
        state = await job.astate()  # First, so that a completed job has its result.
        info = await job.ainfo()
    except JobNotFound as error:
        raise HTTPException(404, "there is no such report") from error
    return {
        "state": state,
        "progress": info.progress,
        "result": info.returnvalue,
        "error": info.failed_reason,
    }


@api.get("/reports/{job_id}/events")
async def follow_report(
    job_id: str, last_event_id: Annotated[str, Header(pattern=r"^\d+(-\d+)?$")] = "0"
) -> StreamingResponse:
    """Send a job's events live for some seconds. Browsers then reconnect.

    Web servers wait for open streams before they stop, so an endless stream would hold up every
    deployment. A browser continues after the last event that it got.
    """
    await show_report(job_id)  # 404 if the job does not exist.
    return StreamingResponse(_events_of(job_id, last_event_id), media_type="text/event-stream")


async def _events_of(job_id: str, last_id: str) -> AsyncIterator[str]:
    # From the oldest stored event, so that nothing is missed. Each viewer has a connection to
    # Redis; for thousands of them, follow the queue once and forward its events.
    yield "retry: 500\n\n"
    end = time.monotonic() + STREAM_SECONDS
    async with aclosing(app.queue(build_report.queue).events(last_id=last_id)) as events:
        while True:
            try:
                event = await asyncio.wait_for(anext(events), end - time.monotonic())
            except TimeoutError:
                return
            if event.job_id == job_id:
                data = json.dumps({"event": event.name, **event.fields})
                yield f"id: {event.id}\ndata: {data}\n\n"
                if event.name in {"completed", "failed"}:
                    return


@api.get("/", response_class=HTMLResponse)
async def page() -> str:
    """Show a button, and the progress of its job."""
    return PAGE
