"""The quick form: a few faults of each lane, with fixed seeds; `nox -s nemesis` is the long one."""

from __future__ import annotations

import shutil

import pytest

from tests.nemesis.kinds import KINDS
from tests.nemesis.place import Single
from tests.nemesis.run import Script, perform
from tests.servers.kinds import VALKEY_9, binary

QUICK_FAULTS = (
    ("kill", "cut_before_reply", "half_open", "flush_scripts", "crash_server"),
    ("freeze", "terminate", "cut_one", "deliver_late", "kill_clients", "pause_queue"),
)


@pytest.mark.parametrize(("seed", "faults"), list(enumerate(QUICK_FAULTS, 1)))
@pytest.mark.full
def test_nothing_is_lost_duplicated_or_misreported(seed: int, faults: tuple[str, ...]) -> None:
    script = Script(
        seed=seed,
        seconds=3.0,
        rate=15.0,
        workers=("asyncio", "trio"),
        producers=("sync", "trio") if seed % 2 else ("sync", "asyncio"),
        followers=("asyncio",) if seed % 2 else ("trio",),
        faults=faults,
        kinds=tuple(name for name in KINDS if name != "slow"),
    )
    with Single(binary(VALKEY_9)) as place:
        report = perform(script, place)
    print(f"{report.acknowledged} jobs, {report.runs} runs, {report.faults} faults")
    assert report.acknowledged > 0
    violations = "\n".join(str(one) for one in report.violations[:5])
    assert not report.violations, f"{violations}\nthe ledger is in {report.folder}"
    shutil.rmtree(report.folder)
