"""The decided answer to every error reply."""

from __future__ import annotations

import pytest
from hiredis import ReplyError

from taskbull.errors import ConnectionLost, ServerRefused, ServerUnavailable
from taskbull.store.address import Endpoint
from taskbull.store.trouble import Answer, read_trouble

ASKED = Endpoint("asked.example.org", 7000)
SCRIPT = "ERR Error running script (call to f_6b1bf486c81ceb7edf3c093f4c48582e38c0e791): "


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("LOADING Redis is loading the dataset in memory", Answer.WAIT),
        ("BUSY Redis is busy running a script. You can only call SCRIPT KILL", Answer.WAIT),
        ("TRYAGAIN Multiple keys request during rehashing of slot", Answer.WAIT),
        ("CLUSTERDOWN The cluster is down", Answer.WAIT),
        ("CLUSTERDOWN Hash slot not served", Answer.WAIT),
        ("NOREPLICAS Not enough good replicas to write.", Answer.WAIT),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is no", Answer.LEAVE),
        ("READONLY You can't write against a read only replica.", Answer.LEAVE),
        ("UNBLOCKED force unblock from blocking operation", Answer.LEAVE),
        ("NOSCRIPT No matching script. Please use EVAL.", Answer.LOAD),
        ("MOVED 3999 127.0.0.1:6381", Answer.MOVED),
        ("ASK 3999 127.0.0.1:6381", Answer.ASK),
        ("OOM command not allowed when used memory > 'maxmemory'.", Answer.RAISE),
        ("MISCONF Errors writing to the AOF file: No space left on device", Answer.RAISE),
        ("NOAUTH Authentication required.", Answer.RAISE),
        ("WRONGPASS invalid username-password pair or user is disabled.", Answer.RAISE),
        ("NOPERM User anna has no permissions to run the 'get' command", Answer.RAISE),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", Answer.RAISE),
        ("CROSSSLOT Keys in request don't hash to the same slot", Answer.RAISE),
        ("BUSYGROUP Consumer Group name already exists", Answer.RAISE),
        ("BUSYKEY Target key name already exists.", Answer.RAISE),
        ("NOTBUSY No scripts in execution right now.", Answer.RAISE),
        ("ERR unknown command 'NONSENSE'", Answer.RAISE),
        ("ERR Error running script: -", Answer.RAISE),
        ("NEWCODE that did not exist when this was written", Answer.RAISE),
        ("ERR", Answer.RAISE),
        ("", Answer.RAISE),
    ],
)
def test_every_reply_has_a_decided_answer(said: str, answer: Answer) -> None:
    trouble = read_trouble(ReplyError(said))
    assert trouble.answer is answer
    assert trouble.transient is (answer in {Answer.WAIT, Answer.LEAVE})
    assert isinstance(trouble.error, ServerRefused)
    assert isinstance(trouble.error, ServerUnavailable) is trouble.transient
    assert trouble.error.code == said.partition(" ")[0]
    assert str(trouble.error) == said


@pytest.mark.parametrize(
    ("said", "code", "answer"),
    [
        # As Redis 6.2 words them
        ("@user_script:1: @user_script: 1: -READONLY You can't write", "READONLY", Answer.LEAVE),
        ("@user_script:1: @user_script: 1: -OOM command not allowed", "OOM", Answer.RAISE),
        ("@user_script:1: @user_script: 1: -MISCONF Redis is configured", "MISCONF", Answer.RAISE),
        ("@user_script:1: @user_script: 1: -NOREPLICAS Not enough", "NOREPLICAS", Answer.WAIT),
        ("@user_script:1: @user_script: 1: Unknown Redis command called", "ERR", Answer.RAISE),
        ("@user_script:1: WRONGTYPE Operation against a key", "WRONGTYPE", Answer.RAISE),
        ("@user_script:1: ERR Number of keys is negative", "ERR", Answer.RAISE),
        ("@user_script:2: user_script:2: attempt to index a nil value", "ERR", Answer.RAISE),
    ],
)
def test_what_an_older_server_wraps_is_unwrapped(said: str, code: str, answer: Answer) -> None:
    trouble = read_trouble(ReplyError(SCRIPT + said))
    assert trouble.answer is answer
    assert isinstance(trouble.error, ServerRefused)
    assert trouble.error.code == code


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
    assert read_trouble(ReplyError(SCRIPT + said)).answer is Answer.RAISE


def test_no_reply_at_all_may_mean_that_another_node_has_taken_over() -> None:
    lost = ConnectionLost("cannot connect to one:6379: Connection refused")
    trouble = read_trouble(lost)
    assert trouble.answer is Answer.LEAVE
    assert trouble.transient
    assert trouble.error is lost


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
    assert read_trouble(ReplyError(said)).target(ASKED) == target
