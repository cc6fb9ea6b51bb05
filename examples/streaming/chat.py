"""The app and its task, imported by both sides: chat_web.py adds jobs, the worker runs them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import anyio

from taskbull import App

app = App("chat", redis=os.environ.get("TASKBULL_REDIS_URL", "embedded://"), queue="chat")

WORDS_PER_SECOND = float(os.environ.get("WORDS_PER_SECOND", "10"))
ANSWER = "Sunlight is scattered by the air, and blue light more than red light."


async def ask_model(prompt: str) -> AsyncIterator[str]:
    """Yield a fixed answer word by word, as a model would."""
    for word in f"{prompt} {ANSWER}".split():
        await anyio.sleep(1 / WORDS_PER_SECOND)
        yield f"{word} "


@app.task(reduce="".join, timeout=300)
async def complete(prompt: str) -> AsyncIterator[str]:
    """Yield the answer to a prompt. The job's result is the whole answer."""
    async for word in ask_model(prompt):
        yield word
