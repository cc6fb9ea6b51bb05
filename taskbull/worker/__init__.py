"""Run jobs: the worker and its parts."""
