import time

from taskbull import App, Cron, JobFailed, Limiter, RateLimited

NOT_RUN = {"sentence_transformers": "the model is large", "sentry_sdk.init": "it needs an address"}
app = App("page")
paths = ["a", "b"]


@app.task(queue="images")
def resize(path: str) -> list[int]:
    return [1, 2]


@app.task(queue="videos")
def encode(path: str) -> None: ...


@app.task
async def load(day: str) -> None: ...
