"""Tests in the style of a Django project: `TestCase`, without a worker."""

from __future__ import annotations

import asyncio
import os
from datetime import datetime, timedelta
from typing import Any
from unittest import mock

import django
from asgiref.sync import async_to_sync, sync_to_async
from conf.jobs import app
from django.conf import settings
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.db import connections, transaction
from django.test import SimpleTestCase, TestCase, TransactionTestCase, override_settings
from django.utils import timezone

from shop import tasks
from shop.models import Order
from taskbull import SerializationError, chain
from taskbull.core.job import Job
from taskbull.core.keys import JobState
from taskbull.django import TaskbullBackend
from taskbull.django.backend import _status  # pyright: ignore[reportPrivateUsage]
from taskbull.testing import recorded

if django.VERSION >= (6,):
    from django.tasks import TaskResultStatus, default_task_backend, task_backends
    from django.tasks import task as make_task
    from django.tasks.exceptions import (
        InvalidTask,
        TaskResultDoesNotExist,
        TaskResultMismatch,
    )
    from django.tasks.signals import task_enqueued
else:
    from django_tasks import TaskResultStatus, default_task_backend, task_backends
    from django_tasks import task as make_task
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
    from django_tasks.signals import task_enqueued

READY = TaskResultStatus.READY


def not_a_task(thing: int) -> int:
    return thing


def wants_context(thing: int) -> int:
    return thing


def entry(**changes: Any) -> dict[str, Any]:
    return {"default": {**settings.TASKS["default"], **changes}}


class InTransactions(TestCase):
    """`.delay()` waits for the commit, which a TestCase simulates."""

    databases = {"default", "archive"}

    def test_delay_is_sent_by_the_captured_callbacks(self) -> None:
        with recorded(app) as box:
            with self.captureOnCommitCallbacks(execute=True) as callbacks:
                job = tasks.ship.delay(1)
                self.assertEqual(len(box.jobs), 0)
            self.assertEqual(len(callbacks), 1)
            self.assertEqual([each.id for each in box.jobs], [job.id])

    def test_without_the_callbacks_nothing_is_sent(self) -> None:
        with recorded(app) as box:
            tasks.ship.delay(1)
            with self.captureOnCommitCallbacks() as callbacks:
                tasks.ship.delay(1)
            self.assertEqual((len(box.jobs), len(callbacks)), (0, 1))

    def test_a_rollback_sends_nothing(self) -> None:
        with recorded(app) as box, self.captureOnCommitCallbacks(execute=True) as callbacks:
            with self.assertRaises(LookupError), transaction.atomic():
                tasks.ship.delay(1)
                tasks.confirm.enqueue(1)
                raise LookupError
        self.assertEqual((len(box.jobs), len(callbacks)), (0, 0))

    def test_users_may_call_on_commit_themselves(self) -> None:
        with recorded(app) as box:
            with self.captureOnCommitCallbacks(execute=True):
                transaction.on_commit(lambda: tasks.ship.delay(1))
            self.assertEqual(len(box.jobs), 1)

    def test_jobs_of_all_kinds_wait(self) -> None:
        ship = tasks.ship
        with recorded(app) as box:
            with self.captureOnCommitCallbacks(execute=True):
                ship.options(delay=60).delay(1)
                chain(ship.job(1), ship.job(2)).delay()
                app.enqueue(ship.job(number) for number in (3, 4))
                self.assertEqual(len(box.jobs), 0)
            self.assertEqual(len(box.jobs), 5)

    async def test_adelay_waits_in_an_async_test(self) -> None:
        with recorded(app) as box:
            await tasks.ship.adelay(1)
            await app.aenqueue([tasks.ship.job(2)])
            self.assertEqual(len(box.jobs), 0)
            await sync_to_async(self.run_callbacks)()
            self.assertEqual([job.data["number"] for job in box.jobs], [1, 2])

    def run_callbacks(self) -> None:
        for _, callback, _ in list(connections["default"].run_on_commit):
            callback()

    def test_a_transaction_of_another_database_counts(self) -> None:
        with recorded(app) as box:
            with self.captureOnCommitCallbacks(using="archive", execute=True) as callbacks:
                with transaction.atomic(using="archive"):
                    tasks.ship.delay(1)
                self.assertEqual(len(box.jobs), 0)
            self.assertEqual((len(callbacks), len(box.jobs)), (1, 1))

    def test_all_open_transactions_must_be_committed(self) -> None:
        with recorded(app) as box:
            with (
                self.captureOnCommitCallbacks(execute=True),
                self.captureOnCommitCallbacks(using="archive", execute=True),
                transaction.atomic(),
            ):
                with self.assertRaises(LookupError), transaction.atomic(using="archive"):
                    tasks.ship.delay(1)
                    raise LookupError
            self.assertEqual(len(box.jobs), 0)

    @override_settings(TASKBULL_ENQUEUE_ON_COMMIT=False)
    def test_the_setting_turns_it_off(self) -> None:
        with recorded(app) as box:
            tasks.ship.delay(1)
            self.assertEqual(len(box.jobs), 1)

    @override_settings(TASKS=entry(ENQUEUE_ON_COMMIT=False))
    def test_the_entry_in_tasks_turns_it_off(self) -> None:
        with recorded(app) as box:
            tasks.ship.delay(1)
            self.assertEqual(len(box.jobs), 1)

    @override_settings(TASKBULL_ENQUEUE_ON_COMMIT=["archive"])
    def test_the_setting_may_name_databases(self) -> None:
        with recorded(app) as box:
            with transaction.atomic():
                with self.captureOnCommitCallbacks(using="archive") as callbacks:
                    tasks.ship.delay(1)
                with self.captureOnCommitCallbacks() as others:
                    tasks.ship.delay(1)
            self.assertEqual((len(box.jobs), len(callbacks), len(others)), (0, 1, 0))

    def test_arguments_are_checked_and_copied_by_the_call(self) -> None:
        numbers = [1]
        with recorded(app) as box:
            with self.captureOnCommitCallbacks(execute=True) as callbacks:
                tasks.any_object.delay(numbers)
                numbers.append(2)
                with self.assertRaisesRegex(SerializationError, r"primary key \(pk\)"):
                    tasks.any_object.delay(Order())
                with self.assertRaisesRegex(SerializationError, "list of primary keys"):
                    tasks.any_object.delay(Order.objects.all())
            self.assertEqual(len(callbacks), 1)
            self.assertEqual(box.jobs[0].data, {"thing": [1]})

    def test_enqueue_of_django_waits_and_reports(self) -> None:
        sent: list[str] = []

        def receive(task_result: Any, **_: Any) -> None:
            sent.append(task_result.id)

        task_enqueued.connect(receive)
        self.addCleanup(task_enqueued.disconnect, receive)
        backend = task_backends["default"]
        with recorded(backend.app):
            with self.captureOnCommitCallbacks(execute=True):
                result = tasks.confirm.enqueue(1)
                self.assertEqual((result.status, result.enqueued_at, sent), (READY, None, []))
            self.assertIsNotNone(result.enqueued_at)
        self.assertEqual(sent, [result.id])

    def test_a_recorded_task_runs_in_the_transaction_of_the_test(self) -> None:
        order = Order.objects.create()
        with recorded(app) as box:
            with self.captureOnCommitCallbacks(execute=True):
                tasks.ship.delay(order.pk)
            box.run()
        order.refresh_from_db()
        self.assertEqual(order.state, "shipped")


class Committed(TransactionTestCase):
    """With real transactions, jobs are added to Redis after the commit."""

    def tearDown(self) -> None:
        for queue in ("jobs", "default"):
            app.sync_queue(queue).obliterate(force=True)

    def test_a_handle_has_its_id_before_the_commit(self) -> None:
        with transaction.atomic():
            job = tasks.ship.delay(1)
            self.assertEqual(job.state(), JobState.UNKNOWN)
        self.assertEqual(job.state(), JobState.WAITING)
        self.assertFalse(job.deduplicated)

    def test_outside_of_a_transaction_jobs_are_sent_now(self) -> None:
        self.assertEqual(tasks.ship.delay(1).state(), JobState.WAITING)

    def test_the_handle_of_a_duplicate_is_that_of_the_first_job(self) -> None:
        first = tasks.ship.options(dedup="one").delay(1)
        with transaction.atomic():
            second = tasks.ship.options(dedup="one").delay(1)
            self.assertNotEqual(second.id, first.id)
        self.assertEqual((second.id, second.deduplicated), (first.id, True))

    def test_adelay_in_a_transaction_of_sync_code(self) -> None:
        with transaction.atomic():
            job = async_to_sync(tasks.ship.adelay)(1)
            result = async_to_sync(tasks.confirm.aenqueue)(1)
            self.assertEqual(job.state(), JobState.UNKNOWN)
            with self.assertRaises(TaskResultDoesNotExist):
                tasks.confirm.get_result(result.id)
        self.assertEqual(job.state(), JobState.WAITING)
        self.assertEqual(tasks.confirm.get_result(result.id).status, READY)

    def test_a_result_equals_what_is_stored(self) -> None:
        results = [tasks.confirm.enqueue(1, by="me"), asyncio.run(tasks.confirm.aenqueue(2))]
        with transaction.atomic():
            results.append(tasks.confirm.enqueue(3))
        for result in results:
            self.assertEqual(result, tasks.confirm.get_result(result.id))

    def test_the_result_of_a_duplicate_is_that_of_the_first_job(self) -> None:
        options = {**settings.TASKS["default"]["OPTIONS"], "dedup": "one"}
        with override_settings(TASKS=entry(OPTIONS=options)):
            first = tasks.confirm.enqueue(1)
            self.assertEqual(tasks.confirm.enqueue(1).id, first.id)
            with transaction.atomic():
                second = tasks.confirm.enqueue(1)
                self.assertNotEqual(second.id, first.id)
            self.assertEqual(second.id, first.id)

    def test_results_outlive_the_settings_of_their_queue(self) -> None:
        result = tasks.confirm.using(queue_name="emails").enqueue(1)
        with override_settings(TASKS=entry(QUEUES=["default"])):
            self.assertEqual(tasks.confirm.get_result(result.id).task.queue_name, "emails")
        app.job(result.id).cancel()

    def test_results_belong_to_their_backend(self) -> None:
        result = tasks.look.using(backend="retrying", queue_name="retries").enqueue("x")
        with self.assertRaisesRegex(TaskResultDoesNotExist, "of the backend 'default'"):
            default_task_backend.get_result(result.id)
        self.assertEqual(task_backends["retrying"].get_result(result.id).id, result.id)
        app.job(result.id).cancel()

    def test_enqueue_can_ignore_transactions(self) -> None:
        with transaction.atomic():
            result = tasks.flaky.enqueue(1)
            self.assertIsNotNone(result.enqueued_at)
            self.assertEqual(tasks.flaky.get_result(result.id).status, READY)

    def test_refresh_and_results_that_do_not_exist(self) -> None:
        due = timezone.now() + timedelta(hours=1)
        later = tasks.confirm.using(run_after=due, priority=7, queue_name="emails")
        result = later.enqueue(1, by="me")
        found = tasks.confirm.get_result(result.id)
        self.assertEqual((found.id, found.status, found.attempts), (result.id, READY, 0))
        self.assertEqual((found.args, found.kwargs), ([1], {"by": "me"}))
        self.assertEqual((found.task.priority, found.task.queue_name), (7, "emails"))
        assert found.task.run_after is not None
        self.assertLess(abs(found.task.run_after - due), timedelta(seconds=1))
        self.assertFalse(found.is_finished)
        with self.assertRaises(ValueError):
            _ = found.return_value
        result.refresh()
        asyncio.run(result.arefresh())
        self.assertEqual(result.enqueued_at, found.enqueued_at)
        with self.assertRaises(TaskResultMismatch):
            tasks.fail.get_result(result.id)
        with self.assertRaises(TaskResultMismatch):
            asyncio.run(tasks.fail.aget_result(result.id))
        for wrong in ("", "17", "default:17", "a:b:c", tasks.ship.delay(1).ref):
            with self.assertRaises(TaskResultDoesNotExist):
                default_task_backend.get_result(wrong)
            with self.assertRaises(TaskResultDoesNotExist):
                asyncio.run(default_task_backend.aget_result(wrong))
        app.job(result.id).cancel()

    @override_settings(USE_TZ=False)
    def test_times_are_naive_without_time_zones(self) -> None:
        due = datetime.now() + timedelta(hours=1)  # noqa: DTZ005
        result = tasks.confirm.using(run_after=due).enqueue(1)
        found = tasks.confirm.get_result(result.id)
        assert found.enqueued_at is not None
        assert found.task.run_after is not None
        self.assertTrue(timezone.is_naive(found.enqueued_at))
        self.assertLess(abs(found.task.run_after - due), timedelta(seconds=1))


class Rules(SimpleTestCase):
    """Features of the backend, and arguments that it refuses."""

    def test_flags(self) -> None:
        backend = task_backends["default"]
        self.assertIsInstance(backend, TaskbullBackend)
        flags = ("defer", "async_task", "get_result", "priority")
        self.assertTrue(all(getattr(backend, f"supports_{flag}") for flag in flags))

    def test_invalid_tasks(self) -> None:
        def local() -> None: ...

        for function, options in (
            (local, {}),
            (not_a_task, {"queue_name": "unknown"}),
            (not_a_task, {"priority": 101}),
            (not_a_task, {"priority": -101}),
            (not_a_task, {"priority": 1.5}),
            (wants_context, {"takes_context": True}),
        ):
            with self.assertRaises(InvalidTask):
                make_task(**options)(function)  # type: ignore[arg-type]
        with self.assertRaises(InvalidTask):
            tasks.confirm.using(run_after=datetime(2030, 1, 1))  # noqa: DTZ001

    def test_arguments_that_are_not_json(self) -> None:
        for wrong in (Order(), [Order()], {"order": Order()}):
            with self.assertRaisesRegex(TypeError, r"confirm\(\): argument 0 .*Order.*\(pk\)"):
                tasks.confirm.enqueue(wrong)  # type: ignore[arg-type]
        with self.assertRaisesRegex(TypeError, "argument 'by' .*Order"):
            tasks.confirm.enqueue(1, by=Order())  # type: ignore[arg-type]
        with self.assertRaises(TypeError):
            tasks.confirm.enqueue(object())  # type: ignore[arg-type]

    def test_results_of_recorded_tasks(self) -> None:
        with recorded(task_backends["default"].app) as box:
            results = [tasks.look.enqueue("x"), tasks.fail.enqueue("y")]
            box.run(check=False)
            for result in results:
                self.assertEqual(result.status, READY)
                result.refresh()
                self.assertEqual((result.attempts, len(result.worker_ids)), (1, 1))
                self.assertEqual(result.started_at, result.last_attempted_at)
            done, failed = results
            self.assertEqual((done.status, done.return_value["word"]), ("SUCCESSFUL", "x"))
            self.assertEqual((done.errors, failed.status), ([], "FAILED"))
            self.assertEqual([error.exception_class for error in failed.errors], [tasks.NoStock])

    def test_numbers_as_keys(self) -> None:
        with recorded(task_backends["default"].app) as box:
            result = tasks.count.enqueue({1: 2})
            self.assertEqual(result.args, [{"1": 2}])
            box.run()
            result.refresh()
        self.assertEqual((result.args, result.return_value), ([{"1": 2}], {"7": 2}))

    def test_results_of_inline_tasks(self) -> None:
        options = {**settings.TASKS["default"]["OPTIONS"], "inline": True}
        with override_settings(TASKS=entry(OPTIONS=options)):
            result = tasks.look.enqueue("x")
            result.refresh()
            self.assertEqual(result.return_value["word"], "x")

    def test_higher_priorities_are_more_urgent(self) -> None:
        backend = task_backends["default"]
        with recorded(backend.app) as box:
            for priority in (-100, 0, 100):
                tasks.order_of.using(priority=priority).enqueue("x")
            self.assertEqual([job.options.priority for job in box.jobs], [200, 100, 0])


class Checks(SimpleTestCase):
    """The system checks."""

    def ids(self, *, deploy: bool = False) -> list[str]:
        found = run_checks(tags=["taskbull"], include_deployment_checks=deploy)
        return [str(each.id).removeprefix("taskbull.") for each in found]

    def test_the_project_is_fine(self) -> None:
        self.assertEqual(self.ids(deploy=True), [])

    def test_wrong_settings(self) -> None:
        wrong_url = entry(OPTIONS={"redis": "amqp://localhost"})
        for setting, value, expected in (
            ("TASKS", wrong_url, ["E001"]),
            ("TASKS", entry(OPTIONS={"reddis": "redis://localhost"}), ["E001", "W003"]),
            ("TASKS", entry(QUEUES=["a:b"]), ["E001"]),
            ("TASKS", entry(QUEUES="default"), ["E001"]),
            ("TASKS", entry(QUEUES=None), ["E001"]),
            ("TASKS", entry(OPTIONS=None), ["E001"]),
            ("TASKS", entry(OPTIONS={"redis": settings.REDIS, "name": "shop"}), ["E001"]),
            ("TASKS", {"default": None}, ["E001"]),
            ("TASKS", None, ["E001"]),
            ("TASKS", entry(ENQUEUE_ON_COMMIT="nowhere"), ["E001"]),
            ("TASKS", entry(REDIS="redis://localhost"), ["W002"]),
            ("TASKS", entry(OPTIONS={}), ["W003"]),
            ("TASKBULL_ENQUEUE_ON_COMMIT", "nowhere", ["E004"]),
            ("CELERY_TASK_ALWAYS_EAGER", True, ["W005"]),
        ):
            environment = {"TASKBULL_REDIS_URL": "", "REDIS_URL": ""}
            with override_settings(**{setting: value}), mock.patch.dict(os.environ, environment):
                self.assertEqual(self.ids(), expected, (setting, value))

    def test_requests_in_transactions_without_waiting_for_them(self) -> None:
        atomic = {"default": {**settings.DATABASES["default"], "ATOMIC_REQUESTS": True}}
        with override_settings(DATABASES=atomic):
            self.assertEqual(self.ids(), [])
            with override_settings(TASKBULL_ENQUEUE_ON_COMMIT=False):
                self.assertEqual(self.ids(), ["W004"])


class Commands(SimpleTestCase):
    """`call_command` runs a command in this process."""

    def test_an_error_is_a_command_error(self) -> None:
        with self.assertRaisesRegex(CommandError, "No such command"):
            call_command("taskbull", "nothing")


class Statuses(SimpleTestCase):
    """The status of a job that ends between two reads."""

    def test_a_retried_job_that_has_just_completed(self) -> None:
        fields = {"finished_ms": 2, "failed_reason": "NoStock: 1"}
        completed = Job(id="1", raw_returnvalue=b"null", **fields)
        self.assertEqual(_status(JobState.ACTIVE, completed), "SUCCESSFUL")
        self.assertEqual(_status(JobState.COMPLETED, completed), "SUCCESSFUL")
        self.assertEqual(_status(JobState.ACTIVE, Job(id="1", **fields)), "FAILED")
        self.assertEqual(_status(JobState.FAILED, Job(id="1", **fields)), "FAILED")
        running = Job(id="1", failed_reason="NoStock: 1")
        self.assertEqual(_status(JobState.ACTIVE, running), "RUNNING")
