"""An agent that plans a report, waits for a person, and streams what it writes.

agent_web.py adds its jobs. This file is the worker: `python agent.py`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import anyio

from taskbull import App, Backoff, SignalTimeout, current_job, step

WORDS_PER_SECOND = float(os.environ.get("WORDS_PER_SECOND", "10"))
REPORTS = Path(__file__).parent / "reports"

app = App("agent", redis=os.environ.get("TASKBULL_REDIS_URL", "embedded://"), queue="agent")


@dataclass
class Part:
    """An item of the stream: a line of the plan, a question to the reader, or some text."""

    kind: str
    text: str


@dataclass
class Approval:
    """The reader's answer."""

    ok: bool
    by: str = ""


async def ask_model(prompt: str) -> AsyncIterator[str]:
    """Yield an answer word by word, as a model would."""
    for word in f"{prompt}: this is what is known about it. ".split():
        await anyio.sleep(1 / WORDS_PER_SECOND)
        yield f"{word} "


@step(attempts=3, backoff=Backoff.exponential(1), timeout=60)
async def make_plan(topic: str) -> list[str]:
    """Ask the model for the headings."""
    return [f"{topic}, part {number}" for number in (1, 2, 3)]


@step
async def publish(report: str) -> str:
    """Save the report. The job's id makes a second execution harmless."""
    path = REPORTS / f"{current_job().id}.txt"
    path.parent.mkdir(exist_ok=True)
    path.write_text(report, encoding="utf-8")
    return str(path)


def join(parts: list[Part]) -> str:
    """Return the text of the report, which is the result of the job."""
    return "".join(part.text for part in parts if part.kind == "text")


@app.task(reduce=join, attempts=5)
async def write_report(topic: str) -> AsyncIterator[Part]:
    """Plan a report, ask for approval, write it and publish it."""
    plan = await make_plan(topic)
    for heading in plan:
        yield Part("plan", heading)
    yield Part("question", "Write this report?")
    try:
        approval = await current_job().await_signal("approval", Approval, timeout=timedelta(days=2))
    except SignalTimeout:
        approval = Approval(ok=False, by="timeout")
    if not approval.ok:
        yield Part("text", f"Refused by {approval.by}.")
        return
    written: list[Part] = []
    for heading in plan:
        async for word in ask_model(heading):
            written.append(Part("text", word))
            yield written[-1]
    await publish(join(written))


if __name__ == "__main__":
    # A job of a killed worker continues when its lock has expired: here after about 5 seconds.
    app.run(lock_duration=5, heartbeat_interval=1, stalled_interval=2, max_stalled_count=10)
