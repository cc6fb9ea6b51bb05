"""Queues: add jobs, wait for results and manage jobs."""
