"""Read-only views of queues, jobs and workers, for the CLI and the dashboard."""
