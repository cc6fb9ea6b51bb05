"""Commands that act: what they change, what they report, and that they ask before they destroy."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import redis

from taskbull.monitor.server import SyncServer
from tests.cli.conftest import CommandLine, Shop


@pytest.fixture
def failed(shop: Shop) -> Shop:
    """A shop with three failed jobs in `default`."""
    for reason in ("one", "two", "three"):
        shop("call", "explode", f"reason={reason}")
    shop.work()
    return shop


def test_failed_jobs_run_again(failed: Shop) -> None:
    assert failed("retry", "default", "1", "2").splitlines() == [
        "job 1 will be retried",
        "job 2 will be retried",
    ]
    counts = failed.queue("default").counts()
    assert (counts["waiting"], counts["failed"]) == (2, 1)


def test_each_of_several_jobs_is_reported_and_one_failure_is_a_failure(failed: Shop) -> None:
    result = failed.run("retry", "default", "99", "1", "1", "meta")
    assert result.exit_code == 1
    assert result.stdout == "job 1 will be retried\n"
    assert result.stderr.splitlines() == [
        "taskbull: Job '99' not found in queue 'default'",
        "taskbull: Job 'meta' not found in queue 'default'",
    ]
    said = failed.run("retry", "default", "1").stderr
    assert said.rstrip().endswith("it is waiting, not failed")


def test_the_report_is_json_if_asked(failed: Shop) -> None:
    assert failed.json("retry", "default", "1", "99", code=1) == [
        {"id": "1", "ok": True, "error": None},
        {"id": "99", "ok": False, "error": "Job '99' not found in queue 'default'"},
    ]


def test_all_failed_jobs_run_again(failed: Shop) -> None:
    assert failed.json("retry-all", "default") == {
        "queue": "default",
        "state": "failed",
        "retried": 3,
    }
    assert failed("retry-all", "default") == "retried 0 jobs in queue default\n"


def test_jobs_run_again_at_a_rate(failed: Shop) -> None:  # V36
    assert failed.json("retry-all", "default", "--rate", "1000")["retried"] == 3
    wrong = failed.run("retry-all", "default", "--rate", "1", "--state", "completed")
    assert wrong.exit_code == 2
    assert failed.run("retry", "default", "1", "--rate", "1").exit_code == 2
    assert failed.run("retry-all", "default", "--rate", "0").exit_code == 2


def test_a_rate_is_kept(failed: Shop) -> None:  # V36
    began = time.monotonic()
    assert failed.json("retry-all", "default", "--rate", "2")["retried"] == 3
    assert time.monotonic() - began >= 1  # the third job a second after the first two


def test_jobs_are_saved_before_they_are_removed(cli: CommandLine, tmp_path: Path) -> None:  # V36
    queue, file = cli.queue("emails"), tmp_path / "jobs.jsonl"
    queue.add_bulk([("send", {"to": name}) for name in ("ann", "bob")])
    queue.add("send", {"to": "cem"}, priority=2)
    queue.add("send", {"to": "dan"}, delay=60)
    assert cli.json("drain", "emails", "--save", str(file), "--yes")["removed"] == 3
    assert queue.counts()["delayed"] == 1
    cli("drain", "emails", "--delayed", "--save", str(file), "--yes", code=1)
    assert queue.counts()["delayed"] == 1
    cli("restore", str(file))
    assert [job.data["to"] for job in queue.get_jobs("waiting")] == ["ann", "bob"]
    [third] = queue.get_jobs("prioritized")
    assert third.data == {"to": "cem"}


def test_finished_jobs_are_saved_before_they_are_cleaned(failed: Shop, tmp_path: Path) -> None:
    file = tmp_path / "jobs.jsonl"
    words = ("clean", "default", "--state", "failed", "--save", str(file), "--yes")
    assert failed.json(*words, "--older-than", "3600")["removed"] == 0
    file.unlink()
    assert failed.json(*words, "--limit", "2")["ids"] == ["1", "2"]
    assert len(file.read_text().splitlines()) == 2


def test_no_file_is_left_by_a_command_that_was_declined(failed: Shop, tmp_path: Path) -> None:
    file = tmp_path / "jobs.jsonl"
    assert failed.run("drain", "default", "--save", str(file)).exit_code != 0
    assert not file.exists()


def test_what_the_shell_does_is_recorded_for_dashboards(failed: Shop) -> None:  # V36
    failed("retry", "default", "1")
    failed("pause", "default", "--reason", "smtp is down")
    failed("retry-all", "default")
    server = SyncServer(failed.url, prefix=failed.prefix)
    found = {record.action: record for record in server.operations()}
    server.close()
    assert set(found) == {"retry", "pause", "retry-all"}
    assert (found["retry-all"].count, found["pause"].what) == (2, "smtp is down")
    assert found["retry"].by.endswith("(command line)")


def test_failed_jobs_are_grouped_by_error_and_a_group_runs_again(failed: Shop) -> None:
    with redis.Redis.from_url(failed.url) as client:
        for job_id in ("1", "3"):
            client.hset(f"{failed.prefix}:default:{job_id}", "failedReason", "ConnectionError: x")
    found = failed.json("errors", "default")
    assert (found["queue"], found["failed"], found["read"]) == ("default", 3, 3)
    first, second = found["errors"]
    assert (first["task"], first["error"], first["jobs"]) == ("explode", "ConnectionError: x", 2)
    assert (second["jobs"], second["margin"], second["newest"]) == (1, 0, "2")
    header, row, _ = failed("errors", "default").splitlines()
    assert header.split() == ["JOBS", "TASK", "ERROR", "NEWEST", "LAST", "FINGERPRINT"]
    assert row.endswith(first["fingerprint"])
    words = ("retry", "default", "--error", first["fingerprint"])
    assert failed(*words, "--limit", "1") == "retried 1 job in queue default\n"
    assert failed.json(*words) == {"queue": "default", "retried": 1}
    assert failed.json(*words)["retried"] == 0
    counts = failed.queue("default").counts()
    assert (counts["waiting"], counts["failed"]) == (2, 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "Choose the jobs to retry: pass their ids, or --error"),
        (("1", "--error", "x"), "by id or by --error, not both"),
        (("1", "--limit", "3"), "--limit needs --error"),
        (("--error", "x", "--state", "completed"), "--error selects failed jobs"),
    ],
)
def test_jobs_to_retry_are_named_in_one_way(
    failed: Shop, words: tuple[str, ...], said: str
) -> None:
    assert said in failed.fails("retry", "default", *words, code=2)


def test_many_jobs_are_retried_only_if_confirmed(cli: CommandLine) -> None:
    queue = cli.queue("emails")
    handles = queue.add_bulk([("x", {})] * 101)
    with redis.Redis.from_url(cli.url) as client:
        client.delete(queue.keys.wait)
        client.zadd(queue.keys.failed, {handle.id: 1 for handle in handles})
    said = cli.fails("retry-all", "emails", code=2)
    assert "Retry all 101 failed jobs of queue 'emails'?" in said
    assert queue.counts()["failed"] == 101
    assert cli.json("retry-all", "emails", "--yes")["retried"] == 101


def test_jobs_get_all_their_attempts_again_if_asked(failed: Shop) -> None:
    failed("retry", "default", "1", "--reset-attempts")
    failed("retry", "default", "2")
    failed("retry-all", "default", "--reset-attempts")
    jobs = {job.id: job.attempts_made for job in failed.queue("default").get_jobs("waiting")}
    assert jobs == {"1": 0, "2": 1, "3": 0}


def test_only_what_failed_since_a_time_runs_again(failed: Shop) -> None:
    with redis.Redis.from_url(failed.url) as client:
        client.zadd(f"{failed.prefix}:default:failed", {"1": 1000, "2": 2000})
    assert failed.json("retry-all", "default", "--since", "-1h")["retried"] == 1
    words = ("retry-all", "default", "--since", "1970-01-01T00:00:02+00:00")
    assert failed.json(*words)["retried"] == 1
    assert "must be a time such as 03:10" in failed.fails(
        "retry-all", "default", "--since", "x", code=2
    )
    assert failed.queue("default").counts()["failed"] == 1


def test_completed_jobs_run_again_if_asked(shop: Shop) -> None:
    shop("call", "resize", "path=a")
    shop.work()
    assert shop("retry-all", "default", "--state", "completed").startswith("retried 1 job in")
    shop.work()
    shop("retry", "default", "1", "--state", "completed")
    assert shop.queue("default").counts()["waiting"] == 1


def test_delayed_jobs_run_now(cli: CommandLine) -> None:
    cli.queue("emails").add("send", delay=3600)
    assert cli("promote", "emails", "1") == "job 1 will run now\n"
    assert cli.queue("emails").counts()["waiting"] == 1
    assert "it is waiting" in cli.fails("promote", "emails", "1")


def test_a_queue_is_paused_and_resumed(cli: CommandLine) -> None:
    cli.queue("emails").add("send")
    assert cli("pause", "emails") == "queue emails is paused; 0 jobs still running\n"
    assert cli.queue("emails").is_paused()
    assert "was already paused" in cli("pause", "emails")
    assert cli.json("pause", "emails") == {"queue": "emails", "paused": True, "changed": False}
    assert cli("resume", "emails") == "queue emails resumed\n"
    assert not cli.queue("emails").is_paused()
    assert cli("resume", "emails") == "queue emails was not paused\n"
    assert cli.json("resume", "emails") == {"queue": "emails", "paused": False, "changed": False}


def test_a_pause_says_by_whom_and_why(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ann")
    cli.queue("emails").add("send")
    cli("pause", "emails", "--reason", "migration\x1b[31m")
    assert "by ann (migration" in cli("why", "emails", "1")
    assert "yes by ann: migration\\x1b[31m" in cli("queues")
    [found] = cli.json("queues")
    assert (found["note"]["by"], found["note"]["why"]) == ("ann", "migration\x1b[31m")
    monkeypatch.setenv("LOGNAME", "bob")
    cli("pause", "emails")  # says nothing new
    assert cli.json("queues")[0]["note"] == found["note"]
    cli("pause", "emails", "--reason", "still")
    assert cli.json("queues")[0]["note"]["by"] == "bob"
    cli("resume", "emails")
    assert cli.json("queues")[0]["note"] is None
    cli("pause", "emails")
    assert "yes by bob" in cli("queues")


@pytest.mark.parametrize(
    "words",
    [
        ("remove", "emails", "1"),
        ("drain", "emails"),
        ("clean", "emails"),
        ("obliterate", "emails"),
    ],
)
def test_without_a_terminal_nothing_is_destroyed_unless_yes_is_said(
    cli: CommandLine, words: tuple[str, ...]
) -> None:
    cli.queue("emails").add("send")
    assert "pass --yes" in cli.fails(*words, code=2)
    assert cli.queue("emails").counts()["waiting"] == 1
    cli(*words, "--yes")


def test_jobs_are_removed(cli: CommandLine) -> None:
    cli.queue("emails").add_bulk([("send", {})] * 2)
    assert cli("remove", "emails", "1", "--yes") == "job 1 deleted\n"
    assert cli.queue("emails").get_job("1") is None
    assert "Job '1' not found" in cli.fails("remove", "emails", "1", "--yes")


def test_jobs_are_cancelled_wherever_they_are(cli: CommandLine) -> None:
    queue = cli.queue("emails")
    queue.add_bulk([("send", {})] * 4)
    base = f"{cli.prefix}:emails:"
    with redis.Redis.from_url(cli.url) as client:
        for job_id, token in (("1", "tb:x:1"), ("2", "node")):
            client.rpoplpush(f"{base}wait", f"{base}active")
            client.set(f"{base}{job_id}:lock", token)
    assert cli("cancel", "emails", "1", "2", "3", "--reason", "not needed") == (
        "job 1 was asked to stop and will not be retried\n"
        "job 2 cannot be stopped by its worker, but will not be retried\n"
        "job 3 was cancelled\n"
    )
    assert cli("jobs", "emails", "--state", "active").count("asked to stop") == 2
    third = queue.get_job("3")
    assert third is not None
    assert third.failed_reason == "cancelled: not needed"
    assert cli("cancel", "emails", "3", code=1) == "job 3 had already finished\n"
    assert "Job '9' not found in queue 'emails'" in cli.fails("cancel", "emails", "9")
    assert cli.json("cancel", "emails", "4", "3", "meta", code=1) == [
        {"id": "4", "ok": True, "answer": "before_start", "error": None},
        {"id": "3", "ok": False, "answer": "too_late", "error": None},
        {
            "id": "meta",
            "ok": False,
            "answer": None,
            "error": "Job 'meta' not found in queue 'emails'",
        },
    ]


def test_a_key_of_the_queue_is_not_taken_for_a_job(cli: CommandLine) -> None:
    cli.queue("emails").add("send")
    cli.fails("remove", "emails", "meta", "--yes")
    with redis.Redis.from_url(cli.url) as client:
        assert client.exists(f"{cli.prefix}:emails:meta")


def test_a_running_job_is_not_removed(cli: CommandLine) -> None:
    cli.queue("emails").add("send")
    with redis.Redis.from_url(cli.url) as client:
        client.rpoplpush(f"{cli.prefix}:emails:wait", f"{cli.prefix}:emails:active")
        client.set(f"{cli.prefix}:emails:1:lock", "token")
    assert "job '1' in queue 'emails': it is running" in cli.fails("remove", "emails", "1", "--yes")
    assert cli.queue("emails").counts()["active"] == 1


def test_waiting_jobs_are_drained(cli: CommandLine) -> None:
    queue = cli.queue("emails")
    queue.add_bulk([("a", {}), ("b", {}, {"priority": 1}), ("c", {}, {"delay": 60})])
    assert cli("drain", "emails", "--yes") == "deleted 2 jobs from queue emails\n"
    assert cli.json("drain", "emails", "--yes", "--delayed") == {"queue": "emails", "removed": 1}


def test_jobs_of_a_state_are_cleaned(failed: Shop) -> None:
    words = ("clean", "default", "--state", "failed", "--yes")
    assert failed.json(*words, "--older-than", "1h")["removed"] == 0
    assert failed.json(*words, "--limit", "1") == {
        "queue": "default",
        "state": "failed",
        "removed": 1,
        "ids": ["1"],
    }
    assert failed(*words) == "deleted 2 failed jobs from queue default\n"


def test_a_queue_is_obliterated(cli: CommandLine) -> None:
    cli.queue("emails").add_bulk([("send", {})] * 3)
    assert cli("obliterate", "emails", "--yes") == "deleted queue emails and 3 jobs\n"
    with redis.Redis.from_url(cli.url) as client:
        left = client.keys(f"{cli.prefix}:*")
        assert left == [f"{cli.prefix}::tb:operations".encode()]  # the record, for an hour
    assert "not found" in cli.fails("obliterate", "emails", "--yes")


def test_a_queue_with_running_jobs_is_obliterated_by_force_only(cli: CommandLine) -> None:
    cli.queue("emails").add("send")
    with redis.Redis.from_url(cli.url) as client:
        client.rpoplpush(f"{cli.prefix}:emails:wait", f"{cli.prefix}:emails:active")
    assert "1 running job:" in cli.fails("obliterate", "emails", "--yes")
    assert cli.json("obliterate", "emails", "--yes", "--force")["removed"] == 1


@pytest.mark.parametrize(
    "command", ["retry-all", "pause", "resume", "drain", "clean", "obliterate"]
)
def test_an_unknown_queue_is_not_acted_on(cli: CommandLine, command: str) -> None:
    cli.queue("emails").add("send")
    assert "did you mean emails?" in cli.fails(command, "emial")
    with redis.Redis.from_url(cli.url) as client:
        assert client.keys(f"{cli.prefix}:emial:*") == []


@pytest.mark.parametrize("value", ["soon", "-5", "1y", "", "nan"])
def test_a_wrong_duration_is_wrong_usage(cli: CommandLine, value: str) -> None:
    assert "is not a duration" in cli.fails("clean", "emails", f"--older-than={value}", code=2)
