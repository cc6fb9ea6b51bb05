"""The process pool, seen from the worker: what it starts, feeds, listens to and ends."""
