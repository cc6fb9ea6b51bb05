"""A circuit breaker: while the other side is down, jobs wait instead of failing.

    pip install 'taskbull[embedded]'
    python circuit_breaker.py

A weather service is down for its first four requests. After three failures in a row the worker
takes no more jobs of the queue; half a second later it tries one, and so on, until one succeeds.
"""

from __future__ import annotations

import logging
import os
from itertools import count

import anyio

from taskbull import App, Backoff, CircuitBreaker, events

app = App("weather", redis=os.environ.get("TASKBULL_REDIS_URL", "embedded://"), queue="weather")
requests = count(1)


async def ask_weather_service(city: str) -> str:
    """Stand for an HTTP request."""
    if next(requests) <= 4:
        raise ConnectionError("the weather service is down")
    return f"sunny in {city}"


@app.task(
    attempts=10,
    backoff=Backoff.fixed(0.1),
    circuit_breaker=CircuitBreaker(threshold=3, duration=0.5),
)
async def forecast(city: str) -> str:
    """Ask somebody else, who may be away."""
    return await ask_weather_service(city)


@app.on(events.Retried)
def tell_failure(event: events.Retried) -> None:
    """One attempt failed."""
    print(f"job {event.job.id}: {event.failure.reason}")


@app.on(events.CircuitOpened)
def tell_opened(event: events.CircuitOpened) -> None:
    """No jobs are taken for a while."""
    print(f"the circuit is open: {event.failures} failures in a row")


@app.on(events.CircuitHalfOpened)
def tell_half_opened(event: events.CircuitHalfOpened) -> None:
    """A single job is tried."""
    print(f"the circuit is half open after {event.duration:g} s: one job is tried")


@app.on(events.CircuitClosed)
def tell_closed(event: events.CircuitClosed) -> None:
    """All is well again."""
    print(f"the circuit is closed: job {event.test_job_id} succeeded")


async def main() -> None:
    """Ask for five cities, with a worker that runs one job at a time."""
    cities = ["Athens", "Bergen", "Cairo", "Delhi", "Essen"]
    jobs = await app.aenqueue([forecast.job(city) for city in cities])
    async with app.worker(concurrency=1).running():
        for job in jobs:
            print(await job.aresult(timeout=30))


if __name__ == "__main__":
    logging.getLogger("taskbull").setLevel(logging.ERROR)  # its warnings say what is printed here
    anyio.run(main)
