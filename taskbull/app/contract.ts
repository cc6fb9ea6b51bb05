// Made by `taskbull contract` from the tasks of app "__APP__". Run it again instead of editing this file.
// It needs BullMQ 5 or 6. Values are as in JSON: a datetime is an ISO string, bytes are base64.

import * as bullmq from "bullmq";

// __TYPES__
/** Options of a job: those of BullMQ, and those that taskbull adds. All times are in milliseconds. */
export type TaskOptions = bullmq.JobsOptions & {
  /** Time limit of one attempt. */
  timeout?: number;
  /** Time until the job must have started. It fails later. */
  expires?: number;
  headers?: Record<string, string>;
  /** Group of the job and its cost in the group's limiter. Null means no group. */
  group?: JobGroup | null;
};

export interface JobGroup {
  id: string;
  cost?: number;
}

/** A job of BullMQ that also waits for its typed result. */
export type TaskJob<Data, Result> = bullmq.Job<Data, Result> & {
  /** Wait for the result. Rejects if the job fails, or after a time limit in milliseconds. */
  result(timeout?: number): Promise<Result>;
};

type Arguments<Data, Extra> = {} extends Extra
  ? {} extends Data
    ? [data?: Data, options?: TaskOptions]
    : [data: Data, options?: TaskOptions]
  : [data: Data, options: TaskOptions & Extra];

/** A task whose jobs a taskbull worker runs. */
export interface Task<Data, Result, Extra = {}> {
  readonly name: string;
  readonly queue: string;
  readonly remote: boolean;
  /** Only for type checkers. */
  readonly types?: { data: Data; result: Result };
  /** Add a job. The options replace those that the task declares in Python. */
  add(...args: Arguments<Data, Extra>): Promise<TaskJob<Data, Result>>;
  /** Return an existing job by its id. */
  get(id: string): Promise<TaskJob<Data, Result> | undefined>;
}

/** A task that taskbull declares with `@app.remote`, whose jobs a worker of this program runs. */
export interface RemoteTask<Data, Result, Extra = {}> extends Task<Data, Result, Extra> {
  readonly remote: true;
}

export interface Settings {
  connection: bullmq.ConnectionOptions;
  prefix: string;
  /** Whether keys have the queue's name in braces. With null, they do in a Redis Cluster only. */
  hashTag: boolean | null;
}

function group(id: string | number | null, cost = 1): JobGroup | null {
  if (id === null) return null;
  return cost === 1 ? { id: String(id) } : { id: String(id), cost };
}

const place: Omit<Settings, "connection"> = "__PLACE__";
const environment =
  (globalThis as { process?: { env?: Record<string, string | undefined> } }).process?.env ?? {};
const url = environment["TASKBULL_REDIS_URL"] ?? environment["REDIS_URL"] ?? "redis://127.0.0.1:6379";
let settings: Settings = { connection: { url }, ...place };

/** Set the Redis connection. The default is $TASKBULL_REDIS_URL, then $REDIS_URL, then localhost. */
export function configure(given: Partial<Settings>): void {
  if (queues.size + events.size + workers.size > 0) {
    throw new Error("configure() must be called before the first job is added");
  }
  settings = { ...settings, ...given };
}

/** Close all connections, after the running jobs of the workers have ended. */
export async function close(): Promise<void> {
  const running = [...workers.values()];
  workers.clear();
  await Promise.all(running.map(({ worker }) => worker.close()));
  // Their jobs may have opened these until now.
  const open = [...events.values(), ...queues.values()];
  for (const each of [events, queues]) each.clear();
  await Promise.all(open.map((each) => each.close()));
}

type Handler = (data: any, job: bullmq.Job) => Promise<unknown>;

const queues = new Map<string, bullmq.Queue>();
const events = new Map<string, bullmq.QueueEvents>();
const workers = new Map<string, { worker: bullmq.Worker; handlers: Map<string, Handler> }>();

function options(): { connection: bullmq.ConnectionOptions; prefix: string } {
  return { connection: settings.connection, prefix: settings.prefix };
}

function queueName(queue: string): string {
  const isCluster = (settings.connection as { isCluster?: boolean }).isCluster === true;
  const isHashed = /^[^{]*\{[^}]+\}/.test(`${settings.prefix}:${queue}:`);
  return (settings.hashTag ?? isCluster) && !isHashed ? `{${queue}}` : queue;
}

// The types of BullMQ's classes match each other only with @types/node, which newer versions of
// TypeScript do not load by default.
function cast<T>(value: unknown): T {
  return value as T;
}

function queueOf(queue: string): bullmq.Queue {
  const known = queues.get(queue) ?? cast<bullmq.Queue>(new bullmq.Queue(queueName(queue), options()));
  queues.set(queue, known);
  return known;
}

function eventsOf(queue: string): bullmq.QueueEvents {
  const known =
    events.get(queue) ?? cast<bullmq.QueueEvents>(new bullmq.QueueEvents(queueName(queue), options()));
  events.set(queue, known);
  return known;
}

interface Definition<Data> {
  queue: string;
  options: object;
  dedup?: (data: Data) => bullmq.DeduplicationOptions;
  group?: (data: Data) => JobGroup | null;
}

function define<Data, Result>(name: string, made: Definition<Data>, remote: boolean) {
  const follow = (job: bullmq.Job): TaskJob<Data, Result> =>
    Object.assign(job, {
      result: (timeout?: number): Promise<Result> =>
        job.waitUntilFinished(cast<any>(eventsOf(made.queue)), timeout),
    });
  return {
    name,
    queue: made.queue,
    remote,
    async add(data: Data = {} as Data, given: TaskOptions = {}) {
      const merged: TaskOptions = { ...made.options, ...given };
      if (made.dedup !== undefined && !("deduplication" in given)) {
        merged.deduplication = made.dedup(data);
      }
      if (made.group !== undefined && !("group" in given)) merged.group = made.group(data);
      if (!merged.group) delete merged.group;
      else if (merged.priority) {
        throw new RangeError("group and priority cannot be used together");
      }
      if (merged.expires !== undefined && merged.delay) {
        merged.expires -= merged.delay;
        if (merged.expires <= 0) {
          throw new RangeError("expires must be later than delay: the job could never run");
        }
      }
      return follow(await queueOf(made.queue).add(name, data, merged));
    },
    async get(id: string) {
      const job = await queueOf(made.queue).getJob(id);
      return job ? follow(job) : undefined;
    },
  };
}

function local<Data, Result, Extra = {}>(
  name: string,
  made: Definition<Data>,
): Task<Data, Result, Extra> {
  return define<Data, Result>(name, made, false) as unknown as Task<Data, Result, Extra>;
}

function remote<Data, Result, Extra = {}>(
  name: string,
  made: Definition<Data>,
): RemoteTask<Data, Result, Extra> {
  return define<Data, Result>(name, made, true) as unknown as RemoteTask<Data, Result, Extra>;
}

type Types<T extends Task<any, any, any>> = NonNullable<T["types"]>;
type Returned<Result> = null extends Result ? Result | void : Result;

/**
 * Run the jobs of a remote task in this program.
 *
 * Tasks of the same queue share one worker. Its options are those of the first call. The worker
 * delays jobs of other tasks without spending an attempt.
 */
export function worker<T extends RemoteTask<any, any, any>>(
  task: T,
  // Without NoInfer, a tuple in the handler's result would be taken for an array.
  handler: NoInfer<
    (
      data: Types<T>["data"],
      job: bullmq.Job<Types<T>["data"], Types<T>["result"]>,
    ) => Promise<Returned<Types<T>["result"]>>
  >,
  given?: Partial<bullmq.WorkerOptions>,
): bullmq.Worker {
  if (!task.remote) {
    throw new Error(`Task ${task.name} is run by taskbull: only remote tasks can have a worker`);
  }
  const known = workers.get(task.queue);
  if (known !== undefined) {
    if (known.handlers.has(task.name)) throw new Error(`Task ${task.name} already has a worker`);
    if (given !== undefined) {
      throw new Error(`Queue ${task.queue} already has a worker, so pass its options to that one`);
    }
    known.handlers.set(task.name, handler);
    return known.worker;
  }
  const handlers = new Map<string, Handler>([[task.name, handler]]);
  const run = async (job: bullmq.Job, token?: string) => {
    const handle = handlers.get(job.name);
    if (handle === undefined) {
      await job.moveToDelayed(Date.now() + 10_000, token);
      throw new bullmq.DelayedError();
    }
    return handle(job.data, job);
  };
  const made = cast<bullmq.Worker>(
    new bullmq.Worker(queueName(task.queue), run, { ...options(), ...given }),
  );
  workers.set(task.queue, { worker: made, handlers });
  made.on("closed", () => {
    if (workers.get(task.queue)?.worker === made) workers.delete(task.queue);
  });
  return made;
}

/** All tasks of the app. */
export const tasks = "__TASKS__";
