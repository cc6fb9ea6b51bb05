"""The command `doctor`: checks of the app, Redis and the queues, and ACL rules."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from shlex import quote
from statistics import median
from typing import Any, TypeAlias, TypeVar, assert_never

import click
from msgspec import Struct

from taskbull.app.app import App
from taskbull.cli.app_loading import app_argument, find_app_of_server, server_options
from taskbull.cli.errors import FAILED, LOST_NODE, advice, note
from taskbull.cli.output import cell, json_option, plural, printable, show_json
from taskbull.cli.server import open_server
from taskbull.core.diagnosis import find_trouble
from taskbull.core.hosting import Service, identify
from taskbull.core.keys import JobState
from taskbull.core.queue_health import QueueFacts
from taskbull.core.schedule import Schedule
from taskbull.core.validation import command, instant_to_ms
from taskbull.errors import ConfigurationError, SerializationError, ServerRefused, TaskbullError
from taskbull.monitor.browse import QueueSample
from taskbull.monitor.server import Node, SyncServer
from taskbull.observability.logs import cut

# `taskbull doctor --acl`: the minimal ACL rules for a Redis user.


_FILE = Path(__file__).parent / "least_rights.acl"


def rules() -> list[str]:
    """Return the ACL rules for all commands that taskbull needs."""
    lines = _FILE.read_text("utf-8").splitlines()
    return [rule for line in lines if not line.startswith("#") for rule in line.split()]


def key_rule(server: SyncServer, queue: str | None = None) -> str:
    """Return the ACL rule for the keys of a queue, or of all queues."""
    return _rule(server.key_pattern(queue))


def shared_key_rule(server: SyncServer) -> str:
    """Return the ACL rule for the keys that all queues share, such as the list of queues."""
    return _rule(server.shared_key_pattern)


def _rule(pattern: str) -> str:
    """Return the ACL rule for a pattern.

    Spaces, quotes and unprintable characters become wildcards, because a space would start
    another rule.
    """
    return "~" + "".join(
        "?" * len(c.encode()) if c in "\"' " or not c.isprintable() else c for c in pattern
    )


def acl_of(server: SyncServer, queues: Sequence[str]) -> str:
    """Return the ACL line of a user, for these queues or for all queues under the prefix."""
    keys = [key_rule(server)]
    if queues:
        keys = [*(key_rule(server, queue) for queue in queues), shared_key_rule(server)]
    words = ["on", ">PASSWORD", "resetkeys", *keys, "resetchannels", "-@all", *rules()]
    return f"taskbull {' '.join(words)}"


# Findings: one line per check.


class Level(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(Struct, frozen=True):
    """The result of a check, with advice on how to fix a problem."""

    check: str
    level: Level
    message: str
    advice: str = ""


def ok(check: str, message: str) -> Finding:
    """Return a finding for a passed check."""
    return Finding(check, Level.OK, message)


def warning(check: str, message: str, advice: str = "") -> Finding:
    """Return a finding for something that works but needs attention."""
    return Finding(check, Level.WARNING, message, advice)


def problem(check: str, message: str, advice: str = "") -> Finding:
    """Return a finding for something that does not work or may lose jobs."""
    return Finding(check, Level.PROBLEM, message, advice)


_COLOURS = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "red"}


def show(finding: Finding) -> None:
    """Print a finding on one line, and its advice on the next."""
    level = click.style(f"{finding.level:<8}", fg=_COLOURS[finding.level])
    click.echo(f"{level} {finding.check:<12} {printable(finding.message)}")
    if finding.advice:
        click.echo(f"{'':<22}→ {printable(finding.advice)}")


def summary(findings: Sequence[Finding]) -> str:
    """Return the numbers of problems and warnings as text."""
    problems = sum(finding.level is Level.PROBLEM for finding in findings)
    warnings = sum(finding.level is Level.WARNING for finding in findings)
    if not problems and not warnings:
        return "No problems found."
    return f"Problems: {problems}, warnings: {warnings}."


def describe(finding: Finding) -> dict[str, Any]:
    """Return a finding as it appears in JSON output."""
    return {
        "check": finding.check,
        "level": str(finding.level),
        "message": finding.message,
        "advice": finding.advice or None,
    }


# Rights of the Redis user: try every command, and leave nothing behind.


_USEFUL = {"CLIENT ID", "CLIENT SETNAME", "CLIENT KILL", "CLIENT LIST", "SCAN"}
"""Optional commands.

Without them everything works, but less is visible, and lost connections are resolved less
carefully.
"""


def check_rights(
    server: SyncServer, known: Sequence[str], lost: Container[Node] = ()
) -> Iterator[Finding]:
    """Try every command on each server that holds a queue, and the keys that queues share."""
    is_refused = False
    for node, queue in _places(server, known).items():
        for finding in () if node in lost else _check(server, node, queue):
            is_refused = is_refused or finding.check == "writing"
            yield finding
    if is_refused:  # The shared keys would only be refused for the same reason.
        return
    try:
        server.try_shared_keys()
    except ServerRefused as error:
        if error.code != "NOPERM" or "key" not in str(error):
            return  # `_check` reports it.
        yield problem(
            "permissions",
            "the user may not access the keys that queues share: the dashboard cannot change jobs",
            f"ACL SETUSER <user> {shared_key_rule(server)}; taskbull doctor --acl prints all "
            "required rules",
        )


def first_trouble(server: SyncServer, queue: str) -> str:
    """Return the first problem with a queue's server, or an empty string."""
    for finding in _check(server, server.server_of(queue), queue):
        if finding.level == "problem":
            return finding.message
    return ""


def _places(server: SyncServer, known: Sequence[str]) -> dict[Node, str]:
    """Return one queue per server. If there are no queues yet, use any name."""
    try:
        names = server.queues()
    except ServerRefused:  # SCAN is forbidden, which `_check` reports.
        names = list(known)
    places: dict[Node, str] = {}
    for name in reversed(names or ["default"]):
        with suppress(ConfigurationError):  # not a valid queue name for taskbull
            places[server.server_of(name)] = name
    return places


def _check(server: SyncServer, node: Node, queue: str) -> Iterator[Finding]:
    try:
        refused = server.refused_commands(queue)
    except ServerRefused as error:
        if error.code == "NOPERM" and "key" in str(error):
            yield _about_keys(server, node, queue)
        else:
            yield problem("writing", f"{node} refuses commands: {error}", advice(error))
        return
    needed = [name for name in refused if name not in _USEFUL]
    useful = [name for name in refused if name in _USEFUL]
    if needed and all("key" in refused[name] for name in needed):
        yield _about_keys(server, node, queue)
    elif needed:
        yield problem("permissions", f"{node} forbids {', '.join(needed)}", _grant(needed))
    if useful:
        yield warning(
            "permissions",
            f"{node} forbids {', '.join(useful)}: everything works, but less well",
            _grant(useful),
        )
    if not refused:
        yield ok("permissions", f"{node} grants all required commands")


def _about_keys(server: SyncServer, node: Node, queue: str) -> Finding:
    return problem(
        "permissions",
        f"{node} does not let the user access the keys of queue {queue}",
        f"ACL SETUSER <user> {key_rule(server, queue)}; taskbull doctor --acl prints all "
        "required rules",
    )


def _grant(commands: list[str]) -> str:
    rules = " ".join(f"+{name.lower().replace(' ', '|')}" for name in commands)
    return f"ACL SETUSER <user> {rules}; taskbull doctor --acl prints all required rules"


# Checks of a server.


T = TypeVar("T")

Fields: TypeAlias = dict[str, str]

_PINGS = 7
_SLOW = 0.02
"""Round trip time in seconds that counts as slow. A job needs one or two round trips."""

_SKEW = 1.0
_BAD_SKEW = 10.0
_NEARLY_FULL = 0.9


def check_server(server: SyncServer, node: Node) -> Iterator[Finding]:
    """Check one of the Redis servers that hold the queues."""
    name = str(node)
    fields = _info(server, node)
    if isinstance(fields, ServerRefused):
        forbidden = fields.code == "NOPERM"
        yield warning(
            "server",
            f"{name} does not describe itself (INFO is {'forbidden' if forbidden else 'unknown'}): "
            "its version, memory and persistence are not checked",
            "" if forbidden else "taskbull is tested with Redis 6.2 or newer, and Valkey",
        )
    else:
        address = server.namespace.address
        service = identify([end.host for end in address.endpoints], fields)
        yield _version(fields, name, service)
        if service is not None and identify([end.host for end in address.endpoints]) is None:
            yield from check_service(service, _place(server))
        yield from _role(address.topology, fields, name)
        yield from _memory(fields, name, service)
        yield from _persistence(server, node, fields, service)
    yield _latency(server, node)
    yield _clock(server, node)


def _info(server: SyncServer, node: Node) -> Fields | ServerRefused:
    try:
        return server.info(node)
    except ServerRefused as error:
        return error


class Place(Struct, frozen=True):
    """Topology and encryption of the connection to Redis."""

    topology: str
    tls: bool = False
    tagged: bool = False
    """True if queue names are hash tags."""


def _place(server: SyncServer) -> Place:
    address = server.namespace.address
    tagged = "{" in server.namespace.keys("any").base
    return Place(address.topology, address.tls is not None, tagged)


def check_service(service: Service, place: Place) -> Iterator[Finding]:
    """Check the address of a hosted service."""
    scheme = "rediss" if service.tls or place.tls else "redis"
    if service.tls and not place.tls:
        yield problem(
            "service",
            f"{service.name} accepts TLS only",
            f"use a {scheme}{'+cluster' if service.cluster else ''}:// URL",
        )
    if service.cluster and place.topology != "cluster":
        yield problem(
            "service",
            f"{service.name} is always a Redis Cluster",
            f"use a {scheme}+cluster:// URL",
        )
    if service.hash_tag and not place.tagged:
        yield warning(
            "service",
            f"the names of queues are not hash tags on {service.name}: {service.hash_tag}",
            f"App(hash_tag=True), or a {scheme}+cluster:// URL",
        )
    yield ok("service", f"{service.name}: {service.note}")


def _version(fields: Fields, name: str, service: Service | None = None) -> Finding:
    version = fields.get("redis_version", "")
    if "dragonfly_version" in fields:
        return ok("server", f"{name} runs Dragonfly {fields['dragonfly_version']}")
    for field, product in {"keydb_version": "KeyDB", "garnet_version": "Garnet"}.items():
        if field in fields:
            return warning(
                "server",
                f"{name} runs {product} {fields[field]}, which taskbull is not tested with",
                "use Redis 6.2 or newer, or Valkey",
            )
    if service is not None and "upstash_version" in fields:
        return ok("server", f"{name} runs {service.name}, compatible with Redis {version}")
    if fields.get("server_name") == "valkey" or "valkey_version" in fields:
        return ok("server", f"{name} runs Valkey {fields.get('valkey_version', version)}")
    return ok("server", f"{name} runs Redis {version}")


def _role(topology: str, fields: Fields, name: str) -> Iterator[Finding]:
    if fields.get("role") not in {"master", None}:
        yield problem(
            "topology", f"{name} is a replica: nothing can be written", "connect to its primary"
        )
    if fields.get("cluster_enabled") == "1" and topology != "cluster":
        yield problem(
            "topology",
            f"{name} is a node of a Redis Cluster, used as a single server",
            "use a redis+cluster:// URL",
        )
    replicas = fields.get("connected_slaves", "0")
    if topology in {"sentinel", "cluster"} and replicas == "0":
        yield warning("topology", f"{name} has no replica that could take over if it fails")


def _memory(fields: Fields, name: str, service: Service | None = None) -> Iterator[Finding]:
    policy = fields.get("maxmemory_policy", "")
    limit = int(fields.get("maxmemory", 0))
    used = int(fields.get("used_memory", 0))
    advice = service.eviction if service else "CONFIG SET maxmemory-policy noeviction"
    if policy == "noeviction":
        yield ok("memory", f"{name} evicts nothing (maxmemory-policy noeviction)")
    elif policy and limit:
        yield problem(
            "memory", f"{name} may evict jobs and locks: maxmemory-policy is {policy}", advice
        )
    elif policy:
        yield warning(
            "memory",
            f"{name} would evict jobs and locks if it had a memory limit: maxmemory-policy is "
            f"{policy}",
            advice,
        )
    if limit and used > _NEARLY_FULL * limit:
        full = used >= limit and policy == "noeviction"
        yield (problem if full else warning)(
            "memory",
            f"{name} uses {used / limit:.0%} of its memory; when it is full, no job can be added",
            "remove finished jobs (taskbull clean), keep fewer of them, or raise maxmemory",
        )


def _persistence(
    server: SyncServer, node: Node, fields: Fields, service: Service | None = None
) -> Iterator[Finding]:
    name = str(node)
    advice = "CONFIG SET appendonly yes, and in its configuration file"
    if service is not None:
        yield hosted_persistence(service, fields)
    elif fields.get("aof_enabled") == "1":
        yield ok("persistence", f"{name} keeps an append-only file")
    elif (points := _save_points(server, node)) is None:
        yield warning(
            "persistence",
            f"{name} keeps no append-only file; whether it takes snapshots is not known",
            advice,
        )
    elif points:
        yield warning(
            "persistence",
            f"{name} keeps snapshots only (save {points}): a crash loses the jobs since the last",
            advice,
        )
    else:
        yield warning("persistence", f"{name} saves nothing: a restart loses all jobs", advice)
    for field in ("rdb_last_bgsave_status", "aof_last_write_status", "aof_last_bgrewrite_status"):
        if fields.get(field, "ok") != "ok":
            yield problem(
                "persistence",
                f"{name} could not write to its disk ({field} is {fields[field]}): it may refuse "
                "all changes",
                "look at its log, and at the space on its disk",
            )


def hosted_persistence(service: Service, fields: Fields) -> Finding:
    """Return the finding about persistence for a hosted service."""
    if service.durable:
        return ok("persistence", f"{service.name}: {service.durable}")
    if fields.get("aof_enabled") == "1":
        return ok("persistence", f"{service.name} keeps an append-only file")
    return warning(
        "persistence",
        f"{service.name} keeps no append-only file: a crash or failover can lose jobs",
        service.persistence,
    )


def _save_points(server: SyncServer, node: Node) -> str | None:
    try:
        return server.save_points(node)
    except ServerRefused:  # Most hosting providers forbid CONFIG.
        return None


def _latency(server: SyncServer, node: Node) -> Finding:
    times = [_timed(lambda: server.ping(node))[0] for _ in range(_PINGS)]
    usual = median(times)
    message = f"{node} answers in {usual * 1000:.2g} ms (the slowest of {_PINGS}: "
    message += f"{max(times) * 1000:.2g} ms)"
    if usual > _SLOW:
        return warning("latency", message, "run workers close to their Redis")
    return ok("latency", message)


def _clock(server: SyncServer, node: Node) -> Finding:
    try:
        took, theirs = _timed(lambda: server.time(node))
    except ServerRefused:
        return warning("clock", f"{node} does not report its time (TIME is forbidden)")
    ours = time.time() - took / 2
    skew = theirs - ours
    if abs(skew) < _SKEW:
        return ok("clock", f"{node} and this machine differ by {abs(skew) * 1000:.0f} ms")
    behind = "ahead of" if skew > 0 else "behind"
    message = f"the clock of {node} is {abs(skew):.1f} s {behind} this machine's"
    advice = "synchronize all machines with NTP: delayed jobs depend on the clocks of the workers"
    return (problem if abs(skew) >= _BAD_SKEW else warning)("clock", message, advice)


def _timed(ask: Callable[[], T]) -> tuple[float, T]:
    began = time.perf_counter()
    answer = ask()
    return time.perf_counter() - began, answer


def major_of(version: str | None) -> int | None:
    """Return the BullMQ major version from a queue's version string, or None."""
    found = re.fullmatch(r"bullmq[^:]*:(\d+)\..*", version or "")
    return int(found[1]) if found else None


# Checks of a queue.


_MANY = 100_000
_LOOKED_AT = 500
"""Maximum number of active jobs whose locks are checked."""
_LATE = timedelta(minutes=1)
"""Tolerated delay of a scheduled run, because workers may be busy."""


def check_queues(
    server: SyncServer, app: App | None = None, lost: Container[Node] = ()
) -> Iterator[Finding]:
    """Check all queues and report which clients use them."""
    try:
        found = server.survey()
    except ServerRefused as error:
        yield problem("queues", f"the queues cannot be read: {error}", "check the ACL rules")
        return
    if not found:
        yield ok("queues", f"none under the prefix {server.prefix!r}")
    if any(queue.workers is None and queue.problem is None for queue in found):
        yield warning("workers", "the server does not list its clients (CLIENT LIST)")
    for queue in found:
        try:
            yield from _check_queue(server, queue, app, lost)
        except (ServerRefused, ConfigurationError, SerializationError) as error:
            is_denied = isinstance(error, ServerRefused) and error.code == "NOPERM"
            remedy = advice(error) if is_denied else _REPAIR
            yield problem("queue", f"{queue.name}: cannot be read: {error}", remedy)


_REPAIR = "look at the types of its keys, and who writes to them; the other queues are not affected"


def _check_queue(
    server: SyncServer, queue: QueueSample, app: App | None, lost: Container[Node]
) -> Iterator[Finding]:
    if queue.problem is not None:
        remedy = LOST_NODE if server.server_of(queue.name) in lost else _REPAIR
        yield problem("queue", f"{queue.name}: cannot be read: {queue.problem}", remedy)
        return
    yield _who(queue)
    facts = server.facts(queue.name)
    yield from _waiting(queue, facts, app)
    yield from _stalled(server, queue)
    yield from _pausing(queue, facts)
    yield from _kept(queue)
    yield from _schedules(server, queue, app)
    yield from _troubles(facts)


_CHECKED = {
    *("unreadable", "no_worker", "stalled", "paused", "split", "late", "refused", "own_clock")
}
"""Codes of problems that `doctor` finds by itself, with more detail."""


def _troubles(queue: QueueFacts) -> Iterator[Finding]:
    """Find the other problems that `taskbull top` and the dashboard show."""
    for trouble in find_trouble(queue):
        if trouble.code not in _CHECKED:
            look = trouble.remedy if trouble.remedy in {"errors", "workers"} else "why"
            advice = command(look, queue.name)
            yield warning("queue", f"{queue.name}: {trouble.text}", advice)


def _who(queue: QueueSample) -> Finding:
    shown = ", ".join(f"{count:,} {state}" for state, count in queue.counts.items() if count)
    users = {
        None: "",
        5: f"; used by Node BullMQ 5 ({queue.version})",
        6: f"; used by Node BullMQ 6 ({queue.version})",
    }
    user = users.get(major_of(queue.version), f"; used by {queue.version}")
    if queue.version is not None and major_of(queue.version) is None:
        user = f"; used by {queue.version}"
    workers = "" if queue.workers is None else f"; {plural(queue.workers, 'worker')} connected"
    return ok("queue", f"{queue.name}: {shown or 'empty'}{user}{workers}")


def _waiting(queue: QueueSample, facts: QueueFacts, app: App | None) -> Iterator[Finding]:
    ready = queue.counts[JobState.WAITING] + queue.counts[JobState.PRIORITIZED]
    # A worker that always had jobs has a record, but may not have a named connection yet.
    if ready and queue.workers == 0 and facts.workers == 0 and not queue.paused:
        yield warning(
            "queue",
            f"{queue.name}: {plural(ready, 'job')} waiting, but no worker is connected",
            f"taskbull worker -q {quote(queue.name)}{_any_queue(queue.name, app)}",
        )


def _any_queue(queue: str, app: App | None) -> str:
    """Return the flag that a worker needs for a queue that its app does not use."""
    return "" if app is None or queue in app.known_queues else " --any-queue"


def _stalled(server: SyncServer, queue: QueueSample) -> Iterator[Finding]:
    if not queue.counts[JobState.ACTIVE]:
        return
    running = server.active(queue.name, _LOOKED_AT)
    still = [row.job.id for row in running if row.lock_seconds is None]
    if still:
        yield warning(
            "queue",
            f"{queue.name}: {plural(len(still), 'running job')} without a lock (stalled): "
            f"{', '.join(still[:5])}",
            "a worker returns them at its next check; if they stay, no worker is running",
        )


def _pausing(queue: QueueSample, facts: QueueFacts) -> Iterator[Finding]:
    if not queue.paused:
        return
    said = [one.text for one in find_trouble(facts) if one.code == "paused" and facts.note]
    parked = queue.counts[JobState.PAUSED]
    waiting = queue.counts[JobState.WAITING]
    total = parked + waiting + queue.counts[JobState.PRIORITIZED]
    yield warning(
        "queue",
        f"{queue.name}: {said[0] if said else 'paused'}; {plural(total, 'job')} cannot run",
        command("resume", queue.name),
    )
    if major_of(queue.version) == 5 and waiting and parked:
        yield warning(
            "queue",
            f"{queue.name}: jobs are in both of its lists, and BullMQ 5 would lose some when it "
            "resumes or pauses the queue",
            f"resume it with {command('resume', queue.name)}, which loses none",
        )


def _kept(queue: QueueSample) -> Iterator[Finding]:
    kept = queue.counts[JobState.COMPLETED] + queue.counts[JobState.FAILED]
    if kept >= _MANY:
        yield warning(
            "queue",
            f"{queue.name}: {kept:,} finished jobs are kept and use memory",
            f"{command('clean', queue.name, options='--older-than 7d')}; and keep fewer: "
            "keep_completed=Keep(…)",
        )


def _is_stored(server: SyncServer, late: Sequence[Schedule]) -> bool:
    """Return True if the last run of a schedule is still waiting or active."""
    unfinished = {JobState.WAITING, JobState.ACTIVE}
    runs = zip(late, server.last_runs(late), strict=True)
    return any(
        run is not None
        and run.state in unfinished
        and each.last_due is not None
        and run.id.endswith(f":{instant_to_ms(each.last_due)}")
        for each, run in runs
    )


def _schedules(server: SyncServer, queue: QueueSample, app: App | None) -> Iterator[Finding]:
    found = server.schedules(queue.name)
    if app is not None and found:
        declared = app.declared_schedules
        if ids := [each.id for each in found if declared.no_longer_include(each)]:
            yield warning(
                "schedules",
                f"{queue.name}: app '{app.name}' no longer declares {', '.join(ids[:5])}, but "
                f"{'it still runs' if len(ids) == 1 else 'they still run'}",
                "taskbull schedules sync --prune",
            )
    yield from _doubled(queue, found)
    if old := [each for each in found if each.is_old]:
        yield warning(
            "schedules",
            f"{queue.name}: {plural(len(old), 'repeatable job')} of BullMQ 3, 4 or early 5, which "
            f"BullMQ 6 does not run: {', '.join(cut(each.id) for each in old[:5])}",
            "replace them with schedules (upsert_schedule, or Node's upsertJobScheduler), then "
            f"taskbull schedules remove {queue.name} ID",
        )
    yield from _overdue(server, queue, found)


def _doubled(queue: QueueSample, found: Sequence[Schedule]) -> Iterator[Finding]:
    """Report schedules that add the same job at the same times."""
    alike: dict[object, list[str]] = {}
    for each in found:
        if not each.ended and each.rule is not None:
            alike.setdefault((each.task, each.rule, each.raw_data), []).append(each.id)
    for ids in alike.values():
        if len(ids) > 1:
            yield warning(
                "schedules",
                f"{queue.name}: {', '.join(ids[:5])} add the same job at the same times",
                f"{command('schedules remove', queue.name)} ID",
            )


def _overdue(
    server: SyncServer, queue: QueueSample, found: Sequence[Schedule]
) -> Iterator[Finding]:
    latest = datetime.now(UTC) - _LATE
    late = [each for each in found if each.next_run is not None and each.next_run < latest]
    if not late:
        return
    names = ", ".join(cut(each.id) for each in late[:5])
    since = min(each.next_run for each in late if each.next_run is not None)
    if queue.paused:
        advice = command("resume", queue.name)
    elif any(each.is_pending for each in late) or _is_stored(server, late):
        start = f"taskbull worker -q {quote(queue.name)}"
        advice = f"{start}, or more of them: each run adds the next one"
    else:
        advice = "the job of the next run is gone: taskbull schedules sync, or upsert it again"
    yield warning(
        "schedules",
        f"{queue.name}: the next run of {plural(len(late), 'schedule')} is overdue, since "
        f"{cell(since)}: {names}",
        advice,
    )


# `taskbull doctor`.


@click.command()
@app_argument
@server_options
@json_option
@click.option(
    "--acl",
    is_flag=False,
    flag_value="file",
    type=click.Choice(["file", "setuser"]),
    show_default="file",
    help="Print a least-privilege Redis user, for an ACL file or for ACL SETUSER.",
)
def doctor(
    named: str | None,
    app: str | None,
    redis: str | None,
    prefix: str | None,
    as_json: bool,
    acl: str | None,
) -> None:
    """Check the app, Redis and the queues, and suggest fixes."""
    app = app or named
    if acl is not None:
        begin = "user" if acl == "file" else "ACL SETUSER"
        note("replace PASSWORD with your own password")
        found = find_app_of_server(app, redis)
        queues = found.known_queues if found is not None else []
        click.echo(f"{begin} {acl_of(open_server(found, redis, prefix), queues)}")
        return
    findings: list[Finding] = []
    for finding in _examine(app, redis, prefix):
        findings.append(finding)
        if not as_json:
            show(finding)
    if as_json:
        show_json([describe(finding) for finding in findings])
    else:
        click.echo(summary(findings))
    if any(finding.level is Level.PROBLEM for finding in findings):
        raise click.exceptions.Exit(FAILED)


def _examine(app: str | None, redis: str | None, prefix: str | None) -> Iterator[Finding]:
    found: App | None = None
    try:
        found = find_app_of_server(app, redis)
    except click.ClickException as error:
        yield problem("app", error.message)
    else:
        yield _app(found)
    try:
        server = open_server(found, redis, prefix)
    except click.ClickException as error:
        yield problem("redis", error.message)
        return
    # Before connecting, because the wrong kind of URL may be why that fails.
    if service := identify([end.host for end in server.namespace.address.endpoints]):
        yield from check_service(service, _place(server))
    try:
        lost = server.lost_servers()
        yield from _reach(server, lost)
    except TaskbullError as error:
        yield problem("redis", f"{server.address} cannot be used: {error}", advice(error, server))
        return
    checks = [check_server(server, node) for node in server.servers() if node not in lost]
    checks.append(check_rights(server, [] if found is None else found.queues, lost))
    checks.append(check_queues(server, found, lost))
    for check in checks:
        try:
            yield from check
        except TaskbullError as error:
            if not lost:  # Otherwise the other checks concern the nodes that answer.
                text = f"{server.address} became unavailable during the checks: {error}"
                yield problem("redis", text)
                return


def _app(app: App | None) -> Finding:
    if app is None:
        return ok("app", "no app given: only Redis is checked")
    queues = ", ".join(app.queues) or "none"
    return ok("app", f"{app.name} has {plural(len(app.tasks), 'task')}; its queues: {queues}")


def _reach(server: SyncServer, lost: Mapping[Node, str]) -> Iterator[Finding]:
    """Check that Redis answers, and report its topology and the nodes that do not answer."""
    server.ping()
    yield ok("redis", f"{server.address} is reachable")
    nodes = server.servers()
    for node, reason in lost.items():
        text = f"{node}, one of {plural(len(nodes), 'master')}, does not answer, so its queues "
        yield problem("redis", f"{text}cannot be used: {reason}", LOST_NODE)
    address = server.namespace.address
    match address.topology:
        case "cluster":
            yield _cluster(server, nodes, next(node for node in nodes if node not in lost))
        case "sentinel":
            named = f"the sentinels name {nodes[0]} the primary of {address.service}"
            yield ok("topology", named)
        case "embedded":
            yield ok("topology", "a private server on this machine, for development")
        case "single":
            yield ok("topology", "a single server")
        case _:
            assert_never(address.topology)


def _cluster(server: SyncServer, nodes: Sequence[Node], asked: Node) -> Finding:
    state = server.cluster_info(asked)
    message = f"a Redis Cluster with {plural(len(nodes), 'master')}"
    slots = state.get("cluster_slots_ok", "?")
    if state.get("cluster_state") != "ok":
        return problem(
            "topology",
            f"{message} that is incomplete: its state is {state.get('cluster_state')}, "
            f"{slots} of 16384 slots are served",
            "look at CLUSTER NODES",
        )
    return ok(
        "topology", f"{message}, complete; the names of queues are hash tags, as in {{emails}}"
    )
