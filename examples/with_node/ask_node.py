"""A Python producer and a Node worker: Python adds a job, Node runs it.

    pip install 'taskbull[embedded]' && npm install
    python ask_node.py                 # in one terminal, in this folder
    node translate_worker.mjs          # in another

A queue is enough. No task is needed if the code is in Node.
"""

from __future__ import annotations

import os
from pathlib import Path

from taskbull import SyncQueue

# In this folder, where connection.mjs looks for it.
EMBEDDED = f"embedded://{Path(__file__).resolve().parent / '.taskbull'}"

queue = SyncQueue("translations", redis=os.environ.get("TASKBULL_REDIS_URL", EMBEDDED))
job = queue.add("translate", {"words": ["hello", "world"]}, attempts=5)
print(f"job {job.id} waits for Node")
print("Node says", job.result(timeout=60))
