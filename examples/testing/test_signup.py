"""Tests of code that uses tasks: without Redis in virtual time, and once with a real server.

    pip install 'taskbull[embedded]' pytest
    python -m pytest                   # in this folder

The code is in signup.py; conftest.py imports taskbull's fixture.
"""

# ruff: noqa: S603

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from signup import Outbox, app, send_email, sign_up

from taskbull import JobFailed, SyncQueue
from taskbull.testing import recorded


def test_what_is_enqueued_can_be_looked_at() -> None:
    with recorded(app) as box:  # Nothing is sent to Redis.
        sign_up("ann@example.org")
        box.assert_enqueued(send_email, to="ann@example.org", subject="Welcome")
        box.assert_enqueued(send_email, subject="How is it going?", delay=86_400)
        assert len(box.jobs) == 2


def test_the_jobs_run_here_in_virtual_time(outbox: Outbox) -> None:
    with recorded(app) as box:
        sign_up("ann@example.org")
        box.run()
        assert [subject for _, subject in outbox.sent] == ["Welcome", "How is it going?"]
        assert box.now == 86_400  # A day passes immediately.


def test_a_failure_is_retried(outbox: Outbox) -> None:
    outbox.refusals = 2
    with recorded(app) as box:
        job = send_email.delay("ann@example.org", "Hi")
        box.run()
        assert job.result() == "Hi to ann@example.org"
        assert (box.jobs[0].attempts, box.now) == (3, 120)


def test_after_three_attempts_it_fails(outbox: Outbox) -> None:
    outbox.refusals = 3
    with recorded(app) as box:
        send_email.delay("ann@example.org", "Hi")
        with pytest.raises(JobFailed, match="the mail server is away"):
            box.run()


def test_a_call_that_does_not_fit_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="missing required argument: 'subject'"):
        send_email.delay("ann@example.org")  # type: ignore[call-arg]


def test_a_real_worker_runs_what_another_service_has_sent(server: Any) -> None:
    queue = SyncQueue("emails", redis=server.url)
    job = queue.add("send_email", {"to": "ann@example.org", "subject": "Hi"})
    worker = [sys.executable, "-m", "taskbull", "worker", "signup:app", "--burst"]
    subprocess.run(worker, env={**os.environ, "TASKBULL_REDIS_URL": server.url}, check=True)
    assert job.result(timeout=10) == "Hi to ann@example.org"
    assert job.logs().lines == ["sent to ann@example.org"]
    queue.close()
