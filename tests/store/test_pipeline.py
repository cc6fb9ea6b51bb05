"""The protocol of one connection, without a connection: bytes in, bytes out."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import Any

import pytest
from hiredis import ProtocolError, Reader, ReplyError
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from taskbull.errors import ConnectionLost, MaybeExecuted
from taskbull.store.protocol import CHUNK, QUEUE_LIMIT, Note, Pipeline, pack

HALF = QUEUE_LIMIT // 2


class PlainWaiter:
    """A waiter without a task, which stores its result."""

    def __init__(self) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self._done = False

    def __await__(self) -> Generator[Any, Any, Any]:
        raise AssertionError("nobody awaits this one")

    def done(self) -> bool:
        return self._done

    def set_result(self, value: Any, /) -> None:
        assert not self._done
        self.result, self._done = value, True

    def set_exception(self, error: BaseException, /) -> None:
        assert not self._done
        self.error, self._done = error, True

    def cancel(self) -> None:
        self._done = True


def queue(pipeline: Pipeline, *words: str, note: Note | None = None) -> PlainWaiter:
    waiter = PlainWaiter()
    pipeline.queue(pack(words), waiter, note)
    return waiter


def commands(data: bytes) -> list[list[bytes]]:
    """Parse commands as a server does."""
    reader = Reader()
    reader.feed(data)
    found = []
    while (command := reader.gets()) is not False:
        found.append(command)
    return found


def test_commands_go_out_in_the_order_in_which_they_came() -> None:
    pipeline = Pipeline()
    for number in range(5):
        queue(pipeline, "ECHO", str(number))
    assert commands(pipeline.take()) == [[b"ECHO", b"%d" % number] for number in range(5)]
    assert pipeline.take() == b""


def test_each_reply_goes_to_its_own_caller() -> None:
    pipeline = Pipeline()
    waiters = [queue(pipeline, "ECHO", str(number)) for number in range(3)]
    pipeline.take()
    pipeline.feed(b"+a\r\n:7\r\n")
    assert [waiter.result for waiter in waiters] == [b"a", 7, None]
    assert [waiter.done() for waiter in waiters] == [True, True, False]
    pipeline.feed(b"*2\r\n:1\r\n$-1\r\n")
    assert waiters[2].result == [1, None]


def test_a_reply_may_come_byte_by_byte() -> None:
    pipeline = Pipeline()
    waiter = queue(pipeline, "ECHO", "hello")
    pipeline.take()
    for byte in b"$5\r\nhello\r\n":
        assert not waiter.done()
        pipeline.feed(bytes([byte]))
    assert waiter.result == b"hello"


def test_an_error_reply_is_a_reply() -> None:
    pipeline = Pipeline()
    waiter = queue(pipeline, "GET", "list")
    pipeline.take()
    pipeline.feed(b"-WRONGTYPE not that\r\n")
    assert isinstance(waiter.result, ReplyError)
    assert str(waiter.result) == "WRONGTYPE not that"
    assert waiter.error is None


def test_a_caller_that_left_before_sending_takes_its_command_along() -> None:
    pipeline = Pipeline()
    first, gone, last = (queue(pipeline, "ECHO", text) for text in ("1", "2", "3"))
    gone.cancel()
    assert commands(pipeline.take()) == [[b"ECHO", b"1"], [b"ECHO", b"3"]]
    pipeline.feed(b"+1\r\n+3\r\n")
    assert (first.result, gone.result, last.result) == (b"1", None, b"3")


def test_a_caller_that_left_after_sending_leaves_a_reply_that_nobody_gets() -> None:
    pipeline = Pipeline()
    first, gone, last = (queue(pipeline, "ECHO", text) for text in ("1", "2", "3"))
    pipeline.take()
    gone.cancel()
    pipeline.feed(b"+1\r\n+2\r\n+3\r\n")
    assert (first.result, gone.result, last.result) == (b"1", None, b"3")


def test_when_all_callers_have_left_nothing_is_wanted() -> None:
    pipeline = Pipeline()
    waiters = [queue(pipeline, "PING") for _ in range(3)]
    wanted = []
    for waiter in waiters:
        wanted.append(pipeline.wanted)
        waiter.cancel()
    assert [*wanted, pipeline.wanted] == [True, True, True, False]
    assert pipeline.take() == b""
    assert pipeline.written == pipeline.answered == 0


def test_a_note_says_whether_its_command_was_sent() -> None:
    pipeline = Pipeline()
    notes = [Note(), Note()]
    queue(pipeline, "PING", note=notes[0])
    queue(pipeline, "PING", note=notes[1]).cancel()
    assert [note.sent for note in notes] == [False, False]
    pipeline.take()
    assert [note.sent for note in notes] == [True, False]


def test_asking_goes_out_right_before_its_command_and_its_reply_is_nobodys() -> None:
    pipeline = Pipeline()
    before = queue(pipeline, "ECHO", "1")
    asking = queue(pipeline, "ECHO", "2", note=Note(asking=True))
    after = queue(pipeline, "ECHO", "3")
    assert [command[0] for command in commands(pipeline.take())] == [
        *(b"ECHO", b"ASKING"),
        *(b"ECHO", b"ECHO"),
    ]
    assert pipeline.written == 4
    pipeline.feed(b"+1\r\n+OK\r\n+2\r\n+3\r\n")
    assert (before.result, asking.result, after.result) == (b"1", b"2", b"3")
    assert pipeline.answered == 4


def test_a_caller_that_left_takes_its_asking_along() -> None:
    pipeline = Pipeline()
    queue(pipeline, "ECHO", "1", note=Note(asking=True)).cancel()
    queue(pipeline, "ECHO", "2")
    assert commands(pipeline.take()) == [[b"ECHO", b"2"]]


def test_a_command_sent_past_the_queue_is_answered_first() -> None:
    pipeline = Pipeline()
    queued, direct = queue(pipeline, "ECHO", "later"), PlainWaiter()
    pipeline.expect(direct)
    pipeline.take()
    pipeline.feed(b"+now\r\n+later\r\n")
    assert (direct.result, queued.result) == (b"now", b"later")


def test_much_to_send_is_taken_in_pieces() -> None:
    pipeline = Pipeline()
    text = "x" * (CHUNK // 4)
    for number in range(10):
        queue(pipeline, "ECHO", str(number) + text)
    chunks = []
    while chunk := pipeline.take():
        chunks.append(chunk)
    assert len(chunks) == 3
    assert all(len(chunk) < CHUNK + 2 * len(text) for chunk in chunks)
    sent = commands(b"".join(chunks))
    assert [command[1][:1] for command in sent] == [b"%d" % number for number in range(10)]


def test_a_command_larger_than_a_piece_goes_out_whole() -> None:
    pipeline = Pipeline()
    queue(pipeline, "ECHO", "x" * (3 * CHUNK))
    queue(pipeline, "PING")
    assert [command[0] for command in commands(pipeline.take())] == [b"ECHO"]
    assert [command[0] for command in commands(pipeline.take())] == [b"PING"]


def test_a_piece_of_commands_that_nobody_wants_is_empty_and_the_rest_comes_next() -> None:
    pipeline = Pipeline()
    queue(pipeline, "ECHO", "x" * CHUNK).cancel()
    queue(pipeline, "PING")
    assert pipeline.take() == b""
    assert pipeline.queued
    assert commands(pipeline.take()) == [[b"PING"]]


def test_callers_wait_for_room_until_the_queue_is_shorter() -> None:
    pipeline = Pipeline()
    full = []
    for _ in range(2):
        full.append(pipeline.full)
        queue(pipeline, "ECHO", "x" * HALF)
    assert [*full, pipeline.full] == [False, False, True]
    waiting, gone = PlainWaiter(), PlainWaiter()
    pipeline.room.extend([waiting, gone])
    gone.cancel()
    pipeline.take()
    assert [pipeline.full, waiting.done()] == [False, True]
    assert not pipeline.room


def test_commands_that_nobody_wants_make_room_too() -> None:
    pipeline = Pipeline()
    for _ in range(3):
        queue(pipeline, "ECHO", "x" * HALF).cancel()
    assert pipeline.full
    while pipeline.queued:
        pipeline.take()
    assert not pipeline.full


def test_refused_commands_make_room_and_what_is_sent_continues() -> None:
    pipeline = Pipeline()
    sent = queue(pipeline, "PING")
    pipeline.take()
    queued = [queue(pipeline, "ECHO", "x" * HALF) for _ in range(3)]
    queued[1].cancel()
    pipeline.room.append(waiting := PlainWaiter())
    pipeline.refuse(lambda: ConnectionLost("not there"))
    assert isinstance(queued[0].error, ConnectionLost)
    assert queued[1].error is None
    assert queued[0].error is not queued[2].error  # A shared one would collect tracebacks.
    assert not pipeline.full
    assert waiting.done()
    pipeline.feed(b"+PONG\r\n")
    assert sent.result == b"PONG"


def test_a_lost_connection_leaves_doubt_about_what_was_sent_and_keeps_what_was_not() -> None:
    pipeline = Pipeline()
    sent = [queue(pipeline, "ECHO", "1"), queue(pipeline, "ECHO", "2")]
    pipeline.take()
    queued = queue(pipeline, "ECHO", "3")
    sent[1].cancel()
    pipeline.feed(b"$1\r\n")  # Half a reply, which the next connection cannot use.
    pipeline.lose("the cable was cut")
    assert isinstance(sent[0].error, MaybeExecuted)
    assert str(sent[0].error) == "the cable was cut before the reply came"
    assert sent[1].error is None
    assert commands(pipeline.take()) == [[b"ECHO", b"3"]]
    pipeline.feed(b"+3\r\n")
    assert queued.result == b"3"
    assert pipeline.written == pipeline.answered == 3


def test_a_reply_that_no_command_asked_for_is_a_breach_of_the_protocol() -> None:
    pipeline = Pipeline()
    waiter = queue(pipeline, "PING")
    pipeline.take()
    with pytest.raises(ProtocolError, match="no command asked for"):
        pipeline.feed(b"+PONG\r\n+PONG\r\n")
    assert waiter.result == b"PONG"


@pytest.mark.parametrize(
    "garbage",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x01\x00\x02", b":x\r\n", b"*-2\r\n", b"\0"],
)
def test_what_is_no_protocol_is_no_reply(garbage: bytes) -> None:
    pipeline = Pipeline()
    before, after = queue(pipeline, "PING"), queue(pipeline, "PING")
    pipeline.take()
    with pytest.raises(ProtocolError):
        pipeline.feed(b"+PONG\r\n" + garbage)
    assert before.result == b"PONG"
    assert not after.done()
    pipeline.lose("nonsense was said")
    queue(pipeline, "PING")
    pipeline.take()
    pipeline.feed(b"+PONG\r\n")  # A new connection starts with an empty buffer.


@pytest.mark.parametrize(
    ("words", "packed"),
    [
        (("GET", "a"), b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n"),
        (("SET", "é", b"\x00\r\n", 7, 1.5), None),
    ],
)
def test_words_of_each_kind_are_packed(words: tuple[Any, ...], packed: bytes | None) -> None:
    data = pack(words)
    assert packed is None or data == packed
    expected = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    assert commands(data) == [expected]


class Conversation(RuleBasedStateMachine):
    """Random callers, chunks of bytes and lost connections, compared with a model.

    The server replies to each command with its number, so that a reply identifies its caller.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pipeline = Pipeline()
        self.callers: dict[int, PlainWaiter] = {}
        self.queued: list[int] = []  # The model's commands to send, in order.
        self.wire = b""  # Replies that have not arrived yet.
        self.replies: deque[tuple[int | None, int]] = deque()  # Their callers and sizes.
        self.left: set[int] = set()
        self.answered: set[int] = set()
        self.doubtful: set[int] = set()
        self.refused: set[int] = set()

    @rule(size=st.sampled_from([0, 100, CHUNK // 2, CHUNK]), asking=st.booleans())
    def call(self, size: int, asking: bool) -> None:
        number = len(self.callers)
        note = Note(asking=True) if asking else None
        self.callers[number] = queue(self.pipeline, "ECHO", str(number), "x" * size, note=note)
        self.queued.append(number)

    @precondition(lambda self: self.callers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.callers)))
        if not self.callers[number].done():
            self.callers[number].cancel()
            self.left.add(number)

    @rule()
    def send(self) -> None:
        asked = False
        for command in commands(self.pipeline.take()):
            if command == [b"ASKING"]:
                assert not asked
                asked = True
                self._reply(None, b"+OK\r\n")
                continue
            asked = False
            number = int(command[1])
            while self.queued[0] != number:  # Earlier ones must have been abandoned.
                assert self.queued.pop(0) in self.left
            assert self.queued.pop(0) == number
            assert number not in self.left
            self._reply(number, b"$%d\r\n%d\r\n" % (len(str(number)), number))
        assert not asked

    def _reply(self, caller: int | None, reply: bytes) -> None:
        self.replies.append((caller, len(reply)))
        self.wire += reply

    @precondition(lambda self: self.wire)
    @rule(share=st.floats(0, 1))
    def receive(self, share: float) -> None:
        arrived = round(len(self.wire) * share)
        self.pipeline.feed(self.wire[:arrived])
        self.wire = self.wire[arrived:]
        while self.replies and self.replies[0][1] <= arrived:
            caller, size = self.replies.popleft()
            arrived -= size
            if caller is not None and caller not in self.left:
                self.answered.add(caller)
        if self.replies:
            caller, size = self.replies.popleft()
            self.replies.appendleft((caller, size - arrived))

    @rule()
    def lose(self) -> None:
        self.pipeline.lose("cut")
        self.doubtful.update(
            caller for caller, _ in self.replies if caller is not None and caller not in self.left
        )
        self.replies.clear()
        self.wire = b""

    @rule()
    def refuse(self) -> None:
        self.pipeline.refuse(lambda: ConnectionLost("not there"))
        self.refused.update(number for number in self.queued if number not in self.left)
        self.queued.clear()

    @invariant()
    def every_caller_has_what_is_its_own(self) -> None:
        for number, waiter in self.callers.items():
            if number in self.left:
                assert waiter.result is None
                assert waiter.error is None
            elif number in self.refused:
                assert isinstance(waiter.error, ConnectionLost)
            elif number in self.doubtful:
                assert isinstance(waiter.error, MaybeExecuted)
            elif number in self.answered:
                assert waiter.result == b"%d" % number
            else:
                assert not waiter.done()

    @invariant()
    def the_books_agree(self) -> None:
        assert self.pipeline.written - self.pipeline.answered == len(self.replies)
        assert self.pipeline.wanted == any(number not in self.left for number in self.queued)
        if not self.pipeline.queued:
            assert not self.pipeline.full
            assert self.pipeline._queued_bytes == 0


TestConversation = Conversation.TestCase
TestConversation.settings = settings(stateful_step_count=40)
