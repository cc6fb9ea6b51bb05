"""The decided reaction to every error reply."""

from __future__ import annotations

import pytest
from hiredis import ReplyError

from taskbull.errors import ConnectionLost, InvalidReply, ServerRefused, ServerUnavailable
from taskbull.store.address import Endpoint
from taskbull.store.protocol import Reaction, read_refusal

ASKED = Endpoint("asked.example.org", 7000)
SCRIPT = "ERR Error running script (call to f_6b1bf486c81ceb7edf3c093f4c48582e38c0e791): "


@pytest.mark.parametrize(
    ("said", "reaction"),
    [
        ("LOADING Redis is loading the dataset in memory", Reaction.WAIT),
        ("BUSY Redis is busy running a script. You can only call SCRIPT KILL", Reaction.WAIT),
        ("TRYAGAIN Multiple keys request during rehashing of slot", Reaction.WAIT),
        ("CLUSTERDOWN The cluster is down", Reaction.WAIT),
        ("CLUSTERDOWN Hash slot not served", Reaction.WAIT),
        ("NOREPLICAS Not enough good replicas to write.", Reaction.WAIT),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is no", Reaction.LEAVE),
        ("READONLY You can't write against a read only replica.", Reaction.LEAVE),
        ("UNBLOCKED force unblock from blocking operation", Reaction.LEAVE),
        ("NOSCRIPT No matching script. Please use EVAL.", Reaction.LOAD),
        ("MOVED 3999 127.0.0.1:6381", Reaction.MOVED),
        ("ASK 3999 127.0.0.1:6381", Reaction.ASK),
        ("OOM command not allowed when used memory > 'maxmemory'.", Reaction.RAISE),
        ("MISCONF Errors writing to the AOF file: No space left on device", Reaction.RAISE),
        ("NOAUTH Authentication required.", Reaction.RAISE),
        ("WRONGPASS invalid username-password pair or user is disabled.", Reaction.RAISE),
        ("NOPERM User anna has no permissions to run the 'get' command", Reaction.RAISE),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", Reaction.RAISE),
        ("CROSSSLOT Keys in request don't hash to the same slot", Reaction.RAISE),
        ("BUSYGROUP Consumer Group name already exists", Reaction.RAISE),
        ("BUSYKEY Target key name already exists.", Reaction.RAISE),
        ("NOTBUSY No scripts in execution right now.", Reaction.RAISE),
        ("ERR unknown command 'NONSENSE'", Reaction.RAISE),
        ("ERR Error running script: -", Reaction.RAISE),
        ("NEWCODE that did not exist when this was written", Reaction.RAISE),
        ("ERR", Reaction.RAISE),
        ("", Reaction.RAISE),
    ],
)
def test_every_reply_has_a_decided_reaction(said: str, reaction: Reaction) -> None:
    refusal = read_refusal(ReplyError(said))
    assert refusal.reaction is reaction
    assert refusal.transient is (reaction in {Reaction.WAIT, Reaction.LEAVE})
    assert isinstance(refusal.error, ServerRefused)
    assert isinstance(refusal.error, ServerUnavailable) is refusal.transient
    assert refusal.error.code == said.partition(" ")[0]
    assert str(refusal.error) == said


@pytest.mark.parametrize(
    ("said", "code", "reaction"),
    [
        # As Redis 6.2 words them
        ("@user_script:1: @user_script: 1: -READONLY You can't write", "READONLY", Reaction.LEAVE),
        ("@user_script:1: @user_script: 1: -OOM command not allowed", "OOM", Reaction.RAISE),
        (
            "@user_script:1: @user_script: 1: -MISCONF Redis is set",
            "MISCONF",
            Reaction.RAISE,
        ),
        ("@user_script:1: @user_script: 1: -NOREPLICAS Not enough", "NOREPLICAS", Reaction.WAIT),
        ("@user_script:1: @user_script: 1: Unknown Redis command called", "ERR", Reaction.RAISE),
        ("@user_script:1: WRONGTYPE Operation against a key", "WRONGTYPE", Reaction.RAISE),
        ("@user_script:1: ERR Number of keys is negative", "ERR", Reaction.RAISE),
        ("@user_script:2: user_script:2: attempt to index a nil value", "ERR", Reaction.RAISE),
    ],
)
def test_what_an_older_server_wraps_is_unwrapped(said: str, code: str, reaction: Reaction) -> None:
    refusal = read_refusal(ReplyError(SCRIPT + said))
    assert refusal.reaction is reaction
    assert isinstance(refusal.error, ServerRefused)
    assert refusal.error.code == code


@pytest.mark.parametrize(
    "said",
    [
        "@user_script:3: user_script:3: the field has -READONLY in it",
        "@user_script:3: user_script:3: cannot read job-BUSY now",
        "@user_script:3: user_script:3: job BUSY is unknown",
    ],
)
def test_a_script_that_merely_mentions_a_code_is_not_repeated(said: str) -> None:
    # It may have written something before: sending it again would do that twice.
    assert read_refusal(ReplyError(SCRIPT + said)).reaction is Reaction.RAISE


def test_no_reply_at_all_may_mean_that_another_node_has_taken_over() -> None:
    lost = ConnectionLost("cannot connect to one:6379: Connection refused")
    refusal = read_refusal(lost)
    assert refusal.reaction is Reaction.LEAVE
    assert refusal.transient
    assert refusal.error is lost


@pytest.mark.parametrize(
    ("said", "target"),
    [
        ("MOVED 3999 127.0.0.1:6381", Endpoint("127.0.0.1", 6381)),
        ("ASK 3999 db-2.example.org:7000", Endpoint("db-2.example.org", 7000)),
        ("MOVED 3999 ::1:6381", Endpoint("::1", 6381)),
        ("MOVED 3999 [2001:db8::7]:6381", Endpoint("2001:db8::7", 6381)),
        ("MOVED 3999 :6381", Endpoint("asked.example.org", 6381)),  # an endpoint it does not know
        ("ASK 0 :6381", Endpoint("asked.example.org", 6381)),
    ],
)
def test_a_redirection_names_its_target(said: str, target: Endpoint) -> None:
    assert read_refusal(ReplyError(said)).target(ASKED) == target


@pytest.mark.parametrize(
    "said", ["MOVED", "MOVED 7", "MOVED 7 host", "ASK 7 a:b", "ASK 7 :", "MOVED 7 host:99999999"]
)
def test_a_redirection_to_nowhere_is_an_error_that_names_the_server(said: str) -> None:  # S27
    with pytest.raises(InvalidReply, match=r"asked\.example\.org"):
        read_refusal(ReplyError(said)).target(ASKED)
