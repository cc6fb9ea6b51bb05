"""A FastAPI service that shows an agent at work and asks the reader for approval.

    pip install 'taskbull[embedded]' fastapi uvicorn
    uvicorn agent_web:api           # in one terminal, in this folder
    python agent.py                 # in another

Then open http://127.0.0.1:8000/. Kill the worker with `kill -9` while it writes, and start it
again: the page starts the text again, but the plan and your approval are kept.
"""

from __future__ import annotations

from pathlib import Path

from agent import Approval, app, write_report
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, StreamingResponse
from pydantic import BaseModel

from taskbull import ConfigurationError, JobNotFound, WrongState

api = FastAPI()


class Topic(BaseModel):
    """The topic of a report."""

    topic: str


@api.post("/reports", status_code=202)
async def start(asked: Topic) -> dict[str, str]:
    """Add a job, and return its id."""
    job = await write_report.adelay(asked.topic)
    return {"id": job.id}


@api.get("/reports/{job_id}/events")
async def follow(job_id: str, request: Request) -> StreamingResponse:
    """Send the parts as server-sent events. A browser that reconnects continues where it was."""
    try:
        events = app.job("agent", job_id).sse(request.headers.get("last-event-id"))
    except ConfigurationError as error:
        raise HTTPException(400, str(error)) from error
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


@api.post("/reports/{job_id}/approval", status_code=204)
async def answer(job_id: str, approval: Approval) -> None:
    """Send the reader's answer to the job."""
    try:
        await app.job("agent", job_id).asignal("approval", approval)
    except JobNotFound as error:
        raise HTTPException(404, str(error)) from error
    except WrongState as error:
        raise HTTPException(409, str(error)) from error


@api.get("/", response_class=HTMLResponse)
async def page() -> str:
    """Show a page that starts a report and follows it."""
    return (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
