// What tsc must accept and, after @ts-expect-error, what it must reject. Never run.

import { type Everything, type EverythingOutput, type ShoutData, tasks, worker } from "./bazaar.js";

export async function accepted(everything: Everything): Promise<EverythingOutput> {
  const job = await tasks.echo.add({ everything }, { delay: 5, headers: { a: "b" }, timeout: 10 });
  const sum: number = await (await tasks.bazaarAddUp.add({ numbers: [1], b: 2 })).result(1000);
  await tasks.ping.add();
  await tasks.ping.add({}, { attempts: sum });
  await tasks.embed.add({ texts: "a" });
  await tasks.grow.add({ name: "oak", children: [{ name: "branch" }] });
  await tasks.byFunction.add({ text: "a" }, { deduplication: { id: "a" } });
  const data: ShoutData = { text: "a" };
  await tasks.shout.add(data);
  worker(tasks.shout, async (given) => given.text.repeat(given.times ?? 1), { concurrency: 2 });
  worker(tasks.fetchTree, async ({ name, at }, given) => ({ name: name + at, children: [], id: given.id }));
  worker(tasks.outline, async ({ colors }) => ({ all: colors.map((color) => [color, 1]), more: [["red", 1]] }));
  worker(tasks.sayNothing, async () => {});
  await tasks.complete.add({ prompt: "a" }, { group: { id: "acme" } });
  await tasks.byLetter.add({ text: "a" }, { group: null });
  return job.result();
}

export async function rejected(): Promise<void> {
  // @ts-expect-error a required parameter is missing
  await tasks.report.add({});
  // @ts-expect-error as well
  await tasks.report.add();
  // @ts-expect-error an unknown parameter
  await tasks.report.add({ user: 1, usr: 2 });
  // @ts-expect-error a wrong type
  await tasks.report.add({ user: "1" });
  // @ts-expect-error a wrong option
  await tasks.report.add({ user: 1 }, { attempts: "5" });
  // @ts-expect-error no such task
  await tasks.reports.add({ user: 1 });
  // @ts-expect-error no parameters
  await tasks.ping.add({ user: 1 });
  // @ts-expect-error only Python can compute the key
  await tasks.byFunction.add({ text: "a" });
  // @ts-expect-error only Python can compute the group
  await tasks.byLetter.add({ text: "a" });
  // @ts-expect-error a wrong group
  await tasks.complete.add({ prompt: "a" }, { group: { name: "acme" } });
  // @ts-expect-error a wrong color
  worker(tasks.outline, async () => ({ all: [["green", 1]] }));
  // @ts-expect-error the result is a string
  const text: number = await (await tasks.report.add({ user: 1 })).result();
  // @ts-expect-error the result is a string
  worker(tasks.shout, async (data) => data.text.length);
  // @ts-expect-error a required field of the result is missing
  worker(tasks.fetchTree, async () => ({ children: [] }));
  // @ts-expect-error an optional parameter
  worker(tasks.shout, async (data) => data.text.repeat(data.times));
  // @ts-expect-error Python runs this task
  worker(tasks.report, async () => "done");
  console.log(text);
}
