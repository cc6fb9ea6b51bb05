// What a queue, a stored job, a flow producer or a listener can do.

import {
  connectionFor, flowsFor, keep, kept, library, options, queueEventsFor, queueFor, storedJob,
} from './objects.mjs';
import { describeJob, send } from './wire.mjs';

const QUEUE_METHODS = [
  'pause', 'resume', 'isPaused', 'isMaxed', 'drain', 'clean', 'obliterate', 'remove', 'promoteJobs', 'retryJobs',
  'count', 'getJobCounts', 'getCountsPerPriority', 'getJobState', 'getRanges', 'getJobLogs', 'getWorkers',
  'getWorkersCount', 'getQueueEvents', 'getMetrics', 'getVersion', 'trimEvents', 'addJobLog', 'updateJobProgress',
  'setGlobalConcurrency', 'getGlobalConcurrency', 'removeGlobalConcurrency', 'setGlobalRateLimit',
  'getGlobalRateLimit', 'removeGlobalRateLimit', 'rateLimit', 'getRateLimitTtl', 'removeRateLimitKey',
  'removeDeduplicationKey', 'getDeduplicationJobId', 'removeJobScheduler', 'getJobScheduler', 'getJobSchedulers',
  'getJobSchedulersCount', 'removeOrphanedJobs', 'getDependencies',
];

const JOB_METHODS = [
  'promote', 'changeDelay', 'changePriority', 'retry', 'remove', 'updateProgress', 'updateData', 'log', 'clearLogs',
  'getState', 'getChildrenValues', 'getIgnoredChildrenFailures', 'getFailedChildrenValues', 'getDependencies',
  'getDependenciesCount', 'removeChildDependency', 'removeUnprocessedChildren', 'removeDeduplicationKey',
];

const QUEUE_EVENTS = [
  'active', 'added', 'cleaned', 'completed', 'debounced', 'deduplicated', 'delayed', 'drained', 'duplicated', 'failed',
  'paused', 'progress', 'removed', 'resumed', 'retries-exhausted', 'stalled', 'waiting', 'waiting-children',
];

function queueMethod(name) {
  return async (message, ...args) => {
    const queue = await queueFor(message);
    if (typeof queue[name] !== 'function') {
      throw new Error(`BullMQ ${message.version} has no queue.${name}`);
    }
    return queue[name](...args);
  };
}

function jobMethod(name) {
  return async (message, id, ...args) => (await storedJob(message, id))[name](...args);
}

// A child that was removed is undefined in a flow.
function flowIds(node) {
  return node && { id: node.job.id, children: (node.children ?? []).map(flowIds) };
}

export const queueOps = {
  ...Object.fromEntries(QUEUE_METHODS.map((name) => [name, queueMethod(name)])),
  ...Object.fromEntries(JOB_METHODS.map((name) => [`job.${name}`, jobMethod(name)])),

  async open(message) {
    await queueFor(message);
  },

  // The lines of docs/cancelling.md.
  async cancel(message, id, reason) {
    const queue = await queueFor(message);
    if (await queue.getJob(id)) {
      await connectionFor(message.version).hset(queue.toKey(id), 'defa', `cancelled: ${reason}`);
    }
  },

  async add(message, name, data, opts) {
    return describeJob(await (await queueFor(message)).add(name, data, opts ?? undefined));
  },

  async addBulk(message, jobs) {
    return (await (await queueFor(message)).addBulk(jobs)).map((job) => describeJob(job));
  },

  async addFlow(message, flow, opts) {
    return flowIds(await (await flowsFor(message)).add(flow, opts ?? undefined));
  },

  async addFlows(message, flows) {
    return (await (await flowsFor(message)).addBulk(flows)).map(flowIds);
  },

  async getFlow(message, opts) {
    const node = await (await flowsFor(message)).getFlow(opts);
    return node ? flowIds(node) : null;
  },

  async getJob(message, id) {
    return describeJob(await (await queueFor(message)).getJob(id));
  },

  async getJobs(message, ...args) {
    return (await (await queueFor(message)).getJobs(...args)).map((job) => describeJob(job));
  },

  async upsertJobScheduler(message, ...args) {
    return describeJob(await (await queueFor(message)).upsertJobScheduler(...args));
  },

  // From here on the queue's events come as lines of their own, beginning with the oldest in the stream.
  async listen(message) {
    const { version, queue, prefix } = message;
    const { QueueEvents } = library(version);
    const events = new QueueEvents(queue, options(message, { lastEventId: '0-0' }));
    events.on('error', () => {});
    for (const event of QUEUE_EVENTS) {
      events.on(event, (told) => {
        const fields = typeof told === 'object' ? told : {}; // `drained` tells only its id
        send({ event, source: 'queue', version, queue, prefix, fields });
      });
    }
    keep(message, 'listener', events);
    await events.waitUntilReady();
  },

  async stopListening(message) {
    await (await kept(message, 'listener')).close();
  },

  async waitUntilFinished(message, id, ttl) {
    const job = await storedJob(message, id);
    return job.waitUntilFinished(await queueEventsFor(message), ttl);
  },

  async publishEvent(message, fields, maxEvents) {
    const { QueueEventsProducer } = library(message.version);
    const producer = new QueueEventsProducer(message.queue, options(message));
    await producer.publishEvent(fields, maxEvents);
    await producer.close();
  },
};
