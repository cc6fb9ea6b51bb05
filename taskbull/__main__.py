"""Run the command line with `python -m taskbull`."""

from taskbull.cli import main

main()
