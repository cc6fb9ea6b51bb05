// Follow a job from Node: node follow.mjs <job id>   (npm install ioredis)

import { Redis } from "ioredis";

const [jobId] = process.argv.slice(2);
const redis = new Redis(process.env.TASKBULL_REDIS_URL ?? "redis://localhost:6379");
const stream = `bull:chat:${jobId}:tb:items`;

let last = "0-0";
let isOver = false;
while (!isOver) {
  const reply = await redis.xread("COUNT", 100, "BLOCK", 5000, "STREAMS", stream, last);
  for (const [id, fields] of reply?.[0][1] ?? []) {
    last = id;
    if (fields[0] === "item") {
      process.stdout.write(JSON.parse(fields[1]));
    } else if (fields[1] === "restart") {
      console.log("\n(the job was restarted)");
    } else {
      console.log(`\n(${fields[3]})`); // "completed" or "failed"
      isOver = true;
    }
  }
}
redis.disconnect();
