"""The command line, as `python -m taskbull`."""

from taskbull.cli import main

main()
