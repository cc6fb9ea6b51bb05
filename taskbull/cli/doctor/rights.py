"""What Redis lets our user do: every command is tried, and nothing of it stays."""

from __future__ import annotations

import re
from collections.abc import Iterator
from secrets import token_hex

from taskbull.cli.advice import advice
from taskbull.cli.doctor.findings import Finding, ok, problem, warning
from taskbull.cli.site import Site
from taskbull.core.keys import QueueKeys
from taskbull.errors import ServerRefused
from taskbull.scripts.call import Word
from taskbull.scripts.trial import try_commands
from taskbull.store.address import Endpoint

_USEFUL = {"CLIENT ID", "CLIENT SETNAME", "CLIENT KILL", "CLIENT LIST", "SCAN"}
"""Commands without which everything runs, but less is seen, or links are settled with less care."""


def check_rights(site: Site) -> Iterator[Finding]:
    """Try to write, with every command, on each server that holds a queue."""
    for server, keys in _places(site).items():
        yield from _check(site, server, keys)


def first_trouble(site: Site, queue: str) -> str:
    """Say what keeps us from working on a queue; nothing if all is well."""
    keys = site.keys(queue)
    for finding in _check(site, site.redis.server_of(keys.base), keys):
        if finding.level == "problem":
            return finding.message
    return ""


def _places(site: Site) -> dict[Endpoint, QueueKeys]:
    """Give one queue for each server; where there is none yet, any name does."""
    try:
        names = site.names()
    except ServerRefused:  # SCAN is forbidden, as will be told
        names = list(site.app.queues) if site.app else []
    every = [site.keys(name) for name in names or ["default"]]
    return {site.redis.server_of(keys.base): keys for keys in reversed(every)}


def _check(site: Site, server: Endpoint, keys: QueueKeys) -> Iterator[Finding]:
    token = token_hex(8)
    try:
        refused = _try_scripts(site, server, keys, token)
    except ServerRefused as error:
        if error.code == "NOPERM" and "key" in str(error):
            yield _about_keys(server, keys)
        else:
            yield problem("writing", f"{server} refuses our commands: {error}", advice(error))
        return
    refused |= _try_plainly(site, server, keys, token)
    needed = [name for name in refused if name not in _USEFUL]
    useful = [name for name in refused if name in _USEFUL]
    if needed and all("key" in refused[name] for name in needed):
        yield _about_keys(server, keys)
    elif needed:
        yield problem("rights", f"{server} forbids {', '.join(needed)}", _grant(needed))
    if useful:
        yield warning(
            "rights",
            f"{server} forbids {', '.join(useful)}: everything works, but less well",
            _grant(useful),
        )
    if not refused:
        yield ok("rights", f"{server} lets us write, and run every command we need")


def _try_scripts(site: Site, server: Endpoint, keys: QueueKeys, token: str) -> dict[str, str]:
    call = try_commands(keys, token)
    site.redis.ask(server, "SCRIPT", "LOAD", call.script.source)
    return call.parse(site.redis.ask(server, *call.words))


def _try_plainly(site: Site, server: Endpoint, keys: QueueKeys, token: str) -> dict[str, str]:
    """Try what is sent without a script."""
    key = keys.private("doctor", token, "none")
    tried: list[tuple[str, tuple[Word, ...]]] = [
        ("BZPOPMIN", ("BZPOPMIN", key, 0.01)),
        ("XREAD", ("XREAD", "COUNT", 1, "STREAMS", key, "0")),
        ("CLIENT ID", ("CLIENT", "ID")),
        ("CLIENT SETNAME", ("CLIENT", "SETNAME", "taskbull-doctor")),
        ("CLIENT KILL", ("CLIENT", "KILL", "ID", 1 << 62)),
        ("CLIENT LIST", ("CLIENT", "LIST")),
        ("SCAN", ("SCAN", 0, "COUNT", 1)),
    ]
    refused: dict[str, str] = {}
    for name, words in tried:
        try:
            site.redis.ask(server, *words)
        except ServerRefused as error:
            if error.code == "NOPERM" or "unknown command" in str(error):
                refused[name] = str(error)
    return refused


def _about_keys(server: Endpoint, keys: QueueKeys) -> Finding:
    return problem(
        "rights",
        f"{server} does not let our user access the keys of queue {keys.queue}",
        f"ACL SETUSER <user> ~{glob(keys.base)}*; taskbull doctor --acl prints all that is needed",
    )


def _grant(commands: list[str]) -> str:
    rules = " ".join(f"+{name.lower().replace(' ', '|')}" for name in commands)
    return f"ACL SETUSER <user> {rules}; taskbull doctor --acl prints all that is needed"


def glob(text: str) -> str:
    """Give a text as a pattern that only it fits."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", text)
