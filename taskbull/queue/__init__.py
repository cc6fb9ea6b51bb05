"""Producing jobs and administering queues."""
