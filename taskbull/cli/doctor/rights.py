"""What Redis lets our user do: every command is tried, and nothing of it stays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from taskbull.cli.advice import advice
from taskbull.cli.doctor.acl import key_rule
from taskbull.cli.doctor.findings import Finding, ok, problem, warning
from taskbull.errors import ConfigurationError, ServerRefused
from taskbull.queue.any_server import Node
from taskbull.queue.sync_server import SyncServer

_USEFUL = {"CLIENT ID", "CLIENT SETNAME", "CLIENT KILL", "CLIENT LIST", "SCAN"}
"""Commands without which everything runs, but less is seen, or links are settled with less care."""


def check_rights(server: SyncServer, known: Sequence[str]) -> Iterator[Finding]:
    """Try to write, with every command, on each server that holds a queue."""
    for node, queue in _places(server, known).items():
        yield from _check(server, node, queue)


def first_trouble(server: SyncServer, queue: str) -> str:
    """Say what keeps us from working on a queue; nothing if all is well."""
    for finding in _check(server, server.server_of(queue), queue):
        if finding.level == "problem":
            return finding.message
    return ""


def _places(server: SyncServer, known: Sequence[str]) -> dict[Node, str]:
    """Return one queue for each server; where there is none yet, any name does."""
    try:
        names = server.queues()
    except ServerRefused:  # SCAN is forbidden, as will be told
        names = list(known)
    places: dict[Node, str] = {}
    for name in reversed(names or ["default"]):
        with suppress(ConfigurationError):  # a name that no queue of ours can have
            places[server.server_of(name)] = name
    return places


def _check(server: SyncServer, node: Node, queue: str) -> Iterator[Finding]:
    try:
        refused = server.refused_commands(queue)
    except ServerRefused as error:
        if error.code == "NOPERM" and "key" in str(error):
            yield _about_keys(server, node, queue)
        else:
            yield problem("writing", f"{node} refuses our commands: {error}", advice(error))
        return
    needed = [name for name in refused if name not in _USEFUL]
    useful = [name for name in refused if name in _USEFUL]
    if needed and all("key" in refused[name] for name in needed):
        yield _about_keys(server, node, queue)
    elif needed:
        yield problem("rights", f"{node} forbids {', '.join(needed)}", _grant(needed))
    if useful:
        yield warning(
            "rights",
            f"{node} forbids {', '.join(useful)}: everything works, but less well",
            _grant(useful),
        )
    if not refused:
        yield ok("rights", f"{node} lets us write, and run every command we need")


def _about_keys(server: SyncServer, node: Node, queue: str) -> Finding:
    return problem(
        "rights",
        f"{node} does not let our user access the keys of queue {queue}",
        f"ACL SETUSER <user> {key_rule(server, queue)}; taskbull doctor --acl prints all that "
        "is needed",
    )


def _grant(commands: list[str]) -> str:
    rules = " ".join(f"+{name.lower().replace(' ', '|')}" for name in commands)
    return f"ACL SETUSER <user> {rules}; taskbull doctor --acl prints all that is needed"
