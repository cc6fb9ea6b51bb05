"""Storage format of job schedulers, and the computation of their next run.

Stored schedulers may have been written by any producer. An invalid rule is read as `None`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import md5
from typing import Any, Final

import msgspec
from msgspec import Struct

from taskbull.core import payload
from taskbull.core.job import NewJob
from taskbull.core.keys import MAX_PRIORITY
from taskbull.core.schedule import Cron, Every, Rule, Schedule, pad_line, parse_cron
from taskbull.core.validation import (
    Foreign,
    Number,
    from_ms,
    instant_from_ms,
    instant_to_ms,
    read_number,
    shown,
    to_ms,
)
from taskbull.core.wire.job import EncodedJob
from taskbull.core.wire.options import StoredOptions, decode_options, encode_options
from taskbull.errors import ConfigurationError

# The `repeat` object in the options of a scheduler's job.


class Repeat(Foreign, frozen=True, rename={"zone": "tz", "every_ms": "every", "end": "endDate"}):
    """A scheduler's rule and the number of this run, as stored in the job of the run.

    Only the fields that the next run depends on are read.
    """

    pattern: str | None = None
    every_ms: Number | None = None
    zone: str | None = None
    limit: Number | None = None
    count: int | None = None
    end: Number | str | None = None

    @property
    def end_ms(self) -> float | None:
        """End of the scheduler in ms, or `None` if it has no end.

        Raises:
            ConfigurationError: The stored end is not a date.
        """
        if not isinstance(self.end, str):
            return self.end
        try:
            end = datetime.fromisoformat(self.end)
        except ValueError as error:
            raise ConfigurationError(f"endDate {shown(self.end)} is not a date") from error
        return instant_to_ms(end if end.tzinfo is not None else end.replace(tzinfo=UTC))


def decode_repeat(repeat: dict[str, Any]) -> Repeat:
    """Decode a `repeat` object.

    Raises:
        ConfigurationError: The object is invalid.
    """
    try:
        return msgspec.convert(repeat, Repeat, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"the rule {shown(repeat)} cannot be read: {error}") from error


# Job schedulers: encoded from a rule and a job template, decoded into a `Schedule`.


DECLARED_BY = "tbapp"
"""Field with the name of the app that declares the schedule. Node keeps and ignores it."""


class EncodedSchedule(Struct, frozen=True):
    """A schedule in the form that scripts take."""

    due_ms: int | None
    """Next run of a cron rule, or `None` for an interval, whose slots the script computes."""
    every_ms: int | None
    offset_ms: int | None
    start_ms: int | None
    fields: dict[str, str]
    """Fields to store in the scheduler's hash."""
    name: str
    data: str
    options: str
    """Options of its jobs, including the rule."""


def encode_schedule(
    rule: Rule, template: NewJob, now_ms: int, declared_by: str | None = None
) -> EncodedSchedule:
    """Encode a schedule to be stored at `now_ms`.

    Raises:
        ConfigurationError: The rule has no future run, or a schedule cannot add the template.
        SerializationError: The data cannot be encoded, or the job is too large.
    """
    data, options = _encode_template(template)
    repeat = _repeat(rule)
    fields = {"name": template.name, **{name: str(value) for name, value in repeat.items()}}
    if options != b"{}":
        fields["opts"] = options.decode()
    if data != "{}":
        fields["data"] = data
    if declared_by is not None:
        fields[DECLARED_BY] = declared_by
    every_ms, offset_ms = None, None
    if isinstance(rule, Every):
        every_ms, offset_ms = rule.interval_ms, rule.offset_ms
        if offset_ms is not None:
            repeat["offset"] = offset_ms  # The script writes the offset in the hash.
    stored: dict[str, Any] = msgspec.json.decode(options)
    return EncodedSchedule(
        due_ms=_first_ms(rule, now_ms),
        every_ms=every_ms,
        offset_ms=offset_ms,
        start_ms=None if rule.start is None else instant_to_ms(rule.start),
        fields=fields,
        name=template.name,
        data=data,
        options=msgspec.json.encode(stored | {"repeat": repeat}).decode(),
    )


def check_template(template: NewJob) -> None:
    """Raise an error if a schedule cannot add this job.

    Raises:
        ConfigurationError: The job has an option that each run determines, such as `delay`.
        SerializationError: The data cannot be encoded, or the job is too large.
    """
    _encode_template(template)


def _encode_template(template: NewJob) -> tuple[str, bytes]:
    options = template.options
    for name in ("delay", "eta", "job_id", "dedup"):
        if getattr(options, name) is not None:
            raise ConfigurationError(
                f"a schedule's job cannot have the option '{name}': each run gets its own time and "
                "id"
            )
    if options.on_failure is not None:
        raise ConfigurationError(
            "a schedule's job cannot have the option 'on_failure': it has no parent"
        )
    if isinstance(options.expires, datetime):
        raise ConfigurationError(
            "a schedule's job cannot expire at a fixed time: use expires=… in seconds after each "
            "run is due"
        )
    data = payload.encode(template.data, "data").decode()
    expires_ms = None if options.expires is None else to_ms(options.expires)
    stored = encode_options(options, delay_ms=0, expires_ms=expires_ms)
    payload.check_size(len(data) + len(stored), options.size_limit)
    return data, stored


def _repeat(rule: Rule) -> dict[str, Any]:
    """Return the rule as the `repeat` object of its jobs. The hash has the same fields."""
    repeat: dict[str, Any] = (
        {"every": rule.interval_ms}
        if isinstance(rule, Every)
        else {"pattern": rule.pattern, "tz": rule.tz}
    )
    if rule.limit is not None:
        repeat["limit"] = rule.limit
    if rule.start is not None:
        repeat["startDate"] = instant_to_ms(rule.start)
    if rule.end is not None:
        repeat["endDate"] = instant_to_ms(rule.end)
    return repeat


def run_id(schedule_id: str, due_ms: int) -> str:
    """Return the job id of a schedule's run at `due_ms`."""
    return f"repeat:{run_part(schedule_id)}:{due_ms}"


_OLD_PARTS: Final = 5


class OldRepeatable(Struct, frozen=True):
    """A repeatable job of BullMQ 3, 4 or early 5. It has no hash; its key contains its rule."""

    key: str
    name: str
    rule: Rule | None

    @property
    def run_part(self) -> str:
        """Middle part of the job ids of its runs, computed as in BullMQ 5.62."""
        inner = md5(self.key.encode(), usedforsecurity=False).hexdigest()
        return md5((self.name + inner).encode(), usedforsecurity=False).hexdigest()


def read_old_key(key: str) -> OldRepeatable | None:
    """Parse the key of an old repeatable job. Return `None` for the id of a job scheduler.

    The format of the key is `name:job id:end:time zone:pattern or interval`.
    """
    parts = key.rsplit(":", _OLD_PARTS - 1)
    if len(parts) < _OLD_PARTS:
        return None
    name, _, end, zone, suffix = parts
    fields = {"endDate": end, "tz": zone, "every" if suffix.isdigit() else "pattern": suffix}
    rule = _read_rule({field: value for field, value in fields.items() if value})
    return OldRepeatable(key, name, rule)


def run_part(schedule_id: str) -> str:
    """Return the part of the runs' job ids that identifies the schedule.

    That is the id of the schedule, or a digest for old repeatable jobs.
    """
    old = read_old_key(schedule_id)
    return schedule_id if old is None else old.run_part


def is_over(rule: Rule, now_ms: int) -> bool:
    """Return True if a rule has no future run, because its end is past or too near."""
    try:
        _first_ms(rule, now_ms)
    except ConfigurationError:
        return True
    return False


def _first_ms(rule: Rule, now_ms: int) -> int | None:
    end_ms = None if rule.end is None else instant_to_ms(rule.end)
    if end_ms is not None and end_ms < now_ms:
        raise ConfigurationError(f"the end of the schedule ({rule.end}) is in the past")
    if isinstance(rule, Every):
        return None
    if rule.immediately:
        return now_ms
    start_ms = 0 if rule.start is None else instant_to_ms(rule.start)
    due_ms = rule.line.next_after(max(now_ms, start_ms))
    if due_ms is None or (end_ms is not None and due_ms > end_ms):
        raise ConfigurationError(
            f"the cron pattern {rule.pattern!r} has no run between now and its end ({rule.end})"
        )
    return due_ms


def encode_run(schedule: Schedule, now_ms: int) -> EncodedJob:
    """Return an extra job of a schedule to add now, from the stored template."""
    options = schedule.options
    return EncodedJob(
        schedule.task,
        schedule.raw_data,
        schedule.raw_options,
        now_ms,
        0,
        min(max(int(options.priority or 0), 0), MAX_PRIORITY),
        options.lifo,
        "",
    )


def decode_schedule(
    queue: str,
    scheduler_id: bytes,
    score: bytes,
    fields: Mapping[bytes, bytes] | Sequence[bytes],
    pending: Sequence[bytes | None],
) -> Schedule:
    """Decode a job scheduler.

    Args:
        queue: Name of the queue.
        scheduler_id: Id of the scheduler.
        score: Due time of the newest run in ms.
        fields: Hash of the scheduler, as a mapping or as alternating names and values.
        pending: Fields `ats` and `opts` of the job of the newest run.
    """
    if not isinstance(fields, Mapping):
        fields = dict(zip(fields[::2], fields[1::2], strict=True))
    texts = {
        name.decode("utf-8", "backslashreplace"): value.decode("utf-8", "backslashreplace")
        for name, value in fields.items()
    }
    started, options = pending
    repeat = {} if options is None else _read_options(options).repeat or {}
    if "offset" not in repeat:  # Without an explicit offset, the hash has that of the first run.
        texts.pop("offset", None)
    schedule_id = scheduler_id.decode("utf-8", "backslashreplace")
    old = None if fields else read_old_key(schedule_id)
    rule = _read_rule(texts) if old is None else old.rule
    is_waiting = old is not None or (options is not None and not read_number(started))
    due = instant_from_ms(read_number(score) or 0)
    ended = not is_waiting and _is_last(rule, due, repeat.get("count"))
    raw_options = fields.get(b"opts", b"{}")
    return Schedule(
        id=schedule_id,
        queue=queue,
        task=texts.get("name", "") if old is None else old.name,
        rule=rule,
        raw_data=fields.get(b"data", b"{}"),
        raw_options=raw_options,
        options=_read_options(raw_options),
        next_run=None if ended else due,
        count=max(1, read_number(fields.get(b"ic")) or 1),
        ended=ended,
        last_due=due,
        declared_by=texts.get(DECLARED_BY),
        is_pending=is_waiting,
        is_old=old is not None,
    )


def _is_last(rule: Rule | None, due: datetime | None, count: object) -> bool:
    # The run that was due last has started or was removed.
    if rule is None or (rule.limit is None and rule.end is None):
        return False
    if rule.limit is not None and (not isinstance(count, int) or count >= rule.limit):
        return True
    return rule.end is not None and rule.next(after=due) is None


def _read_options(raw: bytes) -> StoredOptions:
    try:
        return decode_options(raw)
    except ValueError:
        return StoredOptions()


def _read_rule(fields: Mapping[str, str]) -> Rule | None:
    def number(name: str) -> int | None:
        raw = fields.get(name)
        return None if raw is None else read_number(raw.encode())

    def instant(name: str) -> datetime | None:
        ms = number(name)
        return None if ms is None else instant_from_ms(ms)

    start, end, limit = instant("startDate"), instant("endDate"), number("limit")
    try:
        if pattern := fields.get("pattern"):
            return Cron(pad_line(pattern), fields.get("tz", "local"), start, end, limit)
        every_ms, offset_ms = number("every"), number("offset")
        if every_ms is None:
            return None
        offset = None if offset_ms is None else from_ms(offset_ms % every_ms)
        return Every(from_ms(every_ms), offset, start, end, limit)
    except (ConfigurationError, ZeroDivisionError):
        return None


# The next run, computed from the options of the current one.


class NextRun(Struct, frozen=True):
    """The run that a scheduler adds when the current one starts."""

    count: int
    """Number of the run, counted from 1."""
    due_ms: int | None = None
    """Due time, or `None` for the next slot of `every`. Only the stored scheduler has its slots."""


def next_run(
    options: StoredOptions, now_ms: int, *, after_ms: int = 0, is_old: bool = False
) -> NextRun | None:
    """Return the run that follows the one with these options, or `None` if there is none.

    A cron line without a time zone uses that of this process, as in Node.

    Args:
        options: Options of the current run.
        now_ms: Current time.
        after_ms: Time that the next cron run must be later than.
        is_old: True for an old repeatable job, which runs at multiples of its interval.

    Raises:
        ConfigurationError: The stored rule is invalid.
    """
    if options.repeat is None:
        return None
    repeat = decode_repeat(options.repeat)
    count = (repeat.count or 0) + 1
    if repeat.limit is not None and count > repeat.limit:
        return None
    end_ms = repeat.end_ms
    if end_ms is not None and now_ms > end_ms:
        return None
    latest = max(now_ms, int(options.previous_ms or 0), after_ms)
    if not repeat.pattern:
        every_ms = int(repeat.every_ms or 0)
        if every_ms < 1:
            return None
        if not is_old:
            return NextRun(count)
        due_ms: int | None = (latest // every_ms + 1) * every_ms
    else:
        due_ms = parse_cron(repeat.pattern, repeat.zone).next_after(latest)
    if due_ms is None:
        raise ConfigurationError(f"the cron pattern {shown(repeat.pattern)} never runs")
    return NextRun(count, due_ms) if end_ms is None or due_ms <= end_ms else None
