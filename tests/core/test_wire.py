"""Encoding jobs as Node does, and reading jobs of any producer."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskbull.core.backoff import Backoff
from taskbull.core.job import Job, NewJob, Ticket
from taskbull.core.options import Dedup, JobOptions, Keep
from taskbull.core.validation import LONGEST
from taskbull.core.wire.job import (
    RUN_FIELDS,
    decode_job,
    decode_taken,
    encode_data,
    encode_job,
    encode_jobs,
    encode_progress,
    encode_stacktrace,
    encode_value,
)
from taskbull.core.wire.options import StoredOptions, decode_options
from taskbull.errors import ConfigurationError, CorruptJob, SerializationError

NOW = 1_763_267_000_123
PLAIN = JobOptions(backoff=None, keep_completed=None, keep_failed=None, keep_logs=None)
TEN_SECONDS_LATER = datetime.fromtimestamp((NOW + 10_000) / 1000, UTC)


def opts(options: JobOptions, telemetry: str | None = None) -> Any:
    return json.loads(encode_job(NewJob("x", {}, options, telemetry), NOW).options)


def stored_hash(job: NewJob, **more: bytes) -> dict[bytes, bytes]:
    """Give the hash that adding the job leaves."""
    encoded = encode_job(job, NOW)
    fields = {
        b"name": encoded.name.encode(),
        b"data": encoded.data,
        b"opts": encoded.options,
        b"timestamp": str(encoded.timestamp_ms).encode(),
        b"delay": str(encoded.delay_ms).encode(),
        b"priority": str(encoded.priority).encode(),
    }
    return fields | {name.encode(): value for name, value in more.items()}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (PLAIN, {"attempts": 3}),
        (
            JobOptions(),
            {
                "attempts": 3,
                "backoff": {
                    "type": "exponential",
                    "delay": 1000,
                    "jitter": 0.2,
                    "maxDelay": 3_600_000,
                },
                "removeOnComplete": {"age": 86_400, "count": 10_000},
                "removeOnFail": {"age": 1_209_600},
                "kl": 1000,
            },
        ),
        (
            JobOptions(
                delay=1.5,
                priority=7,
                lifo=True,
                attempts=1,
                backoff=Backoff.none(),
                error_backoffs={"RateLimitError": Backoff.fixed(30), OSError: Backoff.linear(2)},
                job_id="welcome-42",
                dedup=Dedup("k", ttl=5, extend=True, replace=True, keep_last=True),
                keep_completed=Keep.none(),
                keep_failed=Keep.all(),
                timeout=timedelta(seconds=20),
                keep_logs=0,
                stack_trace_limit=0,
                size_limit=1000,
            ),
            {
                "attempts": 1,
                "delay": 1500,
                "priority": 7,
                "lifo": True,
                "backoff": {"type": "fixed", "delay": 0, "curve": "none"},
                "errorBackoffs": {
                    "RateLimitError": {"type": "fixed", "delay": 30_000},
                    "OSError": {"type": "exponential", "delay": 2000, "curve": "linear"},
                },
                "jobId": "welcome-42",
                "de": {
                    "id": "k",
                    "ttl": 5000,
                    "extend": True,
                    "replace": True,
                    "keepLastIfActive": True,
                },
                "removeOnComplete": True,
                "removeOnFail": False,
                "timeout": 20_000,
                "kl": 0,
                "stackTraceLimit": 0,
                "sizeLimit": 1000,
            },
        ),
        (
            JobOptions(
                backoff=None,
                keep_logs=None,
                keep_completed=Keep(count=5),
                keep_failed=Keep(count=0, age=0.5, limit=9),
            ),
            {
                "attempts": 3,
                "removeOnComplete": 5,
                "removeOnFail": {"age": 1, "count": 0, "limit": 9},
            },
        ),
    ],
)
def test_options_stand_in_redis_as_bullmq_writes_them(
    options: JobOptions, expected: dict[str, Any]
) -> None:
    assert opts(options) == expected


def test_the_context_of_a_span_travels_as_tm() -> None:
    carrier = '{"traceparent":"00-ab-cd-01"}'
    assert opts(PLAIN, telemetry=carrier) == {"attempts": 3, "tm": carrier}
    assert opts(PLAIN) == {"attempts": 3}


def test_options_are_encoded_again_after_many_others() -> None:
    many = [JobOptions(job_id=f"job-{number}") for number in range(600)]
    for _ in range(2):
        assert [opts(options)["jobId"] for options in many] == [o.job_id for o in many]


def test_an_eta_becomes_a_delay_from_the_moment_of_adding() -> None:
    options = JobOptions(eta=TEN_SECONDS_LATER)
    assert encode_job(NewJob("x", {}, options), NOW).delay_ms == 10_000
    assert encode_job(NewJob("x", {}, options), NOW + 4000).delay_ms == 6000
    assert encode_job(NewJob("x", {}, options), NOW + 60_000).delay_ms == 0
    assert opts(options)["delay"] == 10_000


def test_a_delay_that_no_score_can_hold_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="September 2039"):
        encode_job(NewJob("x", {}, JobOptions(delay=timedelta(days=365 * 30))), NOW)


def test_an_encoded_job_has_all_that_a_script_needs() -> None:
    options = JobOptions(priority=2, lifo=True, job_id="a", dedup="k")
    encoded = encode_job(NewJob("send", {"to": "ann"}, options), NOW)
    assert (encoded.name, encoded.data) == ("send", b'{"to":"ann"}')
    assert (encoded.timestamp_ms, encoded.delay_ms, encoded.priority) == (NOW, 0, 2)
    assert (encoded.lifo, encoded.job_id, encoded.dedup) == (True, "a", Dedup("k"))
    assert encode_job(NewJob("send"), NOW).data == b"{}"
    assert encode_job(NewJob("send"), NOW).job_id == ""
    assert encode_job(NewJob("send", None), NOW).data == b"null"


# FR-7
def test_data_and_options_together_must_fit_the_limit() -> None:
    fits = NewJob("x", "é" * 40, JobOptions(size_limit=100, backoff=None, keep_logs=None))
    with pytest.raises(SerializationError, match=r"exceeds limit of 0\.0001 MB"):
        encode_job(fits, NOW)
    encode_job(NewJob("x", "x" * 9_999_000), NOW)
    with pytest.raises(SerializationError, match=r"Job payload 12.3 MB exceeds limit of 10 MB"):
        encode_job(NewJob("x", "x" * 12_299_900), NOW)


def test_results_and_progress_obey_the_rules_of_data() -> None:
    assert encode_value(None) == b"null"
    assert encode_progress({"step": "decode"}) == b'{"step":"decode"}'
    with pytest.raises(SerializationError, match=r"result.id is an integer"):
        encode_value({"id": 2**60})
    with pytest.raises(SerializationError, match="progress is nan"):
        encode_progress(float("nan"))
    with pytest.raises(SerializationError, match="data is inf"):
        encode_data(float("inf"))


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=50)
payloads = st.dictionaries(st.text(), st.integers(-(2**53) + 1, 2**53 - 1) | st.text() | st.none())
keeps = st.none() | st.builds(
    Keep,
    age=st.none() | st.integers(0, 10**6),
    count=st.none() | st.integers(0, 10_000),
    limit=st.none() | st.integers(1, 100),
)
job_options = st.builds(
    JobOptions,
    delay=st.none() | st.integers(0, 10**6),
    priority=st.integers(0, 2_097_151),
    lifo=st.booleans(),
    attempts=st.integers(1, 10**6),
    backoff=st.none()
    | st.builds(Backoff.linear, st.integers(1, 100), max_delay=st.none() | st.integers(1, 100)),
    error_backoffs=st.none() | st.dictionaries(names, st.builds(Backoff.fixed, st.just(3))),
    keep_completed=keeps,
    keep_failed=keeps,
    timeout=st.none() | st.integers(1, 10**5),
)


@given(names, payloads, job_options)
def test_a_job_survives_the_way_through_redis(
    name: str, data: dict[str, object], options: JobOptions
) -> None:
    fields = stored_hash(NewJob(name, data, options))
    job = decode_job(b"42", fields)
    assert (job.id, job.name, job.data, job.corrupt) == ("42", name, data, None)
    assert job.created_ms == NOW
    assert job.priority == options.priority
    assert job.options.attempts == options.attempts
    assert job.options.lifo == options.lifo
    assert job.options.own_backoff == options.backoff
    stored = job.options.own_error_backoffs or {}
    by_error = {error: Backoff.from_stored(backoff) for error, backoff in stored.items()}
    assert by_error == (options.error_backoffs or {})
    assert job.options.keep_completed == options.keep_completed
    assert job.options.keep_failed == options.keep_failed
    assert job.options.timeout == options.timeout
    flat = [part for field in fields.items() for part in field]
    assert decode_job(b"42", flat) == job
    assert decode_taken(b"42", [fields.get(field) for field in RUN_FIELDS]) == job


def test_everything_in_a_finished_jobs_hash_is_read() -> None:
    job = decode_job(
        b"42",
        stored_hash(
            NewJob("send", {"a": 1}),
            atm=b"2",
            ats=b"3",
            stc=b"1",
            rjk=b"daily",
            deid=b"k",
            parentKey=b"bull:p:1",
            parent=b'{"id":"1","queueKey":"bull:p"}',
            pb=b"worker-1",
            processedOn=b"1763267000200",
            finishedOn=b"1763267000300",
            failedReason=b"boom",
            stacktrace=b'["one","two"]',
            progress=b'{"step":1}',
            returnvalue=b"[1]",
            tbpd=b"1500",
        ),
    )
    assert (job.attempts_made, job.attempt, job.attempts_started, job.stalled_count) == (2, 3, 3, 1)
    assert (job.scheduler_id, job.dedup_key, job.parent_key) == ("daily", "k", "bull:p:1")
    assert (job.processed_by, job.failed_reason, job.previous_delay_ms) == (
        "worker-1",
        "boom",
        1500,
    )
    assert (job.stacktrace, job.progress, job.returnvalue) == (["one", "two"], {"step": 1}, [1])
    assert job.timestamp == datetime(2025, 11, 16, 4, 23, 20, 123_000, UTC)
    assert job.processed_on is not None
    assert job.finished_on is not None
    assert job.finished_on - job.processed_on == timedelta(milliseconds=100)


def test_a_job_without_any_field_has_nodes_defaults() -> None:
    job = decode_job(b"ghost", {})
    assert job == Job(id="ghost")
    assert (job.name, job.data, job.progress, job.returnvalue) == ("", {}, 0, None)
    assert (job.stacktrace, job.timestamp, job.finished_on) == ([], None, None)
    assert job.options.attempts is None
    assert job.options.own_backoff is None
    assert job.options.keep_failed is None
    assert job.options.timeout is None


def test_the_legacy_name_of_the_attempts_wins_where_it_is_present() -> None:
    assert decode_job(b"1", {b"atm": b"1", b"attemptsMade": b"4"}).attempts_made == 4


@pytest.mark.parametrize(
    ("raw", "number"), [(b"NaN", None), (b"", None), (b"1.5e3", 1500), (b"x", None), (b"inf", None)]
)
def test_a_number_is_read_as_javascript_may_have_written_it(raw: bytes, number: int | None) -> None:
    job = decode_job(b"1", {b"timestamp": raw, b"priority": raw})
    assert job.created_ms == number
    assert job.priority == (number or 0)


MOST = 2**53 - 1


@pytest.mark.parametrize(
    ("raw", "number"),
    [(b"1e300", MOST), (b"-1e300", -MOST), (b"9" * 400, MOST), (b"1e999", None), (b"nan", None)],
)
def test_a_number_beyond_bounds_is_bounded(raw: bytes, number: int | None) -> None:  # F1
    assert decode_job(b"1", {b"timestamp": raw}).created_ms == number


@pytest.mark.parametrize(
    ("text", "number"), [("1.7976931348623157e308", MOST), ("9" * 400, MOST), ("1e999", None)]
)
def test_a_number_in_options_is_bounded(text: str, number: int | None) -> None:  # F1
    names = ("attempts", "priority", "delay", "timeout", "kl", "stackTraceLimit", "sizeLimit")
    members = ",".join(f'"{name}":{text}' for name in names)
    keep = f'{{"age":{text},"count":{text},"limit":{text}}}'
    backoff = f'{{"type":"fixed","delay":{text}}}'
    read = decode_options(
        f'{{{members},"removeOnFail":{keep},"removeOnComplete":{text},"backoff":{backoff}}}'.encode()
    )
    assert read.attempts == read.priority == read.delay_ms == read.timeout_ms == number
    assert read.keep_logs == read.stack_trace_limit == read.size_limit == number
    assert read.keep_failed == Keep(
        age=None if number is None else LONGEST, count=number, limit=number
    )
    assert read.keep_completed == (None if number is None else Keep(count=number))
    assert isinstance(read.own_backoff, Backoff)


def test_a_negative_number_of_attempts_counts_as_none() -> None:  # F1
    assert decode_job(b"1", {b"atm": b"-100000"}).attempt == 1


def test_the_last_ten_stacks_are_kept_unless_the_job_says_otherwise() -> None:  # F23
    many = json.dumps([str(number) for number in range(30)]).encode()
    job = decode_job(b"1", {b"stacktrace": many})
    assert json.loads(encode_stacktrace(job, "new")) == [*map(str, range(21, 30)), "new"]
    own = decode_job(b"1", {b"stacktrace": many, b"opts": b'{"stackTraceLimit":1e300}'})
    assert len(json.loads(encode_stacktrace(own, "new"))) == 31


def test_a_result_above_the_limit_is_refused() -> None:  # D5
    with pytest.raises(
        SerializationError, match=r"Result 0\.000102 MB exceeds limit of 0\.0001 MB"
    ):
        encode_value("x" * 100, 100)


@pytest.mark.parametrize(
    ("field", "value"), [("opts", b"{nope"), ("opts", b'{"tm":"\xff"}'), ("name", b"\xff\xfe")]
)
def test_a_field_that_cannot_be_read_is_named_and_nothing_raises(field: str, value: bytes) -> None:
    job = decode_job(b"42", {b"name": b"x", field.encode(): value})
    assert isinstance(job.corrupt, CorruptJob)
    assert (job.corrupt.job_id, job.corrupt.field) == ("42", field)
    assert f"Cannot read field '{field}' of job '42'" in str(job.corrupt)


@pytest.mark.parametrize("data", [b"{", b"", b'"\xff"', b"[" * 100_000])
def test_corrupt_data_is_reported_when_it_is_asked_for(data: bytes) -> None:
    job = decode_job(b"42", {b"data": data, b"progress": data})
    assert job.corrupt is None
    with pytest.raises(CorruptJob, match="Cannot read field 'data' of job '42'"):
        _ = job.data
    with pytest.raises(CorruptJob, match="Cannot read field 'progress' of job '42'"):
        _ = job.progress


@pytest.mark.parametrize("raw", [b"{nope", b"{}", b"[1]", b"null"])
def test_a_stacktrace_or_result_that_is_none_is_harmless(raw: bytes) -> None:
    job = decode_job(b"42", {b"stacktrace": raw, b"returnvalue": b"{nope"})
    assert job.stacktrace == []
    assert job.returnvalue is None


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (b"{}", StoredOptions()),
        (b"null", StoredOptions()),
        (b"[]", StoredOptions()),
        (b'{"foo":{"bar":[1]}}', StoredOptions()),
        (b'{"attempts":"3","priority":5}', StoredOptions(attempts=3, priority=5)),
        (b'{"attempts":{},"kl":2}', StoredOptions(keep_logs=2)),
        (b'{"backoff":[],"lifo":true}', StoredOptions(lifo=True)),
        (b'{"attempts":1e+15}', StoredOptions(attempts=1e15)),
        (b'{"jobId":"\\ud800","attempts":2}', StoredOptions(job_id="\ud800", attempts=2)),
        (b'{"fpof":true,"omc":true}', StoredOptions(fail_parent=True, omit_context=True)),
    ],
)
def test_options_are_read_as_tolerantly_as_node_does(text: bytes, options: StoredOptions) -> None:
    assert decode_options(text) == options
    assert decode_options(text + b" " * 2000) == options


@pytest.mark.parametrize(
    ("raw", "keep"),
    [
        ("true", Keep.none()),
        ("false", Keep.all()),
        ("0", Keep.none()),
        ("50000", Keep(count=50_000)),
        ('{"age":60,"count":5.0,"limit":3}', Keep(age=60, count=5, limit=3)),
        ('{"count":-1}', None),
        ("-5", None),
        ('"x"', None),
    ],
)
def test_a_foreign_keep_is_read_without_complaint(raw: str, keep: Keep | None) -> None:
    options = decode_options(f'{{"removeOnComplete":{raw}}}'.encode())
    assert options.keep_completed == keep


fuzzed = st.binary() | st.builds(lambda value: json.dumps(value).encode(), payloads)


@given(st.dictionaries(st.sampled_from(RUN_FIELDS), fuzzed))
def test_no_hash_raises_when_read(fields: dict[bytes, bytes]) -> None:
    assert decode_job(b"1", fields).id == "1"


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (None, ["a", "b", "c"]),
        (0, []),
        (2, ["b", "c"]),
        (9, ["a", "b", "c"]),
        (-1, ["a", "b", "c"]),
    ],
)
def test_stacks_are_kept_as_bullmq_keeps_them(limit: int | None, expected: list[str]) -> None:
    job = Job(id="1", raw_stacktrace=b'["a","b"]', options=StoredOptions(stack_trace_limit=limit))
    assert json.loads(encode_stacktrace(job, "c")) == expected


def test_stacks_with_lone_surrogates_become_valid_utf8() -> None:
    job = Job(id="1", raw_stacktrace=b'["\\ud800"]')
    assert json.loads(encode_stacktrace(job, "\udfff")) == ["\\ud800", "\\udfff"]


def test_a_job_id_with_strange_bytes_is_still_a_name() -> None:
    assert decode_job(b"\xff", {}).id == "\\xff"


def test_a_job_is_shown_short_and_without_its_data() -> None:
    job = decode_job(b"42", {b"name": b"send", b"data": b'{"card":"4111"}', b"atm": b"2"})
    assert repr(job) == "<Job send 42, attempts made: 2>"


@pytest.mark.parametrize(
    "keywords",
    [{}, {"priority": 3}, {"lifo": True}, {"delay": 5}, {"job_id": "own"}, {"dedup": Dedup("k")}],
)
def test_a_second_job_of_the_same_options_is_written_as_the_first(keywords: Any) -> None:
    options = JobOptions(**keywords)
    first, second = (encode_job(NewJob("n", {"x": 1}, options), 5) for _ in range(2))
    assert first == second == encode_job(NewJob("n", {"x": 1}, JobOptions(**keywords)), 5)
    traced = encode_job(NewJob("n", {"x": 1}, options, telemetry="00-1"), 5)
    assert (traced.telemetry, traced.options) != (None, first.options)
    ticket = Ticket("producer", 1, 2, "ab", 3, None)
    assert encode_job(NewJob("n", {"x": 1}, options, ticket=ticket), 5).place == 3


def test_data_that_is_too_large_is_refused_the_second_time_as_well() -> None:
    options = JobOptions(size_limit=1000)
    encode_job(NewJob("n", "x", options), 5)
    room = 1000 - len(encode_job(NewJob("n", "", options), 5).options)
    encode_job(NewJob("n", "x" * (room - 2), options), 5)
    with pytest.raises(SerializationError, match="exceeds limit"):
        encode_job(NewJob("n", "x" * (room - 1), options), 5)


@pytest.mark.parametrize(
    ("expires", "stored"),
    [(60, [60_000, 60_000, 60_000]), (datetime(1970, 1, 1, 0, 30, tzinfo=UTC), [800_000, 3, 2])],
)
def test_jobs_of_one_task_expire_each_by_its_own_time(
    expires: float | datetime, stored: list[int]
) -> None:
    options = JobOptions(expires=expires)
    added = [encode_job(NewJob("n", {}, options), at) for at in (1_000_000, 1_799_997, 1_799_998)]
    assert [json.loads(job.options)["expires"] for job in added] == stored


def test_many_jobs_are_written_as_each_by_itself() -> None:
    ticket = Ticket("producer", 1, 2, "abc", 3)
    plain = [NewJob(f"task{n % 2}", {"n": n}, PLAIN) for n in range(5)]
    sets = [
        plain,
        [*plain, NewJob("other", {}, JobOptions(delay=5))],
        [*plain, NewJob("sent again", {}, PLAIN, ticket=ticket)],
        [*plain, NewJob("traced", {}, PLAIN, telemetry="context")],
        [*plain, NewJob("unset", {"n": None}, PLAIN)],
    ]
    for jobs in sets:
        for _ in range(2):  # the first time it may not be known what their options have alike
            assert encode_jobs(jobs, NOW) == [encode_job(job, NOW) for job in jobs]


def test_of_many_jobs_one_that_is_too_large_is_refused() -> None:
    small = JobOptions(size_limit=1000)
    jobs = [NewJob("x", {"text": "y" * size}, small) for size in (1, 2, 1000)]
    encode_jobs(jobs[:1], NOW)
    assert len(encode_jobs(jobs[:2], NOW)) == 2
    with pytest.raises(SerializationError, match="exceeds limit"):
        encode_jobs(jobs, NOW)


@pytest.mark.parametrize("limit", [1e9, 101, 10**15])
def test_a_job_keeps_no_more_than_a_hundred_stacks(limit: float) -> None:  # S13
    options = StoredOptions(stack_trace_limit=limit)
    raw = json.dumps(["old"] * 500).encode()
    kept = json.loads(encode_stacktrace(Job(id="1", options=options, raw_stacktrace=raw), "new"))
    assert kept == [*["old"] * 99, "new"]


@pytest.mark.parametrize("size", [40_000, 900_000, 3_000_000])
def test_the_stacks_of_a_job_have_a_megabyte_at_most(size: int) -> None:  # S13
    options = StoredOptions(stack_trace_limit=1e9)
    raw = json.dumps(["x" * (size // 10)] * 10).encode()
    encoded = encode_stacktrace(Job(id="1", options=options, raw_stacktrace=raw), "y" * 150_000)
    assert len(encoded) <= 1_000_000
    assert json.loads(encoded)[-1] == "y" * 150_000


def test_options_of_more_than_a_megabyte_are_not_read() -> None:  # S13
    job = decode_job(b"1", {b"opts": b'{"parent":{"x":"%b"}}' % (b"x" * 1_000_000)})
    assert job.corrupt is not None


@pytest.mark.parametrize(
    "text",
    [
        '{"attempts":3,"removeOnComplete":5,"group":{"id":"a"}}',
        '{"attempts":3,"group":{"id":"a","cost":4}}',
        '{"attempts":3,"group":{"id":42}}',
        '{"attempts":3,"group":{"id":"\\",\\"group\\":{\\"id\\":\\"b"}}',
        '{"attempts":3,"group":{"id":"x"},"group":{"id":"a"}}',
        '{"attempts":"x","timeout":-1,"group":{"id":"a"}}',
        '{"attempts":3,"group":{"id":{}}}',
        '{"attempts":3,"group":{"id":null}}',
        '{"attempts":3,"group":{"id":"a","cost":1e400}}',
        '{"attempts":3,"group":{"id":"a","x":{"y":1}}}',
        '{"x":{"y":1,"group":{"id":"a"}}}',
        '{"x":{"y":1,"group":{"id":"a"}},"attempts":3}',
        '{"attempts":3,"x":",","group":{"id":"a"}}',
        '{"attempts":3,"group":{"id":"a"},"z":{}}',
    ],
)
def test_options_with_a_group_decode_like_others(text: str) -> None:
    # The space makes it decode the whole text.
    found, expected = decode_options(text.encode()), decode_options(f"{text} ".encode())
    assert found == expected
    assert found.group_id == expected.group_id
    assert found.completed_bounds == expected.completed_bounds
    text = text.replace('"a"', '"other"')
    assert decode_options(text.encode()) == decode_options(f"{text} ".encode())
    assert found == expected


def test_options_with_a_group_are_refused_like_others() -> None:
    for text in (
        '{"attempts":3 3,"group":{"id":"a"}}',
        '{"x":[1,"group":{"id":"a"}}',
        '"group":{"id":"a"}}',
    ):
        with pytest.raises(ValueError, match="JSON is malformed"):
            decode_options(text.encode())
