"""The example of an agent in a real browser, whose worker is killed in the middle of the stream."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

from taskbull import SyncQueue
from tests.dashboard.browser import FLAGS, chromium, visiting
from tests.examples.conftest import OpenExample
from tests.examples.programs import EXAMPLES

TEXT = "".join(f"Whales, part {part}: this is what is known about it. " for part in (1, 2, 3))
PAGE = Path(__file__).parents[2] / "docs" / "ai-jobs.md"


@pytest.mark.full
def test_an_agent_continues_after_its_worker_was_killed(on_server: OpenExample) -> None:
    place = on_server("agent")
    place.env["WORDS_PER_SECOND"] = "2"
    web = place.python("-m", "uvicorn", "agent_web:api", "--port", "0")
    queue = SyncQueue("agent", redis=place.env["TASKBULL_REDIS_URL"])
    with web, sync_playwright() as playwright:
        address = web.read_until(r"http://127\.0\.0\.1:\d+")[0]
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        with visiting(browser, f"{address}/") as page:
            with place.python("agent.py"):
                page.get_by_role("button", name="Start").click()
                expect(page.locator("#plan li")).to_have_count(3)
                page.get_by_role("button", name="Approve").click()
                expect(page.locator("#text")).to_contain_text("part 1: this")
                [plan, *_] = queue.steps("1")
            # The block has killed the worker with SIGKILL.
            expect(page.locator("#state")).to_have_text("running")
            place.env["WORDS_PER_SECOND"] = "50"
            with place.python("agent.py") as worker:
                expect(page.locator("#state")).to_have_text("completed", timeout=60_000)
                worker.stop()
            assert page.locator("#text").text_content() == TEXT
            expect(page.locator("#plan li")).to_have_count(3)
            expect(page.locator("#approval")).to_be_hidden()
        assert [(one.kind, one.name) for one in queue.steps("1")] == [
            ("step", "make_plan"), ("signal", "approval"), ("step", "publish"),
        ]  # fmt: skip
        assert queue.steps("1")[0] == plan
        assert (place.folder / "reports" / "1.txt").read_text() == TEXT
        web.stop()
        browser.close()
    queue.close()


def test_the_guide_shows_the_example() -> None:
    shown = re.findall(
        r"^```python\n(# \w+\.py\n.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    assert len(shown) == 2
    for block in shown:
        name, _, source = block.partition("\n")
        whole = (EXAMPLES / "agent" / name.removeprefix("# ")).read_text()
        assert [part for part in source.strip().split("\n\n\n") if part not in whole] == []
