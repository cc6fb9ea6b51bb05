"""Apps, tasks and the jobs that tasks add."""
