// A Node worker that runs jobs which Python adds: see ask_node.py.
//
//   node translate_worker.mjs

import { Worker } from 'bullmq'
import { connection } from './connection.mjs'

const GERMAN = { hello: 'hallo', world: 'Welt' }

const worker = new Worker(
  'translations',
  async job => {
    const { words } = job.data
    await job.updateProgress(50)
    return words.map(word => GERMAN[word] ?? word)
  },
  { connection },
)
worker.on('completed', job => console.log(`job ${job.id} (${job.name}) is done`))

for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, () => worker.close())
