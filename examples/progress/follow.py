"""Order a video and show its progress in the terminal: `python follow.py`. See video.py."""

from __future__ import annotations

from contextlib import aclosing

import anyio
from video import app, encode


async def main() -> None:
    """Follow the events of one job until it ends."""
    job = await encode.adelay("holiday.mov")
    print(f"job {job.id} waits for a worker")
    # From the oldest stored event, so that no event of this job is missed.
    async with aclosing(app.queue(job.queue).events(last_id="0")) as events:
        async for event in events:
            if event.job_id != job.id:
                continue
            match event.name:
                case "active":
                    print("a worker has begun")
                case "progress":
                    at = event.progress
                    print(f"{'#' * at['frame']:<{at['of']}} {at['frame']}/{at['of']}", flush=True)
                case "completed":
                    print(f"done: {event.returnvalue}")
                    return
                case "failed":
                    print(f"failed: {event.fields['failedReason']}")
                    return


if __name__ == "__main__":
    anyio.run(main)
