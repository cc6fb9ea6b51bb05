// Where Redis is: the same server that Python uses. With the embedded one that is a unix socket,
// which is there as soon as a Python program has used it.
const url = process.env.TASKBULL_REDIS_URL

export const connection = url ? { url } : { path: '.taskbull/valkey.sock' }
