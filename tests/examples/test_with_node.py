"""Node and Python on one queue, in both directions, with both versions of BullMQ."""

from __future__ import annotations

import json

import pytest

from tests.examples.conftest import OpenExample
from tests.examples.programs import EXAMPLES, JobEnvironment
from tests.interop.install import require_node_modules
from tests.interop.node import HERE, Version


def install(place: JobEnvironment, version: Version) -> JobEnvironment:
    """Do the same as `npm install`, with the packages of the comparison with BullMQ."""
    require_node_modules()
    modules = place.folder / "node_modules"
    modules.mkdir()
    (modules / "bullmq").symlink_to(HERE / "node_modules" / f"bullmq{version}")
    return place


@pytest.mark.parametrize("version", [5, 6])
def test_the_example_installs_a_client_of_redis(version: Version) -> None:
    # BullMQ 6 brings none. The links of `install` would not show that.
    require_node_modules()
    library = json.loads((HERE / "node_modules" / f"bullmq{version}" / "package.json").read_text())
    example = json.loads((EXAMPLES / "with_node" / "package.json").read_text())
    assert "ioredis" in library["dependencies"] | example["dependencies"]


@pytest.mark.full
@pytest.mark.parametrize(("version", "backend"), [(5, "asyncio"), (6, "trio")])
def test_python_works_for_node(on_server: OpenExample, version: Version, backend: str) -> None:
    place = install(on_server("with_node"), version)
    with place.worker("thumbnails:app", "--backend", backend) as worker:
        said = place.node("order_thumbnail.mjs").run()
        worker.stop()
    assert "job 1 is at 50 %" in said
    assert "Python made { path: 'cat.jpg.64.png', width: 64 }" in said


@pytest.mark.full
@pytest.mark.parametrize("version", [5, 6])
def test_node_works_for_python(on_server: OpenExample, version: Version) -> None:
    place = install(on_server("with_node"), version)
    with place.python("ask_node.py") as producer, place.node("translate_worker.mjs") as worker:
        assert "Node says ['hallo', 'Welt']" in producer.end()
        worker.read_until(r"job 1 \(translate\) is done")
        worker.stop()


@pytest.mark.full
@pytest.mark.parametrize("version", [5, 6])
def test_a_python_job_waits_for_jobs_of_node(on_server: OpenExample, version: Version) -> None:
    place = install(on_server("with_node"), version)
    with place.python("phrase_book.py") as producer, place.node("translate_worker.mjs") as worker:
        assert "German: hallo, Welt, hallo Welt" in producer.end()
        worker.stop()


@pytest.mark.full
def test_they_share_the_embedded_server(in_a_clone: OpenExample) -> None:
    place = install(in_a_clone("with_node"), 6)
    with place.python("ask_node.py") as producer:
        producer.read_until("job 1 waits for Node")
        with place.node("translate_worker.mjs") as worker:
            assert "Node says ['hallo', 'Welt']" in producer.end()
            worker.stop()
