"""Authentication, forged forms, and the security headers of every response."""

from __future__ import annotations

import base64
import logging
from itertools import product
from typing import Any

import pytest

from taskbull.dashboard import Access, Audit, Dashboard
from taskbull.dashboard.access import SECURITY, BasicAuth, TokenAuth
from taskbull.dashboard.actions.queues import ACTIONS
from taskbull.dashboard.messages import Refused, Request, Response
from taskbull.errors import ConfigurationError
from tests.dashboard.conftest import MakeQueue, Visitor
from tests.servers.kinds import VALKEY_9, Reachable, SharedServers

PAGES = ["", "queue?q=q", "errors?q=q", "job?q=q&id=1", "schedules", "workers", "operations"]
PAGES += ["metrics"]


@pytest.fixture
def server(shared_servers: SharedServers) -> Reachable:
    """One kind of server is enough, because nothing here depends on Redis."""
    return shared_servers.get(VALKEY_9)


def basic(credentials: str) -> str:
    return f"Basic {base64.b64encode(credentials.encode()).decode()}"


# Origin of requests.


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
async def test_a_browser_on_this_machine_is_served(dashboard: Dashboard, peer: str) -> None:
    assert (await Visitor(dashboard, peer).get("")).status_code == 200


@pytest.mark.parametrize("peer", ["10.0.0.5", "::ffff:10.0.0.5", "fe80::1", "", "unix"])
async def test_another_machine_sees_how_to_get_access(dashboard: Dashboard, peer: str) -> None:
    answer = await Visitor(dashboard, peer).get("")
    assert answer.status_code == 403
    assert "access=" in answer.text


@pytest.mark.parametrize(
    "header", ["forwarded", "x_forwarded_for", "x_forwarded_host", "x_real_ip", "via"]
)
async def test_what_a_proxy_passes_on_is_refused(dashboard: Dashboard, header: str) -> None:
    answer = await Visitor(dashboard).get("", **{header: "127.0.0.1"})
    assert answer.status_code == 403
    assert "proxy" in answer.text


@pytest.mark.parametrize("host", ["localhost", "localhost:8080", "127.0.0.1:1", "[::1]:8080"])
async def test_a_name_of_this_machine_is_known(dashboard: Dashboard, host: str) -> None:
    assert (await Visitor(dashboard).get("", host=host)).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "10.0.0.5", "127.0.0.1.nip.io"]
)
async def test_a_name_that_somebody_gave_this_machine_is_refused(
    dashboard: Dashboard, host: str
) -> None:
    answer = await Visitor(dashboard).get("", host=host)
    assert answer.status_code == 403
    assert "allow_hosts" in answer.text


async def test_a_name_can_be_allowed_with_and_without_its_port(
    server: Reachable, prefix: str
) -> None:
    hosts = ["dash.test", "other.test:81"]
    visitor = Visitor(Dashboard(redis=server.url, prefix=prefix, allow_hosts=hosts))
    for host, status in {"dash.test:9": 200, "other.test:81": 200, "other.test:82": 403}.items():
        assert (await visitor.get("", host=host)).status_code == status


# Who


async def test_a_function_says_who_may_look(server: Reachable, prefix: str) -> None:
    async def rule(scope: Any) -> Access | None:
        return Access("ann") if scope["query_string"] == b"ann" else None

    visitor = Visitor(Dashboard(redis=server.url, prefix=prefix, access=rule), "10.0.0.5")
    allowed = await visitor.get("?ann", host="any.example", x_forwarded_for="1.2.3.4")
    assert allowed.status_code == 200
    assert ">ann<" in allowed.text
    assert (await visitor.get("?bob")).status_code == 403


async def test_a_password_is_asked_for(server: Reachable, prefix: str) -> None:
    visitor = Visitor(
        Dashboard(redis=server.url, prefix=prefix, access=BasicAuth("ann:s:ü")), "10.0.0.5"
    )
    asked = await visitor.get("")
    assert (asked.status_code, asked.headers["www-authenticate"][:5]) == (401, "Basic")
    for wrong in ("ann:x", "bob:s:ü", "ann", ""):
        assert (await visitor.get("", authorization=basic(wrong))).status_code == 401
    assert (await visitor.get("", authorization="Basic ***")).status_code == 401
    assert (await visitor.get("", authorization=basic("ann:s:ü"))).status_code == 200


async def test_wrong_passwords_lock_a_user_out_for_a_minute(server: Reachable, prefix: str) -> None:
    now = 100.0
    auth = BasicAuth("ann:right", clock=lambda: now)
    dashboard = Dashboard(redis=server.url, prefix=prefix, access=auth)
    visitor, other = Visitor(dashboard, "10.0.0.5"), Visitor(dashboard, "10.0.0.6")
    for _ in range(30):
        # A request without credentials does not count.
        assert (await visitor.get("")).status_code == 401
    for _ in range(10):
        assert (await visitor.get("", authorization=basic("ann:wrong"))).status_code == 401
    locked = await visitor.get("", authorization=basic("ann:wrong"))
    assert (locked.status_code, locked.headers["retry-after"]) == (429, "61")
    # S14: no one can lock out users who know the password, or others behind the same proxy.
    assert (await visitor.get("", authorization=basic("ann:right"))).status_code == 200
    assert (await visitor.get("", authorization=basic("bob:wrong"))).status_code == 401
    assert (await other.get("", authorization=basic("ann:wrong"))).status_code == 401
    now += 61
    assert (await visitor.get("", authorization=basic("ann:wrong"))).status_code == 401


async def test_wrong_passwords_and_lock_outs_are_logged_without_the_password(  # S11
    server: Reachable, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    dashboard = Dashboard(redis=server.url, prefix=prefix, access=BasicAuth("ann:right"))
    visitor = Visitor(dashboard, "10.0.0.5")
    for _ in range(15):
        await visitor.get("", authorization=basic("e\nve\u202e:s3cret"))
    said = [record.getMessage() for record in caplog.records]
    wrong = "wrong password: user='e\\nve\\u202e' from='10.0.0.5'"
    assert said == [*[wrong] * 10, "locked out for a minute: user='e\\nve\\u202e' from='10.0.0.5'"]
    assert "s3cret" not in caplog.text


async def test_a_token_is_wanted_beside_the_checks_of_hosts_and_proxies(  # S8
    server: Reachable, prefix: str
) -> None:
    visitor = Visitor(Dashboard(redis=server.url, prefix=prefix, access=TokenAuth("t0ken-ü")))
    for headers in ({}, {"authorization": "Basic t0ken"}, {"cookie": "taskbull-80="}):
        assert (await visitor.get("", **headers)).status_code == 401, headers
    proxied = await visitor.get("?token=t0ken-%C3%BC", x_forwarded_for="10.0.0.1")
    rebound = await visitor.get("?token=t0ken-%C3%BC", host="evil.example")
    assert (proxied.status_code, rebound.status_code) == (403, 403)
    assert "set-cookie" not in {**proxied.headers, **rebound.headers}
    sent = await visitor.get("job?id=a%26b&token=t0ken-%C3%BC&q=%C3%A9")
    assert (sent.status_code, sent.headers["location"]) == (303, "job?id=a%26b&q=%C3%A9")
    assert (await visitor.get("")).status_code == 200  # the cookie
    assert (await visitor.get("?token=wrong")).headers["location"] == "./"


async def test_a_page_to_go_back_to_may_have_any_characters(visitor: Visitor) -> None:  # S17
    for back in ("queue?q=\u4f60", "queue?q=\U0001f600&n=1", "queue?q=%41é"):
        location = Response.redirect(back).headers["location"]
        assert location.isascii()
        assert "%25" not in location
    form = {"action": "pause", "q": "emails", "back": "queue?q=\u4f60\u597d"}
    done = await visitor.act(**form)
    assert done.status_code == 303


@pytest.mark.parametrize("setting", [{"access": "ann"}, {"allow": ["fly"]}, {"allow_hosts": "a"}])
def test_a_wrong_setting_is_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Dashboard(**setting)


# Forms of other sites.


@pytest.mark.parametrize(
    ("headers", "accepted"),
    [
        ({"sec_fetch_site": "same-origin"}, True),
        ({"sec_fetch_site": "same-origin", "origin": "http://localhost"}, True),
        ({"sec_fetch_site": "cross-site"}, False),
        ({"sec_fetch_site": "same-site"}, False),
        ({"sec_fetch_site": "none"}, False),
        ({"sec_fetch_site": "cross-site", "origin": "http://localhost"}, False),
        ({"origin": "http://localhost"}, True),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "http://localhost.evil.example"}, False),
        ({"origin": "null"}, False),
        ({"origin": ""}, False),
        ({"referer": "http://localhost/"}, False),
        ({"sec_fetch_site": "cross-site", "origin": "https://proxy.test"}, True),
        ({"origin": "https://proxy.test:444"}, True),
    ],
)
async def test_only_forms_of_the_dashboard_itself_count(
    server: Reachable, prefix: str, make_queue: MakeQueue, headers: dict[str, str], accepted: bool
) -> None:
    queue = make_queue("q")
    queue.add("send")
    visitor = Visitor(Dashboard(redis=server.url, prefix=prefix, trust_origins=["proxy.test"]))
    form = {"action": "pause", "q": "q", "once": "0" * 32}
    answer = await visitor.post("act", form, **headers)
    assert answer.status_code == (303 if accepted else 403)
    assert queue.is_paused() is accepted


async def test_nothing_is_done_by_a_link(visitor: Visitor, make_queue: MakeQueue) -> None:
    queue = make_queue("q")
    queue.add("send")
    answer = await visitor.get(f"act?action=pause&q=q&once={'0' * 32}")
    assert answer.status_code == 404
    assert not queue.is_paused()


# The gate


@pytest.mark.parametrize("who", ["reader", "one right less", "read-only", "another machine"])
async def test_no_action_is_open_to_who_may_not(
    server: Reachable, prefix: str, make_queue: MakeQueue, admin: Any, who: str
) -> None:
    make_queue("q").add("send", job_id="j")
    before = {key: admin.dump(key) for key in admin.keys(f"{prefix}*")}
    rights = frozenset[str]()
    rule = None if who in {"read-only", "another machine"} else lambda _: Access("x", rights)
    dashboard = Dashboard(
        redis=server.url, prefix=prefix, access=rule, read_only=who == "read-only", allow=ACTIONS
    )
    visitor = Visitor(dashboard, "10.0.0.5" if who == "another machine" else "127.0.0.1")
    for name, step in product(ACTIONS, ["confirm", "act", "download"]):
        if who == "one right less":
            rights = frozenset(ACTIONS) - {name}
        form = {"action": name, "q": "q", "id": "j", "typed": "q", "once": "0" * 32, "group": "x"}
        answer = await visitor.post(step, form)
        # A download needs no permission for its form's action, and changes nothing.
        gets_file = step == "download" and who == "one right less"
        assert answer.status_code == (200 if gets_file else 403), (name, step)
        if gets_file:
            assert answer.headers["content-disposition"].startswith("attachment")
            admin.delete(f"{prefix}::tb:operations")
        after = {key: admin.dump(key) for key in admin.keys(f"{prefix}*")}
        assert after == before, (name, step)


async def test_what_destroys_a_queue_has_to_be_allowed_by_name(
    visitor: Visitor, make_queue: MakeQueue
) -> None:
    queue = make_queue("q")
    queue.add("send")
    form = {"action": "obliterate", "q": "q", "typed": "q", "once": "0" * 32}
    answer = await visitor.post("act", form)
    assert answer.status_code == 403
    assert "--allow obliterate" in answer.text
    assert queue.counts()["waiting"] == 1


async def test_what_cannot_be_undone_asks_for_the_name(
    visitor: Visitor, make_queue: MakeQueue
) -> None:
    queue = make_queue("q")
    queue.add("send")
    form = {"action": "drain", "q": "q", "once": "0" * 32}
    assert (await visitor.post("act", {**form, "typed": "Q"})).status_code == 400
    assert queue.counts()["waiting"] == 1


# Audit records.


async def test_an_action_is_written_down_without_data(
    server: Reachable, prefix: str, make_queue: MakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Audit] = []
    make_queue("q").add("send", {"to": "s3cret"}, job_id="j")
    visitor = Visitor(Dashboard(redis=server.url, prefix=prefix, on_action=told.append))
    with caplog.at_level(logging.INFO, "taskbull.dashboard"):
        await visitor.act("remove", q="q", id="j", state="waiting")
    [line] = [
        record.getMessage() for record in caplog.records if record.name == "taskbull.dashboard"
    ]
    assert line == "remove queue='q' ids=['j'] count=1 group='' by='local' from=127.0.0.1: done"
    assert told == [Audit("remove", "q", ("j",), 1, "", "local", "127.0.0.1", "done")]
    assert "s3cret" not in caplog.text


async def test_a_listener_that_fails_changes_nothing(
    server: Reachable, prefix: str, make_queue: MakeQueue
) -> None:
    queue = make_queue("q")
    queue.add("send")

    def fail(_: Audit) -> None:
        raise RuntimeError

    visitor = Visitor(Dashboard(redis=server.url, prefix=prefix, on_action=fail))
    assert (await visitor.act("pause", q="q")).status_code == 303
    assert queue.is_paused()


# Headers of every response.


@pytest.mark.parametrize("address", [*PAGES, "static/style.css", "static/nothing", "nowhere"])
async def test_every_answer_has_the_headers(visitor: Visitor, address: str) -> None:
    answer = await visitor.get(address)
    for name, value in SECURITY.items():
        expected = (
            "no-cache" if address == "static/style.css" and name == "cache-control" else value
        )
        assert answer.headers[name] == expected, name


async def test_a_refusal_has_the_headers_too(dashboard: Dashboard) -> None:
    answer = await Visitor(dashboard, "10.0.0.5").get("")
    assert SECURITY.items() <= dict(answer.headers).items()


def test_the_policy_lets_nothing_in() -> None:
    policy = SECURITY["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "require-trusted-types-for 'script'" in policy


async def test_a_file_that_the_browser_has_is_not_sent_again(visitor: Visitor) -> None:
    first = await visitor.get("static/style.css")
    again = await visitor.get("static/style.css", if_none_match=first.headers["etag"])
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    "path", ["static/../asgi.py", "static/%2e%2e/asgi.py", "static/", "static//etc/passwd"]
)
async def test_no_other_file_is_served(visitor: Visitor, path: str) -> None:
    assert (await visitor.get(path)).status_code == 404


# Invalid forms.


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{}", "application/json", 415),
        (b"&".join([b"id=1"] * 1200), "application/x-www-form-urlencoded", 413),
        (b"", "application/x-www-form-urlencoded", 400),
        (b"action=fly", "application/x-www-form-urlencoded", 400),
        (b"action=retry&q=q", "application/x-www-form-urlencoded", 400),
        (b"action=retry&q=q&id=1", "application/x-www-form-urlencoded", 400),
        (b"action=retry&q=q&id=1&once=zz", "application/x-www-form-urlencoded", 400),
        (b"action=pause&q=a:b&once=00000000000000000", "application/x-www-form-urlencoded", 400),
        (b"action=%ff%00&q=%ff", "application/x-www-form-urlencoded", 400),
    ],
)
async def test_a_form_that_makes_no_sense_is_refused(
    visitor: Visitor, body: bytes, kind: str, status: int
) -> None:
    headers = {"sec-fetch-site": "same-origin", "content-type": kind}
    answer = await visitor.client.post("/act", content=body, headers=headers)
    assert answer.status_code == status


async def test_a_form_that_does_not_end_is_not_read_to_its_end() -> None:
    chunks = 0

    async def receive() -> dict[str, Any]:
        nonlocal chunks
        chunks += 1
        return {"type": "http.request", "body": b"y" * 100_000, "more_body": True}

    kind = (b"content-type", b"application/x-www-form-urlencoded")
    scope = {"type": "http", "method": "POST", "path": "/act", "headers": [kind]}
    with pytest.raises(Refused, match="longer than"):
        await Request(scope, receive).form()
    assert chunks == 11


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
async def test_other_methods_are_refused(visitor: Visitor, method: str) -> None:
    assert (await visitor.client.request(method, "/")).status_code == 405


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"app": "redis://localhost"}, "app must be an App"),
        ({"read_only": 0}, "read_only must be True or False"),
        ({"redact": "ssn"}, "redact must be a list of names"),
        ({"redact": [5]}, "a name in redact must be a string"),
        ({"allow": 5}, "allow must be a list of actions"),
        ({"allow_hosts": None}, "allow_hosts must be a list of names"),
        ({"allow_hosts": "jobs.example.org"}, "allow_hosts must be a list of names"),
        ({"trust_origins": [None]}, "a name in trust_origins must be a string"),
    ],
)
def test_an_invalid_setting_is_named(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        Dashboard(**settings)
