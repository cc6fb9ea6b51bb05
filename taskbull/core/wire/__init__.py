"""The format as BullMQ writes it: short names, camelCase, milliseconds, JSON. Only here.

`backoff` and `options` hold the names that stand in a job's `opts`; `job` reads and writes the
whole job. Nothing is imported here, so that each of them can be imported by what the others need.
"""
