"""The worker's side of the process pool: starting, feeding, monitoring and stopping processes."""
