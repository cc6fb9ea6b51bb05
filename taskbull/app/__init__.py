"""Tasks: functions whose calls are jobs."""
