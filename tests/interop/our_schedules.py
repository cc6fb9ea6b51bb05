"""taskbull's schedules behind BullMQ's interface."""

from __future__ import annotations

import json
from typing import Any

from msgspec.structs import replace

from taskbull.core.job import NewJob
from taskbull.core.keys import QueueKeys
from taskbull.core.schedule import Cron, Every, Rule
from taskbull.core.validation import instant_from_ms
from taskbull.core.wire.schedule import EncodedSchedule, encode_schedule
from taskbull.errors import ConfigurationError, TaskbullError
from taskbull.scripts.call import Call
from taskbull.scripts.schedulers import Upserted, upsert_scheduler
from tests.interop.actor import Options
from tests.interop.node import Refused
from tests.interop.our_producer import options_of, stored_options


def upsert(
    keys: QueueKeys, scheduler_id: str, repeat: Options, template: Options | None, now_ms: int
) -> Call[Upserted]:
    """Return the call that writes a schedule. Raises `Refused` if BullMQ refuses it as well."""
    template = template or {}
    opts = template.get("opts") or {}
    try:
        rule = _rule(repeat)
        new = NewJob(template.get("name", scheduler_id), template.get("data", {}), options_of(opts))
        encoded = _as_told(encode_schedule(rule, new, now_ms), repeat, opts)
    except TaskbullError as error:
        raise Refused(str(error)) from error
    return upsert_scheduler(keys, scheduler_id, encoded, now_ms, keeps=False)


def _rule(repeat: Options) -> Rule:
    start, end, limit = (
        _instant(repeat, "startDate"),
        _instant(repeat, "endDate"),
        repeat.get("limit"),
    )
    if ("every" in repeat) == ("pattern" in repeat):
        raise ConfigurationError("a rule has a pattern or an interval")
    if "every" in repeat:
        offset = None if "offset" not in repeat else repeat["offset"] / 1000
        return Every(repeat["every"] / 1000, offset, start, end, limit)
    immediately = repeat.get("immediately", False)
    return Cron(repeat["pattern"], repeat.get("tz", "UTC"), start, end, limit, immediately)


def _instant(repeat: Options, name: str) -> Any:
    return None if name not in repeat else instant_from_ms(repeat[name])


def _as_told(encoded: EncodedSchedule, repeat: Options, opts: Options) -> EncodedSchedule:
    """Remove what only taskbull writes: the zone, and default options."""
    fields = dict(encoded.fields)
    stored: dict[str, Any] = json.loads(encoded.options)
    rule = stored["repeat"]
    if "tz" not in repeat:
        fields.pop("tz", None)
        rule.pop("tz", None)
    given = stored_options(opts)
    fields.pop("opts", None)
    if given:
        fields["opts"] = json.dumps(given)
    return replace(encoded, fields=fields, options=json.dumps({**given, "repeat": rule}))
