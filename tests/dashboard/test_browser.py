"""The dashboard from a user's view: questions that it must answer, and forms."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from playwright.sync_api import Browser, Dialog, Page, expect, sync_playwright

from taskbull import Every, SyncQueue
from taskbull.core.wire.job import read_copy
from tests.dashboard.answers import mounted
from tests.dashboard.browser import (
    FLAGS,
    PATIENCE_MS,
    chromium,
    follow,
    served,
    stop_timers,
    violations,
    visiting,
)
from tests.dashboard.conftest import MakeQueue
from tests.dashboard.pictures import FOLDER, FONTS, MOST, compare, fonts, known_fonts
from tests.dashboard.seeding import complete, fail, run
from tests.servers.kinds import VALKEY_9, Reachable, SharedServers

SCREENSHOTS = os.environ.get("TASKBULL_SCREENSHOTS")
"""Folder whose screenshots are updated, such as docs/images, or None."""

HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = chromium()
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=path, args=list(FLAGS))


@pytest.fixture
def server(shared_servers: SharedServers) -> Reachable:
    return shared_servers.get(VALKEY_9)


@pytest.mark.full
def test_an_open_tab_follows_its_streams_and_lets_the_web_server_stop(  # V2
    browser: Browser, server: Reachable, tmp_path: Path, prefix: str
) -> None:
    queue = SyncQueue("emails", redis=server.url, prefix=prefix)
    queue.add("send")
    with mounted(tmp_path, server.url, prefix) as (process, address), browser.new_page() as page:
        page.set_default_timeout(PATIENCE_MS)
        page.goto(address)
        row = page.locator("#queue-emails")
        page.evaluate("document.querySelector('main h1').kept = true")
        for number in range(2, 4):  # Each arrives in another stream, or in the one after it.
            queue.add("send")
            expect(row.locator("td").nth(1)).to_contain_text(str(number))
        assert page.evaluate("document.querySelector('main h1').kept")
        process.send_signal(signal.SIGTERM)
        assert process.wait(90) in {0, -signal.SIGTERM}
        expect(row).to_be_visible()
    queue.close()


@pytest.fixture
def night(make_queue: MakeQueue, admin: Any) -> dict[str, SyncQueue]:
    """Queues with the kinds of problems that wake an operator at night."""
    emails, reports, billing = (make_queue(name) for name in ("emails", "reports", "billing"))
    emails.add_bulk(
        [("send_email", {"to": f"user{n}@example.org", "customer": n}) for n in range(40)]
    )
    emails.add("send_email", {"to": "late@example.org"}, delay=3600, job_id="late")
    stack = "ConnectionError: no route to 10.0.0.7\n    at send (/app/mail.js:3:1)"
    failed = {"failedReason": "no route to 10.0.0.7", "stacktrace": json.dumps([stack] * 2)}
    admin.hset(emails.keys.job("late"), mapping={**failed, "atm": 2, "ats": 2})
    for number in range(24):
        data = {"to": f"ann{number}@example.org", "token": "s3cret"}
        reason = "TimeoutError: smtp did not answer"
        fail(
            admin, emails, f"t{number}", reason, name="send_email", data=data,
            seconds_ago=60 + number * 20,
        )  # fmt: skip
    fail(admin, emails, "k1", "KeyError: 'first_name'", name="send_email", seconds_ago=7200)
    for number in range(80):
        complete(admin, emails, f"c{number}", {"sent": True}, seconds_ago=number * 40)
    run(admin, emails, "web1-812")
    run(admin, emails, "web2-411", lock=False)
    reports.add_bulk([("build_report", {"customer": n}) for n in range(1204)])
    reports.upsert_schedule("tenant-7", Every(3600), reports.job("build_report", {}))
    hourly = reports.upsert_schedule(
        "hourly", Every(3600, offset=0), reports.job("build_report", {})
    )
    assert hourly.next_run is not None
    last = int(hourly.next_run.timestamp() * 1000) - 3_600_000
    complete(admin, reports, f"repeat:hourly:{last}", seconds_ago=180)
    admin.zadd(reports.keys.repeat, {"tenant-7": int(time.time() * 1000) - 540_000})
    billing.add_bulk([("charge", {"invoice": n}) for n in range(88)])
    billing.pause()
    admin.client_setname(emails.keys.connection_name("mailer-1"))
    return {"emails": emails, "reports": reports, "billing": billing}


@pytest.fixture
def base(server: Reachable, prefix: str, admin: redis.Redis) -> Iterator[str]:
    with served("--redis", server.url, "--prefix", prefix, "--label", "PROD") as address:
        yield address
    admin.client_setname("")


@pytest.fixture
def page(browser: Browser, base: str) -> Iterator[Page]:
    with visiting(browser, base) as page:
        yield page


# The questions of section 2, answered within two clicks from the overview.


@pytest.mark.full
def test_the_questions_of_the_night(night: dict[str, SyncQueue], page: Page) -> None:
    page.reload()
    troubles = page.locator("#troubles")
    # 1: is anything wrong, and where?
    expect(troubles).to_contain_text("1,205 waiting, no worker connected")
    expect(troubles).to_contain_text("failed in 10 min")
    expect(troubles).to_contain_text("paused")
    # 3: does the backlog grow; when is it empty?
    expect(page.locator("[id='queue-reports']")).to_contain_text("1,205")
    expect(page.locator("[id='queue-billing']")).to_contain_text("paused")
    # 2: what fails, since when, is it one error?
    follow(troubles.get_by_role("link", name="errors").first)
    worst = page.locator("#errors tr").first
    expect(worst).to_contain_text("TimeoutError: smtp did not answer")
    expect(worst).to_contain_text("24")
    # 5: after the fix: retry exactly those, carefully?
    worst.get_by_role("button", name="Retry…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("24 of 25 failed jobs")
    dialog.get_by_label("10", exact=True).check()
    follow(dialog.get_by_role("button", name="Retry"))
    expect(page.locator("#operations tr").first).to_contain_text("done")
    assert night["emails"].counts()["failed"] == 15
    # 4: are workers alive, or stuck on something?
    page.get_by_role("link", name="Workers", exact=True).click()
    expect(page.locator("#workers")).to_contain_text("mailer-1")
    expect(page.locator("#longest")).to_contain_text("lost (worker gone, or cut off)")


@pytest.mark.full
def test_the_questions_of_development(night: dict[str, SyncQueue], page: Page) -> None:
    # 6: what happened to the job I just added?
    job = night["billing"].add("charge", {"invoice": 4711}, job_id="invoice-4711")
    page.keyboard.press("/")
    page.keyboard.type(job.id)
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("invoice-4711")
    # 7: why does it not run?
    expect(page.locator("#why")).to_contain_text("paused")
    # 8: which jobs concern this customer?
    page.goto("./")
    page.get_by_role("searchbox").fill("ann7@example.org")
    page.keyboard.press("Enter")
    expect(page.locator("#hits tr")).to_have_count(1)
    expect(page.locator("#hits")).to_contain_text("t7")
    assert "ann7" not in page.url


@pytest.mark.full
def test_the_questions_of_a_mixed_fleet(night: dict[str, SyncQueue], page: Page) -> None:
    page.reload()
    # 9: who runs this queue, and is pausing safe?
    expect(page.locator("[id='queue-emails']")).to_contain_text("1 Node")
    follow(page.locator("[id='queue-emails']").get_by_role("link", name="emails"))
    page.get_by_role("button", name="Pause…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Running jobs continue")
    dialog.get_by_role("link", name="Go back").click()
    expect(dialog).to_be_hidden()
    # 10: did the schedule run, when next, is it late?
    page.get_by_role("link", name="Schedules", exact=True).click()
    expect(page.locator("#schedules")).to_contain_text("late")
    expect(page.locator("#schedules")).to_contain_text("every hour")
    expect(page.locator("#schedules")).to_contain_text("✓done 3 min")


# Acting


def press_twice(page: Page, name: str) -> None:
    """Press a button that sends its own request. Wait for the response if timers are stopped."""
    page.get_by_role("button", name=name).click()
    follow(page.get_by_role("button", name=f"{name}: sure?"))


@pytest.mark.full
def test_a_job_is_retried_by_pressing_twice(night: dict[str, SyncQueue], page: Page) -> None:
    stop_timers(page)
    page.goto("job?q=emails&id=t3")
    button = page.get_by_role("button", name="Retry")
    button.click()
    expect(button).to_have_text("Retry: sure?")
    assert night["emails"].get_state("t3") == "failed"
    button.click()
    expect(page.get_by_role("status")).to_have_text("1 job will run again.")
    assert night["emails"].get_state("t3") == "waiting"


@pytest.mark.full
def test_selected_jobs_are_removed_after_a_question(
    night: dict[str, SyncQueue], page: Page
) -> None:
    page.goto("queue?q=emails&state=failed")
    for job_id in ("t1", "t2"):
        page.get_by_label(f"Select job {job_id}", exact=True).check()
    expect(page.locator(".bulk")).to_contain_text("2 selected of 25 shown")
    page.get_by_role("button", name="Remove…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Remove 2 jobs")
    dialog.get_by_role("button", name="Remove").click()
    expect(page.get_by_role("status")).to_have_text("2 jobs removed.")
    assert night["emails"].get_job("t1") is None


@pytest.mark.full
def test_jobs_are_downloaded_from_the_question_before_they_are_removed(
    night: dict[str, SyncQueue], page: Page
) -> None:
    page.goto("queue?q=emails&state=failed")
    for job_id in ("t1", "t2"):
        page.get_by_label(f"Select job {job_id}", exact=True).check()
    page.get_by_role("button", name="Remove…").click()
    dialog = page.get_by_role("dialog")
    for _ in range(2):
        with page.expect_download() as expected:
            dialog.get_by_role("button", name="Download first").click()
        assert expected.value.suggested_filename == "jobs.jsonl"
        lines = Path(expected.value.path()).read_bytes().splitlines()
        assert [read_copy(line).id for line in lines] == ["t1", "t2"]
    dialog.get_by_role("button", name="Remove").click()
    expect(page.get_by_role("status")).to_have_text("2 jobs removed.")


@pytest.mark.full
def test_a_promoted_job_is_delayed_again_by_pressing_twice(
    night: dict[str, SyncQueue], page: Page
) -> None:
    [late] = night["emails"].get_jobs("delayed")
    stop_timers(page)
    page.goto(f"job?q=emails&id={late.id}")
    for name in ("Run now", "Delay again"):
        press_twice(page, name)
    expect(page.get_by_role("status")).to_have_text("1 job delayed again.")
    assert night["emails"].get_state(late.id) == "delayed"


@pytest.mark.full
def test_a_way_back_is_gone_when_its_time_is_over(night: dict[str, SyncQueue], page: Page) -> None:
    [late] = night["emails"].get_jobs("delayed")
    stop_timers(page)
    page.goto(f"job?q=emails&id={late.id}")
    press_twice(page, "Run now")
    expect(page.get_by_role("button", name="Delay again")).to_be_visible()
    page.clock.fast_forward(61_000)
    expect(page.get_by_role("button", name="Delay again")).to_have_count(0)


@pytest.mark.full
def test_a_queue_is_paused_with_a_reason_and_drained_by_its_name(
    night: dict[str, SyncQueue], page: Page
) -> None:
    page.goto("queue?q=reports")
    page.get_by_role("button", name="Pause…").click()
    page.get_by_label("Reason").fill("migration")
    follow(page.get_by_role("dialog").get_by_role("button", name="Pause"))
    expect(page.get_by_role("status")).to_have_text("reports paused.")
    page.get_by_role("button", name="Drain…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Type reports to confirm").fill("reports")
    dialog.get_by_role("button", name="Drain").click()
    expect(page.get_by_role("status")).to_contain_text("jobs removed from reports")
    assert night["reports"].counts()["waiting"] == 0
    page.get_by_role("link", name="Operations", exact=True).click()
    expect(page.locator("#operations")).to_contain_text("migration")


# Keeping up to date


@pytest.mark.full
def test_an_open_page_keeps_up_and_freezes(
    night: dict[str, SyncQueue], page: Page, admin: Any
) -> None:
    page.goto("queue?q=emails&state=failed")
    expect(page.locator("#age")).to_have_text("live")
    fail(admin, night["emails"], "new1", "ValueError: new", seconds_ago=0)
    expect(page.locator("[id='job-new1']")).to_be_visible()
    page.keyboard.press("p")
    expect(page.locator("#age")).to_have_text("frozen")
    fail(admin, night["emails"], "new2", "ValueError: new", seconds_ago=0)
    tick = page.get_by_label("Select job new1")
    tick.check()
    page.keyboard.press("p")
    tick.blur()
    page.keyboard.press("p")
    expect(page.locator("#age")).to_have_text("live")
    expect(page.locator("[id='job-new2']")).to_be_visible()
    expect(tick).to_be_checked()  # A row that has the user's focus is not replaced.


@pytest.mark.full
def test_keys_can_be_turned_off(night: dict[str, SyncQueue], page: Page) -> None:
    page.keyboard.press("?")
    page.get_by_label("Enable keyboard shortcuts").uncheck()
    page.get_by_role("button", name="Close").click()
    page.keyboard.press("p")
    expect(page.locator("#age")).to_have_text("live")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.get_by_role("button", name="Keyboard").click()
    expect(page.get_by_label("Enable keyboard shortcuts")).not_to_be_checked()


# Without JavaScript


@pytest.mark.full
def test_all_works_without_javascript(
    night: dict[str, SyncQueue], browser: Browser, base: str
) -> None:
    with visiting(browser, base, java_script_enabled=False) as page:
        follow(page.get_by_role("link", name="emails").first)
        follow(page.get_by_role("link", name="Failed"))
        follow(page.get_by_role("link", name="t5", exact=True))
        follow(page.get_by_role("button", name="Retry"))
        page.get_by_label("reset to the full number").check()
        follow(page.get_by_role("button", name="Retry"))
        expect(page.get_by_role("status")).to_have_text("1 job will run again.")
        page.goto("queue?q=emails&state=failed")
        page.get_by_label("Select job t6", exact=True).check()
        follow(page.get_by_role("button", name="Remove…"))
        follow(page.get_by_role("button", name="Remove"))
        expect(page.get_by_role("status")).to_have_text("1 job removed.")


# Safety


@pytest.mark.full
def test_hostile_text_does_nothing(
    make_queue: MakeQueue, admin: Any, browser: Browser, base: str
) -> None:
    name = "<img src=x onerror=alert(1)>"
    queue = make_queue(name)
    queue.add(HOSTILE, {HOSTILE: HOSTILE})
    fail(admin, queue, "f", HOSTILE, name=HOSTILE, data={HOSTILE: HOSTILE}, stack=[HOSTILE])
    admin.rpush(queue.keys.logs("f"), HOSTILE)
    with visiting(browser, base) as page:
        dialogs: list[str] = []

        def note(dialog: Dialog) -> None:
            dialogs.append(dialog.message)
            dialog.dismiss()

        page.on("dialog", note)
        follow(page.get_by_role("link", name=name).first)
        follow(page.get_by_role("link", name="Failed"))
        page.get_by_role("button", name="Drain…").click()
        page.get_by_role("dialog").get_by_role("link", name="Go back").click()
        follow(page.get_by_role("link", name="f", exact=True))
        expect(page.locator("#error")).to_contain_text("onerror=alert(1)")
        fail(admin, queue, "g", HOSTILE, name=HOSTILE, seconds_ago=0)
        follow(page.get_by_role("link", name=name).first)
        follow(page.get_by_role("link", name="Failed"))
        fail(admin, queue, "h", HOSTILE, name=HOSTILE, seconds_ago=0)
        expect(page.locator("[id='job-h']")).to_be_visible()
        assert dialogs == []
        assert page.locator("img").count() == 0


@pytest.mark.full
def test_a_password_and_a_plain_name_work_together(
    night: dict[str, SyncQueue], browser: Browser, server: Reachable, prefix: str
) -> None:
    """On plain HTTP, browsers send at most `Origin` to identify a form's page."""
    options = ("--redis", server.url, "--prefix", prefix, "--auth-env", "DASH")
    with served(*options, DASH="ann:s3cret") as address:
        port = address.rstrip("/").rpartition(":")[2]
        mapped = [*FLAGS, "--host-resolver-rules=MAP dash.test 127.0.0.1"]
        other = browser.browser_type.launch(executable_path=chromium(), args=mapped)
        base = f"http://dash.test:{port}/"
        credentials = {"username": "ann", "password": "s3cret", "send": "always"}
        with visiting(other, base, http_credentials=credentials) as page:
            stop_timers(page)
            follow(page.get_by_role("link", name="billing").first)
            press_twice(page, "Resume")
            expect(page.get_by_role("status")).to_have_text("billing resumed.")
        other.close()


@pytest.mark.full
def test_a_chart_is_read_by_pointer_and_by_keys(night: dict[str, SyncQueue], page: Page) -> None:
    page.goto("queue?q=emails")
    chart = page.locator("figure.chart").first
    chart.locator(".period").nth(20).hover()
    expect(chart.locator(".value")).to_contain_text("completed 3")
    page.mouse.move(0, 0)
    expect(chart.locator(".value")).to_contain_text("the finished jobs that are still stored")
    chart.locator("svg").focus()
    page.keyboard.press("ArrowLeft")
    latest = chart.locator(".value").text_content() or ""
    page.keyboard.press("ArrowLeft")
    expect(chart.locator(".value")).not_to_have_text(latest)
    expect(chart.locator(".value")).to_contain_text("completed")
    page.get_by_text("Values as a table").click()
    expect(page.locator("#activity-values tr")).to_have_count(30)
    follow(page.get_by_role("link", name="Last day"))
    expect(page.locator("#activity-values tr")).to_have_count(48)


# Accessibility.


PAGES = {
    "overview": "./",
    "queue": "queue?q=emails&state=failed",
    "errors": "errors?q=emails",
    "job": "job?q=emails&id=t1",
    "retried": "job?q=emails&id=late",
    "schedules": "schedules",
    "workers": "workers",
    "operations": "operations",
    "redis": "redis",
}


def settings_of(scheme: str, width: int) -> dict[str, Any]:
    size = {"width": width, "height": 900 if width > 400 else 780}
    return {"viewport": size, "color_scheme": scheme, "bypass_csp": True}


@pytest.mark.parametrize("picture", sorted(FOLDER.glob("*.png")), ids=lambda path: path.stem)
@pytest.mark.full
def test_a_page_looks_as_in_the_documentation(
    night: dict[str, SyncQueue], browser: Browser, base: str, picture: Path
) -> None:
    name, scheme, width = picture.stem.split("-")
    with visiting(browser, base, **settings_of(scheme, int(width))) as page:
        page.goto(PAGES[name])
        expect(page.locator("#keys-help")).not_to_have_attribute("hidden", "")  # Scripts have run.
        if name == "overview":  # All keys were searched, and two samples taken.
            expect(page.locator("#finding")).to_be_hidden()
            expect(page.locator("[data-label='In/s']").first).not_to_have_text("–")
        taken = page.screenshot()
        if SCREENSHOTS:
            (Path(SCREENSHOTS) / picture.name).write_bytes(taken)
            (Path(SCREENSHOTS) / FONTS.name).write_text(f"{fonts(page)}\n")
            return
        if fonts(page) != known_fonts():
            pytest.skip("this machine has other fonts than the pictures in docs/images")
    found = compare(browser, picture.read_bytes(), taken)
    assert found.sizes[0] == found.sizes[1]
    assert found.share <= MOST, f"{found.share:.1%} of it differ: CONTRIBUTING.md says what to do"


@pytest.mark.full
def test_different_screenshots_are_detected(browser: Browser) -> None:
    first, other = FOLDER / "errors-light-1440.png", FOLDER / "job-light-1440.png"
    assert compare(browser, first.read_bytes(), first.read_bytes()).share == 0
    assert compare(browser, first.read_bytes(), other.read_bytes()).share > MOST
    small = FOLDER / "overview-dark-360.png"
    assert compare(browser, first.read_bytes(), small.read_bytes()).share == 1


@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 360)])
@pytest.mark.full
def test_every_page_is_accessible(
    night: dict[str, SyncQueue], browser: Browser, base: str, scheme: str, width: int
) -> None:
    found: list[str] = []
    with visiting(browser, base, **settings_of(scheme, width)) as page:
        for address in PAGES.values():
            page.goto(address)
            found += violations(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, address
        page.goto("queue?q=emails")
        page.get_by_role("button", name="Drain…").click()
        expect(page.get_by_role("dialog")).to_be_visible()
        found += violations(page)
    assert found == []


@pytest.mark.full
def test_every_question_with_fields_is_accessible(
    night: dict[str, SyncQueue], browser: Browser, base: str
) -> None:
    [late] = night["emails"].get_jobs("delayed")
    asked = {
        "errors?q=emails": ("Retry all…", "Retry…"),
        "queue?q=emails": ("Limits…",),
        f"job?q=emails&id={late.id}": ("Delay…", "Priority…", "Remove…", "Edit and re-add…"),
    }
    with visiting(browser, base, bypass_csp=True) as page:
        for address, buttons in asked.items():
            for name in buttons:
                page.goto(address)
                page.get_by_role("button", name=name).first.click()
                expect(page.get_by_role("dialog")).to_be_visible()
                assert violations(page) == []
