"""A FastAPI service that shows the answer of a model while a worker produces it.

    pip install 'taskbull[embedded]' fastapi uvicorn
    uvicorn chat_web:api                    # in one terminal, in this folder
    taskbull worker chat:app           # in another

Then open http://127.0.0.1:8000/, or:

    curl -X POST 127.0.0.1:8000/prompts -H 'content-type: application/json' \
        -d '{"prompt": "Why is the sky blue?"}'
    curl -N 127.0.0.1:8000/prompts/1/events

Stop the worker with Ctrl-C in the middle of an answer, and start it again: the page clears itself
and shows the answer of the new attempt.
"""

from __future__ import annotations

from pathlib import Path

from chat import app, complete
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, StreamingResponse
from pydantic import BaseModel

from taskbull import ConfigurationError

api = FastAPI()


class Prompt(BaseModel):
    """A question to the model."""

    prompt: str


@api.post("/prompts", status_code=202)
async def ask(question: Prompt) -> dict[str, str]:
    """Add a job, and return its id."""
    job = await complete.adelay(question.prompt)
    return {"id": job.id}


@api.get("/prompts/{job_id}/events")
async def follow(job_id: str, request: Request) -> StreamingResponse:
    """Send the words as server-sent events. A browser that reconnects continues where it was."""
    try:
        events = app.job("chat", job_id).sse(request.headers.get("last-event-id"))
    except ConfigurationError as error:
        raise HTTPException(400, str(error)) from error
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


@api.get("/", response_class=HTMLResponse)
async def page() -> str:
    """Show a page that asks, and shows the answer word by word."""
    return (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
