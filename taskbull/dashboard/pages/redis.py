"""The Redis page: memory, persistence, connections and slow calls of each server."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from taskbull.core.queue_health import RedisNode
from taskbull.dashboard import html as h
from taskbull.dashboard import layout as ui
from taskbull.dashboard.access import RequestContext
from taskbull.dashboard.state import DashboardState, Parts
from taskbull.monitor.overview import SlowCall

_FRESH: Final = 5.0
_FULL: Final = 0.9
"""Share of the memory limit above which it is a problem."""


async def show(dashboard: DashboardState, ctx: RequestContext) -> ui.Content:
    """Return the page about the Redis servers."""
    nodes = await read_nodes(dashboard, ctx)
    body = [h.div(h.h1("Redis"), class_="head"), await _cards(dashboard, ctx, nodes)]
    return ui.Content("Redis", body, "redis", live=h.url("live", page="redis"))


async def parts(dashboard: DashboardState, ctx: RequestContext) -> Parts:
    """Return the parts of the page that change."""
    nodes = await read_nodes(dashboard, ctx)
    return Parts({"redis": await _cards(dashboard, ctx, nodes)})


async def read_nodes(dashboard: DashboardState, ctx: RequestContext) -> list[RedisNode]:
    """Read the state of all servers, at most every 5 s."""
    return await dashboard.views.read(("redis",), ctx.server.nodes, _FRESH)


def redis_line(nodes: list[RedisNode]) -> h.Element:
    """Return one line about all servers, with a link to their page."""
    words = [_summary(node) for node in nodes[:3]]
    more = f" and {len(nodes) - 3} more servers" if len(nodes) > 3 else ""
    return h.p(
        "; ".join(words) + more, " ", ui.link("details ›", "redis"), id="redis-line", class_="quiet"
    )


def redis_troubles(nodes: list[RedisNode]) -> list[h.Element]:
    """Return the problems of the servers, as items of the list of problems."""
    return [
        h.li(
            h.span("!", class_="sign", aria_hidden="true"),
            ui.link("Redis", "redis"),
            h.span(f"{node.name}: {words}", class_="what"),
            ui.link("details ›", "redis"),
        )
        for node in nodes
        if (words := _problem(node))
    ]


def _problem(node: RedisNode) -> str:
    if node.problem:
        return f"does not answer: {node.problem}"
    if node.refusal:
        return f"refuses writes: {node.refusal}. No job can be added or started"
    if (node.share_used or 0) >= _FULL:
        return f"uses {ui.percent(node.share_used or 0)} of its memory limit"
    if node.info.get("maxmemory_policy", "noeviction") != "noeviction" and node.memory_limit:
        return f"may delete jobs when it is full (policy {node.info['maxmemory_policy']})"
    return ""


def _summary(node: RedisNode) -> str:
    if node.problem:
        return f"{node.name} does not answer"
    if node.memory_used is None:
        return f"{node.name} (INFO is not permitted)"
    limit = f" of {ui.size(node.memory_limit)}" if node.memory_limit else ""
    connected = _int(node, "connected_clients")
    clients = "" if connected is None else f" · {ui.plural(connected, 'client')}"
    return f"{node.version} · {ui.size(node.memory_used)}{limit}{clients}"


async def _cards(
    dashboard: DashboardState, ctx: RequestContext, nodes: list[RedisNode]
) -> h.Element:
    slow = await dashboard.views.read(("slow calls",), ctx.server.slow_calls, _FRESH)
    return h.div([_card(node, slow.get(node.name)) for node in nodes], id="redis", class_="stack")


def _card(node: RedisNode, slow: list[SlowCall] | None) -> h.Element:
    problem = _problem(node)
    if node.problem or node.memory_used is None:
        said = problem or "INFO is not permitted for this Redis user, so its state is unknown."
        return h.section(
            h.h2(node.name), h.p(said, class_="bad" if problem else "quiet"), class_="card"
        )
    facts = [(h.dt(name), h.dd(value)) for name, value in _facts(node) if value]
    health = "bad" if problem else "good"
    return h.section(
        h.h2(node.name),
        h.p(
            h.span("!" if problem else "✓", class_=f"sign {health}"),
            " ",
            f"It {problem}." if problem else "It accepts writes.",
            class_="why",
        ),
        h.dl(facts, class_="facts-list"),
        h.h3("Slow calls"),
        _slow(node, slow),
        class_="card",
    )


def _facts(node: RedisNode) -> list[tuple[str, h.Node]]:
    info = node.info
    used, limit, share = node.memory_used or 0, node.memory_limit, node.share_used
    memory = (
        f"{ui.size(used)} of {ui.size(limit)} ({ui.percent(share)})"
        if limit and share
        else ui.size(used)
    )
    policy = info.get("maxmemory_policy", "")
    safe = policy == "noeviction" or not limit
    return [
        ("Version", f"{node.version}, {info.get('role', '').replace('slave', 'replica')}"),
        ("Running for", ui.duration(_int(node, "uptime_in_seconds"))),
        ("Memory", ui.meter(100 * share, memory) if share is not None else f"{memory}, no limit"),
        ("Peak", ui.size(_int(node, "used_memory_peak") or 0)),
        (
            "When full",
            h.span(
                f"{policy} ",
                "(refuses writes, keeps jobs)"
                if policy == "noeviction"
                else "(deletes keys, may lose jobs)",
                class_=None if safe else "bad",
            ),
        ),
        ("Append-only file", _append_only(node)),
        ("Snapshot", _snapshot(node)),
        ("Clients", ui.number(_int(node, "connected_clients"))),
        ("Commands", f"{ui.number(_int(node, 'instantaneous_ops_per_sec'))} per second"),
    ]


def _append_only(node: RedisNode) -> h.Node:
    if node.info.get("aof_enabled") != "1":
        return "off"
    if node.info.get("aof_last_write_status", "ok") != "ok":
        return h.span("the last write failed", class_="bad")
    return "on"


def _snapshot(node: RedisNode) -> h.Node:
    if node.info.get("rdb_last_bgsave_status", "ok") != "ok":
        return h.span("the last one failed", class_="bad")
    saved = _int(node, "rdb_last_save_time")
    changes = ui.number(_int(node, "rdb_changes_since_last_save"))
    when = ui.ago(datetime.fromtimestamp(saved, UTC)) if saved else "none yet"
    return ["saved or started ", when, f", {changes} changes since"]


def _slow(node: RedisNode, calls: list[SlowCall] | None) -> h.Element:
    if calls is None:
        return h.p("SLOWLOG is not permitted for this Redis user.", class_="quiet")
    rows = [
        h.tr(
            ui.cell("When", ui.ago(datetime.fromtimestamp(call.at, UTC)), kind="nw"),
            ui.cell("Took", ui.duration(call.seconds), kind="n"),
            ui.cell("Command", h.code(call.command), kind="w"),
            ui.cell("Connection", call.client or "–"),
        )
        for call in calls
    ]
    name = f"slow-{node.name}"
    return ui.grid(
        name,
        ("When", "Took", "Command", "Connection"),
        rows,
        "None in the slow log (slowlog-log-slower-than sets the limit).",
    )


def _int(node: RedisNode, field: str) -> int | None:
    value = node.info.get(field, "")
    return int(value) if value.isdecimal() else None
