// A processor described by data: {<job name> or "*": [steps of the 1st attempt, of the 2nd, ...]}.
// The last list serves all further attempts. A step is [what, argument]; the first that ends the
// job (return, throw, ...) is the last; a list without one returns undefined.

import { library } from './objects.mjs';

const held = new Map();

export function release(jobId, value) {
  const resolve = held.get(jobId);
  if (!resolve) {
    return false;
  }
  held.delete(jobId);
  resolve(value);
  return true;
}

function makeError({ name, message, stack }) {
  const error = new Error(message);
  if (name) {
    error.name = name;
  }
  if (stack !== undefined) {
    error.stack = stack;
  }
  return error;
}

const STEPS = {
  progress: ({ job }, value) => job.updateProgress(value),
  log: ({ job }, row) => job.log(row),
  data: ({ job }, value) => job.updateData(value),
  wait: ({ job }) => new Promise((resolve) => held.set(job.id, resolve)),
  throw: (_context, error) => {
    throw makeError(error);
  },
  throwValue: (_context, value) => {
    throw value;
  },
  unrecoverable: ({ lib }, message) => {
    throw new lib.UnrecoverableError(message);
  },
  delay: async ({ job, token, lib }, ms) => {
    await job.moveToDelayed(Date.now() + ms, token);
    throw new lib.DelayedError();
  },
  moveToWait: async ({ job, token, lib }) => {
    await job.moveToWait(token);
    throw new lib.WaitingError();
  },
  waitForChildren: async ({ job, token, lib }) => {
    if (await job.moveToWaitingChildren(token)) {
      throw new lib.WaitingChildrenError();
    }
  },
  rateLimit: async ({ worker, lib }, ms) => {
    await worker.rateLimit(ms);
    throw lib.Worker.RateLimitError();
  },
};

export function makeProcessor(version, behaviour, getWorker) {
  const lib = library(version);
  return async (job, token) => {
    const attempts = behaviour[job.name] ?? behaviour['*'] ?? [[]];
    const steps = attempts[Math.min(job.attemptsStarted, attempts.length) - 1] ?? [];
    const context = { job, token, lib, worker: getWorker() };
    for (const [what, argument] of steps) {
      if (what === 'return') {
        return argument;
      }
      if (!STEPS[what]) {
        throw new Error(`no such step: ${what}`);
      }
      const value = await STEPS[what](context, argument);
      if (what === 'wait' && value !== undefined) {
        return value;
      }
    }
    return undefined;
  };
}

export { makeError };
