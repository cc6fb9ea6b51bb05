// BullMQ itself among the actors: a producer or a worker, with the same kinds of jobs and ledger.
//
// Usage: node node.mjs producer|worker <where, as JSON> <folder> <who> <name> <5|6> <jobs per second>
// where: {"host", "port"}, {"sentinels", "name"} or {"nodes"}; a queue in a cluster has a hash tag.

import { openSync, readdirSync, readlinkSync, writeSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

const [role, place, folder, who, name, version, rate] = process.argv.slice(2);
const where = JSON.parse(place);
const require = createRequire(new URL('../interop/package.json', import.meta.url));
const IORedis = require('ioredis');
const {
  DelayedError, FlowProducer, Queue, UnrecoverableError, WaitingChildrenError, Worker,
} = require(`bullmq${version}`);

const PREFIX = 'nemesis';
const MAIN = 'common';
const LINES = 5;
const GROWN = 3;
const LOCK = 3000;

const file = openSync(join(folder, `${who}.jsonl`), 'a');
function note(type, fields) {
  writeSync(file, `${JSON.stringify({ type, at: Date.now() / 1000, who, ...fields })}\n`);
}

function connect() {
  // Without a time limit ioredis waits for ever at a link whose other end has vanished.
  // Without `reconnectOnError` it stays connected to a master that has become a replica. 2 means
  // that it sends the refused command again.
  const patient = {
    maxRetriesPerRequest: null,
    retryStrategy: () => 100,
    socketTimeout: 4000,
    reconnectOnError: (error) => error.message.startsWith('READONLY') && 2,
  };
  if (where.nodes) {
    return new IORedis.Cluster(where.nodes, {
      redisOptions: patient, clusterRetryStrategy: () => 100, slotsRefreshInterval: 1000,
    });
  }
  return new IORedis({ ...where, ...patient, sentinelRetryStrategy: () => 100 });
}

const tagged = (queue) => (where.nodes ? `{${queue}}` : queue);

function options() {
  const connection = connect();
  connection.on('error', () => {});
  // A Queue writes this into the meta hash, whatever is there.
  return { connection, prefix: PREFIX, streams: { events: { maxLen: 10_000_000 } } };
}

function openQueue(queue) {
  const opened = new Queue(tagged(queue), options());
  opened.on('error', () => {});
  return opened;
}

// --- the worker

const runName = (job) => `${job.data.intent}/${job.attemptsStarted}`;
const isFirst = (job) => job.attemptsMade === 0;

function fail(job) {
  throw new Error(runName(job));
}

function flaky(job) {
  return isFirst(job) ? fail(job) : runName(job);
}

async function chatty(job) {
  for (let line = 0; line < LINES; line += 1) {
    try {
      await job.updateProgress(line);
      await job.log(`${runName(job)} ${line}`);
    } catch {
      // Whatever the network does to it, the job goes on.
    }
  }
  return runName(job);
}

const BEHAVIOURS = {
  flaky,
  flaky_at_once: flaky,
  grouped_flaky: flaky,
  flaky_thread: flaky,
  delayed_flaky: flaky,
  prioritized_flaky: flaky,
  retry_later: flaky,
  exhausted: fail,
  forgotten_failure: fail,
  permanent: (job) => { throw new UnrecoverableError(runName(job)); },
  flow_bad_child: (job) => { throw new UnrecoverableError(runName(job)); },
  late: async (job) => { await sleep(isFirst(job) ? 300 : 0); return flaky(job); },
  snoozed: async (job, token) => {
    if (job.attemptsStarted === 1) {
      await job.moveToDelayed(Date.now() + 100, token);
      throw new DelayedError();
    }
    return runName(job);
  },
  limited: async (job, _token, worker) => {
    if (job.attemptsStarted === 1) {
      await worker.rateLimit(100);
      throw Worker.RateLimitError();
    }
    return runName(job);
  },
  family_bad_child: (job) => { throw new UnrecoverableError(runName(job)); },
  family: async (job) => [runName(job), ...await childResults(job)],
  growing: async (job, token) => {
    const results = await childResults(job);
    if (results.length === GROWN) {
      return [runName(job), ...results];
    }
    for (let number = 0; number < GROWN; number += 1) {
      const intent = `${job.data.intent}-${number}`;
      note('Intent', { intent, kind: 'family_child', queue: MAIN, parent: job.data.intent });
      const parent = { id: job.id, queue: job.queueQualifiedName };
      await insistently(() => spawner.add('family_child', { intent }, { jobId: intent, parent, failParentOnFailure: true }));
      note('Answer', { intent, said: 'added', job: intent });
    }
    if (await insistently(() => job.moveToWaitingChildren(token))) {
      throw new WaitingChildrenError();
    }
    return [runName(job), ...await childResults(job)];
  },
  big: (job) => [runName(job), job.data.filling],
  chatty,
  chatty_thread: chatty,
  slow: async (job) => { await sleep(4000); return runName(job); },
  blocking: (job) => {
    const end = Date.now() + 200;
    while (Date.now() < end);
    return runName(job);
  },
  spawning: async (job) => {
    const intent = `${job.data.intent}-child`;
    note('Intent', { intent, kind: 'spawned', queue: MAIN });
    for (;;) {
      try {
        const child = await spawner.add('spawned', { intent }, { jobId: intent });
        note('Answer', { intent, said: 'added', job: child.id });
        return runName(job);
      } catch {
        await sleep(100); // so that no attempt is spent on what is done to Redis
      }
    }
  },
};

let spawner;

async function insistently(ask) {
  for (;;) {
    try {
      return await ask();
    } catch {
      await sleep(100); // so that no attempt is spent on what is done to Redis
    }
  }
}

async function childResults(job) {
  return Object.values(await insistently(() => job.getChildrenValues()));
}

function sockets() {
  const links = readdirSync('/proc/self/fd').map((fd) => {
    try {
      return readlinkSync(`/proc/self/fd/${fd}`);
    } catch {
      return '';
    }
  });
  return links.filter((link) => link.startsWith('socket:')).length;
}

function probe(job) {
  note('Vitals', {
    threads: 1,
    sockets: sockets(),
    memory: process.memoryUsage().rss,
    late: Math.max(0, Date.now() / 1000 - job.data.added),
  });
}

function openWorker(queue) {
  async function run(job, token) {
    if (job.name === 'probe') {
      return probe(job);
    }
    note('Run', {
      queue, job: job.id, kind: job.name, intent: job.data.intent, number: job.attemptsStarted,
    });
    const behaviour = BEHAVIOURS[job.name] ?? runName;
    return behaviour(job, token, worker);
  }
  const worker = new Worker(tagged(queue), run, {
    ...options(),
    name: who,
    concurrency: 10,
    lockDuration: LOCK,
    lockRenewTime: LOCK / 4,
    stalledInterval: 1000,
    maxStalledCount: 1000,
    drainDelay: 1,
  });
  worker.on('error', (error) => console.error(new Date().toISOString(), queue, error.message));
  return worker;
}

async function work() {
  spawner = openQueue(MAIN);
  const workers = [MAIN, 'limited', `probe-${name}`].map(openWorker);
  await Promise.all(workers.map((worker) => worker.waitUntilReady()));
  process.on('SIGTERM', async () => {
    await Promise.all(workers.map((worker) => worker.close()));
    process.exit(0);
  });
}

// --- the producer: ioredis sends again what was unanswered, so every job has an id of its own, and is kept

const SOON = { type: 'fixed', delay: 50 };
const ORDERS = [
  () => ['plain', {}],
  () => ['plain', {}],
  () => ['flaky', { attempts: 5, backoff: SOON }],
  () => ['exhausted', { attempts: 3, backoff: SOON }],
  () => ['permanent', { attempts: 5 }],
  () => ['delayed', { delay: 100 + Math.floor(Math.random() * 1000) }],
  () => ['prioritized', { priority: 1 + Math.floor(Math.random() * 5) }],
  () => ['lifo', { lifo: true }],
];
const FLOWS = [
  ['flow_parent', [['flow_child', {}], ['flow_child', {}]]],
  ['flow_parent', [['flow_child', {}], ['flow_bad_child', { ignoreDependencyOnFailure: true }]]],
  ['flow_failing_parent', [['flow_bad_child', { failParentOnFailure: true }]]],
];

let stopping = false;

async function acknowledged(intents, action) {
  for (const { intent, kind, delay, parent } of intents) {
    note('Intent', { intent, kind, queue: MAIN, delay: (delay ?? 0) / 1000, parent: parent ?? '' });
  }
  try {
    await action();
    intents.forEach(({ intent }) => note('Answer', { intent, said: 'added', job: intent }));
  } catch (error) {
    intents.forEach(({ intent }) => note('Answer', { intent, said: 'maybe', error: error.message }));
  }
}

async function addJobs(queue, lane) {
  for (let number = 1; !stopping; number += 1) {
    await sleep(4000 / rate);
    const intent = `${who}-${lane}-${number}`;
    const [kind, opts] = ORDERS[Math.floor(Math.random() * ORDERS.length)]();
    const add = () => queue.add(kind, { intent }, { ...opts, jobId: intent });
    await acknowledged([{ intent, kind, delay: opts.delay }], add);
  }
}

async function addFlows(flows) {
  for (let number = 1; !stopping; number += 1) {
    await sleep(8000 / rate);
    const intent = `${who}-flow-${number}`;
    const [kind, children] = FLOWS[number % FLOWS.length];
    const node = (own, itsKind, opts) => ({
      name: itsKind, queueName: tagged(MAIN), data: { intent: own }, opts: { ...opts, jobId: own },
    });
    const tree = {
      ...node(intent, kind, {}),
      children: children.map(([child, opts], place) => node(`${intent}-${place}`, child, opts)),
    };
    const intents = [
      { intent, kind },
      ...children.map(([child], place) => ({ intent: `${intent}-${place}`, kind: child, parent: intent })),
    ];
    await acknowledged(intents, () => flows.add(tree));
  }
}

async function produce() {
  const queue = openQueue(MAIN);
  const flows = new FlowProducer(options());
  flows.on('error', () => {});
  note('Intent', { intent: 'tick', kind: 'tick', queue: MAIN });
  if (who === `${name}.1`) { // to upsert it again would replace a run that is delayed
    await queue.upsertJobScheduler('tick', { every: 500 }, { name: 'tick', data: { intent: 'tick' } });
  }
  const lanes = [0, 1, 2].map((lane) => addJobs(queue, lane));
  process.stdin.on('end', async () => {
    stopping = true;
    await Promise.all(lanes);
    await queue.removeJobScheduler('tick');
    process.exit(0);
  });
  lanes.push(addFlows(flows));
}

process.stdin.resume();
if (role === 'worker') {
  process.stdin.on('end', () => process.exit(1)); // whoever started it is gone
}
await (role === 'worker' ? work() : produce());
console.log('running');
