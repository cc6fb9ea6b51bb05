"""The handshake on a new connection: log in, select the database and check the server."""

from __future__ import annotations

from msgspec import Struct

from taskbull.errors import ConnectionLost, ServerRefused, TaskbullError
from taskbull.scripts.call import info as read_info
from taskbull.store.address import Credentials, Endpoint
from taskbull.store.delivery import Refusal, read_refusal
from taskbull.store.protocol import ProtocolError, Reply, ReplyError, pack
from taskbull.store.sockets import explain

_ADVICE = {
    "NOAUTH": " Put the password into the URL, as in redis://:password@host or "
    "redis://user:password@host (redis=…, TASKBULL_REDIS_URL or REDIS_URL)",
    "WRONGPASS": " The user name or password in the URL (redis=…, TASKBULL_REDIS_URL or REDIS_URL)"
    " is not the server's",
}

OLDEST = (6, 2)  # of Redis; Valkey reports 7.2 as its Redis version


class Handshake(Struct, frozen=True):
    """The first commands on a connection, and the check of their replies."""

    credentials: Credentials
    db: int = 0
    name: str = ""
    primary_only: bool = False

    def commands(self) -> list[bytes]:
        """Return the packed commands, which can be sent together."""
        words: list[tuple[str, ...]] = [self.credentials.words] if self.credentials.words else []
        if self.db:
            words.append(("SELECT", str(self.db)))
        if self.name:
            words.append(("CLIENT", "SETNAME", self.name))
        if self.primary_only:
            words.append(("ROLE",))
        words += [("INFO", "server"), ("PING",)]
        return [pack(command) for command in words]

    def check(self, endpoint: Endpoint, replies: list[Reply]) -> str:
        """Check the replies and return the server's run id, or "" if it is unknown.

        A client id is valid only within one run of a server. Raises `ConnectionLost` if a later
        attempt may succeed, otherwise `ServerRefused`.
        """
        complete = len(replies) == len(self.commands())
        info = replies[-2] if complete else None
        named = replies[-3 - self.primary_only] if complete and self.name else None
        for reply in replies:
            if not isinstance(reply, ReplyError) or reply is named or _lacks_info(reply, info):
                continue  # the client name and INFO are optional
            if complete and str(reply).startswith("MISCONF"):
                continue  # Redis cannot save, so it refuses PING and writes, but it can be read.
            if not complete and _is_unknown(reply):
                raise ServerRefused(
                    "INCOMPLETE",
                    f"Redis at {endpoint}: {reply}. It then closed the connection, which Redis "
                    "does not do after an error",
                )
            refusal = read_refusal(reply)
            if refusal.transient or "max number of clients" in refusal.message:
                raise ConnectionLost(f"{endpoint}: {refusal.message}")
            raise _refused(endpoint, refusal)
        if self.primary_only and replies[-3][0] != b"master":
            raise ConnectionLost(f"{endpoint} is a replica, not the primary")
        fields = read_info(info) if isinstance(info, bytes) else {}
        _check_version(endpoint, fields.get("redis_version", ""))
        return fields.get("run_id", "")


def _refused(endpoint: Endpoint, refusal: Refusal) -> TaskbullError:
    if not isinstance(refusal.error, ServerRefused):
        return refusal.error
    code = refusal.error.code
    return ServerRefused(code, f"Redis at {endpoint}: {refusal.message}{_ADVICE.get(code, '')}")


def _lacks_info(reply: ReplyError, info: Reply) -> bool:
    """Return True if INFO is forbidden or unknown. The version is then not checked."""
    return reply is info and (str(reply).startswith("NOPERM") or _is_unknown(reply))


def _is_unknown(reply: ReplyError) -> bool:
    return "unknown command" in str(reply).lower()


def _check_version(endpoint: Endpoint, version: str) -> None:
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers and numbers < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ServerRefused(
            "VERSION",
            f"{endpoint} runs Redis {version}; taskbull needs {oldest} or newer, or Valkey",
        )


def dial_error(endpoint: Endpoint, error: Exception, timeout: float, *, tls: bool) -> TaskbullError:
    """Return the error for a failed connection attempt.

    It is `ConnectionLost` if a later attempt may succeed, otherwise `ServerRefused`.
    """
    match error:
        case TimeoutError():
            # A server without TLS reads the greeting as an incomplete command, and waits.
            hint = "; does it support TLS?" if tls else ""
            seconds = float(f"{timeout:.2g}")  # the rest of a longer limit has many digits
            return ConnectionLost(f"no answer from {endpoint} within {seconds:g} s{hint}")
        case ProtocolError():
            return ServerRefused("PROTOCOL", f"{endpoint} does not speak the Redis protocol")
        case _ if type(error).__module__ == "ssl":  # ssl is imported only for TLS
            return ServerRefused("TLS", f"{endpoint}: no TLS connection ({error})")
        case _:
            return ConnectionLost(f"cannot connect to {endpoint}: {explain(error)}")
