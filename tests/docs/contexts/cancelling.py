from datetime import UTC, datetime, timedelta

from taskbull import App, current_job

app = App("page")


@app.task(queue="reports")
def nothing() -> None: ...


job, *_ = app.enqueue([nothing.job() for _ in range(42)])


def write(number: int) -> None: ...


def fetch(url: str) -> None: ...
