// A worker driven by hand, one step per call, and workers that run by themselves.

import { makeError, makeProcessor, release } from './behaviour.mjs';
import { keep, kept, library, options, rememberTaken, takenJob, workerFor } from './objects.mjs';
import { describeError, describeJob, send } from './wire.mjs';

// What finishing with fetchNext brought: the next job, remembered like one that was taken.
async function nextOf(message, reply, token) {
  if (!Array.isArray(reply) || !reply[0]) {
    return null;
  }
  const worker = await workerFor(message);
  const job = await worker.nextJobFromJobData(reply[0], reply[1], token);
  return describeJob(rememberTaken(message, job, token));
}

function toError(message, error) {
  const { UnrecoverableError } = library(message.version);
  return error.name === 'UnrecoverableError' ? new UnrecoverableError(error.message) : makeError(error);
}

const handOps = {
  async take(message, token) {
    const worker = await workerFor(message);
    const job = await worker.getNextJob(token, { block: false });
    return describeJob(rememberTaken(message, job, token));
  },

  async complete(message, id, value, token, fetchNext = false) {
    const job = await takenJob(message, id, token);
    return nextOf(message, await job.moveToCompleted(value, token, fetchNext), token);
  },

  async fail(message, id, error, token, fetchNext = false) {
    const job = await takenJob(message, id, token);
    return nextOf(message, await job.moveToFailed(toError(message, error), token, fetchNext), token);
  },

  async moveToDelayed(message, id, timestamp, token) {
    await (await takenJob(message, id, token)).moveToDelayed(timestamp, token);
  },

  async moveToWait(message, id, token) {
    return (await takenJob(message, id, token)).moveToWait(token);
  },

  async moveToWaitingChildren(message, id, token, opts) {
    return (await takenJob(message, id, token)).moveToWaitingChildren(token, opts ?? undefined);
  },

  async extendLock(message, id, token, duration) {
    return (await takenJob(message, id, token)).extendLock(token, duration);
  },

  // Do with a taken job all that a running worker does: call the processor, then finish, retry or fail.
  async process(message, id, behaviour, token) {
    const { Worker } = library(message.version);
    const job = await takenJob(message, id, token);
    const errors = [];
    const outcome = { state: 'moved' };
    const processor = makeProcessor(message.version, behaviour, () => worker);
    const own = { ...message.worker, autorun: false };
    const worker = new Worker(message.queue, processor, options(message, own));
    worker.on('error', (error) => errors.push(describeError(error)));
    worker.on('completed', () => Object.assign(outcome, { state: 'completed' }));
    worker.on('failed', (_job, error) => Object.assign(outcome, { state: 'failed', reason: error.message }));
    try {
      await worker.waitUntilReady();
      await worker.processJob(job, token, () => false, new Set());
    } finally {
      await worker.close(true);
    }
    return { ...outcome, errors };
  },

  async sweep(message) {
    const worker = await workerFor(message);
    const stalled = [];
    const note = (id) => stalled.push(id);
    worker.on('stalled', note);
    await worker.moveStalledJobsToWait();
    worker.off('stalled', note);
    return stalled;
  },

  async workerRateLimit(message, ms) {
    await (await workerFor(message)).rateLimit(ms);
  },
};

const WORKER_EVENTS = {
  active: (job) => ({ jobId: job.id, token: job.token }),
  completed: (job, result) => ({ jobId: job.id, result }),
  failed: (job, error) => ({ jobId: job?.id, error: describeError(error) }),
  progress: (job, progress) => ({ jobId: job.id, progress }),
  stalled: (jobId) => ({ jobId }),
  drained: () => ({}),
  error: (error) => ({ error: describeError(error) }),
};

const runningOps = {
  async startWorker(message, name, behaviour) {
    const { Worker } = library(message.version);
    const processor = makeProcessor(message.version, behaviour, () => worker);
    const worker = new Worker(message.queue, processor, options(message, message.worker));
    for (const [event, describe] of Object.entries(WORKER_EVENTS)) {
      worker.on(event, (...args) => {
        const { version, queue, prefix } = message;
        send({ event, source: `worker:${name}`, version, queue, prefix, fields: describe(...args) });
      });
    }
    keep(message, name, worker);
    await worker.waitUntilReady();
  },

  async stopWorker(message, name, force = false) {
    await (await kept(message, name)).close(force);
  },

  async pauseWorker(message, name) {
    await (await kept(message, name)).pause(true);
  },

  async resumeWorker(message, name) {
    await (await kept(message, name)).resume();
  },

  release: (_message, jobId, value) => release(jobId, value),
};

export const workerOps = { ...handOps, ...runningOps };
