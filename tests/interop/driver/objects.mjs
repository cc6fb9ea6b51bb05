// Everything that lives in this process: one connection per library, queues, workers, taken jobs.

import IORedis from 'ioredis';
import * as bullmq5 from 'bullmq5';
import * as bullmq6 from 'bullmq6';

import { makeTelemetry } from './telemetry.mjs';

const LIBRARIES = { 5: bullmq5, 6: bullmq6 };

const url = process.argv[2];
const connections = new Map();
const objects = new Map();
const takenJobs = new Map();

export function library(version) {
  const found = LIBRARIES[version];
  if (!found) {
    throw new Error(`no BullMQ version ${version} here`);
  }
  return found;
}

export function connectionFor(version) {
  if (!connections.has(version)) {
    connections.set(version, new IORedis(url, { maxRetriesPerRequest: null }));
  }
  return connections.get(version);
}

const address = (message, ...rest) => JSON.stringify([message.prefix, message.version, message.queue, ...rest]);

async function once(key, make) {
  if (!objects.has(key)) {
    objects.set(key, make());
  }
  return objects.get(key);
}

// Options of a queue or a worker; {telemetry: true} becomes the real thing.
export function options(message, own = {}) {
  const telemetry = own?.telemetry ? makeTelemetry() : undefined;
  return { connection: connectionFor(message.version), prefix: message.prefix, ...own, telemetry };
}

export function queueFor(message) {
  return once(address(message, 'queue', message.queueOptions), async () => {
    const { Queue } = library(message.version);
    const queue = new Queue(message.queue, options(message, message.queueOptions));
    queue.on('error', () => {});
    await queue.waitUntilReady();
    await queue.getVersion(); // the constructor's own write of `meta` is on its way: this comes after it
    return queue;
  });
}

export function flowsFor(message) {
  return once(address({ ...message, queue: null }, 'flows'), async () => {
    const { FlowProducer } = library(message.version);
    const flows = new FlowProducer(options(message));
    flows.on('error', () => {});
    return flows;
  });
}

export function workerFor(message) {
  return once(address(message, 'worker', message.worker), async () => {
    const { Worker } = library(message.version);
    const own = { ...message.worker, autorun: false };
    const worker = new Worker(message.queue, null, options(message, own));
    worker.on('error', () => {});
    await worker.waitUntilReady();
    return worker;
  });
}

export function queueEventsFor(message) {
  return once(address(message, 'events'), async () => {
    const { QueueEvents } = library(message.version);
    const events = new QueueEvents(message.queue, options(message, { lastEventId: '0-0' }));
    events.on('error', () => {});
    await events.waitUntilReady();
    return events;
  });
}

export function keep(message, name, object) {
  objects.set(address(message, 'named', name), Promise.resolve(object));
}

export function kept(message, name) {
  return objects.get(address(message, 'named', name));
}

const takenKey = (message, id, token) => address(message, 'taken', id, token);

export function rememberTaken(message, job, token) {
  if (job) {
    takenJobs.set(takenKey(message, job.id, token), job);
  }
  return job;
}

// The job as this process took it; as it stands in Redis, if it was taken by somebody since;
// or else an empty one with this id.
export async function takenJob(message, id, token) {
  const { Job } = library(message.version);
  const worker = await workerFor(message);
  const known = takenJobs.get(takenKey(message, id, token));
  const stored = await Job.fromId(worker, id);
  if (known && (!stored || stored.attemptsStarted === known.attemptsStarted)) {
    return known;
  }
  return stored ?? new Job(worker, 'missing', {}, {}, id);
}

export async function storedJob(message, id) {
  const { Job } = library(message.version);
  const queue = await queueFor(message);
  return (await Job.fromId(queue, id)) ?? new Job(queue, 'missing', {}, {}, id);
}

async function closeWhere(matches) {
  const closing = [];
  for (const [key, object] of objects) {
    if (matches(JSON.parse(key)[0])) {
      objects.delete(key);
      closing.push(object.then((it) => it.close(true)).catch(() => {}));
    }
  }
  for (const key of takenJobs.keys()) {
    if (matches(JSON.parse(key)[0])) {
      takenJobs.delete(key);
    }
  }
  await Promise.all(closing);
}

export function forget(message) {
  return closeWhere((prefix) => prefix === message.prefix);
}

export async function closeAll() {
  await closeWhere(() => true);
  for (const connection of connections.values()) {
    connection.disconnect();
  }
}
