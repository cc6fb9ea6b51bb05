"""Schedules: a report every night at three, and a look at new orders several times a second.

    pip install 'taskbull[embedded]'
    python nightly_report.py

The worker writes both schedules when it starts. You do not have to wait until three:
`run_schedule_now` adds a job of a schedule immediately.
"""

from __future__ import annotations

import logging
import os

import anyio

from taskbull import App, Cron, Every

app = App("shop", redis=os.environ.get("TASKBULL_REDIS_URL", "embedded://"), queue="reports")
orders: list[int] = []
seen = anyio.Event()


@app.task(schedule=Cron("0 3 * * *", tz="Europe/Berlin"))
async def nightly(region: str = "all regions") -> str:
    """Sum up the day."""
    return f"report of {region}: {len(orders)} orders"


@app.task(schedule=Every(0.2, limit=3))
async def look_for_orders() -> None:
    """Pretend to poll a service that has no webhooks."""
    orders.append(len(orders) + 1)
    print(f"order {orders[-1]}")
    if len(orders) == 3:
        seen.set()


app.schedule("nightly-eu", Cron("30 3 * * 1-5", tz="Europe/Berlin"), nightly.job("Europe"))


async def main() -> None:
    """Run the worker until three orders have arrived, then print the schedules."""
    queue = app.queue("reports")
    async with app.worker().running():
        await seen.wait()
        for schedule in sorted(await queue.schedules(), key=lambda schedule: schedule.id):
            print(f"{schedule.id}: {schedule.describe()}{', ended' if schedule.ended else ''}")
        for name in ("nightly", "nightly-eu"):
            job = await queue.run_schedule_now(name)
            print(await job.aresult(timeout=30))
    for schedule in await queue.schedules():  # Otherwise they would wait for the next worker.
        await queue.remove_schedule(schedule.id)


if __name__ == "__main__":
    logging.getLogger("taskbull").setLevel(logging.ERROR)
    anyio.run(main)
