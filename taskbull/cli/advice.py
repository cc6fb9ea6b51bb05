"""What to do about an error of Redis: one sentence that fits the trouble."""

from __future__ import annotations

from taskbull.errors import ServerRefused, TaskbullError
from taskbull.queue.sync_server import SyncServer

WHERE = "--redis URL, TASKBULL_REDIS_URL, or the app's redis=… (-A module:app names the app)"

_BY_CODE = {
    "NOAUTH": "put the user name and the password into the URL: redis://user:password@host",
    "WRONGPASS": "put the right user name and password into the URL: redis://user:password@host",
    "NOPERM": "let the user do it: taskbull doctor --acl prints the least rights that are needed",
    "DENIED": "give the server a password (requirepass), or let it listen on this machine only; "
    "protected-mode no is for networks that you trust",
    "READONLY": "it is a replica: connect to its primary, or use a redis+sentinel:// URL",
    "NOREPLICAS": "bring its replicas back, or lower min-replicas-to-write",
    "OOM": "raise maxmemory, or remove jobs (taskbull clean) and keep fewer of them",
    "MISCONF": "it cannot save its data: look at its log, and at the space on its disk",
    "LOADING": "wait: it reads its data after a start",
    "BUSY": "somebody's script runs for too long: SCRIPT KILL ends it",
    "CLUSTERDOWN": "look at CLUSTER NODES: some slots have no node",
    "MASTERDOWN": "its primary is away: bring it back, or promote the replica",
    "INCOMPLETE": "it is not a complete Redis server (fakeredis over TCP, for example): "
    "use Redis 6.2 or newer, Valkey, or embedded://",
    "VERSION": "use Redis 6.2 or newer, or Valkey",
}


def advice(error: TaskbullError, server: SyncServer | None = None) -> str:
    """Say what to do about an error; with `server`, what answers there is looked at if need be."""
    if isinstance(error, ServerRefused) and error.code not in {"TLS", "PROTOCOL"}:
        return _about_refusal(error)
    message = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in message:
        return _about_certificate(message)
    if "max number of clients" in message:
        return "raise maxclients, or close connections: CLIENT LIST shows whose they are"
    if any(words in message for words in ("refused", "not known", "No such file")):
        return f"start a server, or say where it is: {WHERE}; embedded:// needs none"
    return _about_the_other_side(server)


def _about_refusal(error: ServerRefused) -> str:
    if error.code != "INCOMPLETE" and "unknown command" in str(error).lower():
        return (
            "the command is disabled or renamed on the server, or a proxy does not know it: "
            "taskbull needs scripts (EVALSHA, SCRIPT LOAD) and blocking commands"
        )
    return _BY_CODE.get(error.code, "")


def _about_certificate(message: str) -> str:
    if "ostname" in message or "IP address" in message:
        return (
            "use the name that stands in the server's certificate, or ssl_check_hostname=false "
            "in the URL"
        )
    return (
        "name the authority that signed the server's certificate in the URL: "
        "rediss://…?ssl_ca_certs=/path/to/ca.pem"
    )


def _about_the_other_side(server: SyncServer | None) -> str:
    address = None if server is None else server.namespace.address
    endpoint = address.endpoints[0] if address is not None and address.endpoints else None
    if server is None or endpoint is None or endpoint.path:
        return f"start a server, or say where it is: {WHERE}"
    match server.wrong_protocol():
        case "tls":
            return "the server speaks TLS: write rediss:// instead of redis://"
        case "plain":
            return "the server does not speak TLS: write redis:// instead of rediss://"
        case _:
            pass
    return (
        f"is it Redis that listens at {endpoint}? A proxy in between must let scripts, blocking "
        "commands and CLIENT pass (twemproxy does not): connect to the server itself"
    )
