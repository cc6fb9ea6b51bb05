"""BullMQ's storage format: short names, camelCase, milliseconds and JSON.

Only this package knows these names. `backoff` and `options` define those in a job's `opts`, and
`job` reads and writes whole jobs. Keep this file free of imports to avoid import cycles.
"""
