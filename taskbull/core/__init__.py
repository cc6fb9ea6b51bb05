"""Pure logic without I/O or Redis.

Time is an argument. Only `next` and `upcoming` of a schedule rule default to the current time.
"""
