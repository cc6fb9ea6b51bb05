// One drain by a BullMQ worker: node drain_node.mjs PACKAGE URL JOBS CONCURRENCY
import { createRequire } from "node:module";

const [name, url, jobs, concurrency] = process.argv.slice(2);
const require = createRequire(new URL("../tests/interop/package.json", import.meta.url));
const { Worker } = require(name);
const { hostname: host, port } = new URL(url);

const worker = new Worker("drain", async () => ({ ok: true }), {
  connection: { host, port: Number(port), maxRetriesPerRequest: null },
  concurrency: Number(concurrency),
  autorun: false,
});
await worker.waitUntilReady();
let left = Number(jobs);
const done = new Promise((resolve) => {
  worker.on("completed", () => {
    if (--left === 0) resolve();
  });
});
const cpu = process.cpuUsage();
const began = performance.now();
worker.run();
await done;
const seconds = (performance.now() - began) / 1000;
const { user, system } = process.cpuUsage(cpu);
console.log(JSON.stringify({ seconds, cpu_us: (user + system) / Number(jobs) }));
await worker.close();
