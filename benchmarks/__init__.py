"""How fast, next to what else there is: `python -m benchmarks --help`."""
