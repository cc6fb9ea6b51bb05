"""Tools for testing code that uses tasks, without Redis or with a private server.

`recorded` records the jobs that the code enqueues, and can run them in virtual time. The pytest
fixture `server` and the context manager `private_server` start an empty Valkey server.
"""

from taskbull.store.server_process import ServerProcess as Server
from taskbull.testing.recorded_job import RecordedJob
from taskbull.testing.recording import Box, recorded
from taskbull.testing.servers import connected, private_server, server

__all__ = ["Box", "RecordedJob", "Server", "connected", "private_server", "recorded", "server"]
