"""What a job in a process asks of its worker, which alone has Redis and the lock."""

from __future__ import annotations

from typing import Any

from taskbull.core.failure import reason_of
from taskbull.errors import PermanentError, TaskbullError, WaitForChildren
from taskbull.worker.pool.faults import pack_fault
from taskbull.worker.pool.messages import Ask, Fault, Question, Reply
from taskbull.worker.run import JobPort, Run
from taskbull.worker.running_job import RunningJob, port_of, run_of


async def perform(ask: Ask, job: RunningJob) -> Reply:
    """Do what a job asks for; what goes wrong is part of the answer."""
    port = port_of(job)
    try:
        return Reply(ask.number, await _perform(ask, port, run_of(job)))
    except (WaitForChildren, PermanentError) as error:
        return Reply(ask.number, fault=Fault(type(error).__name__, str(error)))
    except TaskbullError as error:
        return Reply(ask.number, fault=pack_fault(error, of_redis=port.caused(error)))
    except Exception as error:  # noqa: BLE001 - the job is told, whatever it is
        return Reply(ask.number, fault=Fault(TaskbullError.__name__, reason_of(error)))


async def _perform(ask: Ask, port: JobPort, run: Run) -> Any:
    argument = ask.argument
    match ask.question:
        case Question.PROGRESS:
            await port.aprogress(argument)
            run.raw_progress = argument
        case Question.LOG:
            await port.alog(argument.decode())
        case Question.UPDATE_DATA:
            await port.aupdate_data(argument)
        case Question.CHILD_RESULTS:
            return await port.achild_results(argument.decode())
        case Question.CHILD_RESULTS_SO_FAR:
            return await port.achild_results_so_far(argument.decode())
        case Question.CHILD_FAILURES:
            failures = await port.achild_failures()
            return [[queue, job_id, reason] for (queue, job_id), reason in failures.items()]
        case Question.DROP_CHILDREN:
            return await port.adrop_children()
    return None
