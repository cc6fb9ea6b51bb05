// Node adds a job that a Python worker runs: see thumbnails.py.
//
//   node order_thumbnail.mjs

import { Queue, QueueEvents } from 'bullmq'
import { connection } from './connection.mjs'

const queue = new Queue('thumbnails', { connection })
const events = new QueueEvents('thumbnails', { connection })
events.on('progress', ({ jobId, data }) => console.log(`job ${jobId} is at ${data} %`))
await events.waitUntilReady()

const job = await queue.add('make_thumbnail', { path: 'cat.jpg', width: 64 })
console.log('Python made', await job.waitUntilFinished(events))

await events.close()
await queue.close()
