"""`taskbull doctor`: is everything as it should be, and if not, what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

import click

from taskbull.app.app import App
from taskbull.cli.advice import advice
from taskbull.cli.app_loading import app_argument, find_app_of_server, server_options
from taskbull.cli.doctor.acl import acl_of
from taskbull.cli.doctor.findings import Finding, Level, describe, ok, problem, show, summary
from taskbull.cli.doctor.queue_checks import check_queues
from taskbull.cli.doctor.rights import check_rights
from taskbull.cli.doctor.server_checks import check_server
from taskbull.cli.errors import FAILED, note
from taskbull.cli.server import open_server
from taskbull.cli.terminal import json_option, plural, show_json
from taskbull.errors import TaskbullError
from taskbull.queue.any_server import Node
from taskbull.queue.sync_server import SyncServer


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
    help="Print the least rights that a user of Redis needs, for an ACL file or for ACL SETUSER.",
)
def doctor(
    named: str | None,
    app: str | None,
    redis: str | None,
    prefix: str | None,
    as_json: bool,
    acl: str | None,
) -> None:
    """Examine the app, Redis and the queues; say what to do."""
    app = app or named
    if acl is not None:
        begin = "user" if acl == "file" else "ACL SETUSER"
        note("replace PASSWORD by a password of your own")
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
    try:
        yield from _reach(server)
    except TaskbullError as error:
        yield problem("redis", f"{server.address} cannot be used: {error}", advice(error, server))
        return
    try:
        for node in server.servers():
            yield from check_server(server, node)
        yield from check_rights(server, [] if found is None else found.queues)
        yield from check_queues(server)
    except TaskbullError as error:
        yield problem("redis", f"{server.address} was lost meanwhile: {error}")


def _app(app: App | None) -> Finding:
    if app is None:
        return ok("app", "no app given: only Redis is checked")
    queues = ", ".join(app.queues) or "none"
    return ok("app", f"{app.name} has {plural(len(app.tasks), 'task')}; its queues: {queues}")


def _reach(server: SyncServer) -> Iterator[Finding]:
    """Find out whether Redis answers, and what kind of place it is."""
    server.ping()
    yield ok("redis", f"{server.address} can be reached")
    nodes = server.servers()
    address = server.namespace.address
    match address.topology:
        case "cluster":
            yield _cluster(server, nodes)
        case "sentinel":
            named = f"the sentinels name {nodes[0]} the primary of {address.service}"
            yield ok("topology", named)
        case "embedded":
            yield ok("topology", "a private server of this machine, for development")
        case "single":
            yield ok("topology", "a single server")
        case _:
            assert_never(address.topology)


def _cluster(server: SyncServer, nodes: Sequence[Node]) -> Finding:
    state = server.cluster_info(nodes[0])
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
