from collections.abc import AsyncIterator
from types import SimpleNamespace


async def _stream(prompt: str) -> AsyncIterator[SimpleNamespace]:
    for text in ("Because", " of", " the", " air"):
        yield SimpleNamespace(text=text)


model = SimpleNamespace(stream=_stream)
job_id = "1"
