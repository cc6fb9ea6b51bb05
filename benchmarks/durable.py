"""Jobs of ten steps that do nothing: taskbull on Redis beside DBOS on PostgreSQL.

    python -m benchmarks.durable [--rounds N] [--jobs N] [--server redis-server]

Both sides store each step, and run in one process each, in shuffled rounds. DBOS runs its workflows
in an event loop, in threads and from a queue. PostgreSQL has its default settings, which write each
commit to disk. Redis appends to a file and writes it to disk each second, or at each write
(`always`). Needs PostgreSQL; DBOS is installed into .benchmarks/.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from benchmarks import servers
from benchmarks.catalogue import ROOT, Peer
from benchmarks.install import ensure
from taskbull.store.server_process import ServerProcess

STEPS = 10
DBOS = "dbos==3.4.0"
PEERS = ROOT / "benchmarks" / "peers"


def postgres_folder() -> Path:
    """Find the programs of PostgreSQL."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    if not found and on_path is None:
        raise SystemExit("PostgreSQL is not installed (apt install postgresql)")
    return found[-1].parent if found else Path(str(on_path)).parent


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """Run a private PostgreSQL for the time of a block, and give its URL."""
    programs = postgres_folder()
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    data = folder / "postgres"
    data.mkdir()
    user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    words = user if os.geteuid() == 0 else []  # PostgreSQL refuses to run as root.
    if words:
        folder.chmod(0o755)
        shutil.chown(data, "postgres", "postgres")

    def run(*command: str) -> None:
        done = subprocess.run([*words, *command], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{command[0]} failed: {done.stderr or done.stdout}")

    run(str(programs / "initdb"), "-D", str(data), "-A", "trust", "-U", "bench")
    control, options = str(programs / "pg_ctl"), f"-p {port} -k {data}"
    run(control, "-D", str(data), "-w", "-o", options, "-l", str(data / "log"), "start")
    try:
        run(str(programs / "createdb"), "-h", "127.0.0.1", "-p", str(port), "-U", "bench", "dbos")
        yield f"postgresql+psycopg://bench@127.0.0.1:{port}/dbos"
    finally:
        run(control, "-D", str(data), "-m", "immediate", "stop")


def measure(python: Path, program: str, *words: str) -> dict[str, float]:
    """Run one side, and give what it printed last."""
    # Without -P, Python would import the adapter `taskbull.py` in the same folder.
    command = [str(python), "-P", str(PEERS / program), *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--server", default="valkey", help="valkey, redis, or a program")
    options = parser.parse_args()
    peer = Peer(adapter="steps_dbos", how="", parts=[], can=[], pip=[DBOS])
    dbos = ensure("dbos", peer) / "bin" / "python"
    taken: dict[tuple[str, int], list[dict[str, float]]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmarks-")))
        database = stack.enter_context(postgres(folder))
        sides: dict[str, list[str]] = {}
        for fsync in ("everysec", "always"):
            settings = {"appendonly": "yes", "appendfsync": fsync}
            server = ServerProcess(servers.binary(options.server), options=settings)
            url = stack.enter_context(server).url
            sides[f"taskbull, `appendfsync {fsync}`"] = [url]
        for mode in ("loop", "threads", "queue"):
            sides[f"DBOS, {mode}"] = [database, mode]
        cases = [(name, at_once) for at_once in (20, 1) for name in sides]
        for _ in range(options.rounds):
            for name, at_once in random.sample(cases, len(cases)):
                ours = name.startswith("taskbull")
                jobs = options.jobs if at_once > 1 or ours else options.jobs // 5
                words = [*sides[name], str(jobs), str(STEPS), str(at_once)]
                python, program = (
                    (Path(sys.executable), "steps_taskbull.py") if ours else (dbos, "steps_dbos.py")
                )
                taken.setdefault((name, at_once), []).append(measure(python, program, *words))
    print(f"\nJobs of {STEPS} steps, median of {options.rounds} rounds\n")
    print("| side | at once | jobs/s | µs per step | CPU µs/job |\n|---|---|---|---|---|")
    for name, at_once in cases:
        found = taken[name, at_once]
        rate, cpu = (median(each[key] for each in found) for key in ("rate", "cpu"))
        per_step = 1e6 * at_once / rate / STEPS
        print(f"| {name} | {at_once} | {rate:,.0f} | {per_step:,.0f} | {cpu:,.0f} |")


if __name__ == "__main__":
    main()
