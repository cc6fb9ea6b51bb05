"""The contract for Node: its TypeScript is compiled, and run with both versions of BullMQ."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from tests.examples.programs import JobEnvironment
from tests.interop.install import require_node_modules
from tests.interop.node import HERE, Version
from tests.selection import in_full
from tests.servers.kinds import PrivateServers

DOCS = HERE.parent.parent / "docs" / "typescript.md"
VERSIONS: list[Version] = [5, 6]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder per version of BullMQ, with the modules of this test and of the docs, compiled.

    All are checked by one run of tsc, which takes seconds.
    """
    require_node_modules()
    top = tmp_path_factory.mktemp("contract")
    for version in VERSIONS:
        folder = top / f"v{version}"
        shutil.copytree(HERE / "contract", folder)
        write_docs(folder)
        (folder / "node_modules").mkdir()
        (folder / "node_modules" / "bullmq").symlink_to(HERE / "node_modules" / f"bullmq{version}")
        contract(folder, "bazaar:app", "--typescript", "bazaar.ts")
        contract(folder, "tasks:app", "--typescript", "tasks.ts")
    (top / "package.json").write_text('{"type": "module"}')
    options = {
        "strict": True,
        "noUncheckedIndexedAccess": True,
        "noPropertyAccessFromIndexSignature": True,
        "exactOptionalPropertyTypes": True,
        "verbatimModuleSyntax": True,
        "isolatedModules": True,
        "module": "nodenext",
        "target": "es2022",
        "skipLibCheck": True,
        "types": ["node"],
        "typeRoots": [str(HERE / "node_modules" / "@types")],
    }
    config = {"compilerOptions": options, "include": ["v5/*.ts", "v6/*.ts"]}
    (top / "tsconfig.json").write_text(json.dumps(config))
    compile_modules(top, "-p", ".")
    return top


def compile_modules(folder: Path, *words: str) -> None:
    tsc = HERE / "node_modules" / "typescript" / "bin" / "tsc"
    command = ["node", str(tsc), *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def contract(folder: Path, *words: str) -> None:
    command = [sys.executable, "-m", "taskbull", "contract", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def write_docs(folder: Path) -> None:
    """Write the samples of the docs, each to the file that the text before it names."""
    text = DOCS.read_text()
    for language in ("python", "ts"):
        for found in re.finditer(rf"```{language}\n(.*?)```", text, re.DOTALL):
            names = re.findall(r"`(\w+\.(?:py|ts))`", text[: found.start()])
            suffix = {"python": ".py", "ts": ".ts"}[language]
            name = next((n for n in reversed(names) if n.endswith(suffix)), "")
            if found[1].startswith("from taskbull.testing"):
                name = "check.py"
            (folder / name).write_text(found[1])


@pytest.fixture(params=[in_full(5), 6])
def place(
    request: pytest.FixtureRequest, compiled: Path, private_server: PrivateServers
) -> JobEnvironment:
    """The folder of one version, with a private server."""
    return JobEnvironment(compiled / f"v{request.param}", private_server().url)


@pytest.mark.full
def test_the_modules_compile_without_the_types_of_node(compiled: Path) -> None:
    config = json.loads((compiled / "tsconfig.json").read_text())
    config["compilerOptions"]["types"] = []
    config["include"] = [
        f"v{version}/{name}.ts" for version in VERSIONS for name in ("bazaar", "tasks")
    ]
    (compiled / "bare.json").write_text(json.dumps(config))
    compile_modules(compiled, "-p", "bare.json", "--noEmit")


def test_the_samples_of_the_docs_work(place: JobEnvironment) -> None:
    with place.worker("tasks:app") as python, place.node("worker.js") as node:
        assert (
            "sent Hello to ann@example.org at 2026-05-01T12:00:00"
            in place.node("producer.js").run()
        )
        assert "Good morning in de" in place.python("ask.py").run()
        node.stop()
        python.stop()
    place.python("check.py").run()


def test_node_adds_jobs_that_python_runs(place: JobEnvironment) -> None:
    everything = example()
    (place.folder / "everything.json").write_text(json.dumps(everything))
    with place.worker("bazaar:app") as python:
        said = place.node("run.js", "echo", "everything.json").run()
        python.stop()
    found = json.loads(said.splitlines()[-1])
    assert found.pop("result") == {
        **everything,
        "a_tree": {"name": "a", "children": [{"name": "b", "children": []}]},
        "a_point": [1.5, 0.0],
        "a_price": {
            "amount": "1.5",
            "currency": "EUR",
            "discounts": [
                {
                    "amount": "0.5",
                    "currency": "USD",
                    "discounts": [],
                    "color": "blue",
                }
            ],
            "color": "red",
        },
    }
    assert found == {
        "id": True, "sum": 6, "none": None, "vector": [4], "size": 1, "missing": None
    }  # fmt: skip


def test_python_adds_jobs_that_node_runs(place: JobEnvironment) -> None:
    (place.folder / "use.py").write_text(
        """
from datetime import UTC, datetime
from bazaar import Tree, fetch_tree, say_nothing, shout

print(shout.delay("hi", times=2).result(timeout=30))
tree = fetch_tree.delay("oak", at=datetime(2026, 1, 2, tzinfo=UTC)).result(timeout=30)
assert tree == Tree("oak at 2026-01-02T00:00:00Z", [Tree("branch")]), tree
assert say_nothing.delay().result(timeout=30) is None
"""
    )
    with place.node("run.js", "worker") as node:
        node.read_until("ready")
        assert "HIHI" in place.python("use.py").run()
        node.stop()


def test_a_job_that_a_closing_worker_adds_keeps_no_connection_open(place: JobEnvironment) -> None:
    (place.folder / "ask.py").write_text(
        "from bazaar import say_nothing\nsay_nothing.delay().result(timeout=30)"
    )
    with place.node("run.js", "late") as node:
        node.read_until("ready")
        place.python("ask.py").run()
        node.end()


def test_node_and_python_store_the_same_jobs(place: JobEnvironment) -> None:
    said = place.node("run.js", "add").run()
    assert "expires must be later than delay" in said
    assert "group and priority cannot be used together" in said
    (place.folder / "add.py").write_text(
        """
from bazaar import complete, plain, report, shout

report.delay(5)
report.options(delay=100, priority=1).delay(6, day="x")
plain.delay("a")
complete.delay("a")
complete.delay("b", tenant="acme", tokens=7)
complete.delay("c", tenant=None)
complete.options(group="beta", cost=2).delay("d", tenant="acme")
complete.options(group=None).delay("e", tenant="acme")
shout.options(headers={"request": "7"}).delay("a")
"""
    )
    place.env["BAZAAR_PREFIX"] = "py"
    place.python("add.py").run()
    with Redis.from_url(place.env["TASKBULL_REDIS_URL"]) as redis:
        by_node, by_python = stored(redis, "bull"), stored(redis, "py")
    assert len(by_node) == 9
    assert by_node == by_python


def stored(redis: Any, prefix: str) -> dict[str, Any]:
    """Return what distinguishes the jobs under a prefix."""
    found: dict[str, Any] = {}
    for queue in ("options", "node"):
        for key in redis.keys(f"{prefix}:{queue}:[0-9]*"):
            if redis.type(key) != b"hash":
                continue
            fields = {name.decode(): value for name, value in redis.hgetall(key).items()}
            name, data = fields["name"].decode(), json.loads(fields["data"])
            found[f"{name} {data}"] = (
                json.loads(fields["opts"]), fields["priority"], fields["delay"],
                fields.get("deid"),
            )  # fmt: skip
    return found


@pytest.mark.parametrize("version", [in_full(5), 6])
def test_the_prefix_and_the_hash_tag_are_those_of_the_app(
    compiled: Path, version: Version, private_server: PrivateServers
) -> None:
    folder = compiled / f"v{version}"
    place = JobEnvironment(folder, private_server().url)
    (folder / "tag.mjs").write_text(
        """
import { close, configure, tasks } from "./bazaar.js";
configure({ prefix: "shop", hashTag: true });
await tasks.ping.add();
await close();
configure({ prefix: "{shop}" });
await tasks.ping.add();
await close();
configure({ prefix: "plain", hashTag: null });
await tasks.ping.add();
try { configure({}); } catch (error) { console.log(error.message); }
await close();
"""
    )
    assert "before the first job" in place.node("tag.mjs").run()
    with Redis.from_url(place.env["TASKBULL_REDIS_URL"]) as redis:
        assert set(redis.keys("*:1")) == {
            b"shop:{bazaar}:1", b"{shop}:bazaar:1", b"plain:bazaar:1"
        }  # fmt: skip


def example() -> dict[str, Any]:
    """Return one value of every type, as Node sends it."""
    return {
        "a_str": "text", "an_int": 5, "a_float": 1.5, "a_bool": True, "nothing": None,
        "a_datetime": "2026-01-02T03:04:05Z", "a_date": "2026-01-02", "a_time": "03:04:05",
        "a_timedelta": "P1DT30.5S", "a_uuid": "12345678-1234-5678-1234-567812345678",
        "a_decimal": "1.50", "some_bytes": "aGk=", "a_path": "/a/b", "a_color": "red",
        "a_size": 2, "a_literal": "x", "a_union": "either", "a_list": [1, 2], "a_set": ["a"],
        "a_tuple": [1, "a"], "a_long_tuple": [1, 2, 3], "a_dict": {"a": 1},
        "by_number": {"1": "one"}, "by_color": {"blue": 2},
        "a_tree": {"name": "a", "children": [{"name": "b"}]}, "a_point": [1.5],
        "an_address": {"name": "Ann"}, "a_pet": {"type": "dog", "goodBoy": False},
        "a_pair": [1, 2], "a_list_pair": [[1], []], "a_text_pair": [["a"], []], "some_rights": 3,
        "a_patch": {"pages": 2}, "a_parcel": {"grams": 5}, "by_ratio": {"1.5": "a"},
        "a_price": {
            "amount": "1.5",
            "discounts": [{"amount": "0.5", "currency": "USD", "color": "blue"}],
        },
        "some_money": "5 EUR", "anything": {"a": [1, None]},
    }  # fmt: skip
