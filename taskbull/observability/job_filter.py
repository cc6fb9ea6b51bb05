"""Which job a line of a task's own belongs to."""

from __future__ import annotations

import logging

from taskbull.core.current import current

SHOWN = 200
"""Characters of a job's id or name in a log line, at the most: others may have chosen them."""


class JobFilter(logging.Filter):
    """Adds `queue`, `job_id`, `job_name`, `attempt` and `worker_id` to lines written inside a job.

    It lets every line pass. `taskbull worker` has one on its handler; in a logging configuration of
    one's own it belongs on each handler (a filter on a logger does not see its children's lines).
    What a line brings itself, by `extra`, stays as it is.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add what is known of the job that is running here, if one is."""
        job = current.get(None)
        if job is not None:
            fields = vars(record)
            fields.setdefault("queue", job.queue)
            fields.setdefault("job_id", cut(job.id))
            fields.setdefault("job_name", cut(job.name))
            fields.setdefault("attempt", job.attempt)
            fields.setdefault("worker_id", job.worker_id)
        return True


def cut(text: str) -> str:
    """Return a job's id or name for a log line: escaped, and cut if it is long."""
    return one_line(text if len(text) <= SHOWN else f"{text[:SHOWN]}…")


def one_line(text: str) -> str:
    """Return a text with escapes for what would forge log lines or drive a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
