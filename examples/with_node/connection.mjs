// Where Redis is: the same server that Python uses. With the embedded one that is a unix socket in
// this folder, which is there as soon as a Python program has used it.
import { fileURLToPath } from 'node:url'

const socket = fileURLToPath(new URL('.taskbull/valkey.sock', import.meta.url))
const url = process.env.TASKBULL_REDIS_URL

export const connection = url ? { url } : { path: socket }
