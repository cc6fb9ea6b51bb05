// Real BullMQ at the other end of a pipe: a JSON request per line in, a JSON answer per line out.
//
//   {"id": 1, "version": 5, "op": "add", "prefix": "bull", "queue": "q", "args": ["name", {}]}
//   {"id": 1, "result": ...}   or   {"id": 1, "error": {"name": ..., "message": ..., "code": ...}}
//
// Lines without an id are events of workers and listeners. Requests run at the same time; whoever
// wants an order waits for the answers. The process ends when its input does.
// Usage: node driver.mjs <redis URL>

import { createInterface } from 'node:readline';

import { clockOps } from './driver/clock.mjs';
import { decode, describeError, send } from './driver/wire.mjs';

// After the clock, which has to be there before BullMQ is.
const { closeAll, forget } = await import('./driver/objects.mjs');
const { cronOps } = await import('./driver/cron.mjs');
const { queueOps } = await import('./driver/queue_ops.mjs');
const { spans } = await import('./driver/telemetry.mjs');
const { workerOps } = await import('./driver/worker_ops.mjs');

const ops = {
  ...queueOps,
  ...cronOps,
  ...workerOps,
  ...Object.fromEntries(Object.entries(clockOps).map(([name, op]) => [name, (_message, ...args) => op(...args)])),
  forget,
  spans,
  ping: () => 'pong',
  crash(_message, words) {
    console.error(words);
    process.exit(1);
  },
};

async function answer(line) {
  const message = JSON.parse(line);
  try {
    const op = ops[message.op];
    if (!op) {
      throw new Error(`no such op: ${message.op}`);
    }
    const result = await op(message, ...(message.args ?? []).map(decode));
    send({ id: message.id, result: result ?? null });
  } catch (error) {
    send({ id: message.id, error: describeError(error) });
  }
}

process.on('unhandledRejection', (error) => console.error('unhandled:', error));

const lines = createInterface({ input: process.stdin });
lines.on('line', answer);
lines.on('close', async () => {
  const giveUp = setTimeout(() => process.exit(0), 2000);
  giveUp.unref();
  await closeAll();
  process.exit(0);
});
send({ event: 'ready', source: 'driver', fields: {} });
