// The twin of __main__.py and producing.py for Node: node main.mjs ADAPTER worker | WAY JSON
import { openSync, writeSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const given = JSON.parse(process.env.BENCHMARK);
const [name, way, json] = process.argv.slice(2);
const require = createRequire(join(process.env.BENCHMARK_MODULES, "package.json"));
const now = () => process.hrtime.bigint();
const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

// Node cannot map a file: times gather here and are written every 2 ms, slots in a row together.
// Only those: others are another process's.
const file = openSync(given.ticks, "r+");
const ticks = Buffer.alloc(given.slots * 8);
let fresh = [];
const flush = () => {
  fresh.sort((a, b) => a - b);
  for (let from = 0, to = 1; from < fresh.length; from = to++) {
    while (to < fresh.length && fresh[to] <= fresh[to - 1] + 1) to++;
    const [first, last] = [fresh[from], fresh[to - 1]];
    writeSync(file, ticks, first * 8, (last - first + 1) * 8, first * 8);
  }
  fresh = [];
};
const body = (index) => {
  if (index >= 0 && index < given.slots) {
    if (!fresh.length) setTimeout(flush, 2);
    ticks.writeBigInt64LE(now(), index * 8);
    fresh.push(index);
  }
  return { ok: true };
};

const data = (i, size = 78) => ({ i, pad: "x".repeat(size) });
const end = (seconds) => now() + BigInt(Math.round(seconds * 1e9));

const ways = {
  async one_by_one(producer, { count, seconds, size }) {
    let done = 0;
    for (const limit = end(seconds); done < count && now() < limit; done++) {
      await producer.add(data(done, size));
    }
    return { count: done };
  },
  async from_tasks(producer, { count, seconds, tasks = 100 }) {
    let done = 0;
    const limit = end(seconds);
    const some = async () => {
      while (done < count && now() < limit) await producer.add(data(done++));
    };
    await Promise.all(Array.from({ length: tasks }, some));
    return { count: done };
  },
  async in_bulk(producer, { count, seconds = 600, chunk = 1000, size, first = 0, due_in, ...more }) {
    let done = 0;
    const moment = Number(now()) / 1e9 + (due_in ?? 0);
    for (const limit = end(seconds); done < count && now() < limit; ) {
      const last = Math.min(count, done + chunk);
      const datas = [];
      for (let i = done; i < last; i++) datas.push(data(first + i, size));
      if (due_in !== undefined) more.delay = Math.max(0, moment - Number(now()) / 1e9);
      await producer.addMany(datas, more);
      done = last;
    }
    return { count: done, moment };
  },
  async in_flows(producer, { count, seconds = 600, children = 1000 }) {
    let done = 0;
    for (const limit = end(seconds); done < count && now() < limit; ) {
      const last = done + children;
      const datas = [];
      for (let i = done; i < last; i++) datas.push(data(i));
      await producer.addFlow(data(last), datas);
      done = last + 1;
    }
    return { count: done };
  },
  async paced(producer, { count, gap, first = 0, ...more }) {
    for (let i = 0; i < 20; i++) await producer.add(data(-1));
    await sleep(0.3);
    const added = [];
    for (let i = 0; i < count; i++) {
      const began = now();
      await producer.add(data(first + i), more);
      added.push(Number(began));
      await sleep(Math.max(0, gap - Number(now() - began) / 1e9));
    }
    return { count, added };
  },
  async round_trips(producer, { count, seconds }) {
    const took = [];
    for (let i = 0; i < Math.min(count, 10); i++) {
      await producer.wait(await producer.add(data(-1)));
    }
    for (const limit = end(seconds); took.length < count && now() < limit; ) {
      const began = now();
      await producer.wait(await producer.add(data(took.length)));
      took.push(Number(now() - began));
    }
    return { count: took.length, took };
  },
};

const { default: adapter } = await import(`./${name}.mjs`);
const { Producer, worker } = adapter(require("bullmq"), given, body);
if (way === "worker") {
  worker(given.at_once);
} else {
  const producer = new Producer();
  await producer.open();
  const { warm = way === "one_by_one" || way === "from_tasks" ? 100 : 0, ...how } = JSON.parse(json);
  for (let i = 0; i < warm; i++) await producer.add(data(-1));
  const cpu = process.cpuUsage();
  const began = now();
  const figures = await ways[way](producer, how);
  const seconds = Number(now() - began) / 1e9;
  const { user, system } = process.cpuUsage(cpu);
  const all = { ...figures, seconds, cpu: (user + system) / 1e6, warm };
  process.stdout.write(JSON.stringify(all) + "\n", () => process.exit(0));
}
