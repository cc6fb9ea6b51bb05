"""Embed up to 32 texts in one call of a model, with one job per text. No server is needed:

    pip install 'taskbull[embedded]'
    python embed_in_batches.py

The lifespan loads the model once and passes it to the task. One of the texts is invalid: only its
job fails. Node adds such jobs with `queue.add('embed', { texts: 'one text' })`.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import AsyncIterator

import anyio

from taskbull import App, JobFailed, PermanentError, current_batch, from_lifespan

app = App("embed", redis=os.environ.get("TASKBULL_REDIS_URL", "embedded://"), queue="texts")
app.queue_options("texts", concurrency=64)  # 32 in the current call, and 32 for the next one.


class Model:
    """A fake model. Like a real one, it needs as much time for 32 texts as for one."""

    def __init__(self) -> None:
        self.calls = 0

    def encode(self, texts: list[str]) -> list[list[float]]:
        """Return a vector for each text: its number of each vowel."""
        self.calls += 1
        time.sleep(0.05)
        return [[float(text.count(vowel)) for vowel in "aeiou"] for text in texts]


@app.lifespan
async def load_model() -> AsyncIterator[Model]:
    """Load the model when a worker starts."""
    model = Model()
    yield model
    print(f"the model was called {model.calls} times")


@app.batch_task(size=32, wait=0.02)
def embed(texts: list[str], model: Model = from_lifespan()) -> list[list[float] | Exception]:
    """Return a vector or an error for each text, in order."""
    for job in current_batch():
        job.log(f"in a call with {len(texts)} texts")
    vectors = model.encode(texts)
    return [
        vector if text else PermanentError("the text is empty")
        for text, vector in zip(texts, vectors, strict=True)
    ]


async def main() -> None:
    """Add 100 jobs, one of them invalid, and run a worker until they are done."""
    texts = [f"text number {number}" for number in range(99)]
    jobs = await app.aenqueue([embed.job(text) for text in [*texts, ""]])
    await app.run_worker(burst=True)
    print(f"{texts[7]!r}: {await jobs[7].aresult()}")
    try:
        await jobs[-1].aresult()
    except JobFailed as failure:
        print(f"the empty one: {failure.reason}")
    await app.queue("texts").obliterate(force=True)


if __name__ == "__main__":
    logging.getLogger("taskbull").setLevel(logging.CRITICAL)  # The failure is expected.
    anyio.run(main)
