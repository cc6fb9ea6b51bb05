"""Settings that the web server and the worker share, read from the environment."""

from __future__ import annotations

import os

REDIS_URL = os.environ.get("TASKBULL_REDIS_URL", "embedded://")
# Maximum time that a request waits.
ENQUEUE_TIMEOUT = float(os.environ.get("ENQUEUE_TIMEOUT", "2"))
PAGES_PER_SECOND = float(os.environ.get("PAGES_PER_SECOND", "5"))
RUN_WORKER = os.environ.get("RUN_WORKER", "yes") == "yes"  # In the web server's process.
STREAM_SECONDS = float(os.environ.get("STREAM_SECONDS", "10"))  # Duration of one event stream.
