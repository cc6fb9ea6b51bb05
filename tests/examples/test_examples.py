"""Each example does what its comment says, in its own processes."""

from __future__ import annotations

import re

import pytest

from tests.examples.conftest import OpenExample

BACKENDS = ["asyncio", "trio"]


@pytest.mark.full
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_quick_start_needs_no_server(embedded_only: OpenExample, backend: str) -> None:
    place = embedded_only("quick_start")
    with place.worker("tasks:app", "--backend", backend) as worker:
        worker.read_until("redis +")
        said = place.python("send.py").run()
        worker.read_until(r"\(charge\) .* failed and will be retried")
        worker.stop()
    assert said.splitlines() == [
        "job 1 is in queue default",
        "HELLO, ANN!",
        "job 2 is delayed",
        "['1.jpg is 100 x 75 now', '2.jpg is 200 x 150 now', '3.jpg is 300 x 225 now']",
        "order 42 was charged at attempt 3",
        "Hello, Bob!",
    ]


@pytest.mark.full
def test_the_quick_start_uses_the_server_that_is_named(on_server: OpenExample) -> None:
    place = on_server("quick_start")
    with place.worker("tasks:app") as worker:
        worker.read_until(r"redis +127\.0\.0\.1:\d+ ")
        assert "HELLO, ANN!" in place.python("send.py").run()
        worker.stop()
    assert not (place.folder / ".taskbull").exists()


@pytest.mark.full
def test_a_trio_program_is_producer_and_worker(on_server: OpenExample) -> None:
    said = on_server("with_trio.py").python("with_trio.py").run()
    assert sorted(said.splitlines()) == [
        "3 words: whether 'tis nobler",
        "4 words: that is the question",
        "6 words: to be or not to be",
    ]


@pytest.mark.full
def test_functions_compute_hang_and_crash_in_processes(on_server: OpenExample) -> None:
    said = on_server("primes.py").python("primes.py").run()
    expected = [
        "5133 primes below 50,000",
        "counted elsewhere",
        "search_for_ever: TimeoutError: the job took longer than its timeout of 0.5 s",
        "crash: SIGABRT",
    ]
    assert [line for line in said.splitlines() if line in expected] == expected  # and log lines


@pytest.mark.full
def test_a_model_is_fed_in_batches(embedded_only: OpenExample) -> None:
    said = embedded_only("embed_in_batches.py").python("embed_in_batches.py").run()
    calls, vector, failure = said.splitlines()
    times = re.fullmatch(r"the model was called (\d+) times", calls)
    assert times is not None
    assert 4 <= int(times[1]) < 50  # 32 texts at a time at best
    assert vector == "'text number 7': [0.0, 2.0, 0.0, 0.0, 1.0]"
    assert failure == "the empty one: the text is empty"


@pytest.mark.full
def test_a_report_is_scheduled_every_night(embedded_only: OpenExample) -> None:
    said = embedded_only("nightly_report.py").python("nightly_report.py").run()
    assert said.splitlines() == [
        *("order 1", "order 2", "order 3"),
        "look_for_orders: every 200 milliseconds, 3 times, ended",
        "nightly: every day at 03:00, Europe/Berlin",
        "nightly-eu: Monday to Friday at 03:30, Europe/Berlin",
        "report of all regions: 3 orders",
        "report of Europe: 3 orders",
    ]


@pytest.mark.full
def test_a_flow_fans_out_over_a_thousand_pages(embedded_only: OpenExample) -> None:
    said = embedded_only("fan_out.py").python("fan_out.py").run().splitlines()
    early = said.pop(2)  # The number of pages counted by then varies.
    assert re.fullmatch(r"continue: \d+ pages counted, 1 known to have failed", early)
    assert said == [
        "fail: the summary failed, because a child did",
        "ignore: 999 pages counted, 1 known to have failed",
        "drop: 999 pages counted, 0 known to have failed",
        "wait: the summary waits until the page is retried",
    ]


@pytest.mark.full
def test_the_circuit_opens_and_closes(embedded_only: OpenExample) -> None:
    said = embedded_only("circuit_breaker.py").python("circuit_breaker.py").run().splitlines()
    assert [line for line in said if line.startswith("the circuit")] == [
        "the circuit is open: 3 failures in a row",
        "the circuit is half open after 0.5 s: one job is tried",
        "the circuit is open: 4 failures in a row",
        "the circuit is half open after 0.5 s: one job is tried",
        "the circuit is closed: job 5 succeeded",
    ]
    assert said.count("job 4: ConnectionError: the weather service is down") == 1
    cities = ("Athens", "Bergen", "Cairo", "Delhi", "Essen")
    assert said[-5:] == [f"sunny in {city}" for city in cities]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.full
def test_progress_is_shown_live(on_server: OpenExample, backend: str) -> None:
    place = on_server("progress")
    with (
        place.worker("video:app", "--backend", backend) as worker,
        place.python("follow.py") as terminal,
    ):
        terminal.read_until("a worker has begun")
        terminal.read_until("# +1/20\n")
        assert "done" not in terminal.seen
        said = terminal.end()
        worker.stop()
    assert f"{'#' * 20} 20/20\ndone: holiday.mp4\n" in said


@pytest.mark.full
def test_the_example_of_tests_passes(on_server: OpenExample) -> None:
    place = on_server("testing")
    place.env["TASKBULL_REDIS_URL"] = "redis://127.0.0.1:1/0"  # not needed, as it says
    said = place.python("-m", "pytest", "-q", "-p", "no:cacheprovider").run()
    assert "6 passed" in said
