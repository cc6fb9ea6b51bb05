"""A circuit breaker: while a service is down, jobs wait instead of failing.

    pip install 'taskbull[embedded]'
    python circuit_breaker.py

A weather service is down for its first four requests. After three failures in a row, the
worker stops fetching from the queue. Every half second, it tries one job, until one succeeds.
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
    """Pretend to send an HTTP request."""
    if next(requests) <= 4:
        raise ConnectionError("the weather service is down")
    return f"sunny in {city}"


@app.task(
    attempts=10,
    backoff=Backoff.fixed(0.1),
    circuit_breaker=CircuitBreaker(threshold=3, duration=0.5),
)
async def forecast(city: str) -> str:
    """Call a service that may be down."""
    return await ask_weather_service(city)


@app.on(events.Retried)
def print_failure(event: events.Retried) -> None:
    """Print a failed attempt."""
    print(f"job {event.job.id}: {event.failure.reason}")


@app.on(events.CircuitOpened)
def print_opened(event: events.CircuitOpened) -> None:
    """Print that fetching is paused."""
    print(f"the circuit is open: {event.failures} failures in a row")


@app.on(events.CircuitHalfOpened)
def print_half_opened(event: events.CircuitHalfOpened) -> None:
    """Print that a test job runs."""
    print(f"the circuit is half open after {event.duration:g} s: one job is tried")


@app.on(events.CircuitClosed)
def print_closed(event: events.CircuitClosed) -> None:
    """Print that the service is back."""
    print(f"the circuit is closed: job {event.test_job_id} succeeded")


async def main() -> None:
    """Request five cities, with a worker that runs one job at a time."""
    cities = ["Athens", "Bergen", "Cairo", "Delhi", "Essen"]
    jobs = await app.aenqueue([forecast.job(city) for city in cities])
    async with app.worker(concurrency=1).running():
        for job in jobs:
            print(await job.aresult(timeout=30))


if __name__ == "__main__":
    # The program prints the same as the worker's warnings.
    logging.getLogger("taskbull").setLevel(logging.ERROR)
    anyio.run(main)
