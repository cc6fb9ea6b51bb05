"""A flow across two languages: Node translates, and a Python job combines the results.

pip install 'taskbull[embedded]' && npm install
python phrase_book.py              # in one terminal, in this folder
node translate_worker.mjs          # in another
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import anyio

from taskbull import App, from_children

# In this folder, where connection.mjs looks for it.
EMBEDDED = f"embedded://{Path(__file__).resolve().parent / '.taskbull'}"

app = App("books", redis=os.environ.get("TASKBULL_REDIS_URL", EMBEDDED), queue="books")
translations = app.queue("translations")  # Node's queue.

PHRASES = (["hello"], ["world"], ["hello", "world"])


@app.task
async def phrase_book(title: str, phrases: list[list[str]] = from_children("translate")) -> str:
    """Combine Node's translations in the order of the requests."""
    return f"{title}: {', '.join(' '.join(words) for words in phrases)}"


async def main() -> None:
    """Add the flow, and run a worker until it has finished."""
    logging.getLogger("taskbull").setLevel(logging.WARNING)
    children = [translations.job("translate", {"words": words}) for words in PHRASES]
    book = await phrase_book.after(children).adelay("German")
    print(f"job {book.id} waits for {len(children)} jobs of Node")
    async with app.worker().running():
        print(await book.aresult(timeout=60))


if __name__ == "__main__":
    anyio.run(main)
