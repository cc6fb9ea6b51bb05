"""A process of the pool, seen from inside: it imports the app, and calls functions of its tasks."""
