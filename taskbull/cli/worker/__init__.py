"""What `taskbull worker` does: a supervisor and its worker processes."""
