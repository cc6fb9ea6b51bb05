"""No queue at all: what it costs to write as much by the usual client."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from redis import Redis

from .assignment import GIVEN

LOOP = "sync"


class Producer:
    def open(self) -> None:
        self.client = Redis.from_url(GIVEN.url)

    def add(self, data: dict[str, Any]) -> None:
        self.client.set(f"job:{data['i']}", json.dumps(data))

    def add_many(self, datas: Sequence[dict[str, Any]]) -> None:
        for data in datas:
            self.add(data)

    def close(self) -> None:
        self.client.close()
