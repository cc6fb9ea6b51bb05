"""One process of a peer: `python -m peers ADAPTER worker`, or `… ADAPTER WAY JSON` to add jobs.

A producer's last line of output is JSON with its figures.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path

from .assignment import GIVEN
from .producing import run_on


def main() -> None:
    name, way, *rest = sys.argv[1:]
    adapter = import_module(f".{name}", __package__)
    if way == "worker":
        words = adapter.worker(GIVEN.at_once)
        if words:
            program = Path(sys.executable).parent / words[0]  # that of the peer's environment
            os.execv(program, [str(program), *words[1:]])
        return
    figures = run_on(adapter.LOOP, adapter.Producer(), way, json.loads(rest[0]))
    print(json.dumps(figures), flush=True)
    os._exit(0)  # not all peers end their threads


main()
