"""Tests beside a real worker: `manage.py test live --testrunner conf.runner.LiveRunner`."""

from __future__ import annotations

import sys
import time
import unittest
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import django
from conf.jobs import app
from django.core.management import call_command
from django.db import connection, transaction
from django.utils import timezone
from shop import tasks
from shop.models import Order

from taskbull import JobFailed

if django.VERSION >= (6,):
    from django.tasks import TaskResultStatus, default_task_backend
else:
    from django_tasks import TaskResultStatus, default_task_backend

LIMIT = 120.0


def wait_for(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + LIMIT
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.05)
    return found


def finished(result: Any) -> Any:
    def is_finished() -> bool:
        result.refresh()
        return bool(result.is_finished)

    wait_for(is_finished)
    return result


def signals_of(result: Any, kind: str) -> list[str]:
    return list(
        Order.objects.filter(state__startswith=f"{kind} {result.id} ").values_list(
            "state", flat=True
        )
    )


class Live(unittest.TestCase):
    """Jobs of the project, run by a worker."""

    maxDiff = None

    def test_a_task_that_succeeds(self) -> None:
        begin = timezone.now() - timedelta(seconds=1)
        order = Order.objects.create()
        result = finished(tasks.confirm.enqueue(order.pk, by="me"))
        self.assertEqual(result.status, TaskResultStatus.SUCCESSFUL)
        self.assertEqual((result.return_value, result.errors), ("confirmed by me", []))
        self.assertEqual((result.attempts, len(result.worker_ids)), (1, 1))
        self.assertTrue(result.worker_ids[0])
        times = [result.enqueued_at, result.started_at, result.finished_at]
        self.assertEqual(times, sorted(times))
        self.assertLess(begin, times[0])
        self.assertEqual(result.last_attempted_at, result.started_at)
        order.refresh_from_db()
        self.assertEqual(order.state, "confirmed by me")
        wait_for(lambda: signals_of(result, "finished"))
        (started,), (ended,) = signals_of(result, "started"), signals_of(result, "finished")
        self.assertTrue(started.endswith(" RUNNING"), started)
        self.assertTrue(ended.endswith(" SUCCESSFUL "), ended)

    def test_a_queue_that_only_calls_name(self) -> None:
        order = Order.objects.create()
        call = tasks.confirm.using(queue_name="without-tasks")
        result = finished(call.enqueue(order.pk, by="me"))
        self.assertEqual(result.return_value, "confirmed by me")

    def test_a_task_that_fails(self) -> None:
        result = finished(tasks.fail.enqueue("empty"))
        self.assertEqual(result.status, TaskResultStatus.FAILED)
        (error,) = result.errors
        self.assertEqual(error.exception_class_path, "shop.tasks.NoStock")
        self.assertIs(error.exception_class, tasks.NoStock)
        self.assertIn("NoStock: empty", error.traceback)
        self.assertIn("shop/tasks.py", error.traceback)
        self.assertEqual(result.attempts, 1)
        with self.assertRaises(ValueError):
            _ = result.return_value
        (ended,) = wait_for(lambda: signals_of(result, "finished"))
        self.assertTrue(ended.endswith(" FAILED shop.tasks.NoStock"), ended)

    def test_errors_of_all_kinds(self) -> None:
        for task, path, message in (
            (tasks.fail_without_utf8, "shop.tasks.NoStock", "\\ud800"),
            (tasks.stop, "shop.tasks.Stop", "second: 2"),
            (tasks.no_json, "taskbull.errors.SerializationError", "nan"),
        ):
            result = finished(task.enqueue())
            (error,) = result.errors
            self.assertEqual(error.exception_class_path, path)
            self.assertTrue(issubclass(error.exception_class, BaseException))
            self.assertIn(message, error.traceback)
            self.assertTrue(error.traceback.endswith("\n"))
            self.assertNotIn("taskbull/django/backend.py", error.traceback)
        for task in (tasks.stop, tasks.leave, tasks.aleave):
            again = task.using(backend="retrying", queue_name="retries")
            result = finished(again.enqueue())
            self.assertEqual((len(result.errors), result.attempts), (3, 3), task.name)

    def test_an_error_whose_class_is_in_another_class(self) -> None:
        result = finished(tasks.confirm.enqueue(0))
        [error] = result.errors
        self.assertEqual(error.exception_class_path, "shop.models.Order.DoesNotExist")
        self.assertIs(error.exception_class, Order.DoesNotExist)
        (ended,) = wait_for(lambda: signals_of(result, "finished"))
        self.assertTrue(ended.endswith(" shop.models.Order.DoesNotExist"), ended)

    def test_a_thread_that_hangs(self) -> None:
        job = app.sync_queue("default").add(
            "shop.tasks.hang", {"args": []}, timeout=0.05, attempts=1
        )
        with self.assertRaises(JobFailed):
            job.result(timeout=LIMIT)
        [error] = default_task_backend.get_result(job.ref).errors
        self.assertIs(error.exception_class, TimeoutError)
        self.assertIn("Its thread is here", error.traceback)

    def test_a_job_of_another_producer(self) -> None:
        job = app.sync_queue("default").add("shop.tasks.look", {"args": ["x"], "attempts": [1]})
        self.assertEqual(job.result(timeout=LIMIT)["id"], job.ref)
        result = default_task_backend.get_result(job.ref)
        self.assertEqual((result.args, result.kwargs, result.status), (["x"], {}, "SUCCESSFUL"))

    def test_a_result_that_is_not_json(self) -> None:
        result = finished(tasks.unserializable.enqueue())
        self.assertEqual(result.status, TaskResultStatus.FAILED)
        self.assertIs(result.errors[0].exception_class, TypeError)

    def test_retries(self) -> None:
        for task in (tasks.flaky, tasks.aflaky):
            result = finished(task.enqueue(3))
            self.assertEqual((result.return_value, result.attempts), (3, 3))
            self.assertEqual(
                [str(e.exception_class_path) for e in result.errors], ["shop.tasks.NoStock"] * 2
            )
            self.assertLess(result.started_at, result.last_attempted_at)
            wait_for(lambda result=result: signals_of(result, "finished"))
            self.assertEqual(len(signals_of(result, "started")), 3)
            self.assertEqual(len(signals_of(result, "finished")), 1)
            failed = finished(task.enqueue(9))
            self.assertEqual((failed.status, failed.attempts), ("FAILED", 3))
            self.assertEqual(len(failed.errors), 3)

    def test_async_tasks_and_queues(self) -> None:
        order = Order.objects.create()
        result = finished(tasks.aconfirm.enqueue(order.pk))
        self.assertEqual((result.status, result.return_value), ("SUCCESSFUL", "confirmed"))
        self.assertEqual(result.task.queue_name, "emails")
        other = finished(tasks.confirm.using(queue_name="emails").enqueue(order.pk))
        self.assertEqual(other.task.queue_name, "emails")
        (ended,) = wait_for(lambda: signals_of(other, "finished"))
        self.assertTrue(ended.endswith(" SUCCESSFUL "), ended)

    def test_another_backend(self) -> None:
        result = tasks.look.using(backend="retrying", queue_name="retries").enqueue("x")
        self.assertEqual(finished(result).return_value["word"], "x")
        self.assertEqual(result.backend, "retrying")

    def test_the_context(self) -> None:
        result = finished(tasks.look.enqueue("hello"))
        self.assertEqual(
            result.return_value,
            {
                "word": "hello",
                "id": result.id,
                "attempt": 1,
                "status": "RUNNING",
                "workers": 1,
                "args": ["hello"],
            },
        )

    def test_run_after(self) -> None:
        due = timezone.now() + timedelta(seconds=0.5)
        result = finished(tasks.confirm.using(run_after=due).enqueue(0))
        self.assertGreater(result.started_at, due - timedelta(milliseconds=2))

    def test_priorities(self) -> None:
        queue = app.sync_queue("default")
        queue.pause()
        words = {"low": -50, "normal": 0, "high": 50, "highest": 100}
        results = [
            tasks.order_of.using(priority=priority).enqueue(word)
            for word, priority in words.items()
        ]
        queue.resume()
        began = {finished(result).args[0]: result.started_at for result in results}
        self.assertEqual(
            sorted(began, key=lambda word: (began[word], -words[word])),
            ["highest", "high", "normal", "low"],
        )

    def test_a_job_that_is_cancelled_before_it_starts(self) -> None:
        due = timezone.now() + timedelta(hours=1)
        result = tasks.confirm.using(run_after=due).enqueue(0)
        app.job(result.id).cancel()
        result.refresh()
        self.assertEqual((result.status, result.attempts), ("FAILED", 0))
        self.assertTrue(result.errors[0].exception_class)

    def test_removed_results_do_not_exist(self) -> None:
        result = finished(tasks.look.enqueue("x"))
        self.assertEqual(default_task_backend.get_result(result.id).id, result.id)
        call_command("taskbull", "remove", "default", result.id.partition(":")[2], "--yes")
        with self.assertRaisesRegex(Exception, "does not exist|not exist|found"):
            result.refresh()

    def test_a_job_of_another_program_imports_nothing(self) -> None:
        queue = app.sync_queue("default")
        foreign = queue.add("this.s", {"args": [], "kwargs": {}}, delay=3600)
        with self.assertRaisesRegex(Exception, "'this.s' is not imported"):
            default_task_backend.get_result(foreign.ref)
        attempts = [5, {"error": "this.s", "traceback": "", "started_ms": "soon"}]
        data = {"args": ["x"], "kwargs": {}, "attempts": attempts}
        odd = queue.add(tasks.look.module_path, data, delay=3600)
        [error] = default_task_backend.get_result(odd.ref).errors
        self.assertIs(error.exception_class, JobFailed)
        self.assertNotIn("this", sys.modules)

    def test_tasks_of_an_app_after_a_commit(self) -> None:
        for task in (tasks.ship, tasks.aship):
            with transaction.atomic():
                order = Order.objects.create()
                job = task.delay(order.pk)
            self.assertEqual(job.result(timeout=LIMIT), "shipped")
            order.refresh_from_db()
            self.assertEqual(order.state, "shipped")

    def test_connections_are_closed_after_each_job(self) -> None:
        for _ in range(3):
            self.assertFalse(tasks.is_connected.delay().result(timeout=LIMIT))

    def test_connections_of_async_jobs_are_closed(self) -> None:
        if connection.vendor != "postgresql":
            self.skipTest("only a server counts its connections")
        jobs = [tasks.aship.delay(Order.objects.create().pk) for _ in range(20)]
        for job in jobs:
            job.result(timeout=LIMIT)

        def others() -> int:
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT count(*) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
                return int(cursor.fetchone()[0])

        wait_for(lambda: others() == 0)
