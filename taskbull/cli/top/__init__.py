"""`taskbull top`: all queues, live in a terminal."""
