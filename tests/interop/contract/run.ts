// Runs what the tests ask for: `node run.js add|worker|echo …`.

import { readFileSync } from "node:fs";
import { close, tasks, worker } from "./bazaar.js";

const [, , what, given] = process.argv;

if (what === "add") {
  await tasks.report.add({ user: 5 });
  await tasks.report.add({ user: 6, day: "x" }, { delay: 100_000, priority: 1 });
  await tasks.plain.add({ text: "a" });
  await tasks.complete.add({ prompt: "a" });
  await tasks.complete.add({ prompt: "b", tenant: "acme", tokens: 7 });
  await tasks.complete.add({ prompt: "c", tenant: null });
  await tasks.complete.add({ prompt: "d", tenant: "acme" }, { group: { id: "beta", cost: 2 } });
  await tasks.complete.add({ prompt: "e", tenant: "acme" }, { group: null });
  await tasks
    .complete.add({ prompt: "f", tenant: "acme" }, { priority: 1 })
    .catch((error: unknown) => console.log(String(error)));
  await tasks.shout.add({ text: "a" }, { headers: { request: "7" } });
  await tasks
    .report.add({ user: 7 }, { delay: 600_000 })
    .catch((error: unknown) => console.log(String(error)));
  await close();
} else if (what === "echo") {
  const everything = JSON.parse(readFileSync(given ?? "", "utf8"));
  const job = await tasks.echo.add({ everything });
  const result = await job.result(30_000);
  const found = await tasks.echo.get(job.id ?? "");
  const sum = await (await tasks.bazaarAddUp.add({ numbers: [1, 2], more: 3 })).result(30_000);
  const none = await (await tasks.ping.add()).result(30_000);
  const vector = await (await tasks.embed.add({ texts: "four" })).result(30_000);
  const size = await (await tasks.grow.add({ name: "a", children: [{ name: "b" }] })).result(30_000);
  const missing = await tasks.echo.get("none");
  console.log(JSON.stringify({ result, id: found?.id === job.id, sum, none, vector, size, missing: missing ?? null }));
  await close();
} else if (what === "late") {
  const made = worker(tasks.sayNothing, async () => {
    void close();
    await tasks.plain.add({ text: "late" });
  });
  await made.waitUntilReady();
  console.log("ready");
} else {
  let failures = 0;
  worker(tasks.shout, async ({ text, times }) => text.toUpperCase().repeat(times ?? 1));
  worker(tasks.fetchTree, async ({ name, at }) => {
    if (failures++ === 0) throw new Error("try again");
    return { name: `${name} at ${at}`, children: [{ name: "branch" }] };
  });
  const made = worker(tasks.sayNothing, async () => {});
  await made.waitUntilReady();
  console.log("ready");
  process.on("SIGTERM", () => void close());
}
