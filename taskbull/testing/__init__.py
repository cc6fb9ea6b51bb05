"""Testing code that uses tasks: without Redis, or with a private server of its own."""

from taskbull.store.server_process import ServerProcess as Server
from taskbull.testing.box import Box, recorded
from taskbull.testing.connecting import connected
from taskbull.testing.private_server import private_server, server
from taskbull.testing.recorded_job import RecordedJob

__all__ = [
    "Box",
    "RecordedJob",
    "Server",
    "connected",
    "private_server",
    "recorded",
    "server",
]
