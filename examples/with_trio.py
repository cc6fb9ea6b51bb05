"""A producer and a worker in one trio program.

    pip install 'taskbull[embedded,trio]'
    python with_trio.py

Set TASKBULL_REDIS_URL to use your own server instead of the embedded one.
"""

from __future__ import annotations

import os

import trio

from taskbull import App, JobHandle

app = App("trio", redis=os.environ.get("TASKBULL_REDIS_URL", "embedded://"), queue="trio-example")


@app.task
async def count_words(text: str) -> int:
    """A task that uses trio."""
    await trio.sleep(0.01)
    return len(text.split())


async def show(text: str, job: JobHandle[int]) -> None:
    """Wait for a result."""
    print(f"{await job.aresult(timeout=30)} words: {text}")


async def main() -> None:
    """Run a worker during the block, and use it."""
    texts = ["to be or not to be", "that is the question", "whether 'tis nobler"]
    async with app.worker(concurrency=100).running():
        jobs = await app.aenqueue([count_words.job(text) for text in texts])
        async with trio.open_nursery() as nursery:
            for text, job in zip(texts, jobs, strict=True):
                nursery.start_soon(show, text, job)


if __name__ == "__main__":
    trio.run(main)
