"""The first words on a connection: who is let in, which servers are good enough, what is said."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from hiredis import ProtocolError, Reader, ReplyError

from taskbull.errors import ConnectionLost, ServerRefused, TaskbullError
from taskbull.store.address import Endpoint, parse
from taskbull.store.async_store import open_store
from taskbull.store.connection import ConnectionOptions
from taskbull.store.credentials import Credentials
from taskbull.store.protocol import Handshake, dial_error
from taskbull.store.sync_store import SyncStore
from tests.servers.kinds import PrivateServers
from tests.servers.waiting import plain_client
from tests.store.sample import Peer, Words, bulk, command, count, greet

HERE = Endpoint("localhost", 7000)
LIMIT = 60.0

ONCE = ConnectionOptions(connect_timeout=1.5, max_reconnect_attempts=1)


def info(version: str) -> bytes:
    return f"# Server\r\nredis_version:{version}\r\nos:Linux\r\n".encode()


def said(handshake: Handshake) -> list[list[bytes]]:
    reader = Reader()
    reader.feed(b"".join(handshake.commands()))
    found = []
    while (words := reader.gets()) is not False:
        found.append(words)
    return found


@pytest.mark.parametrize(
    ("handshake", "expected"),
    [
        (Handshake(Credentials()), []),
        (Handshake(Credentials(None, "pw")), [[b"AUTH", b"pw"]]),
        (Handshake(Credentials("anna", "p w")), [[b"AUTH", b"anna", b"p w"]]),
        (Handshake(Credentials(), 3), [[b"SELECT", b"3"]]),
        (Handshake(Credentials(), name="jobs:1"), [[b"CLIENT", b"SETNAME", b"jobs:1"]]),
        (
            Handshake(Credentials(None, "pw"), 3, "jobs", primary_only=True),
            [[b"AUTH", b"pw"], [b"SELECT", b"3"], [b"CLIENT", b"SETNAME", b"jobs"], [b"ROLE"]],
        ),
    ],
)
def test_no_more_is_said_than_is_needed(handshake: Handshake, expected: list[Words]) -> None:
    assert said(handshake) == [*expected, [b"INFO", b"server"], [b"PING"]]


@pytest.mark.parametrize(
    "version", ["6.2.0", "6.2.14", "7.0.15", "7.2.4", "8.0", "255.255.255", "", "unstable", "10"]
)
def test_a_server_that_is_new_enough_is_used(version: str) -> None:
    Handshake(Credentials()).check(HERE, [info(version), b"PONG"])


@pytest.mark.parametrize("version", ["2.8.24", "5.0.7", "6.0.16", "6.0", "6.1.9"])
def test_a_server_that_is_too_old_is_refused(version: str) -> None:
    with pytest.raises(ServerRefused) as caught:
        Handshake(Credentials()).check(HERE, [info(version), b"PONG"])
    assert caught.value.code == "VERSION"
    assert str(caught.value) == (
        f"localhost:7000 runs Redis {version}; taskbull needs 6.2 or newer, or Valkey"
    )


def test_a_path_in_the_information_that_is_no_text_does_no_harm() -> None:
    # A file system's names are bytes, and the server tells those of its program and its files.
    told = info("7.0.15") + b"executable:/home/\xff\xfe/redis-server\r\n"
    Handshake(Credentials()).check(HERE, [told, b"PONG"])


def test_who_may_not_ask_for_the_version_is_let_in() -> None:
    forbidden = ReplyError("NOPERM User anna has no permissions to run the 'info' command")
    Handshake(Credentials("anna", "pw")).check(HERE, [b"OK", forbidden, b"PONG"])


@pytest.mark.parametrize("place", [0, 1])
def test_other_things_may_not_be_forbidden(place: int) -> None:
    replies: list[Any] = [b"OK", info("7.0.0"), b"PONG"]
    replies[2 * place] = ReplyError("NOPERM no permissions")
    with pytest.raises(ServerRefused) as caught:
        Handshake(Credentials(), 3).check(HERE, replies)
    assert caught.value.code == "NOPERM"


@pytest.mark.parametrize(
    "refusal",
    [
        "NOPERM User anna has no permissions to run the 'client|setname' command",  # F22
        "ERR unknown command 'CLIENT', with args beginning with: 'SETNAME'",
    ],
)
@pytest.mark.parametrize("primary_only", [False, True])
def test_a_server_that_lets_us_have_no_name_is_used_anyway(
    refusal: str, primary_only: bool
) -> None:
    role = [[b"master", 0, []]] if primary_only else []
    replies = [b"OK", b"OK", ReplyError(refusal), *role, info("7.0.0"), b"PONG"]
    handshake = Handshake(Credentials(None, "x"), 1, "me", primary_only)
    handshake.check(HERE, replies)
    replies[1] = ReplyError(refusal)
    with pytest.raises(ServerRefused):
        handshake.check(HERE, replies)


def test_a_missing_or_wrong_password_is_reported_with_the_server_and_the_setting() -> None:
    for code in ("NOAUTH", "WRONGPASS"):
        with pytest.raises(ServerRefused, match=rf"^Redis at localhost:7000: {code}.*URL") as told:
            Handshake(Credentials()).check(HERE, [ReplyError(f"{code} no."), b"PONG"])
        assert "TASKBULL_REDIS_URL" in str(told.value)


@pytest.mark.parametrize("role", [b"slave", b"sentinel"])
def test_only_a_primary_is_used_where_one_is_needed(role: bytes) -> None:
    replies: list[Any] = [[role, b"host", 1], info("7.0.0"), b"PONG"]
    with pytest.raises(ConnectionLost, match="localhost:7000 is a replica, not the primary"):
        Handshake(Credentials(), primary_only=True).check(HERE, replies)
    replies[0] = [b"master", 0, []]
    Handshake(Credentials(), primary_only=True).check(HERE, replies)


@pytest.mark.parametrize(
    "trouble",
    [
        "LOADING Redis is loading the dataset in memory",
        "BUSY Redis is busy running a script",
        "MASTERDOWN Link with MASTER is down",
        "ERR max number of clients reached",
    ],
)
def test_what_may_pass_is_waited_for(trouble: str) -> None:
    with pytest.raises(ConnectionLost, match=f"localhost:7000: {trouble}"):
        Handshake(Credentials()).check(HERE, [info("7.0.0"), ReplyError(trouble)])


@pytest.mark.parametrize(
    "trouble",
    [
        "NOAUTH Authentication required.",
        "WRONGPASS invalid username-password pair or user is disabled.",
        "ERR AUTH <password> called without any password configured for the default user.",
        "ERR DB index is out of range",
    ],
)
def test_what_will_not_pass_is_refused_immediately(trouble: str) -> None:
    with pytest.raises(ServerRefused, match=trouble[:12]) as caught:
        Handshake(Credentials(), 99).check(HERE, [ReplyError(trouble), info("7.0.0"), b"PONG"])
    assert caught.value.code == trouble.partition(" ")[0]


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (TimeoutError(), ConnectionLost, "no answer from localhost:7000 within 5 s"),
        (ProtocolError("H"), ServerRefused, "localhost:7000 does not speak the Redis protocol"),
        (ssl.SSLError(1, "no"), ServerRefused, "localhost:7000: no TLS connection"),
        (
            ConnectionRefusedError(111, "whatever it is called"),
            ConnectionLost,
            "cannot connect to localhost:7000: Connection refused",
        ),
        (
            anyio.EndOfStream(),
            ConnectionLost,
            "cannot connect to localhost:7000: the connection was closed by the server",
        ),
    ],
)
def test_an_error_of_the_network_is_reported_in_words(
    error: Exception, expected: type[TaskbullError], message: str
) -> None:
    told = dial_error(HERE, error, 5.0, tls=False)
    assert type(told) is expected
    assert str(told).startswith(message)


def without(first: bytes, reply: bytes | None) -> Callable[[Words], bytes | None]:
    """Greet as a server does, but answer one command in another way."""
    return lambda words: reply if words[0] == first else greet(words)


def turned_away(message: bytes) -> Callable[[Words], bytes | None]:
    """Send one error on a new connection and close it, as servers that refuse clients do."""
    heard: list[Words] = []

    def answer(words: Words) -> bytes | None:
        heard.append(words)
        return message if len(heard) % 2 else None

    return answer


PEERS: list[Any] = [
    pytest.param(
        without(b"INFO", bulk(info("5.0.7"))), ServerRefused, "runs Redis 5.0.7", id="old"
    ),
    pytest.param(
        # K9: it answers with an error, and closes the connection.
        lambda words: b"-ERR unknown command 'info'\r\n" if words[0] == b"INFO" else None,
        ServerRefused,
        "unknown command 'info'. It then closed the connection",
        id="incomplete",
    ),
    pytest.param(
        without(b"PING", b"-LOADING in memory\r\n"), ConnectionLost, "LOADING in memory", id="load"
    ),
    pytest.param(
        without(b"PING", b"-NOAUTH Authentication required.\r\n"),
        ServerRefused,
        "NOAUTH Authentication required",
        id="noauth",
    ),
    pytest.param(
        without(b"INFO", b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        ServerRefused,
        "does not speak the Redis protocol",
        id="garbage",
    ),
    pytest.param(
        without(b"INFO", None), ConnectionLost, "the connection was closed by the server", id="shut"
    ),
    pytest.param(
        without(b"PING", b""), ConnectionLost, "no answer from 127.0.0.1:[0-9]+ within", id="silent"
    ),
    pytest.param(
        turned_away(b"-ERR max number of clients reached\r\n"),
        ConnectionLost,
        "max number of clients reached",
        id="full",
    ),
    pytest.param(
        turned_away(b"-DENIED Redis is running in protected mode\r\n"),
        ServerRefused,
        "DENIED Redis is running in protected mode",
        id="denied",
    ),
]


@pytest.mark.parametrize(("answer", "expected", "message"), PEERS)
async def test_callers_of_a_store_get_the_errors_of_its_peer(
    answer: Callable[[Words], bytes | None],
    expected: type[TaskbullError],
    message: str,
    prefix: str,
) -> None:
    with Peer(answer) as peer, anyio.fail_after(LIMIT), pytest.raises(expected, match=message):
        async with open_store(parse(peer.url), ONCE) as store:
            await store.run(count(prefix))


@pytest.mark.parametrize(("answer", "expected", "message"), PEERS)
def test_callers_of_a_sync_store_get_the_errors_of_its_peer(
    answer: Callable[[Words], bytes | None],
    expected: type[TaskbullError],
    message: str,
    prefix: str,
) -> None:
    with Peer(answer) as peer, pytest.raises(expected, match=message):
        SyncStore(parse(peer.url)).run(count(prefix), timeout=1.0)


async def test_a_refusal_is_reported_once_and_the_next_call_tries_again(prefix: str) -> None:
    answers = {b"INFO": bulk(info("5.0.7"))}
    with Peer(lambda words: answers.get(words[0]) or greet(words)) as peer:
        async with open_store(parse(peer.url)) as store:
            with pytest.raises(ServerRefused):
                await store.run(command("ECHO"))
            answers.clear()  # it was replaced
            assert await store.run(command("ECHO")) == b"ECHO"
    assert peer.accepted == 2


@pytest.mark.parametrize("kind", ["valkey-9", "redis-6.2", "redis-7"])
def test_a_full_server_says_so(private_server: PrivateServers, kind: str, prefix: str) -> None:
    server = private_server(kind=kind)
    with plain_client(server) as client:
        client.execute_command("CONFIG", "SET", "maxclients", "1")
        with pytest.raises(ConnectionLost, match="max number of clients reached"):
            SyncStore(parse(server.url)).run(count(prefix), timeout=1.0)


@pytest.mark.parametrize("kind", ["valkey-9", "redis-6.2", "redis-7"])
def test_a_user_with_few_rights_is_let_in(
    private_server: PrivateServers, kind: str, prefix: str
) -> None:
    server = private_server(kind=kind)
    with plain_client(server) as client:
        rights = ("on", ">p@ss", "~*", "+evalsha", "+script", "+hincrby", "+ping")
        client.execute_command("ACL", "SETUSER", "anna", *rights)
    url = f"redis://anna:p%40ss@127.0.0.1:{server.port}"
    store = SyncStore(parse(url))
    assert store.run(count(prefix)) == 1
    store.close()
