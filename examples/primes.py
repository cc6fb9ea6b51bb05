"""CPU-bound functions use all cores, and one that hangs is killed.

    pip install 'taskbull[embedded]'
    python primes.py

Set TASKBULL_REDIS_URL to use your own server instead of the embedded one.
"""

from __future__ import annotations

import os

import anyio

from taskbull import App, JobFailed

app = App("primes", redis=os.environ.get("TASKBULL_REDIS_URL", "embedded://"), queue="primes")


@app.task(process=True)
def count_primes(start: int, end: int) -> tuple[int, int]:
    """Count the primes of a range, and return the id of the process."""
    found = sum(all(n % d for d in range(2, int(n**0.5) + 1)) for n in range(max(start, 2), end))
    return found, os.getpid()


@app.task(process=True, timeout=0.5, grace=0.5, attempts=1)
def search_for_ever() -> None:
    """Loop forever. A thread could not be stopped here."""
    while True:
        pass


@app.task(process=True, attempts=1)
def crash() -> None:
    """Crash the process, as a bug in C code does."""
    os.abort()


async def main() -> None:
    """Run a worker with two processes during the block, and use it."""
    async with app.worker(process_pool=2).running():
        hanging, crashing = await search_for_ever.adelay(), await crash.adelay()
        jobs = await app.aenqueue([count_primes.job(n, n + 5_000) for n in range(0, 50_000, 5_000)])
        results = [await job.aresult(timeout=60) for job in jobs]
        print(f"{sum(found for found, _ in results)} primes below 50,000")
        print("counted here" if os.getpid() in {pid for _, pid in results} else "counted elsewhere")
        for job in (hanging, crashing):
            try:
                await job.aresult(timeout=60)
            except JobFailed as error:
                print(f"{job.name}: {error.reason.partition('died: ')[2] or error.reason}")


if __name__ == "__main__":
    anyio.run(main)
