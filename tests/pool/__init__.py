"""The process pool: real processes, which hang, crash, fork and flood."""
